"""Commands that search: `shoal tune`, `shoal sweep`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.command.arguments import TRUST, resolve_words, split_arguments
from shoal.command.startup import importing


def tune(
    context: typer.Context,
    space: Annotated[
        str | None,
        typer.Option(help="What is searched, YAML or RecBole's form; else the model's own."),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Trials of the whole search.")] = 30,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Stop after so many; --resume continues.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trials at once, also on one GPU.")] = 1,
    sampler: Annotated[str | None, typer.Option(help="tpe, random or grid.")] = None,
    prune: Annotated[
        str | None, typer.Option(help="Stop hopeless trials: median, halving or none.")
    ] = None,
    finalists: Annotated[
        int, typer.Option(min=1, help="With --seeds: so many of the best trials.")
    ] = 3,
    seeds: Annotated[
        int, typer.Option(min=1, help="Train finalists with so many seeds; their mean decides.")
    ] = 1,
    launch: Annotated[
        str | None,
        typer.Option(help="Words to start a trial with, on a cluster: 'srun --gpus=1'."),
    ] = None,
    output: Annotated[str | None, typer.Option(help="Folder of the search.")] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue the search in --output (or the folder given)."),
    ] = False,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Search for the best hyper-parameters of a model, by validation alone.

    shoal tune CONFIG.yaml --space space.yaml --trials 30 writes best.yaml for `shoal train`.
    """
    with importing():
        _need_optuna()
        from shoal.runs.run import resolve
        from shoal.runs.tuning.tune import Limits, search

    files, overrides = split_arguments(context.args)
    if resume and len(files) == 1 and not Path(files[0]).is_file():
        output, files = output or files[0], []
    if resume and not files and output is not None:
        if not (Path(output) / "space.yaml").is_file():
            raise typer.BadParameter(f"{output} holds no search to continue: it has no space.yaml")
        file = Path(output) / "config.yaml"
        resolved = resolve([file], overrides, folder=output, trust=trust)
    elif resume and output is None:
        raise typer.BadParameter("--resume needs the folder of the search: --output DIR")
    else:
        resolved = resolve_words(context.args, trust=trust)
    limits = Limits(trials, minutes, jobs, finalists, seeds, launch)
    found = search(resolved, space, output, resume, sampler, prune, limits, typer.echo)
    _print_found(found, trials)


def _need_optuna() -> None:
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise ValueError(
            "shoal tune needs Optuna: pip install optuna (in a clone: make extras EXTRAS=tune)"
        ) from None


def _print_found(found: dict[str, Any], trials: int) -> None:
    """The best trial, what it is worth, and what to type next."""
    from shoal.command.exit import print_result

    folder, best = found["folder"], found["best"]
    done = sum(one["state"] != "not finished" for one in found["trials"])
    if best is None:
        typer.echo(f"no trial has ended well yet ({done} of {trials})")
    else:
        names = ("model", "dataset")
        result = {**{name: found[name] for name in names}, "best_valid": best["valid"]}
        print_result({**result, "test": best["test"]})
        seeds = f", mean of {best['seeds']} seeds" if best["seeds"] > 1 else ""
        typer.echo(f"trial {best['trial']} is the best of {done} by {found['metric']}{seeds}")
        typer.echo(f"train it: shoal train {folder}/best.yaml")
        typer.echo(f"look at the search: {folder}/report.html")
    if not found["finished"]:
        typer.echo(f"the time is over; continue with: shoal tune --resume {folder}")
