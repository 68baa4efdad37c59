"""The pages of docs/understand that list the files of a training step, against a step that runs."""

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks
from small import DATA
from step_files import StepFiles, record_step

from shoal.config.schema import Config
from shoal.distributed.world import World
from shoal.ps.server.server import Server
from shoal.runs.run import resolve

PAGES = Path(__file__).parents[1] / "docs" / "understand"
CLICKS = {"model": "DLRM", "data.name": "synthetic_clicks", "run.progress": False}
SHARDED = {**CLICKS, "strategy.name": "sharded", "strategy.place": "row"}
SERVED = {**CLICKS, "strategy.name": "ps", "strategy.ps.mode": "async"}


def listed_files(page: str, heading: str = "") -> list[str]:
    """The files that a page lists, below a heading."""
    text = (PAGES / page).read_text()
    part = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0] if heading else text
    return re.findall(r"^\d+\. `(shoal/[\w/]+\.py)`", part, re.MULTILINE)


def config_of(values: dict[str, Any]) -> Config:
    return resolve(values=values).config


def record_worker(world: World, values: dict[str, Any]) -> list[str]:
    return record_step(world, config_of(values))["worker"]


def test_a_step_of_one_process_runs_the_files_of_its_page() -> None:
    files = record_worker(World(), {"model": "BPR", **DATA})
    assert sorted(files) == sorted(listed_files("step_alone.md"))


def test_a_sharded_step_runs_the_files_of_its_page(tmp_path: Path) -> None:
    listed = sorted(listed_files("step_sharded.md"))
    for files in run_ranks(record_worker, 2, tmp_path, SHARDED):
        assert sorted(files) == listed


def test_a_step_with_servers_runs_the_files_of_its_page() -> None:
    servers, files = [Server(index=number) for number in range(2)], StepFiles()
    threads = [
        threading.Thread(target=server.serve, name=f"server {server.index}") for server in servers
    ]
    with files.watching():
        for thread in threads:
            thread.start()
    addresses = [server.address for server in servers]
    config = config_of({**SERVED, "strategy.ps.addresses": addresses})
    by_thread = record_step(World(), config, files, steps=5)
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a server did not end when its worker did"
    assert sorted(by_thread["worker"]) == sorted(listed_files("step_with_servers.md", "The worker"))
    listed = set(listed_files("step_with_servers.md", "A server"))
    between = set(listed_files("step_with_servers.md", "A server between messages"))
    for server in servers:  # which may find time between the messages of a short step, or not
        assert set(by_thread[f"server {server.index}"]) - between == listed


@pytest.mark.parametrize("page", ["step_alone.md", "step_sharded.md", "step_with_servers.md"])
def test_a_page_names_functions_of_its_files(page: str) -> None:
    lines = re.findall(r"^\d+\. `(shoal/[\w/]+\.py)`, ([^:]+):", (PAGES / page).read_text(), re.M)
    assert len(lines) == len(listed_files(page))
    for file, names in lines:
        text = (PAGES.parents[1] / file).read_text()
        for name in re.findall(r"`([\w.]+)`", names):
            last = name.rpartition(".")[2]
            assert f"def {last}(" in text or f"class {last}" in text, f"{file} has no {name}"
