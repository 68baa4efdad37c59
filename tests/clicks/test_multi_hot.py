"""MLPerf's multi-hot Criteo: what is written, what is read of it, and what is refused."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from shoal.clicks import ClickLog, InMemory, Stream
from shoal.clicks.encoder import LogEncoder
from shoal.clicks.log import make_layout, pick_format
from shoal.clicks.make_days import make_days
from shoal.clicks.synthetic import synthetic_clicks
from shoal.config.schema import ClicksSection, DataSection, SyntheticClicksSection
from shoal.data.batch import Batch, Jagged
from shoal.distributed.world import World
from shoal.runs.build import build
from shoal.runs.run import resolve
from shoal.serving.bulk import predict_file

ROOT = Path(__file__).resolve().parents[2]
SECTION = SyntheticClicksSection(
    samples=500, slots=4, ids_per_slot=[40, 7, 3, 200], bags=[3, 1, 2, 9], dense=2
)
ROWS = [40, 7, 3, 200]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("days") / "made"
    best = make_days(SECTION, place, days=3)
    for phase in ("valid", "test"):
        assert best[phase] == synthetic_clicks(SECTION, phase).best_auc()  # type: ignore[arg-type]
    return place


def log(folder: Path, rows: list[int] | None = ROWS) -> ClickLog:
    section = ClicksSection(slots=4, dense=2, rows=rows)
    files = sorted((folder / "train").glob("*.npz"))
    return ClickLog(files, "multi_hot", make_layout(section, "multi_hot"))


def same(one: Batch, other: Batch) -> bool:
    first, second = one.ids["slots"], other.ids["slots"]
    assert isinstance(first, Jagged) and isinstance(second, Jagged)
    pairs = [(first.values, second.values), (first.offsets, second.offsets)]
    assert one.labels is not None and other.labels is not None
    pairs += [(one.labels, other.labels), (one.dense["dense"], other.dense["dense"])]
    return all(torch.equal(*pair) for pair in pairs)


def test_files_give_the_batches_of_the_synthetic_log(folder: Path) -> None:
    """In order and shuffled, mapped and streamed, on one rank and on three."""
    given, made = log(folder), synthetic_clicks(SECTION, "train").samples
    mapped = given.mapped()
    assert mapped is not None and len(mapped) == 500
    for shuffle in (False, True):
        expected = InMemory(made, given.layout, 64, 5, shuffle)
        found = InMemory(mapped, given.layout, 64, 5, shuffle)
        for rank, size in ((0, 1), (2, 3)):
            pairs = zip(found.batches(1, rank, size), expected.batches(1, rank, size), strict=True)
            assert all(same(*pair) for pair in pairs)
    counts = [given.count(file) or 0 for file in given.files]
    streamed = Stream(given, 64, counts).batches(0)
    plain = InMemory(made, given.layout, 64).batches(0)
    assert all(same(*pair) for pair in zip(streamed, plain, strict=True))


def test_arrays_are_mapped_and_have_the_types_of_mlperf(folder: Path) -> None:
    day = log(folder).mapped().blocks[0].day  # type: ignore[union-attr]
    assert all(ids.dtype == np.int32 for ids in day.ids)
    assert all(isinstance(one.base, np.memmap) for one in (*day.ids, day.dense, day.labels))
    with np.load(folder / "train" / "day_0_sparse_multi_hot.npz") as loaded:  # as numpy has it
        assert [*loaded] == ["0", "1", "2", "3"]
        assert all((loaded[str(slot)] == ids).all() for slot, ids in enumerate(day.ids))


def test_savez_is_read(tmp_path: Path) -> None:
    """What MLPerf's script writes with; wider ids and labels without a second axis besides."""
    ids = {"0": np.array([[0, 39], [7, 7]]), "1": np.array([[6], [0]], np.int32)}
    np.savez(tmp_path / "day_0_sparse_multi_hot.npz", **ids)
    np.save(tmp_path / "day_0_dense.npy", np.ones((2, 1), np.float32))
    np.save(tmp_path / "day_0_labels.npy", np.array([1, 0]))
    section = ClicksSection(train="*.npz", slots=2, dense=1, rows=[40, 7])
    assert pick_format(DataSection(path=str(tmp_path), clicks=section)) == "multi_hot"
    layout = make_layout(section, "multi_hot")
    files = [tmp_path / "day_0_sparse_multi_hot.npz"]
    batch = ClickLog(files, "multi_hot", layout).mapped().batch_of(slice(0, 2))  # type: ignore[union-attr]
    assert layout.rows == 48
    assert batch.ids["slots"].values.tolist() == [1, 40, 47, 8, 8, 41]  # type: ignore[union-attr]
    assert batch.ids["slots"].offsets.tolist() == [0, 2, 3, 5, 6]  # type: ignore[union-attr]
    folded = make_layout(section.model_copy(update={"rows": [30, 7]}), "multi_hot")
    batch = ClickLog(files, "multi_hot", folded).mapped().batch_of(slice(0, 1))  # type: ignore[union-attr]
    assert batch.ids["slots"].values.tolist() == [1, 10, 37]  # type: ignore[union-attr]


