"""What the author of a data file, a cache or a config can put into it: one clear error each."""

import gzip
import resource
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from shoal.clicks.decode import hash_tokens
from shoal.clicks.layout import Layout
from shoal.clicks.lines import line_chunks
from shoal.clicks.log import ClickLog
from shoal.clicks.stream import load
from shoal.config.errors import ConfigError
from shoal.config.schema import DataSection
from shoal.config.yaml_io import read as read_yaml
from shoal.data import column_store as store
from shoal.data.loading import load as loading
from shoal.data.loading.load import load_dataset
from shoal.data.parquet_counts import check_counts
from shoal.data.statistics import leakage
from shoal.planning.data_page import page
from shoal.runs.run import resolve

MIB = 1 << 20


def within(limit: int, work: Callable[[], Any]) -> Any:
    """The work's result; no more than `limit` bytes of memory may come to this process by it."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = work()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < limit, f"{grown >> 20} MiB"
    return result


def refused(work: Callable[[], Any], *words: str) -> None:
    with pytest.raises(ValueError) as told:
        work()
    for word in words:
        assert word in str(told.value), told.value


# ---- configs ------------------------------------------------------------------------------------


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for k in range(levels):
        lines.append(f"a{k + 1}: &a{k + 1} [{', '.join([f'*a{k}'] * 9)}]")
    return "\n".join(lines)


def test_an_alias_bomb_is_refused_before_it_grows() -> None:
    assert len(bomb(8)) < 500
    for levels in (5, 8):  # half a million values, which a reader without a bound just makes; 4e8
        with pytest.raises(ConfigError, match="aliases"):
            read_yaml(bomb(levels), "config.yaml")
    assert read_yaml("a: &x [1, 2]\nb: *x\n", "")[0] == {"a": [1, 2], "b": [1, 2]}


def test_a_config_of_unbounded_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="characters"):
        read_yaml("# " + "x" * (2 * MIB), "config.yaml")


@pytest.mark.parametrize("rows", [2**62, 2**41, 2**70])
def test_more_rows_than_can_be_are_refused(rows: int) -> None:
    with pytest.raises(ConfigError, match=r"data\.clicks\.rows"):
        resolve((), ["--model=LR", f"--data.clicks.rows={rows}"])


@pytest.mark.parametrize("key", ["slots", "dense"])
def test_more_columns_than_can_be_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        resolve((), ["--model=LR", f"--data.clicks.{key}=1000000000"])


# ---- text ---------------------------------------------------------------------------------------

WORDS = Layout(("C1",), ("I1",), "label", None, True)


def test_a_line_of_unbounded_length_is_refused(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "log.csv.gz", "wb") as file:
        file.write(b"label,C1,I1\n")
        for _ in range(40):
            file.write(b"1" * MIB)
    log = ClickLog([tmp_path / "log.csv.gz"], "csv", WORDS, separator=",")
    refused(lambda: within(200 * MIB, lambda: load(log)), "log.csv.gz", "line is longer")
    refused(lambda: log.count(log.files[0]), "log.csv.gz", "line is longer")


def test_compressed_text_expands_within_bounds(tmp_path: Path) -> None:
    path = tmp_path / "log.csv.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"label,C1,I1\n")
        for _ in range(80):
            file.write(b"0,1,2\n" * (MIB // 6))
    assert path.stat().st_size < MIB
    log = ClickLog([path], "csv", WORDS, separator=",")
    refused(lambda: sum(len(block) for block in log.blocks(path)), "log.csv.gz", "unpacks to more")


def test_a_long_cell_does_not_make_all_others_wide(tmp_path: Path) -> None:
    lines = [b"label,C1,I1", *[b"0,1,1.5"] * 50_000, b"0,1," + b"1" * (3 * MIB // 2) + b".5"]
    path = tmp_path / "log.csv"
    path.write_bytes(b"\n".join(lines) + b"\n")  # without it the last line is read by itself
    log = ClickLog([path], "csv", WORDS, separator=",")
    refused(lambda: within(300 * MIB, lambda: load(log)), "log.csv, line 50002", "finite number")


def test_a_token_that_is_too_long_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(b"label,C1,I1\n0,a,1\n0," + b"x" * 100_000 + b",1\n")
    log = ClickLog([path], "csv", WORDS, separator=",")
    refused(lambda: load(log), "log.csv, line 3", "65536")


def test_tokens_of_any_length_hash_as_before() -> None:
    tokens = [b"", b"a", b"x" * 63, b"y" * 64, b"z" * 65, b"w" * 200, b"w" * 201]
    lengths = np.array([len(token) for token in tokens])
    together = hash_tokens(b"".join(tokens), lengths, np.full(len(tokens), 3))
    for number, token in enumerate(tokens):
        one = hash_tokens(token, lengths[number : number + 1], np.array([3]))
        assert one[0] == together[number]
    assert len(set(together.tolist())) == len(tokens)
    assert together[:2].tolist() == [10747546769492920424, 12187203751649931864]


def test_many_columns_of_one_name_are_read_in_bounded_time(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes(b"," * 200_000 + b"\n1\n")
    log = ClickLog([tmp_path / "log.csv"], "csv", WORDS, separator=",")
    refused(lambda: load(log), "200001 columns")


def test_chunks_hold_whole_lines() -> None:
    pieces = [b"ab", b"c\nde", b"f\n", b"g"]
    assert (
        b"".join(line_chunks(lambda _: pieces.pop(0) if pieces else b"", "log")) == b"abc\ndef\ng"
    )


# ---- interactions -------------------------------------------------------------------------------


def atomic(folder: Path, rows: str, **values: Any) -> DataSection:
    (folder / "ml").mkdir(exist_ok=True)
    header = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    (folder / "ml" / "ml.inter").write_text(header + rows)
    return DataSection(path=str(folder), name="ml", **values)


ROWS = "".join(f"u{k % 7}\ti{k % 5}\t{k % 4}\t{k}\n" for k in range(60))


def test_numbers_stay_finite_in_32_bits(tmp_path: Path) -> None:
    config = atomic(tmp_path, ROWS + "u1\ti1\t1e39\t5\n")
    refused(lambda: load_dataset(config, 1), "ml.inter, line 62", "1e39", "finite")
    config = atomic(tmp_path, ROWS + "u1\ti1\t3e38\t5\nu1\ti1\t-3e38\t6\n", normalize=["rating"])
    assert np.isfinite(np.asarray(load_dataset(config, 1).inter["rating"])).all()


def archive(path: Path, data: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("ml/ratings.dat", data)
    return path


def test_an_archive_expands_within_bounds(tmp_path: Path) -> None:
    archive(tmp_path / "ml.zip", b"1::1::5::9\n" * (100 * MIB // 11))
    config = DataSection(path=str(tmp_path), name="ml", format="movielens", cache=False)
    refused(lambda: within(64 * MIB, lambda: load_dataset(config, 1)), "ml.zip", "unpacks to")


@pytest.mark.parametrize("place", [0.02, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99])
def test_a_damaged_archive_is_one_error(tmp_path: Path, place: float) -> None:
    path = archive(tmp_path / "ml.zip", b"".join(b"%d::%d::5::9\n" % (k, k) for k in range(999)))
    data = bytearray(path.read_bytes())
    for k in range(4):
        data[int(place * (len(data) - 4)) + k] ^= 0x5A
    path.write_bytes(data)
    config = DataSection(path=str(tmp_path), name="ml", format="movielens", cache=False)
    try:
        load_dataset(config, 1)  # a byte that nobody reads
    except ValueError as error:
        assert "ml.zip" in str(error)


@pytest.mark.parametrize("place", [0, 0.1, 0.5, 0.8, 0.9, 0.95, 1])
def test_damaged_parquet_is_one_error(tmp_path: Path, place: float) -> None:
    path = tmp_path / "log.parquet"
    frame = pl.DataFrame({"label": [0, 1] * 500, "C1": list(range(1000)), "I1": [0.5] * 1000})
    frame.write_parquet(path)
    data = bytearray(path.read_bytes())
    first = int(place * (len(data) - 40))
    for k in range(40):
        data[first + k] ^= 0xFF
    path.write_bytes(data)
    log = ClickLog([path], "parquet", WORDS)
    try:
        load(log)
    except ValueError as error:
        assert "log.parquet" in str(error)


def test_a_parquet_page_with_a_negative_count_is_refused(tmp_path: Path) -> None:
    """Memory for 2^61 bytes is not to be had, and the reader would end this process."""
    path = tmp_path / "log.parquet"
    frame = pl.DataFrame({"label": [0, 1] * 20, "C1": list(range(40)), "I1": [0.5] * 40})
    frame.write_parquet(path)
    sound, head = path.read_bytes(), b",\x15\x50"  # of a page: a struct, whose first field is 40
    assert head in sound
    path.write_bytes(sound.replace(head, b",\x15\x09", 1))  # -5
    with pytest.raises(ValueError, match=r"damaged.*-5 values"):
        load(ClickLog([path], "parquet", WORDS))


@pytest.mark.parametrize("rows", [0, 1, 100_000])
def test_counts_of_a_sound_parquet_file_pass(tmp_path: Path, rows: int) -> None:
    frame = pl.DataFrame({"same": np.zeros(rows, np.int64), "lists": pl.Series([[1, 2]] * rows)})
    frame.write_parquet(tmp_path / "a.parquet")
    check_counts(tmp_path / "a.parquet")


def test_a_page_about_data_shows_its_names_and_runs_nothing(tmp_path: Path) -> None:
    name, column = "<script>a()<", "<img src=x onerror=b()>"
    folder = tmp_path / name
    folder.mkdir()
    header = f"user_id:token\titem_id:token\t{column}:token\n"
    lines = "".join(f"u{k % 7}\ti{k % 5}\t<script>\n" for k in range(60))
    (folder / f"{name}.inter").write_text(header + lines)
    dataset = load_dataset(DataSection(path=str(tmp_path), name=name, cache=False), 1)
    text = page(dataset, [], leakage(dataset), [f"{dataset.name}: {', '.join(dataset.inter)}"])
    assert "&lt;img src=x" in text and "<img" not in text and "<script" not in text


# ---- the cache of prepared data -----------------------------------------------------------------


@pytest.fixture
def stored(tmp_path: Path) -> tuple[DataSection, Path]:
    config = atomic(tmp_path, ROWS)
    load_dataset(config, 1)
    (folder,) = (tmp_path / "ml" / ".shoal").iterdir()
    return config, folder


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """As an editor does who makes every checksum right again."""
    body = store.read_document(folder / loading.MANIFEST, loading.VERSION)
    change(body)
    store.write_document(folder / loading.MANIFEST, body)


def changed(folder: Path, entry: dict[str, Any], change: Callable[[Any], np.ndarray]) -> None:
    """Write an array anew as `change` makes it, with its checksum."""
    stored = store.Stored.from_entry(entry)
    values = change(store.map_array(folder, stored).copy())
    entry |= store.write_array(folder, stored.file, values, stored.dtype).entry()


def test_a_cache_whose_items_have_no_words_is_prepared_again(
    stored: tuple[DataSection, Path], caplog: pytest.LogCaptureFixture
) -> None:
    config, folder = stored

    edit(folder, lambda b: changed(folder, b["columns"]["item_id"]["values"], lambda a: a + 100))
    with pytest.raises(store.DamagedFolder, match="ids of item_id"):
        loading.check_cache(folder)
    assert load_dataset(config, 1).num_items == 6
    assert "damaged" in caplog.text


def unseen_by_crc32(ids: np.ndarray) -> np.ndarray:
    """Other items in the same number of bytes, with the same CRC-32: some ids ^ 1."""
    sums: dict[int, tuple[int, set[int]]] = {}  # highest bit -> what the change of places does
    whole = zlib.crc32(ids.tobytes())
    for place in np.flatnonzero(ids >= 2).tolist():
        other = ids.copy()
        other[place] ^= 1
        change, places = zlib.crc32(other.tobytes()) ^ whole, {place}
        while change and change.bit_length() in sums:
            found = sums[change.bit_length()]
            change, places = change ^ found[0], places ^ found[1]
        if not change:  # of more than 32 places some undo each other
            other = ids.copy()
            other[sorted(places)] ^= 1
            return other
        sums[change.bit_length()] = change, places
    raise AssertionError("too few ids")


def test_a_cache_of_other_items_is_prepared_again(
    stored: tuple[DataSection, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """A short checksum can be kept: every item has its words, and no number shows the change."""
    config, folder = stored
    body = store.read_document(folder / loading.MANIFEST, loading.VERSION)
    name = body["columns"]["item_id"]["values"]["file"]
    items = np.fromfile(folder / name, np.int64)
    other = unseen_by_crc32(items)
    assert (items != other).any() and zlib.crc32(items.data) == zlib.crc32(other.data)
    other.tofile(folder / name)
    assert np.array_equal(load_dataset(config, 1).inter["item_id"], items)
    assert "damaged" in caplog.text


@pytest.mark.parametrize("what", ["splits", "offsets", "length", "words", "name", "link"])
def test_columns_that_do_not_belong_together(stored: tuple[DataSection, Path], what: str) -> None:
    _, folder = stored

    def change(body: dict[str, Any]) -> None:
        columns, splits, words = body["columns"], body["splits"], body["words"]
        if what == "splits":
            changed(folder, splits["train"], lambda rows: rows + 1000)
        elif what == "offsets":
            columns["more"] = {**columns["item_id"], "offsets": columns["item_id"]["values"]}
        elif what == "length":
            changed(folder, columns["rating"]["values"], lambda values: values[:-1])
        elif what == "words":
            changed(folder, words["item_id"]["ends"], lambda ends: ends + 1000)
        elif what == "name":
            splits["test"]["file"] = "../x.bin"
        else:
            name = splits["test"]["file"]
            (folder / name).rename(folder.parent / "elsewhere.bin")
            (folder / name).symlink_to(folder.parent / "elsewhere.bin")

    edit(folder, change)
    with pytest.raises(store.DamagedFolder):
        loading.check_cache(folder)


# ---- the core -----------------------------------------------------------------------------------


def test_a_table_too_large_to_count_ends_with_one_error() -> None:
    program = (
        "from shoal.kernels.tables import _core as core, _hyper, _state\n"
        "from shoal.optimizers.row_optimizer import RowOptimizer\n"
        "made = RowOptimizer('adagrad')\n"
        "told = _hyper(made), _state(made)\n"
        "sizes = [(2**62, 16), (2**60, 4), (2**58, 16), (2**40, 2**30), (5, -1), (-7, 4)]\n"
        "for rows, dim in sizes:\n"
        "    try:\n"
        "        core.make_table(dim, rows, False, 0, False, [], 0, 1, 0.1, *told, False,\n"
        "                        [0.0] * 3, 0, 1)\n"
        "    except ValueError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 6
