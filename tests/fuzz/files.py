"""Files and configs: whatever stands in them, reading gives a result or one ValueError."""

import gzip
import hashlib
import io
import json
import random
import shutil
import zipfile
from contextlib import suppress
from pathlib import Path

from fuzz.folders import artifact, prepared
from fuzz.peers import peers
from fuzz.runs import runs
from fuzz.target import Target
from fuzz.trees import trees

LINES = b"".join(b"%d\t%d\t%d\t%d\n" % (k % 9, k % 7, k % 5, 80 + k) for k in range(40))
SLOTS = b"click:1 dense_feature:0.5 1:3 2:4 2:5\nclick:0 dense_feature:1e-3 1:-5 2:6\n" * 8
CRITEO = b"\t".join([b"1", *[b"7"] * 13, *[b"68fd1e64"] * 26]) + b"\n"
LIBFM = b"1 3:1 17:1 40:1\n-1 4:1 18:1 41:1\n" * 8
CSV = b"label,C1,C2,I1\n" + b"1,5,abc,0.5\n0,,x,1e3\n" * 10
YAML = b"""model: BPR
model.embedding_size: 8
data: {name: synthetic, synthetic: {users: 9, items: 9, interactions: 90}}
train: &t {epochs: 3, batch_size: 64, optimizer: {name: adam, lr: 1e-3}}
eval: {metrics: [Recall, NDCG], topk: [5, 10]}
"""
TOML = b"""model = "BPR"
[data]
name = "synthetic"
[train]
epochs = 3
optimizer = {name = "adam", lr = 1e-3}
"""


def make(folder: Path) -> dict[str, Target]:
    """All targets, with their files in a folder."""
    targets = {
        "atomic": _dataset(folder, "ml.inter", _atomic(), "atomic"),
        "movielens": _dataset(
            folder, "u.data", [LINES, gzip.compress(LINES), _zstd(LINES)], "movielens"
        ),
        "ratings": _dataset(
            folder,
            "ratings.csv",
            [b"userId,movieId,rating,timestamp\n" + LINES.replace(b"\t", b",")],
            "movielens",
        ),
        "zip": _archive(folder),
        "slots": _clicks("slots", [SLOTS, gzip.compress(SLOTS)]),
        "criteo": _clicks("criteo", [CRITEO * 5]),
        "csv": _clicks("csv", [CSV, gzip.compress(CSV)]),
        "libfm": _clicks("libfm", [LIBFM]),
        "parquet": _clicks("parquet", [_parquet()]),
        "multi_hot": _days(folder),
        **{f"table_{form}": _table(form, seeds) for form, seeds in _tables().items()},
        "yaml": Target([YAML], "config.yaml", _read_config),
        "toml": Target([TOML], "config.toml", _read_config),
        "codes": Target(_codes_files(folder), "codes.json", _codes),
        **_vectors(folder),
        "posted": _posted(),
        "override": Target([b"--train.epochs=5\n--topk=[1,2]\n--model=BPR"], "words", _override),
    }
    targets |= _checkpoints(folder)
    targets["cache"] = _cache(folder)
    targets |= trees()
    targets |= artifact(folder) | prepared(folder, _atomic()[0])
    return targets | runs(folder) | peers(folder)


def once(name: str, target: Target, folder: Path, rng: random.Random) -> bytes:
    """One input: written, read; whatever else than ValueError comes out is a finding."""
    data = target.make(rng)
    path = folder / target.name
    path.write_bytes(data)
    with suppress(ValueError):
        target.read(path)
    return data


# ---- interactions -------------------------------------------------------------------------------


def _atomic() -> list[bytes]:
    header = b"user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    lists = b"user_id:token\titem_id:token\ttags:token_seq\tx:float_seq\n"
    return [header + LINES, gzip.compress(header + LINES), lists + b"a\tb\tc d\t1 2\n" * 9]


def _dataset(folder: Path, name: str, seeds: list[bytes], form: str) -> Target:
    from shoal.config.schema import DataSection
    from shoal.data.loading.load import load_dataset

    def read(path: Path) -> None:
        (path.parent / "ml").mkdir(exist_ok=True)
        shutil.copyfile(path, path.parent / "ml" / name)
        try:
            config = DataSection(path=str(path.parent), name="ml", format=form, cache=False)  # type: ignore[arg-type]
            load_dataset(config, 1)
        finally:
            (path.parent / "ml" / name).unlink()

    return Target(seeds, name, read)


