"""A search as a page: its course, what each key did, and every trial."""

from typing import Any

from shoal.config.yaml_io import inline
from shoal.pages.html import Html, Numeral, escape, facts, grid, page, section, table
from shoal.pages.plots import SERIES, SOFT, figure

MOST_CURVES = 200  # more trials than so many are one grey mass


def study_page(study: dict[str, Any]) -> str:
    """The page of what study.json holds."""
    metric, best, trials = study["metric"], study["best"], study["trials"]
    done = [trial for trial in trials if trial["state"] == "finished"]
    count = {
        state: sum(trial["state"] == state for trial in trials) for state in ("stopped", "failed")
    }
    figures: dict[str, Any] = {"trials": len(trials), **{k: v for k, v in count.items() if v}}
    if best is not None:
        figures[f"best {metric}, validation"] = f"{best['valid'][metric]:.4f}"
        if trials[0]["state"] == "finished":
            figures[f"{metric} of the first trial"] = f"{trials[0]['value']:.4f}"
        figures[f"test {metric} of the best"] = f"{best['test'].get(metric, float('nan')):.4f}"
    parts: list[Any] = [facts(figures)]
    if best is None:
        parts.append(section("The best", "No trial has ended well yet."))
    else:
        rows = [(key, inline(value)) for key, value in best["params"].items()]
        seeds = f" (the mean of {best['seeds']} seeds)" if best["seeds"] > 1 else ""
        parts.append(
            section(
                f"Trial {best['trial']} is the best",
                f"Chosen by {metric} on the valid split alone{seeds}; best.yaml is its config.",
                grid(table(("key", "value"), rows), _metrics(best)),
            )
        )
    if done:
        parts.append(_course(study, done))
    parts.append(_keys(study, done))
    heads = ("trial", "state", metric, "epochs", *trials[0]["params"]) if trials else ()
    heads += ("why",) if any(trial["problem"] for trial in trials) else ()
    parts.append(section("Trials", "", table(heads, _trial_rows(study, len(heads)))))
    return page(f"Search: {study['model']} on {study['dataset']}", *parts)


def _metrics(best: dict[str, Any]) -> Html:
    rows = [(name, best["valid"].get(name), value) for name, value in best["test"].items()]
    return table(("metric", "validation", "test"), rows)


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return Numeral(escape(inline(value)))  # as it was tried, to the last digit
    return value if isinstance(value, int) else inline(value)


def _trial_rows(study: dict[str, Any], width: int) -> list[tuple[Any, ...]]:
    """A row for each trial, cut to as many columns as the table has; the best trial is bold."""
    best, trials = study["best"], study["trials"]
    rows = []
    for trial in trials:
        number = trial["trial"]
        is_best = best and number == best["trial"]
        epochs = trial["epochs"] or len(trial["curve"]) or None
        values = [_cell(trial["params"].get(key)) for key in trials[0]["params"]]
        label = Html(f"<b>{number}</b>") if is_best else number
        row = (label, trial["state"], trial["value"], epochs, *values, trial["problem"] or "")
        rows.append(row[:width])
    return rows


def _course(study: dict[str, Any], done: list[dict[str, Any]]) -> Html:
    metric, sign = study["metric"], 1.0 if study["maximized"] else -1.0

    def history(axes: Any) -> None:
        best: list[float] = []
        for trial in done:
            best.append(max([*best[-1:], trial["value"]], key=lambda value: sign * value))
        numbers = [trial["trial"] for trial in done]
        axes.plot(numbers, [trial["value"] for trial in done], "o", color=SERIES[0], label="trial")
        axes.step(numbers, best, where="post", color=SERIES[1], label="best so far")
        axes.set_xlabel("trial")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_ylabel(metric)
        axes.legend(loc="best")

    def curves(axes: Any) -> None:
        chosen = study["best"]["trial"]
        shown = [trial for trial in study["trials"] if trial["curve"]][-MOST_CURVES:]
        for trial in sorted(shown, key=lambda trial: trial["trial"] == chosen):
            epochs, values = zip(*trial["curve"])
            is_best = trial["trial"] == chosen
            colour, width = (SERIES[1], 2.0) if is_best else (SOFT, 0.7)
            style = ":" if trial["state"] == "stopped" else "-"
            name = f"trial {chosen}" if is_best else None
            axes.plot(epochs, values, style, color=colour, linewidth=width, label=name)
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_ylabel(metric)
        axes.legend(loc="best")

    return section(
        "Course",
        "Left: each trial that trained to its end, and the best so far. Right: validation curves; "
        "dotted ones were stopped early.",
        _drawn((history, f"{metric} by trial"), (curves, f"{metric} by epoch of every trial")),
    )


def _keys(study: dict[str, Any], done: list[dict[str, Any]]) -> Html:
    """What the metric was for every value of each key."""
    metric, importance = study["metric"], study["importance"]
    if len(done) < 2:
        return section("Keys", "With two finished trials or more, what each key did stands here.")
    keys = sorted(done[0]["params"], key=lambda key: -importance.get(key, 0.0))

    def plot(key: str) -> Any:
        def draw(axes: Any) -> None:
            shown = sorted(done, key=lambda trial: inline(trial["params"][key]))
            values = [trial["params"][key] for trial in shown]
            low = min((v for v in values if isinstance(v, int | float)), default=0)
            numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
            if not numbers:
                values = [inline(v) for v in values]
            elif low > 0 and max(values) / low >= 20:
                axes.set_xscale("log")
                axes.xaxis.set_major_formatter("{x:g}")
                axes.xaxis.set_minor_formatter("")
            axes.plot(values, [trial["value"] for trial in shown], "o", color=SERIES[0], alpha=0.8)
            share = f", importance {importance[key]:.0%}" if key in importance else ""
            axes.set_xlabel(key + share)
            axes.set_ylabel(metric)

        return draw

    text = "Each point is a finished trial."
    if importance:
        text += " Importance: the share of a key in what tells good trials from others."
    return section("Keys", text, _drawn(*((plot(key), f"{metric} by {key}") for key in keys)))


def _drawn(*plots: tuple[Any, str]) -> Html:
    """Plots side by side; a line where the library for them is missing."""
    try:
        return grid(*(figure(draw, label) for draw, label in plots))
    except ValueError as error:
        return Html(f'<p class="soft">{escape(error)}</p>')
