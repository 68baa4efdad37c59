"""`shoal codes`: semantic ids of items, made, saved and checked."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from shoal.cli.arguments import TRUST, resolve_args, split_arguments
from shoal.cli.startup import importing, prepare_config
from shoal.files.durable import written


def make(
    context: typer.Context,
    to: Annotated[str, typer.Option(help="FILE.json to write.")],
    of: Annotated[
        str,
        typer.Option(
            help="What codes of a config's data are made of: interactions, features, or a column, "
            "such as one of vectors."
        ),
    ] = "interactions",
    method: Annotated[
        Literal["rqvae", "kmeans"], typer.Option(help="An RQ-VAE, or residual k-means.")
    ] = "rqvae",
    levels: Annotated[
        int, typer.Option(min=1, max=32, help="Codes of an item, not counting the last.")
    ] = 3,
    size: Annotated[
        int, typer.Option(min=1, max=65536, help="Number of different codes of a level.")
    ] = 256,
    steps: Annotated[int, typer.Option(min=0, help="Steps of the RQ-VAE.")] = 300,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Make codes of items: of a config's data, or of a RUN's or an ARTIFACT's item vectors.

    Items that are alike share their first codes; a last code distinguishes those that share all.
    """
    with importing():
        prepare_config()
        from shoal.runs.semantic_ids import make_codes, vectors_of_data
        from shoal.training.run_folder import start_logging

    files, overrides = split_arguments(context.args)
    model = next((file for file in files if _is_model(Path(file))), None)
    seed = 42
    if model is None:
        config = resolve_args(context.args, trust=trust).config
        start_logging(config.run.log_level, form=config.run.log)
        items, vectors = vectors_of_data(config, of)
        seed = config.run.seed
    elif len(files) + len(overrides) > 1 or of != "interactions":
        raise ValueError(f"codes are made of the item vectors of {model} alone: leave the rest out")
    else:
        catalogue = _open_model(model, trust).recommender.catalogue
        items, vectors = catalogue.items, catalogue.item_vectors
    with written(to):
        figures = make_codes(
            items,
            vectors,
            to,
            levels=levels,
            size=size,
            steps=steps,
            method=method,
            seed=seed,
        )
    _print(figures, f" of {size}")
    typer.echo(f"reconstruction: {figures['kept']:.1%} of the variance of the vectors")
    typer.echo(f"codes: {to}; a model reads them with --data.codes={to}")


def check(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help="FILE.json of codes.")],
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Check codes, and with a config whether every item of its data has some."""
    with importing():
        prepare_config()
        import torch

        from shoal.data.ids import Ids
        from shoal.data.item_codes import fitted, quality, read_codes
        from shoal.runs.build import describe_items
        from shoal.training.run_folder import start_logging

    codes_by_item = read_codes(file)
    _print(quality(torch.tensor(list(codes_by_item.values()))), "")
    if context.args:
        config = resolve_args(context.args, trust=trust).config
        start_logging(config.run.log_level, form=config.run.log)
        dataset, _ = describe_items(config, False)
        items = Ids(dataset.vocab[dataset.item_field])
        fitted(file, codes_by_item, items)
        typer.echo(f"all {len(items) - 1:,} items of the data have codes")


def _is_model(place: Path) -> bool:
    """Whether a path is the folder of a run or an artifact."""
    return (place / "config.yaml").is_file() or (place / "manifest.json").is_file()


def _open_model(folder: str, trust: bool) -> Any:
    """Open a run or an artifact."""
    if (Path(folder) / "config.yaml").is_file():
        from shoal.runs.trained_run import Trained

        return Trained(folder, trust=trust)
    from shoal.serving.artifact.artifact import load

    return load(folder)


def _print(figures: dict[str, Any], size: str) -> None:
    levels = [f"{one['used']}{size} ({one['effective']} effective)" for one in figures["levels"]]
    typer.echo(f"items: {figures['items']:,}")
    typer.echo(f"codes used: {', '.join(levels)}")
    shared = figures["shared"]
    rest = ""
    if shared:
        rest = (
            f"; {shared:,} share theirs, at most {figures['largest_group']:,} the same: "
            "a last code distinguishes them"
        )
    typer.echo(f"unique: {figures['unique']:.1%} of items{rest}")
