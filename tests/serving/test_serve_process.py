"""`shoal serve` as a process: newer artifacts, however their files arrive; its end; strangers."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="shoal serve needs the extra `serve`")
pytest.importorskip("httptools", reason="shoal serve needs the extra `serve`")

import torch
from captured_warnings import listening
from exported import exported, rewrite
from safetensors.torch import load_file, save_file
from served import Served

from shoal.serving.artifact import files
from shoal.serving.service.service import Service


def version(folder: Path, text: str = "another day") -> Path:
    """An artifact like the others, which differs in one file."""
    shutil.copytree(exported()["SASRec"], folder)
    (folder / "README.md").write_text(text)
    files.write_manifest(folder)
    return folder


def spoil(folder: Path) -> None:
    """Every checksum is right, and what is read last is of a type that nobody thought of."""
    file = folder / "histories.safetensors"
    found = load_file(file)
    save_file({**found, "items": found["items"].to(torch.bfloat16)}, file)
    files.write_manifest(folder)


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("days")
    version(folder / "day-0")
    return folder


@pytest.fixture(scope="module")
def served(days: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(days, tmp_path_factory.mktemp("serve"), "--drain=3") as found:
        yield found


def is_manifest(file: Path) -> bool:
    return file.name == files.MANIFEST


def copy(file: Path, to: Path) -> None:
    """As cp does: what is there already is cut, and grows again."""
    data = file.read_bytes()
    with open(to / file.name, "wb", buffering=0) as out:
        for part in (data[: len(data) // 2], data[len(data) // 2 :]):
            out.write(part)


def rename(file: Path, to: Path) -> None:
    """As rsync does: under a hidden name, with the times that it had, and then renamed."""
    hidden = to / f".{file.name}.X1y2Z3"
    shutil.copy2(file, hidden)
    os.replace(hidden, to / file.name)


@pytest.mark.parametrize(
    ("order", "bring"),
    [
        (lambda one: (not is_manifest(one), one.name), copy),
        pytest.param(lambda one: (is_manifest(one), one.name), copy, marks=pytest.mark.slow),
        pytest.param(lambda one: one.name, rename, marks=pytest.mark.slow),
        (lambda one: (not is_manifest(one), [-ord(k) for k in one.name]), rename),
    ],
    ids=["cp, manifest first", "cp, manifest last", "rsync", "rsync, backwards"],
)
def test_files_arrive_in_any_order(
    *,
    days: Path,
    served: Served,
    tmp_path: Path,
    order: Callable[[Path], object],
    bring: Callable[[Path, Path], None],
) -> None:
    new = version(tmp_path / "new", text=tmp_path.name)
    to = days / f"day-{len(list(days.iterdir()))}"
    to.mkdir()
    failures = served.figure("reload_failures_total")
    first, *rest = sorted(new.iterdir(), key=order)
    bring(first, to)
    if is_manifest(first):  # it looks, finds a part, and looks again
        served.until(lambda: served.figure("reload_failures_total") > failures)
    for file in rest:
        assert served.call("/v1/recommend", {"user": "5"})[0] == 200
        bring(file, to)
    served.until(lambda: served.call("/ready")[1]["artifact"] == to.name)
    assert served.call("/v1/recommend", {"user": "5"})[0] == 200


def test_a_bad_one_is_passed_over_and_a_mended_one_is_taken(days: Path, served: Served) -> None:
    reloads, failures = served.figure("reloads_total"), served.figure("reload_failures_total")
    bad = version(days / ".bad")
    spoil(bad)
    bad = bad.rename(days / "day-x")
    served.until(lambda: served.figure("reload_failures_total") > failures)
    assert "day-x" in served.log.read_text() and served.figure("reloads_total") == reloads
    for file in version(days / ".good").iterdir():
        copy(file, bad)
    served.until(lambda: served.call("/ready")[1]["artifact"] == "day-x")


def test_what_is_served_may_be_copied_over(days: Path, served: Served, tmp_path: Path) -> None:
    """The service has the model in memory: files that are cut do not end it."""
    here = days / served.call("/ready")[1]["artifact"]
    for text in ("once", "and again, longer"):
        reloads = served.figure("reloads_total")
        new = version(tmp_path / text, text)
        for file in here.iterdir():
            os.truncate(file, 0)
        assert served.call("/v1/recommend", {"user": "5"})[0] == 200
        assert served.call("/v1/recommend", {"history": ["5"], "topk": 100})[0] == 200
        for file in new.iterdir():
            copy(file, here)
        served.until(lambda n=reloads: served.figure("reloads_total") > n)
        assert served.call("/ready")[1]["artifact"] == here.name


@pytest.mark.slow
def test_a_delta_waits_for_what_it_builds_upon(tmp_path: Path) -> None:
    root = tmp_path / "days"
    version(root / "day-0")
    service = Service(root)
    base, delta = version(tmp_path / "base", "base"), version(tmp_path / "delta", "delta")
    facts = {"name": "base", "sha256": files.read_manifest(base)["sha256"]}
    rewrite(delta, files.SIGNATURE, lambda signature: signature.update(base=facts))
    shutil.copytree(delta, root / "day-1")
    with listening() as said:
        assert not service.refresh() and not service.refresh()
    assert len(said) == service.failures == 1 and "delta of base" in said[0]
    shutil.copytree(base, root / "base")
    assert service.refresh() and service.model.folder.name == "day-1"


def test_a_service_starts_beside_a_newer_one_that_is_being_copied(tmp_path: Path) -> None:
    version(tmp_path / "day-0")
    (version(tmp_path / "day-1") / "dense.safetensors").unlink()
    service = Service(tmp_path)
    assert service.model.folder.name == "day-0" and service.failures == 1
    (tmp_path / "day-0" / files.MANIFEST).unlink()
    with pytest.raises(ValueError, match=r"day-1 is not whole: dense\.safetensors is not there"):
        Service(tmp_path)


def test_strangers_hold_up_nobody(served: Served) -> None:
    """80,000 wrong keys in each of many requests, and somebody who asks meanwhile."""
    wrong = {f"k{number}": 1 for number in range(80_000)}
    with ThreadPoolExecutor(4) as strangers:
        refused = [strangers.submit(served.call, "/v1/recommend", wrong) for _ in range(8)]
        while not all(one.done() for one in refused):
            assert served.call("/v1/recommend", {"user": "5"})[0] == 200
    assert {one.result()[0] for one in refused} == {422}
    assert refused[0].result()[1]["error"].startswith("unknown key 'k0'; allowed: user, history")


def test_a_service_that_is_stopped_answers_those_who_do_not_know_it(served: Served) -> None:
    """The last of the tests that share the service."""
    served.process.send_signal(signal.SIGTERM)
    served.until(lambda: served.call("/ready")[0] == 503)
    assert served.call("/v1/recommend", {"user": "5"})[0] == 200
    assert served.process.wait(60) == 0
    assert served.log.read_text().endswith("stopped\n")
