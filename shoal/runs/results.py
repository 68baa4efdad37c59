"""Figures of runs and searches: dicts as result.json and study.json have them. They show themselves
in notebooks, and in one line on a terminal.
"""

import shlex
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from shoal import how_to_install
from shoal.config.yaml_io import inline as on_one_line
from shoal.pages import html as look

MOST_TRIALS = 10  # the best of a search


class RunResult(dict[str, Any]):
    """The content of result.json, and `folder`.

    >>> RunResult({"model": "BPR", "dataset": "ml-100k", "test": {"recall@10": 0.25}})
    RunResult(BPR on ml-100k: recall@10 0.2500)
    """

    def __repr__(self) -> str:
        about = f"{self.get('model')} on {self.get('dataset')}: {on_a_line(self.get('test') or {})}"
        return f"RunResult({about}{_place(self)})"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        return look.inline(self.title(), self.table(), _soft(self.get("folder")))

    def title(self) -> str:
        """The model, the data and how long it trained."""
        title = f"{self.get('model')} on {self.get('dataset')}"
        if "epochs" in self:
            title += f": {self['epochs']} epochs"
        if self.get("best_epoch") is not None:
            title += f", best after epoch {self['best_epoch']}"
        return title

    def table(self) -> look.Html:
        """Metrics of both parts."""
        valid, test = self.get("best_valid") or {}, self.get("test") or {}
        if not (valid or test):
            return look.Html("<p>not evaluated</p>")
        base = self.get("base") or {}
        columns = {"valid": valid, "test": test, **({base_name(base): base} if base else {})}
        rows = [(name, *(one.get(name) for one in columns.values())) for name in {**valid, **test}]
        return look.table(("metric", *columns), rows)


class NotCopied(ValueError):
    """A run is finished, and checkpoints of it did not reach `checkpoint.copy_to`.

    result: what the run ended with, as result.json has it.
    """

    def __init__(self, result: dict[str, Any]):
        self.result = result
        copies, folder = result["not_copied"], str(result["folder"])
        names = ", ".join(copies["checkpoints"])
        command = ("shoal", "train", "--resume", folder, f"--checkpoint.copy_to={copies['to']}")
        super().__init__(
            f"checkpoints did not arrive at {copies['to']}: {names} ({copies['why']}). Training "
            f"is finished: its results and checkpoints are in {folder}. When the place can be "
            f"written, this copies what is missing: {shlex.join(command)}"
        )


def check_copied(result: dict[str, Any]) -> dict[str, Any]:
    """The result of a run; NotCopied where checkpoints did not reach `checkpoint.copy_to`."""
    if result.get("not_copied"):
        raise NotCopied(result)
    return result


def base_name(base: Mapping[str, float]) -> str:
    """The baseline of a model: for clicks always the same chance, else the same popular items.

    >>> base_name({"clicks": 0.25, "auc": 0.5}), base_name({"ndcg@10": 0.1})
    ('always 0.2500', 'popular items')
    """
    return f"always {base['clicks']:.4f}" if "clicks" in base else "popular items"


class StudyResult(dict[str, Any]):
    """The content of study.json of a search."""

    def __repr__(self) -> str:
        best = self["best"]
        about = "no trial has ended well" if best is None else on_one_line(best["params"])
        where = f"{self['model']} on {self['dataset']}, {len(self['trials'])} trials"
        return f"StudyResult({where}: {about}{_place(self)})"

    def _repr_html_(self) -> str:
        """The best trial and the next ones, as tables for notebooks."""
        metric, best = self["metric"], self["best"]
        title = f"Search: {self['model']} on {self['dataset']}, {len(self['trials'])} trials"
        if best is None:
            return look.inline(title, look.Html("<p>No trial has ended well.</p>"))
        params = [(key, on_one_line(value)) for key, value in best["params"].items()]
        parts = {"best_valid": best["valid"], "test": best["test"]}
        sign = -1.0 if self["maximized"] else 1.0
        done = [trial for trial in self["trials"] if trial["state"] == "finished"]
        done = sorted(done, key=lambda trial: sign * trial["value"])[:MOST_TRIALS]
        keys = list(best["params"])
        rows = []
        for trial in done:
            values = [on_one_line(trial["params"].get(key)) for key in keys]
            rows.append((str(trial["trial"]), trial["value"], *values))
        best_tables = look.grid(look.table(("key", "best"), params), RunResult(parts).table())
        trial_table = look.table(("trial", metric, *keys), rows)
        return look.inline(title, best_tables, trial_table, _soft(self.get("folder")))


def on_a_line(metrics: Mapping[str, float]) -> str:
    """The first metrics: `recall@10 0.2500, mrr@10 0.4100, ...`"""
    shown = [f"{name} {value:.4f}" for name, value in list(metrics.items())[:3]]
    return ", ".join(shown + ["..."] * (len(metrics) > 3)) or "not evaluated"


def curve(curves: Mapping[str, Sequence[float | None]]) -> look.Html:
    """Loss and the first metric by epoch, where there are epochs; a plot needs matplotlib."""
    epochs = list(curves.get("epoch", ()))
    lines = [name for name in curves if name != "epoch"][:2]
    if len(epochs) < 2 or not lines:
        return look.Html("")
    if find_spec("matplotlib") is None:
        return _soft(f"a curve of training needs matplotlib: {how_to_install('report')}")
    from shoal.pages.plots import SERIES, SOFT, figure

    def draw(axes: Any) -> None:
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        for k, (name, side) in enumerate(zip(lines, (axes, axes.twinx()))):
            points = [(epoch, y) for epoch, y in zip(epochs, curves[name]) if y is not None]
            if points:
                side.plot(*zip(*points), "o-", markersize=3, color=SERIES[k])
            side.set_ylabel(name, color=SERIES[k])
            side.tick_params(axis="y", colors=SOFT)
            side.grid(k == 0)

    return figure(draw, f"{' and '.join(lines)} by epoch", 4.6, 2.3)


def _place(result: Mapping[str, Any]) -> str:
    return f"; {result['folder']}" if result.get("folder") else ""


def _soft(text: Any) -> look.Html:
    return look.Html(f'<p class="soft">{look.escape(text)}</p>' if text else "")
