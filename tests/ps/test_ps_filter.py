"""Bloom filters of parameter servers: saved with the rows, and loaded at as many servers."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from captured_warnings import listening
from click_batches import global_batch, make_model
from ps_cluster import at_servers, joined, make_spec, rows_in, save, serving, share_of
from safetensors.torch import load_file, save_file

from shoal.config.row_rules import RowRules, RowsSection
from shoal.config.schema import OptimizerSection, ServersSection, StrategySection
from shoal.distributed.world import World
from shoal.kernels.core import has_core
from shoal.ps.spec import Spec, TableSpec
from shoal.ps.worker.client import Client, ServerError
from shoal.training.checkpoint.writing import Checkpoints, Snapshot, read, restore_into
from shoal.training.strategies import make_strategy

# Without the core servers have no Bloom filters: they count ids exactly.
pytestmark = pytest.mark.skipif(not has_core(), reason="the native core is not built")
SIZE = 1 << 10
ADMISSION = {"threshold": 3.0, "bloom_counters": SIZE}
FADING = {"counter_decay": {"every": 5, "rate": 0.5}, "shrink": {"every": 6, "max_age": 4}}


def spec_of(servers: int, bloom_counters: int = SIZE, **rules: Any) -> Spec:
    admission = ADMISSION | {"bloom_counters": bloom_counters}
    made = RowRules.model_validate({"admission": admission, **rules})
    table = TableSpec(name="ads", dim=2, init="uniform", scale=0.5, rules=made)
    return make_spec("adagrad", servers=servers, tables=[table], dense=[])


def teach(client: Client, begin: int, end: int) -> None:
    """Steps of 40 of 300 ids; each has the gradient of its own number."""
    for step in range(begin, end):
        random = torch.Generator().manual_seed(step)
        drawn = torch.randint(0, 300, (40,), generator=random)
        ids, shows = drawn.unique(return_counts=True)
        share, order = share_of(client, 0, ids)
        seen = torch.stack([shows.float(), torch.zeros(len(ids))], dim=1)
        share = type(share)(share.table, share.ids, share.counts, seen[order])
        grads = torch.stack([share.ids % 7, share.ids % 5], dim=1).float() - 2
        client.start_push([share], [grads], 0.5, 0.0, 1.0).wait()


def filters_in(folder: Path) -> dict[tuple[int, ...], list[int]]:
    """(start, size, layout, server, servers) -> bytes."""
    files = [load_file(path) for path in sorted(folder.glob("rows-*"))]
    return {
        tuple(file["bloom.facts"].tolist()): file["bloom.counters"].tolist()
        for file in files
        if "bloom.facts" in file
    }


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    with listening() as said:
        yield said


@pytest.mark.parametrize("servers", [1, 2])
def test_the_same_number_of_servers_continues_bit_for_bit(
    tmp_path: Path, servers: int, warnings: list[str]
) -> None:
    spec = spec_of(servers, **FADING)
    with at_servers(spec, tmp_path) as client:
        teach(client, 0, 9)
        files = save(client, tmp_path / "nine")
        teach(client, 9, 20)
        save(client, tmp_path / "twenty")
    share = SIZE // servers
    expected = [(0, share, 1, number, servers) for number in range(servers)]
    found = filters_in(tmp_path / "nine")
    assert sorted(found) == expected and all(any(counters) for counters in found.values())
    with at_servers(spec, tmp_path) as client:
        client.load(str(tmp_path / "nine"), files, {"ads": 9}, fresh=True)
        teach(client, 9, 20)
        save(client, tmp_path / "again")
    assert rows_in(tmp_path / "again") == rows_in(tmp_path / "twenty")
    assert filters_in(tmp_path / "again") == filters_in(tmp_path / "twenty")
    assert set(rows_in(tmp_path / "twenty")["ads"]) - set(rows_in(tmp_path / "nine")["ads"])
    assert warnings == []


def test_a_delta_continues_bit_for_bit(tmp_path: Path, warnings: list[str]) -> None:
    """Each has the whole filter of its moment."""
    spec = spec_of(2)
    with at_servers(spec, tmp_path) as client:
        teach(client, 0, 4)
        base = save(client, tmp_path / "base")
        teach(client, 4, 8)
        delta = save(client, tmp_path / "delta", delta=True)
        teach(client, 8, 15)
        save(client, tmp_path / "last")
    with at_servers(spec, tmp_path) as client:
        client.load(str(tmp_path / "base"), base, {"ads": 8}, fresh=True)
        client.load(str(tmp_path / "delta"), delta, {"ads": 8})
        teach(client, 8, 15)
        save(client, tmp_path / "again")
    assert rows_in(tmp_path / "again") == rows_in(tmp_path / "last")
    assert filters_in(tmp_path / "again") == filters_in(tmp_path / "last")
    assert warnings == []


@pytest.mark.parametrize(
    "others, size, why",
    [
        (3, SIZE, f"is 2 × {SIZE // 2} bytes (parts × bytes), here it is 3 × 352"),
        (1, SIZE // 2, f"is 2 × {SIZE // 2} bytes (parts × bytes), here it is 1 × {SIZE // 2}"),
        (2, SIZE * 2, f"is 2 × {SIZE // 2} bytes (parts × bytes), here it is 2 × {SIZE}"),
        (2, 0, f"is 2 × {SIZE // 2} bytes (parts × bytes), here ids are counted exactly"),
    ],
)
def test_another_number_of_servers_starts_counting_again_with_a_warning(
    tmp_path: Path, others: int, size: int, why: str, warnings: list[str]
) -> None:
    """Once, of several servers, a base and its delta; the rows go on all the same."""
    with at_servers(spec_of(2), tmp_path) as client:
        teach(client, 0, 4)
        base = save(client, tmp_path / "base")
        teach(client, 4, 8)
        delta = save(client, tmp_path / "delta", delta=True)
        save(client, tmp_path / "whole")
    spec = spec_of(others, size)
    with at_servers(spec, tmp_path) as client:
        client.load(str(tmp_path / "base"), base, {"ads": 8}, fresh=True)
        client.load(str(tmp_path / "delta"), delta, {"ads": 8})
        save(client, tmp_path / "loaded")
        teach(client, 8, 10)
    assert rows_in(tmp_path / "loaded") == rows_in(tmp_path / "whole")
    assert not any(map(any, filters_in(tmp_path / "loaded").values()))
    assert len(warnings) == 1, warnings
    assert warnings[0].startswith("table ads: ids without a row are counted from nothing again")
    assert why in warnings[0]


# ---- runs ---------------------------------------------------------------------------------------


def run(folder: Path, section: StrategySection, given: Snapshot | None, until: int) -> Path:
    """Train, from the beginning or a checkpoint, and save; the new checkpoint."""
    strategy = make_strategy(section, World())
    # So large that it does not err: where it does, the order counts in which ids of a step arrive.
    admission = ADMISSION | {"bloom_counters": 1 << 18}
    strategy.setup(
        make_model("DNN", "grows"),
        OptimizerSection(name="adagrad", lr=0.05),
        seed=1,
        rows=RowsSection.model_validate({"admission": admission, **FADING}),
    )
    if given is not None:
        restore_into(strategy, given)
    for step in range(7 if given else 1, until):
        strategy.train_step(global_batch(step, "one", "grows"))
    checkpoints = Checkpoints(folder, World(), rows_apart=strategy.saves_rows)
    checkpoints.save(strategy, {"step": until, "best_step": None})
    checkpoints.wait()
    strategy.close()
    return checkpoints.committed()[0]


def test_a_server_and_one_process_take_over_from_each_other(
    tmp_path: Path, warnings: list[str]
) -> None:
    """A run that never stops, one at a server that does, and one that changes between them."""
    single = StrategySection(name="single")

    def served(folder: str, given: Path | None, until: int) -> Path:
        with serving(folder=tmp_path / folder) as running:
            section = StrategySection(name="ps", ps=ServersSection(addresses=running.addresses))
            snapshot = None
            if given is not None:  # a server reads from its own folder alone
                own = tmp_path / folder / given.name
                snapshot = read(shutil.copytree(given, own), rows=False)
            return run(tmp_path / folder, section, snapshot, until)

    whole = served("whole", None, 14)
    half = served("half", None, 7)
    again = served("again", half, 14)
    assert rows_in(again) == rows_in(whole) and filters_in(again) == filters_in(whole)
    for end in (
        run(tmp_path / "single", single, read(half), 14),
        served("back", run(tmp_path / "first", single, None, 7), 14),
    ):
        assert counts_in(end) == counts_in(whole)  # gradients agree to rounding only
        assert filters_in(end) == filters_in(whole)
    assert len(counts_in(whole)) > 50 and any(map(any, filters_in(whole).values()))
    assert warnings == []


def counts_in(folder: Path) -> dict[int, list[Any]]:
    """Id -> show, click and last step of its row."""
    keys = ("state.show", "state.click", "state.last_step")
    return {i: [row[key] for key in keys] for i, row in rows_in(folder)["slots"].items()}


def has_filter(folder: Path, name: str) -> bool:
    return "bloom.facts" in load_file(folder / name)


def test_damaged_filters_are_refused(tmp_path: Path) -> None:
    """By the table's name, and what was counted stays."""
    folder = tmp_path / "s"
    with (
        serving(folder=tmp_path) as running,
        joined(running.addresses, spec_of(1), dense=False) as client,
    ):
        teach(client, 0, 8)
        files = save(client, folder)
        (name,) = (name for name in files if has_filter(folder, name))
        good = load_file(folder / name)
        for number, (key, value, said) in enumerate(
            [
                ("bloom.counters", torch.ones(SIZE), r"counters are torch.float32 \[1024\]"),
                ("bloom.counters", torch.ones(SIZE + 1).byte(), "bytes 0 to 1025 of a Bloom"),
                ("bloom.counters", torch.empty(0).byte(), "n at least 1"),
                ("bloom.facts", torch.tensor([5]), r"facts are torch.int64 \[1\]"),
                ("bloom.facts", torch.tensor([1, SIZE, 1, 0, 1]), "bytes 1 to 1025"),
                ("bloom.facts", torch.tensor([0, SIZE, 1, 2, 1]), "part 2 of 1"),
                ("bloom.facts", None, "bloom.counters and bloom.facts belong together"),
                ("bloom.counters", None, "bloom.counters and bloom.facts belong together"),
            ]
        ):
            file = {k: v for k, v in (good | {key: value}).items() if v is not None}
            save_file(file, folder / name)
            digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
            given = files | {name: {"sha256": digest}}
            for fresh in (True, False):
                with pytest.raises(ServerError, match=said):
                    client.load(str(folder), given, {"ads": 8}, fresh=fresh)
            save(client, tmp_path / f"after {number}")
            assert list(filters_in(tmp_path / f"after {number}").values()) == [
                good["bloom.counters"].tolist()
            ]
        teach(client, 8, 12)
