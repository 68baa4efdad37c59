"""Readers of click logs: every sample exactly once, for any world, start and number of threads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from click_model import click_config, tiny_clicks
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.clicks import stream as room
from shoal.clicks.custom import Custom
from shoal.clicks.data import open_clicks
from shoal.clicks.layout import Layout
from shoal.clicks.log import ClickLog
from shoal.clicks.samples import InMemory
from shoal.clicks.stream import SplitFiles, Stream, load, share
from shoal.data.batch import Batch, Jagged
from shoal.distributed.world import World

__all__ = ["tiny_clicks"]  # used by being there
LAYOUT = Layout(("1", "2"), ("d",), "click")
SIZES = [5, 0, 1, 7, 12]  # samples of the files: one is empty, one smaller than a batch


def line(number: int) -> str:
    return f"click:{number % 2} d:{number / 4} 1:{number + 1} 2:{number % 3}"


def write(folder: Path, sizes: list[int]) -> list[Path]:
    """Files of samples 1, 2, ...: slot 1 tells which it is. The last has no newline at its end."""
    number, files = 0, []
    for k, size in enumerate(sizes):
        text = "\n".join(line(number + i) for i in range(size))
        number += size
        last = k == len(sizes) - 1
        files.append(folder / f"part-{k}.txt")
        files[-1].write_text(text if last or not size else text.replace("\n", "\n\n", 1) + "\n")
    return files


@pytest.fixture
def log(tmp_path: Path) -> ClickLog:
    return ClickLog(write(tmp_path, SIZES), "slots", LAYOUT)


def numbers(batch: Batch) -> list[int]:
    """Which samples a batch has, after a look at the rest of it."""
    slots = batch.ids["slots"]
    assert isinstance(slots, torch.Tensor)
    found = (slots[:, 0] - 1).tolist()
    assert slots[:, 1].tolist() == [n % 3 for n in found]
    assert batch.dense["dense"][:, 0].tolist() == [n / 4 for n in found]
    assert batch.labels is not None and batch.labels.tolist() == [n % 2 for n in found]
    assert batch.size == len(found)
    return found


def counts_of(log: ClickLog) -> list[int]:
    return [log.count(file) or 0 for file in log.files]


def make(kind: str, log: ClickLog, batch_size: int, threads: int = 1):
    if kind == "stream":
        return Stream(log, batch_size, counts_of(log), threads)
    if kind == "stream, uncounted":
        return Stream(log, batch_size, None, threads)
    return InMemory(load(log, threads), LAYOUT, batch_size, 3, shuffle=kind == "shuffled")


KINDS = ["memory", "shuffled", "stream", "stream, uncounted"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [1, 4, 25, 100])
def test_every_sample_once_whatever_the_world(log: ClickLog, kind: str, batch_size: int) -> None:
    assert counts_of(log) == SIZES
    reader = make(kind, log, batch_size)
    single = [numbers(batch) for batch in reader.batches(1)]
    assert sorted(n for some in single for n in some) == list(range(25))
    assert reader.num_batches in (None, len(single)) and len(single) == -(-25 // batch_size)
    if kind != "shuffled":
        assert [n for some in single for n in some] == list(range(25))
    for size in (2, 3, 4):
        ranks = [[numbers(b) for b in reader.batches(1, rank, size)] for rank in range(size)]
        joined = [[n for part in parts for n in part] for parts in zip(*ranks, strict=True)]
        assert joined == single


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start", [0, 1, 3, 6, 7])
def test_a_resumed_epoch_continues_where_it_stopped(log: ClickLog, kind: str, start: int) -> None:
    reader = make(kind, log, 4)
    for rank, size in [(0, 1), (1, 2)]:
        whole = [numbers(batch) for batch in reader.batches(2, rank, size)]
        assert [numbers(b) for b in reader.batches(2, rank, size, start)] == whole[start:]


def test_epochs_are_shuffled_differently_and_again_alike(log: ClickLog) -> None:
    reader = make("shuffled", log, 4)
    first, second = ([numbers(b) for b in reader.batches(epoch)] for epoch in (0, 1))
    assert first != second and first == [numbers(b) for b in reader.batches(0)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(1, 11), st.integers(1, 4))
def test_any_files_any_batch_any_world(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], batch_size: int, size: int
) -> None:
    log = ClickLog(write(tmp_path_factory.mktemp("log"), sizes), "slots", LAYOUT)
    for kind in ("stream", "shuffled"):
        reader = make(kind, log, batch_size, threads=3)
        found = [n for r in range(size) for b in reader.batches(0, r, size) for n in numbers(b)]
        assert sorted(found) == list(range(sum(sizes)))


def test_small_blocks_and_many_threads_change_nothing(
    log: ClickLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [numbers(batch) for batch in make("stream", log, 4).batches(0, 1, 2)]
    monkeypatch.setattr("shoal.clicks.lines.BLOCK_BYTES", 40)  # a line or two
    for threads in (1, 4):
        reader = make("stream", log, 4, threads)
        assert [numbers(batch) for batch in reader.batches(0, 1, 2)] == expected
    assert counts_of(log) == SIZES


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_tiles_do_not_depend_on_the_world(log: ClickLog, size: int) -> None:
    """Evaluation: a sample always stands in the same tile, whoever predicts it."""
    for reader in (
        InMemory(load(log), LAYOUT, 4, tile=4),
        Stream(log, 4, counts_of(log), tile=4),
    ):
        ranks = [[numbers(b) for b in reader.batches(0, rank, size)] for rank in range(size)]
        assert len({len(batches) for batches in ranks}) == 1
        assert len(ranks[0]) == reader.num_tiles(size)
        tiles = [tile for batches in ranks for tile in batches if tile]
        assert sorted(tiles) == [list(range(k, min(k + 4, 25))) for k in range(0, 25, 4)]


def test_a_file_that_changes_is_noticed(log: ClickLog) -> None:
    reader = make("stream", log, 4)
    with open(log.files[0], "a") as file:
        file.write(line(99) + "\n")
    with pytest.raises(ValueError, match=r"part-0\.txt changed during the run: it had 5 samples"):
        list(reader.batches(0))


def test_a_bad_line_stops_the_reader(log: ClickLog) -> None:
    with open(log.files[3], "a") as file:
        file.write("click:0 d:x\n")
    # Seven samples and a blank line after the first of them.
    with pytest.raises(ValueError, match=r"part-3\.txt, line 9: d is 'x'"):
        list(Stream(log, 4, None).batches(0))
    with pytest.raises(ValueError, match=r"part-3\.txt, line 9: d is 'x'"):
        load(log)


def test_several_ids_travel_as_lists(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("click:0 d:1 1:5 1:6 2:7\nclick:1 d:2 1:8\nclick:0 d:3 2:9\n")
    log = ClickLog([tmp_path / "a"], "slots", LAYOUT)
    for reader in (Stream(log, 2, [3]), InMemory(load(log), LAYOUT, 2)):
        batches = list(reader.batches(0))
        slots = batches[0].ids["slots"]
        assert isinstance(slots, Jagged)
        assert slots.values.tolist() == [5, 6, 7, 8, 0] and slots.offsets.tolist() == [
            *(0, 2, 3, 4, 5)
        ]
        last = batches[1].ids["slots"]
        values = last.values if isinstance(last, Jagged) else last.reshape(-1)
        assert values.tolist() == [0, 9]


# ---- split by files ---------------------------------------------------------------------------


def test_blocks_of_files_with_the_remainder_to_the_first(log: ClickLog) -> None:
    parts = [[file.name[5] for file in log.part(worker, 3).files] for worker in range(3)]
    assert parts == [["0", "1"], ["2", "3"], ["4"]]
    assert [len(log.part(worker, 7).files) for worker in range(7)] == [1, 1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("kind", ["memory", "stream"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_split_files(tmp_path: Path, kind: str, size: int) -> None:
    """Own files only, every sample once, and as many steps everywhere."""
    write(tmp_path, SIZES)
    config = click_config(
        data__format="slots",
        data__path=str(tmp_path),
        data__clicks__train="part-*",
        data__clicks__slots=2,
        data__clicks__dense=["d"],
        data__clicks__reader=kind,
        data__clicks__split_files=True,
        train__batch_size=8,
        train__eval_every=0,
    )
    every = ClickLog(sorted(tmp_path.iterdir()), "slots", LAYOUT)
    totals = [sum(counts_of(every.part(rank, size))) for rank in range(size)]
    steps = [-(-total // share(8, rank, size)) for rank, total in enumerate(totals)]
    readers = []
    for rank in range(size):
        world = World()
        world.rank, world.size = rank, size
        # What the other ranks would say: the samples of all files, and everybody's steps.
        world.all_reduce = lambda tensor: torch.tensor(SIZES)  # type: ignore[method-assign]
        world.stack = lambda tensor: torch.tensor(steps)  # type: ignore[method-assign]
        opened = open_clicks(config, world, 4)
        assert isinstance(opened.reader, SplitFiles)
        readers.append(opened.reader)
    own = [[f.name for f in every.part(rank, size).files] for rank in range(size)]
    found = []
    for rank, reader in enumerate(readers):
        batches = [numbers(b) for b in reader.batches(0, rank, size)]
        assert len(batches) == reader.num_batches == max(steps)
        assert all(len(batch) <= share(8, rank, size) for batch in batches)
        mine = [n for batch in batches for n in batch]
        starts = [sum(SIZES[:k]) for k in range(5)]
        files = [int(name[5]) for name in own[rank]]
        assert sorted(mine) == [n for k in files for n in range(starts[k], starts[k] + SIZES[k])]
        assert [numbers(b) for b in reader.batches(0, rank, size, 1)] == batches[1:]
        found += mine
    assert sorted(found) == list(range(25))


def test_a_batch_smaller_than_the_world_cannot_be_split() -> None:
    with pytest.raises(ValueError, match=r"batch_size 2 is below the 3 processes"):
        [share(2, worker, 3) for worker in range(3)]


# ---- pipe_command -----------------------------------------------------------------------------

CONVERT = """
import sys
for row in sys.stdin:
    number = int(row)
    print(f"click:{number % 2} d:{number / 4} 1:{number + 1} 2:{number % 3}")
    if number == FAIL:
        print("cannot go on", file=sys.stderr)
        sys.exit(3)
