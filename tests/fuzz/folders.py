"""Folders of several files, artifacts and prepared data: one file of them is made by somebody else.

Whoever made it knows the format: sizes and checksums are those of the file, so what is behind them
is reached. An artifact and a prepared folder are opened and used as their readers do.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fuzz.mutate import mutate_json
from fuzz.target import Target

EVERY = 8  # rounds of the other targets: these take longer


def _replaced(sound: dict[Path, bytes], made: dict[Path, bytes], use: Callable[[], None]) -> None:
    """Use a folder some files of which are others, which are put back."""
    for path, data in made.items():
        path.write_bytes(data)
    try:
        use()
    finally:
        for path, data in sound.items():
            path.write_bytes(data)


def _seeds(paths: list[Path], sound: dict[Path, bytes]) -> list[bytes]:
    """The files; where there are several, the first byte says which one it is."""
    if len(paths) == 1:
        return [sound[paths[0]]]
    return [bytes([number]) + sound[path] for number, path in enumerate(paths)]


def _chosen(paths: list[Path], data: bytes) -> tuple[Path, bytes]:
    if len(paths) == 1:
        return paths[0], data
    return paths[(data[0] if data else 0) % len(paths)], data[1:]


def _sum(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


# ---- artifacts ----------------------------------------------------------------------------------


def artifact(folder: Path) -> dict[str, Target]:
    """Its manifest, signature, graph and tensors."""
    from small_artifact import MEAN, write_artifact

    from shoal.serving.artifact import files
    from shoal.serving.artifact.artifact import Artifact
    from shoal.training.checkpoint.reading import digest

    home = write_artifact(folder / "artifact", MEAN)
    sound = {path: path.read_bytes() for path in sorted(home.iterdir())}
    manifest = home / files.MANIFEST
    sums = {path.name: _sum(data) for path, data in sound.items() if path != manifest}

    def use() -> None:
        model = Artifact(home)
        model.prepare()
        model.recommend("a", topk=3)
        model.recommend(history=["v", "w"], topk=9)
        model.similar_items("v")
        model.score("b", ["x", "y"])

    def of(paths: list[Path], spoil: Any = None) -> Target:
        def read(made: Path) -> None:
            path, data = _chosen(paths, made.read_bytes())
            told = {"format": files.FORMAT, "files": {**sums, path.name: _sum(data)}}
            text = json.dumps({**told, "sha256": digest(told)}).encode()
            _replaced(sound, {path: data, manifest: text}, use)

        return Target(_seeds(paths, sound), f"{paths[0].name}-made", read, spoil, EVERY)

    def read_manifest(made: Path) -> None:
        data = made.read_bytes()
        with suppress(ValueError, TypeError, AttributeError, RecursionError):  # it is no manifest
            told = json.loads(data)
            told["sha256"] = digest({key: one for key, one in told.items() if key != "sha256"})
            data = json.dumps(told).encode()
        _replaced(sound, {manifest: data}, use)

    tensors = [path for path in sound if path.suffix == ".safetensors"]
    return {
        "artifact": Target([sound[manifest]], "artifact.json", read_manifest, mutate_json, EVERY),
        "signature": of([home / files.SIGNATURE], mutate_json),
        "graph": of([home / "graph.json"], mutate_json),
        "tensors": of(tensors),
    }


# ---- prepared data ------------------------------------------------------------------------------


def prepared(folder: Path, lines: bytes) -> dict[str, Target]:
    """Its documents, of columns and of a view, and its arrays."""
    from shoal.config.schema import DataSection
    from shoal.data.loading.load import load_dataset
    from shoal.data.prepared import views
    from shoal.data.prepared.preparation import PrepareJob, prepare
    from shoal.data.split import SPLITS

    raw, home = folder / "prepared" / "ml.inter", folder / "prepared" / "to"
    raw.parent.mkdir()
    raw.write_bytes(lines)
    config = DataSection(name="ml", path=str(home))
    prepare(PrepareJob([str(raw)], home, config, 1, 1 << 28))
    (view,) = (home / "views").iterdir()
    sound = {path: path.read_bytes() for path in sorted(home.rglob("*")) if path.is_file()}
    documents = {home: home / "manifest.json", view: view / views.DOCUMENT}

    def use() -> None:
        try:
            dataset = load_dataset(config, 1)
            for words in dataset.vocab.values():
                list(words)
            for phase in SPLITS:
                dataset.user_ids(phase), dataset.item_ids(phase)
        finally:
            view.mkdir(exist_ok=True)
            for other in {*(home / "views").iterdir()} - {view}:
                shutil.rmtree(other)

    def with_sum(body: Any) -> bytes:
        text = json.dumps(body, sort_keys=True).encode()
        return json.dumps({"sha256": hashlib.sha256(text).hexdigest(), "body": body}).encode()

    def of(path: Path) -> Target:
        def read(made: Path) -> None:
            data = made.read_bytes()
            with suppress(ValueError, TypeError, LookupError, RecursionError):  # it is no document
                data = with_sum(json.loads(data)["body"])
            _replaced(sound, {path: data}, use)

        return Target([sound[path]], f"{path.name}-made", read, mutate_json, EVERY)

    arrays = [path for path in sound if path.suffix == ".bin" or path.parent == view]
    arrays = [path for path in arrays if path not in documents.values()]

    def read_array(made: Path) -> None:
        path, data = _chosen(arrays, made.read_bytes())
        document = documents[path.parent]
        body = json.loads(sound[document])["body"]
        _tell(body, path.name, data)
        _replaced(sound, {path: data, document: with_sum(body)}, use)

    return {
        "prepared": of(documents[home]),
        "view": of(documents[view]),
        "array": Target(_seeds(arrays, sound), "array", read_array, None, EVERY),
    }


def _tell(body: Any, name: str, data: bytes) -> None:
    """Wherever a document describes this file: as it is now."""
    if isinstance(body, dict) and body.get("file") == name:
        width = int(str(body["dtype"])[-1])
        whole = data[: len(data) // width * width]
        body["segments"] = [[len(whole) // width, hashlib.sha256(whole).hexdigest()]]
    for one in body.values() if isinstance(body, dict) else body if isinstance(body, list) else ():
        _tell(one, name, data)