def test_tables_that_grow_keep_slots_apart(folder: Path) -> None:
    given = log(folder, rows=None)
    assert given.layout.rows is None
    ids = given.mapped().batch_of(slice(0, 200)).ids["slots"]  # type: ignore[union-attr]
    assert isinstance(ids, Jagged)
    slot = torch.arange(800).repeat_interleave(ids.lengths) % 4
    assert ((ids.values - 1) >> 32 == slot).all()


def test_rows_to_predict_get_the_ids_of_the_log(folder: Path) -> None:
    given = log(folder)
    encoder = LogEncoder(given.layout, "multi_hot", {})
    batch = encoder.batch(encoder.frame([{"C1": [0, 5], "C2": 6, "I1": 0.5}]))
    found = batch.ids["slots"]
    assert isinstance(found, Jagged) and found.values.tolist() == [1, 6, 47, 0, 0]
    with pytest.raises(ValueError, match="0 or more"):
        encoder.batch(encoder.frame([{"C1": -2}]))


def keys(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "model.name": "DCNV2",
        "data.format": "multi_hot",
        "data.path": str(folder),
        "data.clicks.train": "train/*.npz",
        "data.clicks.valid": "valid/*.npz",
        "data.clicks.slots": 4,
        "data.clicks.dense": 2,
        "data.clicks.rows": ROWS,
        **more,
    }


def test_prepared_folders_hold_the_same(folder: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from shoal.cli.main import app

    words = [f"--{key}={value}" for key, value in keys(folder).items() if "clicks.t" not in key]
    words = [word for word in words if "valid" not in word and "model" not in word]
    inputs = [str(file) for file in log(folder).files]
    told = CliRunner().invoke(app, ["prepare", *inputs, "--to", str(tmp_path / "ready"), *words])
    assert told.exit_code == 0, told.output
    values = {"data.clicks.train": str(tmp_path / "ready"), "train.eval_every": 0}
    values |= {"data.format": "auto", "data.clicks.valid": None}
    ready = build(resolve(values=keys(folder, **values)).config, World()).reader
    mapped = build(resolve(values=keys(folder)).config, World()).reader
    assert all(same(*pair) for pair in zip(ready.batches(0), mapped.batches(0), strict=True))
    values["data.clicks.rows"] = [40, 7, 3, 201]
    with pytest.raises(ValueError, match="was prepared with"):
        build(resolve(values=keys(folder, **values)).config, World())


def test_the_recipe_trains_at_a_reduced_scale(tmp_path: Path) -> None:
    """26 slots with MLPerf's bags; the ids by the thousand."""
    recipe = ROOT / "recipes" / "criteo-multi-hot-dlrm-dcnv2.yaml"
    synthetic = resolve([recipe]).config.data.clicks.synthetic
    made = tmp_path / "made"
    make_days(synthetic.model_copy(update={"samples": 600}), made, days=2)
    small = {"model.dim": 4, "model.bottom_layers": [8, 4], "model.low_rank": 4}
    small |= {"model.layers": [8], "data.clicks.rows": None, "train.batch_size": 128}
    small |= {"data.path": str(made), "run.output": str(tmp_path / "run"), "run.progress": False}
    result = shoal.run(config_file_list=[str(recipe)], config_dict=small)
    assert result["best_valid"]["auc"] > 0.4 and result["best_valid"]["logloss"] < 0.75
    assert "The train log: 2 files, 600 samples" in (tmp_path / "run" / "train.log").read_text()


@pytest.mark.slow
def test_an_exported_model_predicts_a_day(folder: Path, tmp_path: Path) -> None:
    """From its files, and from rows with the ids of the log: the same."""
    values = {"model.dim": 4, "model.layers": [8], "train.epochs": 1, "run.progress": False}
    values |= {"run.output": str(tmp_path / "run"), "data.clicks.test": "test/*.npz"}
    shoal.run(config_dict=keys(folder, **values))
    exported = shoal.export(str(tmp_path / "run"), to=str(tmp_path / "exported"))
    day = next((folder / "test").glob("*.npz"))
    out = tmp_path / "chances.csv"
    assert predict_file(tmp_path / "exported", day, out) == 50
    written = np.loadtxt(out, skiprows=1)
    with np.load(day) as ids:
        dense = np.load(str(day).replace("sparse_multi_hot.npz", "dense.npy"))
        rows = [
            {f"C{k + 1}": ids[str(k)][n].tolist() for k in range(4)}
            | {f"I{k + 1}": float(dense[n, k]) for k in range(2)}
            for n in range(50)
        ]
    assert shoal.load(tmp_path / "exported").predict(rows) == pytest.approx(written, abs=1e-5)
    assert exported is not None and written.std() > 0


# ---- what is refused --------------------------------------------------------------------------


def rewrite(place: Path, change: Callable[[dict[str, bytes]], dict[str, bytes]]) -> None:
    """The archive of a day with other members."""
    with zipfile.ZipFile(place) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(place, "w", zipfile.ZIP_STORED) as archive:
        for name, data in change(members).items():
            archive.writestr(name, data)


def as_npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=array.dtype == object)
    return out.getvalue()


