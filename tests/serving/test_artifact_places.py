"""Artifacts pushed to other places and loaded from there: whole, verified, or an error."""

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from small_artifact import MEAN, write_artifact

import shoal
from shoal.serving.artifact.artifact import Artifact
from shoal.serving.artifact.files import ArtifactError

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "remote" / "artifacts"


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    return shoal.load(write_artifact(tmp_path / "own", MEAN))


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


@pytest.mark.parametrize("place", ["memory://models/one", "file://{}/there/one", "{}/plain/one"])
def test_pushed_and_loaded(artifact: Artifact, tmp_path: Path, memory: Any, place: str) -> None:
    url = artifact.push(place.format(tmp_path))
    assert "://" in url and artifact.push(url) == url  # once more: nothing to send
    found = shoal.load(url)
    assert found.recommend("a") == artifact.recommend("a")
    assert found.folder != artifact.folder and shoal.load(url).folder == found.folder


def test_a_place_that_is_taken_is_refused(artifact: Artifact, tmp_path: Path, memory: Any) -> None:
    artifact.push("memory://models/one")
    other = shoal.load(write_artifact(tmp_path / "other", MEAN, max_len=3))
    with pytest.raises(ValueError, match="holds another artifact; name a new place"):
        other.push("memory://models/one")
    assert shoal.load("memory://models/one").max_len == artifact.max_len


def test_half_of_an_artifact_is_none(artifact: Artifact, memory: Any, cache: Path) -> None:
    """The manifest comes last, so what a broken transfer leaves cannot be loaded; push mends it."""
    put, sent = memory.put_file, []

    def breaks(source: str, target: str, **more: Any) -> None:
        sent.append(target)
        if len(sent) == 3:
            raise OSError("the line is down")
        put(source, target, **more)

    memory.put_file = breaks
    try:
        with pytest.raises(ValueError, match=r"cannot reach memory://a: the line is down"):
            artifact.push("memory://a")
    finally:
        memory.put_file = put
    with pytest.raises(ArtifactError, match=r"memory://a is no artifact: it has no manifest.json"):
        shoal.load("memory://a")
    artifact.push("memory://a")
    assert shoal.load("memory://a").recommend("a") == artifact.recommend("a")


@pytest.mark.parametrize("damage", ["byte", "missing", "manifest", "longer"])
def test_damage_is_refused_and_leaves_nothing(
    artifact: Artifact, memory: Any, cache: Path, damage: str
) -> None:
    artifact.push("memory://a")
    name = "/a/words-items.safetensors"
    data = memory.cat_file(name)
    if damage == "byte":
        memory.pipe_file(name, data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "longer":
        memory.pipe_file(name, data + b" ")
    elif damage == "missing":
        memory.rm_file(name)
    else:
        manifest = json.loads(memory.cat_file("/a/manifest.json"))
        manifest["files"]["../../outside"] = manifest["files"].pop("words-items.safetensors")
        memory.pipe_file("/a/manifest.json", json.dumps(manifest).encode())
    with pytest.raises(ValueError, match="memory://a"):
        shoal.load("memory://a")
    assert list(cache.iterdir()) == []


def test_a_damaged_copy_is_made_anew(artifact: Artifact, memory: Any) -> None:
    url = artifact.push("memory://a")
    kept = shoal.load(url).folder / "words-items.safetensors"
    kept.write_bytes(b"no")
    assert shoal.load(url).recommend("a") == artifact.recommend("a")


def test_what_is_damaged_or_a_delta_is_not_pushed(
    artifact: Artifact, tmp_path: Path, memory: Any
) -> None:
    base = {"name": "own", "sha256": artifact.manifest["sha256"]}
    delta = shoal.load(write_artifact(tmp_path / "delta", MEAN, base=base))
    with pytest.raises(ArtifactError, match="delta of another one"):
        delta.push("memory://d")
    (artifact.folder / "words-items.safetensors").write_bytes(b"no")
    with pytest.raises(ArtifactError, match="not whole"):
        artifact.push("memory://a")
    assert not memory.store


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("s4://bucket/one", "allowed"),
        ("http://localhost/one", "nothing is written over http"),
        ("github://somebody:repository@main/one", "allowed"),
    ],
)
def test_places_that_cannot_be_written(artifact: Artifact, place: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        artifact.push(place)


def test_nothing_is_there(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="is no artifact"):
        shoal.load(f"file://{tmp_path}/nowhere")
    with pytest.raises(ArtifactError, match="is no artifact"):
        shoal.load(tmp_path / "nowhere")


def test_loaded_from_a_web_server(artifact: Artifact, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="fsspec reads http with aiohttp, which is not installed")

    class Silent(SimpleHTTPRequestHandler):
        def log_message(self, *given: Any) -> None:
            """Print nothing."""

    handler = partial(Silent, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            assert shoal.load(f"{url}/own").recommend("a") == artifact.recommend("a")
            with pytest.raises(ArtifactError, match="nowhere is no artifact"):
                shoal.load(f"{url}/nowhere")
        finally:
            server.shutdown()
    with pytest.raises(ValueError, match=url):
        shoal.load(f"{url}/own")