"""


def piped(folder: Path, fail: int = -1, sizes: tuple[int, ...] = (6, 4)) -> ClickLog:
    program = folder / "convert.py"
    program.write_text(CONVERT.replace("FAIL", str(fail)))
    number, files = 0, []
    for k, size in enumerate(sizes):
        files.append(folder / f"raw-{k}")
        files[-1].write_text("".join(f"{number + i}\n" for i in range(size)))
        number += size
    return ClickLog(files, "slots", LAYOUT, f"{sys.executable} '{program}'")


def test_a_program_between_file_and_parser(tmp_path: Path) -> None:
    log = piped(tmp_path)
    assert log.count(log.files[0]) is None
    reader = Stream(log, 4, None)
    assert reader.num_batches is None
    assert [numbers(b) for b in reader.batches(0)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [numbers(b) for b in reader.batches(0, 1, 2, 1)] == [[6, 7], [9]]
    memory = InMemory(load(log, threads=2), LAYOUT, 4)
    assert [n for b in memory.batches(0) for n in numbers(b)] == list(range(10))


def test_a_program_that_fails(tmp_path: Path) -> None:
    log = piped(tmp_path, fail=7)
    with pytest.raises(ValueError) as caught:
        list(Stream(log, 4, None).batches(0))
    said = str(caught.value)
    assert "ended with status 3 while reading" in said and said.endswith("cannot go on")
    assert str(log.files[1]) in said


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    log = ClickLog(write(tmp_path, [3]), "slots", LAYOUT, "no-such-program --of mine")
    with pytest.raises(ValueError, match="'no-such-program --of mine' cannot be run: No such file"):
        load(log)
    with pytest.raises(ValueError, match="No closing quotation"):
        load(ClickLog(log.files, "slots", LAYOUT, "cat 'a"))


def test_what_a_program_writes_is_checked(tmp_path: Path) -> None:
    log = ClickLog(write(tmp_path, [3]), "slots", LAYOUT, "echo nonsense")
    with pytest.raises(ValueError, match=r"part-0\.txt, piped, line 1: found 'nonsense'"):
        load(log)


def test_a_program_ends_with_its_reader(tmp_path: Path) -> None:
    """`yes` would write for ever."""
    (tmp_path / "a").touch()
    log = ClickLog([tmp_path / "a"], "slots", LAYOUT, f"yes '{line(5)}'")
    batches = Stream(log, 2, None).batches(0)
    assert numbers(next(batches)) == [5, 5]
    batches.close()  # type: ignore[attr-defined]
    from shoal.clicks import pipe

    assert not pipe._running


# ---- a reader of one's own --------------------------------------------------------------------

OWN = """
import numpy as np