def header_alone(*shape: int) -> bytes:
    """A member that states a shape, and holds nothing."""
    out = io.BytesIO()
    facts = {"descr": "<i4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, facts)  # type: ignore[arg-type]
    return out.getvalue()


def compress(place: Path) -> None:
    with np.load(place) as arrays:
        np.savez_compressed(place, **arrays)


class Trap:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("it was unpickled",))


IDS, DENSE, LABELS = (f"day_0_{end}" for end in ("sparse_multi_hot.npz", "dense.npy", "labels.npy"))
BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no labels": (lambda f: (f / LABELS).unlink(), "there is no .*labels.npy"),
    "no zip": (lambda f: (f / IDS).write_bytes(b"PK\3\4 no"), "no file of arrays"),
    "compressed": (lambda f: compress(f / IDS), r"compressed; write it with numpy\.savez"),
    "few slots": (
        lambda f: rewrite(f / IDS, lambda m: {k: v for k, v in m.items() if k != "3.npy"}),
        "3 arrays, not 0 to 3",
    ),
    "other rows": (
        lambda f: rewrite(f / IDS, lambda m: {**m, "1.npy": as_npy(np.zeros((9, 1), "i4"))}),
        r"array 1 is \[9, 1\]",
    ),
    "floats": (
        lambda f: rewrite(f / IDS, lambda m: {**m, "1.npy": as_npy(np.zeros((166, 1)))}),
        "holds float64; ids are int32",
    ),
    "objects": (
        lambda f: rewrite(
            f / IDS, lambda m: {**m, "1.npy": as_npy(np.array([[Trap()]] * 166, dtype=object))}
        ),
        "holds object; ids are int32",
    ),
    "cut": (lambda f: rewrite(f / IDS, lambda m: {**m, "1.npy": m["1.npy"][:-8]}), "ends before"),
    "a bag of 2^40": (
        lambda f: rewrite(f / IDS, lambda m: {**m, "1.npy": header_alone(166, 1 << 40)}),
        "ends before",
    ),
    "more than can be counted": (  # 2^66 bytes are 0 of 64 bits
        lambda f: rewrite(f / IDS, lambda m: {**m, "1.npy": header_alone(1 << 32, 1 << 32)}),
        "ends before",
    ),
    "rows below none": (
        lambda f: rewrite(f / IDS, lambda m: {**m, "1.npy": header_alone(-166, -1)}),
        "ends before",
    ),
    "labels without rows": (
        lambda f: (f / LABELS).write_bytes(header_alone(1 << 40, 1)),
        "no file of arrays",
    ),
    "pickled labels": (
        lambda f: (f / LABELS).write_bytes(pickle.dumps([Trap()])),
        "no file of arrays",
    ),
    "objects in dense": (
        lambda f: (f / DENSE).write_bytes(as_npy(np.array([[Trap()]], dtype=object))),
        "no file of arrays",
    ),
    "narrow dense": (
        lambda f: np.save(f / DENSE, np.zeros((166, 1), np.float32)),
        r"holds \[166, 1\] values, not 166 rows .* of 2",
    ),
    "label 2": (
        lambda f: np.save(f / LABELS, np.full((166, 1), 2, np.int32)),
        "row 1: a label is 0 or 1",
    ),
    "nan": (
        lambda f: np.save(f / DENSE, np.where(np.arange(166)[:, None] == 4, np.nan, [0.0, 0.0])),
        "row 5: a dense value is no finite number",
    ),
    "negative": (
        lambda f: rewrite(f / IDS, lambda m: {**m, "1.npy": as_npy(np.full((166, 1), -1, "i4"))}),
        "row 1: C2 has an id below 0",
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_files(bad: str, tmp_path: Path) -> None:
    make_days(SECTION, tmp_path / "made", days=3)
    spoil, told = BAD[bad]
    spoil(tmp_path / "made" / "train")
    with pytest.raises(ValueError, match=told):
        log(tmp_path / "made").mapped().batch_of(np.arange(166))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"data.clicks.rows": 50}, "give a list of as many numbers"),
        ({"data.clicks.rows": [1, 2]}, "give a list of as many numbers"),
        ({"data.clicks.train": "train"}, "name the files with ids alone"),
        ({"data.clicks.pipe_command": "cat"}, "multi_hot files have none"),
    ],
)
def test_bad_configs(folder: Path, given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        build(resolve(values=keys(folder, **given)).config, World())


def test_a_list_of_rows_is_for_this_format(tmp_path: Path) -> None:
    for form in ("slots", "criteo", "csv"):
        section = ClicksSection(rows=[3, 4], slots=None if form == "criteo" else 2)
        with pytest.raises(ValueError, match=r"is for data\.format=multi_hot"):
            make_layout(section, form)
    with pytest.raises(ValueError, match="there are 8 slots"):
        SyntheticClicksSection(bags=[1, 2])
    with pytest.raises(ValueError, match="name another folder"):
        (tmp_path / "some").write_text("")
        make_days(SECTION, tmp_path, days=2)
    with pytest.raises(ValueError, match="fill 1 to 500 days"):
        make_days(SECTION, tmp_path / "new", days=501)
