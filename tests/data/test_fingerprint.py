"""What a checkpoint of another run is refused for, in the user's words."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.data.fingerprint import mismatch

CLICKS: dict[str, Any] = {
    "model": "FM",
    "options": {"dim": 9, "initial_range": 0.01, "layers": [16, 8]},
    "layout": [["1", "2"], ["price"], "click", 100],
    "files": [["a.txt", 10, "aa"], ["b.txt", 20, "bb"]],
    "command": None,
    "order": ["memory", True],
    "split_over": None,
    "seed": 2020,
}
REMEDY = ". Use the config of that run, or name another folder with --output"


@pytest.mark.parametrize(
    "change, told",
    [
        ({"model": "LR"}, "model was 'FM', is now 'LR'"),
        (
            {"options": {"dim": 8, "layers": [16, 8], "low_rank": 2}},
            "model.dim was 9, is now 8; model.low_rank was None, is now 2; model.initial_range was "
            "0.01, is now None",
        ),
        ({"layout": [["1", "2"], ["price"], "click", 7]}, "data.clicks.rows was 100, is now 7"),
        (
            {"files": [["b.txt", 21, "bb"], ["c.txt", 1, "cc"]]},
            "data.clicks.train: a.txt is no longer there, c.txt was not there, b.txt has changed",
        ),
        ({"files": CLICKS["files"][::-1]}, "data.clicks.train: the files come in another order"),
        ({"order": ["stream", False]}, "data.clicks.reader was 'memory', is now 'stream'; "
         "train.shuffle was True, is now False"),
        ({"seed": 1}, "run.seed was 2020, is now 1"),
        ({"counters": True}, "counters was None, is now True"),
    ],
)  # fmt: skip
def test_only_differences_are_reported(change: dict[str, Any], told: str) -> None:
    assert mismatch(CLICKS, {**CLICKS, **change}) == f"belong to another run: {told}{REMEDY}"


@pytest.mark.parametrize("key", ["interactions", "splits"])
def test_digests_are_not_shown(key: str) -> None:
    told = mismatch({key: "2af1" * 16}, {key: "90bc" * 16})
    assert told is not None and "2af1" not in told and "90bc" not in told


def test_many_files_are_counted() -> None:
    files = [[f"{k}.txt", 1, "aa"] for k in range(9)]
    told = mismatch({"files": files}, {"files": []})
    assert told is not None and "2.txt is no longer there, and 6 more" in told


@pytest.mark.parametrize(
    "before, now, told",
    [
        (2, 1, "were made with files split over 2 workers (data.clicks.split_files), and there is "
         "1 now; resume with as many: --worker_num=2, or --nproc=2 without servers"),
        (1, 3, "were made with files split over 1 worker (data.clicks.split_files), and there are "
         "3 now; resume with as many: --worker_num=1, or --nproc=1 without servers"),
        (2, None, "were made with data.clicks.split_files true, which is now false; resume with "
         "--data.clicks.split_files=true"),
    ],
)  # fmt: skip
def test_files_split_over_other_workers(before: int, now: int | None, told: str) -> None:
    assert mismatch({**CLICKS, "split_over": before}, {**CLICKS, "split_over": now}) == told
