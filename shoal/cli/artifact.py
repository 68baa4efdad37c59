"""`shoal artifact`: what is done with an artifact after its export."""

from typing import Annotated

import typer

from shoal.cli.startup import importing
from shoal.files.durable import written


def add_items(
    artifact: Annotated[str, typer.Argument(help="Folder of an artifact.")],
    file: Annotated[
        str,
        typer.Argument(
            help="Vectors: .npy, .npz, .safetensors, .parquet, .arrow; or FILE.json of codes; or "
            "the folder of `shoal serve --items`."
        ),
    ],
    to: Annotated[str, typer.Option(help="Folder of the new artifact; must not be there yet.")],
    ids: Annotated[
        str | None,
        typer.Option(help="File of ids, for .npy and .safetensors; by default FILE.txt."),
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="Column of vectors in Parquet or Arrow.")
    ] = None,
) -> None:
    """Add items that came after training to an artifact, by their vectors or by their codes.

    The model must have been trained with data.item_vectors; one that writes codes (TIGER) with
    data.codes, and `shoal codes append` gives new items codes. The new artifact recommends them at
    once; what it says of the items that it had stays as it was.
    """
    with importing():
        from shoal.serving.items.into_artifact import add_to_artifact

    with written(to):
        done = add_to_artifact(artifact, file, to, ids=ids, column=column)
    if done.zeros:
        typer.echo(f"{done.zeros} of the new items have a vector of zeros, which says nothing")
    if done.already:
        typer.echo(f"{done.already:,} of the folder's items are in the artifact already")
    if done.left_out:
        typer.echo(f"{done.left_out:,} have vectors of another width, and are left out")
    typer.echo(f"{done.added:,} items added, {done.items:,} in all")
    typer.echo(f"artifact: {to}")