def _zstd(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(data)


def _tables() -> dict[str, list[bytes]]:
    """Own files of interactions, by format."""
    import polars as pl

    count = 30
    columns = {"user": [f"u{k % 7}" for k in range(count)], "item": list(range(count))}
    frame = pl.DataFrame({**columns, "rating": [0.5 + k % 5 for k in range(count)]})
    made: dict[str, list[bytes]] = {}
    for form, write in {"csv": frame.write_csv, "parquet": frame.write_parquet}.items():
        write(packed := io.BytesIO())  # type: ignore[operator]
        made[form] = [packed.getvalue()]
    made["csv"].append(frame.write_csv(quote_style="always").encode())
    made["csv"].append(made["csv"][0].replace(b"u3", b'"u""3"'))
    made["csv"].append(made["csv"][0].replace(b"u3", b'"u3"x'))  # unsound quotes: row by row
    made["jsonl"] = [frame.write_ndjson().encode()]
    made["literals"] = [b"{'user': 'u1', 'item': 7, 'rating': 0.5, 'tags': ['a', None]}\n" * 9]
    made["lists"] = [b"0 7 12 9\n1 7\n2\n3 5 12\n" * 5]
    made["session_lists"] = made["lists"]
    for form_of_arrow in (frame.write_ipc, frame.write_ipc_stream):
        form_of_arrow(packed := io.BytesIO())
        made.setdefault("arrow", []).append(packed.getvalue())
    return made


def _table(form: str, seeds: list[bytes]) -> Target:
    """Read whole, and prepared in parts."""
    from shoal.config.data_section import FieldsSection
    from shoal.config.schema import DataSection
    from shoal.data.loading.load import load_dataset
    from shoal.data.prepared.preparation import PrepareJob, prepare
    from shoal.data.sources.tables import columns_of

    fields = FieldsSection(user="user", item="item", rating="rating")

    named = form if form in ("literals", "lists", "session_lists") else "auto"  # else by suffix

    def read(path: Path) -> None:
        files = {"inter": str(path)}
        config = DataSection(files=files, format=named, fields=fields, cache=False)
        with suppress(ValueError):
            columns_of(path, config)
            load_dataset(config, 1)
        to = path.parent / "prepared-table"
        try:
            if form in ("csv", "parquet"):
                prepare(
                    PrepareJob([str(path)], to, DataSection(name="x", fields=fields), 1, 1 << 28)
                )
        finally:
            shutil.rmtree(to, ignore_errors=True)

    return Target(seeds, f"own.{form}", read, every=2)


def _vectors(folder: Path) -> dict[str, Target]:
    """Files of vectors; that of the ids stands beside those that need one."""
    import numpy as np
    import polars as pl
    import torch
    from safetensors.torch import save

    from shoal.config.vectors_section import VectorsSection
    from shoal.data.ids import Ids
    from shoal.data.loading.vectors import read_vectors

    ids, values = ["a", "b", "7"], np.arange(6, dtype=np.float16).reshape(3, 2)
    (folder / "vectors.txt").write_text("\n".join(ids))
    made: dict[str, bytes] = {"safetensors": save({"vectors": torch.from_numpy(values)})}
    np.save(packed := io.BytesIO(), values)
    made["npy"] = packed.getvalue()
    np.savez(packed := io.BytesIO(), ids=np.array(ids), vectors=values)
    made["npz"] = packed.getvalue()
    frame = pl.DataFrame({"item_id": ids, "text": values.astype(np.float32).tolist()})
    for form, write in {"parquet": frame.write_parquet, "arrow": frame.write_ipc}.items():
        write(packed := io.BytesIO())  # type: ignore[operator]
        made[form] = packed.getvalue()

    def read(path: Path) -> None:
        column = "text" if path.suffix in (".parquet", ".arrow") else None
        section = VectorsSection(file=str(path), column=column, normalise="standard")
        read_vectors(section, "item_id", Ids(["[PAD]", *ids]), "item")

    return {
        f"vectors_{form}": Target([data], f"vectors.{form}", read, every=2)
        for form, data in made.items()
    }


def _posted() -> Target:
    """A file of new items of a service, under the name that its bytes have."""
    import torch

    from shoal.serving.artifact.new_items import NewItems
    from shoal.serving.items.folder import packed, read_posted

    new = NewItems("a test", ["a", "7"], torch.eye(2), {"title": ["x", ""]})

    def read(path: Path) -> None:
        data = path.read_bytes()
        name = f"00000001-{hashlib.sha256(data).hexdigest()[:16]}.safetensors"
        read_posted(path.with_name(name), data)

    return Target([packed(new)], "posted.safetensors", read)


def _archive(folder: Path) -> Target:
    from shoal.config.schema import DataSection
    from shoal.data.loading.load import load_dataset

    seeds = []
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", method) as archive:
            archive.writestr("ml-9/u.data", LINES)
        seeds.append(packed.getvalue())

    home = folder / "zipped"
    home.mkdir()

    def read(path: Path) -> None:
        shutil.copyfile(path, home / "ml-9.zip")
        load_dataset(DataSection(path=str(home), name="ml-9", format="movielens", cache=False), 1)

    return Target(seeds, "ml-9.zip", read)


def _cache(folder: Path) -> Target:
    from shoal.config.schema import DataSection
    from shoal.data.loading.load import check_cache, load_dataset

    home = folder / "cached"
    (home / "ml").mkdir(parents=True)
    (home / "ml" / "ml.inter").write_bytes(_atomic()[0])
    load_dataset(DataSection(path=str(home), name="ml"), 1)
    (stored,) = (home / "ml" / ".shoal").iterdir()
    files = sorted(path for path in stored.iterdir())
    sound = {path: path.read_bytes() for path in files}

    def read(path: Path) -> None:
        data = path.read_bytes()
        chosen = files[len(data) % len(files)]
        chosen.write_bytes(data)
        try:
            check_cache(stored)
        finally:
            chosen.write_bytes(sound[chosen])

    return Target(list(sound.values()), "column", read)


# ---- clicks -------------------------------------------------------------------------------------


def _parquet() -> bytes:
    import polars as pl

    packed = io.BytesIO()
    columns = {"label": [0, 1] * 20, "C1": list(range(40)), "C2": ["x", None] * 20}
    pl.DataFrame({**columns, "I1": [0.5] * 40}).write_parquet(packed, compression="snappy")
    return packed.getvalue()


def _clicks(form: str, seeds: list[bytes]) -> Target:
    from shoal.clicks.log import ClickLog, read_layout
    from shoal.clicks.stream import load
    from shoal.config.schema import ClicksSection, DataSection

    named = {"slots": ["C1", "C2"], "dense": ["I1"]} if form in ("csv", "parquet") else {}
    named = {"slots": 2, "dense": 1} if form == "slots" else named
    named = {"slots": 3} if form == "libfm" else named
    section = DataSection(clicks=ClicksSection(rows=1000, **named), separator=",")

    def read(path: Path) -> None:
        log = ClickLog([path], form, read_layout(section, form, [path]), separator=",")
        load(log)
        log.count(path)

    return Target(seeds, f"log.{form}", read)


def _days(folder: Path) -> Target:
    """The ids of a day; its other files stand beside it."""
    from shoal.clicks.log import ClickLog, make_layout
    from shoal.clicks.make_days import make_days
    from shoal.config.schema import ClicksSection, SyntheticClicksSection

    section = SyntheticClicksSection(samples=20, slots=2, ids_per_slot=9, bags=[3, 1], dense=1)
    make_days(section, folder / "days", days=1)
    for one in (folder / "days" / "train").iterdir():
        one.replace(folder / one.name)
    name = "day_0_sparse_multi_hot.npz"
    layout = make_layout(ClicksSection(slots=2, dense=1, rows=[9, 9]), "multi_hot")

    def read(path: Path) -> None:
        mapped = ClickLog([path], "multi_hot", layout).mapped()
        assert mapped is not None
        mapped.batch_of(slice(0, len(mapped)))

    return Target([(folder / name).read_bytes()], name, read)


# ---- checkpoints --------------------------------------------------------------------------------


def _checkpoints(folder: Path) -> dict[str, Target]:
    import torch
    from safetensors.torch import save

    from shoal.training.checkpoint.reading import digest
    from shoal.training.checkpoint.snapshot import Snapshot
    from shoal.training.checkpoint.writing import read, write

    rows = {"ids": torch.arange(5), "values": torch.ones(5, 3), "state.sum": torch.ones(5, 3)}
    given = {"rows-item-00000.safetensors": save(rows)}
    given["dense.safetensors"] = save({"w": torch.ones(4, 2)})
    path = folder / "checkpoints" / "step-000000001"
    write(path, Snapshot({"step": 1, "steps": {}, "best_step": None}, given))
    manifest = path / "manifest.json"
    sound = manifest.read_bytes()

    def of_manifest(made: Path) -> None:
        manifest.write_bytes(made.read_bytes())
        try:
            read(path)
        finally:
            manifest.write_bytes(sound)

    def of_rows(made: Path) -> None:
        """As an author does who knows the format: sizes and checksums are those of the file."""
        import hashlib

        data = made.read_bytes()
        told = json.loads(sound)
        told.pop("sha256")
        name = "rows-item-00000.safetensors"
        told["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (path / name).write_bytes(data)
        manifest.write_text(json.dumps({**told, "sha256": digest(told)}))
        try:
            read(path)
        finally:
            manifest.write_bytes(sound)
            (path / name).write_bytes(given[name])

    return {
        "manifest": Target([sound], "manifest", of_manifest),
        "rows": Target([given["rows-item-00000.safetensors"]], "rows", of_rows),
    }


# ---- configs ------------------------------------------------------------------------------------


def _read_config(path: Path) -> None:
    from shoal.runs.run import resolve

    resolve([path])


def _codes(path: Path) -> None:
    from shoal.data.ids import Ids
    from shoal.data.item_codes import fitted, read_codes

    fitted(path, read_codes(path).codes, Ids(["[PAD]", "a", "b"]))


def _codes_files(folder: Path) -> list[bytes]:
    """Codes that are written by hand, and those that are kept with what made them."""
    from shoal.data.item_codes import ItemCodes, Making, write_codes

    codes = {"a": [5, 1, 0], "b": [5, 7, 1]}
    write_codes(folder / "made.json", ItemCodes(codes, Making("kmeans", "vectors", 8, 0.5)))
    return [b'{"a": [5, 1, 0], "b": [5, 7, 1]}', (folder / "made.json").read_bytes()]


def _override(path: Path) -> None:
    from shoal.runs.run import resolve

    resolve((), path.read_bytes().decode("utf-8", "replace").split("\n"))
