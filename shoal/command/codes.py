"""`shoal codes`: semantic ids of items, made, saved and checked."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from shoal.command.arguments import TRUST, resolve_words, split_arguments
from shoal.command.startup import importing, prepare_config
from shoal.world.durable import written


def make(
    context: typer.Context,
    to: Annotated[str, typer.Option(help="FILE.json to write.")],
    of: Annotated[
        str,
        typer.Option(help="Of data: interactions, features, or a column, such as one of vectors."),
    ] = "interactions",
    method: Annotated[
        Literal["rqvae", "kmeans"], typer.Option(help="An RQ-VAE, or residual k-means.")
    ] = "rqvae",
    levels: Annotated[int, typer.Option(min=1, max=32, help="Codes of an item, but the last.")] = 3,
    size: Annotated[int, typer.Option(min=1, max=65536, help="Different codes of a level.")] = 256,
    steps: Annotated[int, typer.Option(min=0, help="Steps of the RQ-VAE.")] = 300,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Make codes of items: of a config's data, or of a RUN's or an ARTIFACT's item vectors.

    Items that are alike share their first codes; a last code distinguishes those that share all.
    """
    with importing():
        prepare_config()
        from shoal.runs.codes import make_codes, vectors_of_data
        from shoal.training.run_folder import start_logging

    words, overrides = split_arguments(context.args)
    model = next((one for one in words if _is_model(Path(one))), None)
    seed = 42
    if model is None:
        config = resolve_words(context.args).config
        start_logging(config.run.log_level, form=config.run.log)
        items, vectors = vectors_of_data(config, of)
        seed = config.run.seed
    elif len(words) + len(overrides) > 1 or of != "interactions":
        raise ValueError(f"codes are made of the item vectors of {model} alone: leave the rest out")
    else:
        catalogue = _opened(model, trust).recommender.catalogue
        items, vectors = catalogue.items, catalogue.item_vectors
    with written(to):
        found = make_codes(items, vectors, to, levels, size, steps, method, seed)
    _print(found, f" of {size}")
    typer.echo(f"reconstruction: {found['kept']:.1%} of the variance of the vectors")
    typer.echo(f"codes: {to}; a model reads them with --data.codes={to}")


def check(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help="FILE.json of codes.")],
) -> None:
    """Check codes, and with a config whether every item of its data has some."""
    with importing():
        prepare_config()
        import torch

        from shoal.data.ids import Ids
        from shoal.data.item_codes import fitted, quality, read_codes
        from shoal.runs.build import describe_items
        from shoal.training.run_folder import start_logging

    given = read_codes(file)
    _print(quality(torch.tensor(list(given.values()))), "")
    if context.args:
        config = resolve_words(context.args).config
        start_logging(config.run.log_level, form=config.run.log)
        dataset, _ = describe_items(config, False)
        items = Ids(dataset.vocab[dataset.item_field])
        fitted(file, given, items)
        typer.echo(f"all {len(items) - 1:,} items of the data have codes")


def _is_model(place: Path) -> bool:
    """Whether it is the folder of a run or an artifact."""
    return (place / "config.yaml").is_file() or (place / "manifest.json").is_file()


def _opened(folder: str, trust: bool) -> Any:
    """The run or the artifact."""
    if (Path(folder) / "config.yaml").is_file():
        from shoal.runs.trained import Trained

        return Trained(folder, trust=trust)
    from shoal.runs.artifact.loaded import load

    return load(folder)


def _print(found: dict[str, Any], size: str) -> None:
    levels = [f"{one['used']}{size} ({one['effective']} effective)" for one in found["levels"]]
    typer.echo(f"items: {found['items']:,}")
    typer.echo(f"codes used: {', '.join(levels)}")
    shared = found["shared"]
    rest = ""
    if shared:
        rest = (
            f"; {shared:,} share theirs, at most {found['largest_group']:,} the same: a last code "
            "distinguishes them"
        )
    typer.echo(f"unique: {found['unique']:.1%} of items{rest}")