class RecDataset:
    def __init__(self, file_list, config):
        self.file_list, self.config = file_list, config

    def __iter__(self):
        for file in self.file_list:
            for row in open(file):
                n = int(row)
                dense = np.array([n / 4], "float32")
                yield [np.array([n % 2]), np.array([n + 1]), np.array([n % 3]), dense]

class Lists(RecDataset):
    def __iter__(self):
        yield [[1], [4, 5], [], [0.5]]

class Short(RecDataset):
    def __iter__(self):
        yield [[1], [4]]
"""


def own(folder: Path, name: str = "", batch_size: int = 4) -> Custom:
    log = piped(folder)
    (folder / "own.py").write_text(OWN)
    spec = f"{folder / 'own.py'}{name}"
    return Custom(spec, log.files, {"train.batch_size": 4}, LAYOUT, batch_size)


def test_a_custom_reader(tmp_path: Path) -> None:
    reader = own(tmp_path)
    assert reader.num_batches is None
    assert [numbers(b) for b in reader.batches(0)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [numbers(b) for b in reader.batches(0, 1, 2, 1)] == [[6, 7], [9]]
    lists = next(iter(own(tmp_path, ":Lists").batches(0))).ids["slots"]
    assert isinstance(lists, Jagged) and lists.values.tolist() == [4, 5, 0]


def test_errors_of_a_custom_reader(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sample 1 is 2 arrays; a sample is a list of 4 arrays"):
        list(own(tmp_path, ":Short").batches(0))
    with pytest.raises(ValueError, match="has no class Nobody; its classes are RecDataset, Lists"):
        own(tmp_path, ":Nobody")
    with pytest.raises(ValueError, match=r"cannot read .*nowhere\.py"):
        Custom("nowhere.py", [], {}, LAYOUT, 4)


def test_the_readers_own_speed_is_logged(
    log: ClickLog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room.log, "propagate", True)
    reader = Stream(log, 4, None, profile=True)
    with caplog.at_level("INFO", "shoal"):
        list(reader.batches(3))
    assert "reader in epoch 3: 25 samples" in caplog.text and "MB/s" in caplog.text
