"""The sections `data.item_vectors` and `data.user_vectors`: vectors that are known beforehand."""

from typing import Literal

from pydantic import Field

from shoal.config.section import Section


class VectorsSection(Section):
    """A vector for each item or user, from a file."""

    file: str | None = Field(
        None, description="file of vectors: .npy, .npz, .safetensors, .parquet or .arrow"
    )
    ids: str | None = Field(
        None,
        description="file with the ids of vectors in .npy or .safetensors, one in a line; null: "
        "FILE.txt beside FILE.npy",
    )
    column: str | None = Field(
        None, description="column of vectors, lists of numbers, in .parquet or .arrow"
    )
    normalise: Literal["none", "unit", "standard"] = Field(
        "none",
        description="unit: vectors of length 1; standard: each number of a vector has mean 0 and "
        "deviation 1",
    )
    rows: Literal["add", "none"] = Field(
        "add", description="add: a row and the projected vector; none: the projected vector alone"
    )
