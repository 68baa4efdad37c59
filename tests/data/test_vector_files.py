"""Files of vectors: every format reads the same, and what is wrong is one error that says what."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import save_file

from shoal.config.vectors_section import VectorsSection
from shoal.data.ids import Ids
from shoal.data.loading.vectors import AlignedVectors, read_vectors

ITEMS = Ids(["[PAD]", "a", "b", "7", "d", "e"])
WORDS = ["7", "b", "a", "d", "x"]  # e has none, x is unknown, d is zeros
VALUES = np.array([[3, 4], [1, 0], [0, 2], [0, 0], [5, 5]], np.float16)


def npy(folder: Path, words: list[str] = WORDS, values: Any = VALUES) -> Path:
    np.save(folder / "v.npy", values)
    (folder / "v.txt").write_text("\n".join(words) + "\n")
    return folder / "v.npy"


def npz(folder: Path) -> Path:
    np.savez(folder / "v.npz", ids=np.array(WORDS), vectors=VALUES)
    return folder / "v.npz"


def safetensors(folder: Path) -> Path:
    save_file({"vectors": torch.from_numpy(VALUES).bfloat16()}, folder / "v.safetensors")
    (folder / "v.txt").write_text("\n".join(WORDS))
    return folder / "v.safetensors"


def table(folder: Path, ending: str, words: Any = WORDS, values: Any = None) -> Path:
    lists = VALUES.astype(np.float32).tolist() if values is None else values
    frame = pl.DataFrame({"item_id": words, "text": lists, "price": [1] * len(words)})
    path = folder / f"v{ending}"
    (frame.write_parquet if ending == ".parquet" else frame.write_ipc)(path)
    return path


def read(path: Path, **keys: Any) -> AlignedVectors:
    if path.suffix in (".parquet", ".arrow"):
        keys.setdefault("column", "text")
    found = read_vectors(VectorsSection(file=str(path), **keys), "item_id", ITEMS, "item")
    assert found is not None
    return found


def of_items(vectors: AlignedVectors) -> torch.Tensor:
    """The vector of each number, padding first, as a model reads it."""
    values = vectors.values[vectors.place].float()
    if vectors.shift is not None:
        values = (values - vectors.shift.mean) * vectors.shift.factor
    return values * vectors.scale.unsqueeze(1)


FORMATS: dict[str, Callable[[Path], Path]] = {
    ".npy": npy,
    ".npz": npz,
    ".safetensors": safetensors,
    ".parquet": lambda folder: table(folder, ".parquet"),
    ".arrow": lambda folder: table(folder, ".arrow"),
}


@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_gives_each_item_its_vector(
    ending: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="shoal"):
        vectors = read(FORMATS[ending](tmp_path))
    expected = [[0, 0], [0, 2], [1, 0], [3, 4], [0, 0], [0, 0], [0, 0]]
    assert of_items(vectors).tolist() == expected
    assert vectors.with_rows and vectors.length == pytest.approx(80**0.5 / 5**0.5)
    assert "3 of 5 items have a vector of 2 numbers" in caplog.text
    assert "1 ids of the file are no items" in caplog.text
    assert "2 of 5 items have no vector" in caplog.text and "1 vectors of the file" in caplog.text


@pytest.mark.parametrize("ending", [".npy", ".safetensors"])
def test_a_mapped_file_is_not_copied(ending: str, tmp_path: Path) -> None:
    path = FORMATS[ending](tmp_path)
    vectors = read(path)
    assert str(path) in Path("/proc/self/maps").read_text()
    assert vectors.values.dtype in (torch.float16, torch.bfloat16)


def test_normalised_as_stated(tmp_path: Path) -> None:
    path = npy(tmp_path)
    unit = of_items(read(path, normalise="unit"))
    torch.testing.assert_close(unit[3], torch.tensor([0.6, 0.8]))
    torch.testing.assert_close(unit[:3], torch.tensor([[0.0, 0], [0, 1], [1, 0]]))
    vectors = read(path, normalise="standard", rows="none")
    expected = (VALUES - VALUES.mean(0, np.float64)) / VALUES.std(0, dtype=np.float64)
    torch.testing.assert_close(of_items(vectors)[3], torch.tensor(expected[0]).float())
    assert not vectors.with_rows and vectors.length == pytest.approx(2**0.5)
    constant = npy(tmp_path, ["a", "b"], np.array([[1e6, 1], [1e6, 3]], np.float32))
    assert of_items(read(constant, normalise="standard"))[1:3].tolist() == [[0, -1], [0, 1]]
    assert read(path).digest != read(path, normalise="unit").digest


WRONG: dict[str, tuple[Callable[[Path], Path], str]] = {
    "NaN": (lambda f: npy(f, ["a", "b"], np.array([[1, 2], [np.nan, 1]])), "vector of 'b' has"),
    "infinite": (lambda f: npy(f, ["a"], np.array([[np.inf, 1]])), "vector of 'a' has"),
    "too large": (lambda f: npy(f, ["a"], np.array([[1e300, 1]])), "beyond 32 bits"),
    "one axis": (lambda f: npy(f, ["a", "b"], np.ones(2)), r"\[n, width\].* are \[2\]"),
    "empty": (lambda f: npy(f, [], np.ones((0, 3))), r"\[0, 3\]"),
    "texts": (lambda f: npy(f, ["a"], np.array([["x"]])), "are numbers"),
    "an id twice": (lambda f: npy(f, ["a", "a"], np.ones((2, 2))), "'a' more than once"),
    "an id in two spellings": (lambda f: npy(f, ["7", "7.0"], np.ones((2, 2))), "are one item"),
    "fewer ids": (lambda f: npy(f, ["a"], np.ones((2, 2))), "2 vectors, and there are 1 ids"),
    "other ids": (lambda f: npy(f, ["q", "r"], np.ones((2, 2))), "none of the 2 ids"),
    "objects": (lambda f: npy(f, ["a"], np.array([[None]])), r"cannot be read as \.npy"),
    "an archive": (lambda f: npz(f).rename(f / "v.npy"), r"cannot be read as \.npy"),
    "no archive": (lambda f: npy(f).rename(f / "v.npz"), r"cannot be read as \.npz"),
    "another format": (lambda f: npy(f).rename(f / "v.csv"), r"\.npz, \.safetensors"),
    "no file": (lambda f: f / "v.npy", "there is no file"),
    "two widths": (
        lambda f: table(f, ".parquet", ["a", "b"], [[1.0], [1.0, 2.0]]),
        "vector of 'b' has 2 numbers and that of 'a' has 1",
    ),
    "empty numbers": (
        lambda f: table(f, ".arrow", ["a", "b"], [[1.0, None], [1.0, 2.0]]),
        "empty numbers",
    ),
    "no lists": (lambda f: table(f, ".parquet", ["a"], [1.0]), "not lists of numbers"),
    "lists of texts": (lambda f: table(f, ".parquet", ["a"], [["x"]]), "not of numbers"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_one_error(case: str, tmp_path: Path) -> None:
    make, match = WRONG[case]
    with pytest.raises(ValueError, match=rf"data\.item_vectors: .*{match}"):
        read(make(tmp_path))


def test_keys_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = npy(tmp_path)
    with pytest.raises(ValueError, match="has no columns; leave out the column 'text'"):
        read(path, column="text")
    with pytest.raises(ValueError, match="needs a file of ids"):
        read(path, ids=str(tmp_path / "other.txt"))
    with pytest.raises(ValueError, match="has the ids of its vectors itself"):
        read(npz(tmp_path), ids="v.txt")
    with pytest.raises(ValueError, match=r"no column 'texts'; it has item_id, text, price"):
        read(table(tmp_path, ".parquet"), column="texts")
    with pytest.raises(ValueError, match=r"data\.item_vectors\.ids: there is no .*file"):
        read_vectors(VectorsSection(ids="v.txt"), "item_id", ITEMS, "item")
    assert read_vectors(VectorsSection(), "item_id", ITEMS, "item") is None


def test_a_row_of_a_table_without_a_vector_has_none(tmp_path: Path) -> None:
    path = table(tmp_path, ".parquet", ["a", "b", "7"], [[1.0, 2.0], None, [0.0, 5.0]])
    assert of_items(read(path))[1:4].tolist() == [[1, 2], [0, 0], [0, 5]]
