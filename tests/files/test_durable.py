"""Nothing is left behind of files that are replaced, and of locks."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from forks import forked

from shoal.files.durable import replace_durably, sole_holder


def write_on(file: Path, number: int, most: int) -> None:
    for turn in range(most):
        replace_durably(file, json.dumps([number] * (1 + (number + turn) % 9999)).encode())


def test_a_file_is_whole_whoever_replaces_it_and_however_they_end(tmp_path: Path) -> None:
    file = tmp_path / "ledger.json"
    writers = [forked(write_on, file, number, 10**9) for number in range(3)]
    for one in writers:
        one.start()
    seen: set[int] = set()
    for one in writers:
        while one.pid not in seen:  # until it is at work
            seen |= {one.pid for one in writers} if file.exists() else set()
        assert len(set(json.loads(file.read_bytes()))) == 1
        one.kill()
        one.join()
    write_on(file, 7, 1)
    assert os.listdir(tmp_path) == ["ledger.json"]
    assert set(json.loads(file.read_bytes())) == {7}


def test_a_file_has_one_holder(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with sole_holder(file, wait=False):
        with pytest.raises(BlockingIOError), sole_holder(file, wait=False):
            pass
        file.unlink()
        with sole_holder(file, wait=False):  # another file of that name
            pass
    with sole_holder(file, wait=False):
        pass
