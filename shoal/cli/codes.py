"""`shoal codes`: semantic ids of items, made, saved, given to new items and checked."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from shoal.cli.arguments import TRUST, resolve_args, split_arguments
from shoal.cli.startup import importing, prepare_config
from shoal.files.durable import written

IDS = typer.Option(help="File of ids, for .npy and .safetensors; by default FILE.txt.")
COLUMN = typer.Option(help="Column of vectors in Parquet or Arrow.")
VECTOR_FILES = (".npy", ".npz", ".safetensors")  # a table with --column is one, too


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
        Literal["rqvae", "kmeans", "balanced"],
        typer.Option(
            help="An RQ-VAE; residual k-means; or balanced, k-means with groups of equal sizes."
        ),
    ] = "rqvae",
    levels: Annotated[
        int, typer.Option(min=1, max=32, help="Codes of an item, not counting the last.")
    ] = 3,
    size: Annotated[
        int, typer.Option(min=1, max=65536, help="Number of different codes of a level.")
    ] = 256,
    steps: Annotated[int, typer.Option(min=0, help="Steps of the RQ-VAE.")] = 300,
    ids: Annotated[str | None, IDS] = None,
    column: Annotated[str | None, COLUMN] = None,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Make codes of items: of a file of vectors, a config's data, or a RUN's or an ARTIFACT's item
    vectors.

    Items that are alike share their first codes; a last code distinguishes those that share all.
    The codebooks are kept in the file, so that later items get codes, too (shoal codes append).
    """
    with importing():
        prepare_config()
        from shoal.runs.semantic_ids import (
            MODEL,
            VECTORS,
            make_codes,
            short,
            vectors_of_data,
            vectors_of_file,
        )
        from shoal.training.run_folder import start_logging

    files, overrides = split_arguments(context.args)
    model = next((file for file in files if _is_model(Path(file))), None)
    vector_file = next((file for file in files if _holds_vectors(file, column)), None)
    seed = 42
    if vector_file is not None:
        if len(files) > 1 or of != "interactions":
            raise ValueError(
                f"codes are made of the vectors of {vector_file} alone: leave the rest out"
            )
        config = resolve_args(overrides, trust=trust).config
        items, vectors = vectors_of_file(vector_file, config.data.fields.item, ids, column)
        seed, of = config.run.seed, VECTORS
    elif ids is not None or column is not None:
        raise ValueError("--ids and --column are of a file of vectors: name one, or leave them out")
    elif model is None:
        config = resolve_args(context.args, trust=trust).config
        start_logging(config.run.log_level, form=config.run.log)
        items, vectors, of = vectors_of_data(config, of)
        seed = config.run.seed
    elif len(files) + len(overrides) > 1 or of != "interactions":
        raise ValueError(f"codes are made of the item vectors of {model} alone: leave the rest out")
    else:
        catalogue = _open_model(model, trust).recommender.catalogue
        items, vectors, of = catalogue.items, catalogue.item_vectors, MODEL
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
            of=of,
        )
    _print(figures)
    typer.echo(f"reconstruction: {figures['kept']:.1%} of the variance of the vectors")
    version = short(figures["version"])
    typer.echo(f"codes: {to}, version {version}; a model reads them with --data.codes={to}")


def append(
    codes: Annotated[str, typer.Argument(help="FILE.json of codes that `shoal codes make` wrote.")],
    vectors: Annotated[
        str, typer.Argument(help="Vectors: .npy, .npz, .safetensors, .parquet, .arrow.")
    ],
    to: Annotated[str, typer.Option(help="FILE.json to write; it may be the same file.")],
    ids: Annotated[str | None, IDS] = None,
    column: Annotated[str | None, COLUMN] = None,
    item: Annotated[str, typer.Option(help="Column of ids in Parquet or Arrow.")] = "item_id",
) -> None:
    """Give codes to new items, by the codebooks of a file of codes: no other item's code changes.

    Items of the vectors that have codes already keep them.
    """
    with importing():
        from shoal.runs.semantic_ids import append_codes, short

    with written(to):
        done = append_codes(codes, vectors, to, id_column=item, ids=ids, column=column)
    before, rest = done["before"], ""
    if done["known"]:
        rest = f"; {done['known']:,} of the vectors are of items that have codes, which stay"
    typer.echo(f"{done['added']:,} items added, {done['items']:,} in all{rest}")
    typer.echo(
        f"collisions: {1 - done['unique']:.1%} of items share their codes, before "
        f"{1 - before['unique']:.1%}: a last code distinguishes them"
    )
    typer.echo(
        f"reconstruction: {done['kept']:.1%} of the variance of the new vectors, of those before "
        f"{done['kept_before']:.1%}"
    )
    typer.echo(f"codes: {to}, version {short(done['version'])}, before {short(before['version'])}")


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
        from shoal.runs.semantic_ids import short
        from shoal.training.run_folder import start_logging

    item_codes = read_codes(file)
    making, codes = item_codes.making, torch.tensor(list(item_codes.codes.values()))
    if making is not None:
        codes = codes[:, :-1]  # the last one distinguishes those that share these
    _print(quality(codes))
    by = "by hand" if making is None else f"by {making.method} of {making.of}"
    typer.echo(f"version: {short(item_codes.version())}, made {by}")
    if context.args:
        config = resolve_args(context.args, trust=trust).config
        start_logging(config.run.log_level, form=config.run.log)
        dataset, _ = describe_items(config, False)
        items = Ids(dataset.vocab[dataset.item_field])
        fitted(file, item_codes.codes, items)
        typer.echo(f"all {len(items) - 1:,} items of the data have codes")


def _is_model(place: Path) -> bool:
    """Whether a path is the folder of a run or an artifact."""
    return (place / "config.yaml").is_file() or (place / "manifest.json").is_file()


def _holds_vectors(file: str, column: str | None) -> bool:
    """Whether a file holds vectors, by its ending: a table is one where their column is named."""
    return Path(file).suffix.lower() in VECTOR_FILES or (
        column is not None and not Path(file).is_dir()
    )


def _open_model(folder: str, trust: bool) -> Any:
    """Open a run or an artifact."""
    if (Path(folder) / "config.yaml").is_file():
        from shoal.runs.trained_run import Trained

        return Trained(folder, trust=trust)
    from shoal.serving.artifact.artifact import load

    return load(folder)


def _print(figures: dict[str, Any]) -> None:
    """Figures of codes, level by level."""
    size, neighbours = figures.get("size"), figures.get("neighbours")
    typer.echo(f"items: {figures['items']:,}")
    head = f"{'level':>5}  {'codes used':>18}  {'evenness':>8}"
    typer.echo(head + ("  neighbours kept" if neighbours else ""))
    for number, level in enumerate(figures["levels"]):
        used = f"{level['used']:,}"
        if size:
            used += f" of {size:,} ({level['used'] / size:.0%})"
        line = f"{number + 1:>5}  {used:>18}  {level['effective'] / level['used']:>8.0%}"
        typer.echo(line + (f"  {neighbours[number]:>15.1%}" if neighbours else ""))
    shared, rest = figures["shared"], ""
    if shared:
        rest = (
            f"; {shared:,} share theirs, at most {figures['largest_group']:,} the same: "
            "a last code distinguishes them"
        )
    typer.echo(f"collisions: {1 - figures['unique']:.1%} of items{rest}")
