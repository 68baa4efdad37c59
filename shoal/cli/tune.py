"""Commands that search: `shoal tune`, `shoal sweep`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.arguments import QUIET, TRUST, resolve_args, split_arguments, take_data
from shoal.cli.startup import DATA_SPACE, importing

if TYPE_CHECKING:
    from shoal.config import Resolved
    from shoal.config.launch_section import RunSection


def tune(
    context: typer.Context,
    space: Annotated[
        str | None,
        typer.Option(
            help="File of what is searched, YAML or RecBole's form; else the model's own."
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(min=1, help="Trials of the whole search. Default: 30; resumed: as before."),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Stop after so many minutes; --resume continues.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trials at once, also on one GPU.")] = 1,
    sampler: Annotated[
        str | None, typer.Option(help="How trials are chosen: tpe, random or grid.")
    ] = None,
    prune: Annotated[
        str | None, typer.Option(help="Stop hopeless trials: pace, halving or none.")
    ] = None,
    finalists: Annotated[
        int, typer.Option(min=1, help="With --seeds: how many of the best trials get them.")
    ] = 3,
    seeds: Annotated[
        int, typer.Option(min=1, help="Train finalists with so many seeds; their mean decides.")
    ] = 1,
    launch: Annotated[
        str | None,
        typer.Option(help="Command that starts a trial on a cluster: 'srun --gpus=1'."),
    ] = None,
    output: Annotated[str | None, typer.Option(help="Folder of the search.")] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue the search in --output (or the folder given)."),
    ] = False,
    quiet: Annotated[bool, QUIET] = False,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Search for the best hyper-parameters of a model, by validation alone.

    shoal tune CONFIG.yaml --space space.yaml --trials 30 writes best.yaml for `shoal train`.
    """
    with importing(needed=DATA_SPACE):
        from shoal.config.trust import names_code
        from shoal.experiments.tuning.tune import need_optuna

        need_optuna()
        from shoal.experiments.tuning.search import SearchLimits, search

    resolved, output = _resolve_search(context.args, resume, output, trust)
    limits = SearchLimits(
        trials=trials,
        minutes=minutes,
        jobs=jobs,
        finalists=finalists,
        seeds=seeds,
        launch=launch,
    )
    run = resolved.config.run
    if quiet:  # of this command: trials, and the config that is written, keep their own
        run = run.model_copy(update={"log_level": "warning"})
    report = _print_nothing if run.is_quiet else typer.echo
    study = search(
        resolved,
        space=space,
        output=output,
        resume=resume,
        sampler=sampler,
        prune=prune,
        limits=limits,
        report=report,
        trust=trust,
    )
    _print_study(study, run, " --trust" * names_code(resolved.config))


def _resolve_search(
    args: list[str], resume: bool, output: str | None, trust: bool
) -> "tuple[Resolved, str | None]":
    """The config of a search, new or continued, and its folder."""
    from shoal.runs.run import resolve

    files, overrides = split_arguments(args)
    names_search = resume and len(files) == 1 and not Path(files[0]).is_file()
    if names_search:
        output, files = output or files[0], []
    is_begun = output is not None and (Path(output) / "space.yaml").is_file()
    if names_search and not is_begun:
        raise typer.BadParameter(f"{output} holds no search to continue: it has no space.yaml")
    if resume and output is None:
        raise typer.BadParameter("--resume needs the folder of the search: --output DIR")
    if resume and is_begun and not files:
        file = Path(str(output)) / "config.yaml"
        resolved = resolve([file], overrides, folder=output, trust=trust)
    else:
        resolved = resolve_args(args, trust=trust)
    return resolved, output


def _print_nothing(line: str) -> None:
    """Progress report of a quiet command."""


def _print_study(study: dict[str, Any], run: "RunSection", trust: str) -> None:
    """The best trial, what it is worth, and what to type next."""
    from shoal.cli.exit import print_result

    folder, best = study["folder"], study["best"]
    done = sum(one["state"] != "not finished" for one in study["trials"])
    if best is None:
        typer.echo(f"no trial has ended well yet ({done} tried)")
    else:
        names = ("model", "dataset")
        result = {**{name: study[name] for name in names}, "best_valid": best["valid"]}
        print_result({**result, "test": best["test"]}, run)
        seeds = f", mean of {best['seeds']} seeds" if best["seeds"] > 1 else ""
        typer.echo(f"trial {best['trial']} is the best of {done} by {study['metric']}{seeds}")
        typer.echo(f"train it: shoal train {folder}/best.yaml{trust}")
        typer.echo(f"look at the search: {folder}/report.html")
    if not study["finished"]:
        typer.echo(f"the time is over; continue with: shoal tune --resume {folder}{trust}")


def sweep(
    context: typer.Context,
    models: Annotated[
        str | None, typer.Option(help="Names or config files, with commas: BPR,EASE,best.yaml.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Names or paths of data, with commas.")] = None,
    seeds: Annotated[str, typer.Option(help="How many seeds, or which: 3, or 1,2,3.")] = "3",
    grid: Annotated[
        str | None, typer.Option(help="YAML file with lists of models, data and seeds.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at once.")] = 1,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Stop after so many minutes; --output continues.")
    ] = None,
    launch: Annotated[
        str | None, typer.Option(help="Command that starts a run on a cluster: 'srun --gpus=1'.")
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="Folder of the sweep; finished runs there are not repeated.")
    ] = None,
    quiet: Annotated[bool, QUIET] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Train models × data × seeds; means, intervals and paired tests.

    shoal sweep CONFIG.yaml --models BPR,LightGCN --data ml-100k --seeds 3
    """
    with importing(needed=DATA_SPACE):
        from shoal.experiments.tuning.study_folder import StudyLimits
        from shoal.experiments.tuning.sweep import sweep as run_sweep
        from shoal.experiments.tuning.sweep_grid import make_grid, plan_cells, read_grid
        from shoal.training.run_folder import RunFolder

    grid_values: dict[str, Any] = {"models": models, "data": data, "seeds": seeds}
    if grid is not None:
        if models is not None or data is not None:
            raise typer.BadParameter(f"--grid {grid} names models and data; leave the others out")
        grid_values |= read_grid(grid)
    files, overrides = split_arguments(context.args)
    files, data_file = take_data(files)
    if data_file is not None:
        if grid_values["data"] is not None:
            raise typer.BadParameter(
                f"{data_file} and the other data ({grid_values['data']}) both name data; "
                "leave one out"
            )
        grid_values["data"] = [data_file]
    cells = plan_cells(make_grid(**grid_values), files, overrides, trust)
    report = (lambda line: typer.echo(line, err=True)) if as_json else typer.echo
    report = _print_nothing if quiet else report
    folder = output or RunFolder.new_name("sweeps", "sweep")
    comparison = run_sweep(
        Path(folder),
        cells,
        StudyLimits(jobs=jobs, minutes=minutes, launch=launch),
        report=report,
        trust=trust,
    )
    if as_json:
        return typer.echo(json.dumps(comparison, indent=2))
    _print_sweep(comparison)


def _print_sweep(sweep_report: dict[str, Any]) -> None:
    """A table for every data set; a star marks the model that validation chose."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    for data_set in sweep_report["data"]:
        if not data_set["metrics"]:
            reason = data_set.get("no_test")
            text = f"no metric in common: {reason}" if reason else "no run has ended well yet"
            typer.echo(f"{data_set['data']}: {text}")
            continue
        metrics, protocols = data_set["metrics"], data_set["protocols"]
        names = list(next(iter(metrics.values())))
        is_one = len({protocols[name] for name in names}) == 1
        title = f"test, {data_set['data']}" + (f": {protocols[names[0]]}" if is_one else "")
        heads = ["model", *([] if is_one else ["protocol"]), *metrics]
        table = Table(*heads, box=SIMPLE, title=title)
        for model in names:
            star = " *" if model == data_set["best"] else ""
            protocol = [] if is_one else [protocols[model] or "–"]
            cells = [_shown(metric[model]) for metric in metrics.values()]
            table.add_row(model + star, *protocol, *cells)
        Console(width=10_000).print(table)
        over = {row["over"] for metric in metrics.values() for row in metric.values()}
        intervals = f"Intervals: 95 %, over {' or '.join(sorted(over))}."
        if data_set["no_test"] is not None:
            typer.echo(f"no test: {data_set['no_test']}. {intervals}")
            continue
        typer.echo(
            f"* best by {data_set['decided_by']} on validation. {intervals} p: paired against *, "
            "corrected by Holm."
        )
    typer.echo(f"sweep: {sweep_report['folder']}/sweep.json")
    if not sweep_report["finished"]:
        typer.echo(
            f"the time is over; the same command with --output {sweep_report['folder']} continues"
        )


def _shown(row: dict[str, Any]) -> str:
    text = f"{row['mean']:.4f}"
    if row["low"] is not None:
        text += f" [{row['low']:.4f}, {row['high']:.4f}]"
    return text + (f" p={row['p']:.3g}" if row.get("p") is not None else "")
