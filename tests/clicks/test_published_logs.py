"""Public click logs as they are published: each by its name, from small files of its form."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.clicks.data import ClickData, open_clicks
from shoal.clicks.samples import ClickReader, InMemory, Samples
from shoal.clicks.stream import load as load_log
from shoal.config import Config
from shoal.data.loading.location import named_data
from shoal.data.sources.published import AVAZU_SLOTS, FRAPPE_SLOTS
from shoal.distributed.world import World
from shoal.runs.run import resolve

CRITEO = "".join(
    "\t".join(
        [str(n % 3 % 2), *[str(n + k) for k in range(13)], *[f"{n * k:08x}" for k in range(26)]]
    )
    + "\n"
    for n in range(40)
)
AVAZU = ",".join(["id", "click", *AVAZU_SLOTS]) + "\n"
AVAZU += "".join(
    ",".join([f"1000{n}", str(n % 2), "14102100", *[f"a{n * k}" for k in range(21)]]) + "\n"
    for n in range(40)
)


def libfm(count: int) -> str:
    lines = (
        " ".join([("-1", "1")[n % 2], *[f"{100 * k + n % 7}:1" for k in range(10)]])
        for n in range(count)
    )
    return "".join(f"{line}\r\n" for line in lines)


NEWS = "".join(
    f'N{n}\t{kind}\t{kind}-{n}\tA title\tText "quoted"\thttps://x\t[]\t[]\n'
    for n, kind in enumerate(("sports", "news", "sports", "health"))
)
BEHAVIORS = (
    "1\tU1\t11/11/2019 9:05:58 AM\tN0 N1\tN2-1 N3-0\n"
    "2\tU2\t11/12/2019 6:11:30 PM\t\tN0-0\n"
    "3\tU1\t11/14/2019 7:01:48 AM\tN0 N1 N2\tN1-0 N9-1 N3-0\n"
)
MIND: dict[str, Any] = {
    f"MINDsmall_{part}/{file}": text
    for part in ("train", "dev")
    for file, text in (("behaviors.tsv", BEHAVIORS), ("news.tsv", NEWS))
}
FRAPPE: dict[str, Any] = {
    "frappe.train.libfm": libfm(30),
    "frappe.validation.libfm": libfm(6),
    "frappe.test.libfm": libfm(4),
}


def opened(folder: Path, name: str, files: dict[str, Any], *overrides: str) -> ClickData:
    for file, text in files.items():
        path = folder / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    args = [f"--dataset={name}", "--model=DeepFM", f"--data.path={folder}"]
    config: Config = resolve((), [*args, *overrides]).config
    assert named_data(config.data, clicks=True).kind == "clicks"
    return open_clicks(config, World(), tile=16)


def held(reader: ClickReader) -> Samples:
    assert isinstance(reader, InMemory) and isinstance(reader.samples, Samples)
    return reader.samples


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("criteo", {"train.txt": CRITEO}),
        ("avazu", {"train.csv": AVAZU}),
        ("avazu", {"train": AVAZU}),
        ("avazu", {"train.gz": gzip.compress(AVAZU.encode())}),
    ],
)
def test_one_file_is_cut_in_its_order(tmp_path: Path, name: str, files: dict[str, Any]) -> None:
    data = opened(tmp_path, name, files)
    parts = [held(data.reader), held(data.readers["valid"]), held(data.readers["test"])]
    assert [len(part) for part in parts] == [32, 4, 4]
    labels = [n % 3 % 2 if name == "criteo" else n % 2 for n in range(40)]
    assert np.concatenate([part.labels for part in parts]).tolist() == labels
    assert data.sources["test"].startswith("the last 10 % of data.clicks.train")
    assert data.trained_on == {}


def test_a_stream_has_the_same_parts(tmp_path: Path) -> None:
    whole = opened(tmp_path, "criteo", {"train.txt": CRITEO})
    stream = opened(tmp_path, "criteo", {}, "--data.clicks.reader=stream")
    for split in ("valid", "test"):
        batches = list(stream.readers[split].batches(0))
        labels = np.concatenate([np.asarray(batch.labels) for batch in batches])
        assert labels.tolist() == held(whole.readers[split]).labels.tolist()
    assert stream.reader.known_samples == 32


def test_a_cut_log_names_the_line_of_what_is_wrong(tmp_path: Path) -> None:
    lines = CRITEO.splitlines()
    lines[36] = lines[36].replace("\t", " ", 1)
    with pytest.raises(ValueError, match=r"train\.txt, line 37: has 39 cells, not 40"):
        opened(tmp_path, "criteo", {"train.txt": "\n".join(lines)})
    with pytest.raises(ValueError, match=r"split_files and data\.split\.order=file exclude"):
        opened(tmp_path, "avazu", {"train": AVAZU}, "--data.clicks.split_files=true")


def test_frappe(tmp_path: Path) -> None:
    data = opened(tmp_path, "frappe", FRAPPE)
    train = held(data.reader)
    assert data.layout.slots == tuple(FRAPPE_SLOTS)
    assert train.labels.tolist() == [n % 2 for n in range(30)]
    assert train.ids[8].tolist() == [100 * k + 1 for k in range(10)]
    assert (len(held(data.readers["valid"])), len(held(data.readers["test"]))) == (6, 4)
    wrong = libfm(3).replace("201:1", "201:0.5")
    with pytest.raises(ValueError, match=r"train\.libfm, line 2: daytime is .*201:0\.5"):
        opened(tmp_path, "frappe", FRAPPE | {"frappe.train.libfm": wrong})
    short = "1 2:1 3:1\n"
    with pytest.raises(ValueError, match=r"train\.libfm, line 1: has 3 cells, not 11"):
        opened(tmp_path, "frappe", FRAPPE | {"frappe.train.libfm": short})


def test_mind(tmp_path: Path) -> None:
    data = opened(tmp_path, "mind-small", MIND)
    train = held(data.reader)
    assert train.labels.tolist() == [1, 0, 0, 0, 1, 0]
    assert train.offsets is not None
    lengths = np.diff(train.offsets).reshape(6, 5)
    assert lengths[:, 4].tolist() == [2, 2, 1, 3, 3, 3]  # of histories; an empty one is the id 0
    first = train.ids[train.offsets[:-1]].reshape(6, 5)
    user, news, category, subcategory, history = first.T
    assert user[0] == user[1] == user[3] != user[2]
    assert category[0] == category[2] and category[0] != category[1]  # N2 and N0; N3
    assert category[4] == subcategory[4] == 0  # of a news that news.tsv does not have
    assert history[2] == 0 and history[0] == history[3] != 0
    assert news[1] == news[5]
    assert len(held(data.readers["test"])) == 6


def test_mind_reads_some_samples_of_a_block(tmp_path: Path) -> None:
    whole = opened(tmp_path, "mind-small", MIND)
    for part in (np.array([5]), np.array([1, 2, 4]), slice(2, 5)):
        log = whole.files["train"][0]
        from shoal.clicks.log import ClickLog

        block = next(iter(ClickLog([log], "mind", whole.layout).blocks(log)))
        samples, all_samples = block.parse(part), block.parse(slice(None))
        expected = all_samples.take(np.arange(6)[part])
        assert samples.labels.tolist() == expected.labels.tolist()
        assert samples.ids.tolist() == expected.ids.tolist()
    assert ClickLog([log], "mind", whole.layout).count(log) == len(
        load_log(ClickLog([log], "mind", whole.layout))
    )


MIND_BAD = [
    ("behaviors.tsv", "1\tU1\tx\tN0\tN2-1\n2\tU2\tx\tN0\n", r"behaviors\.tsv, line 2: has 4 cells"),
    ("behaviors.tsv", "1\tU1\tx\tN0\tN2-1\n\n2\tU2\tx\tN0\tN2 N3\n", r"line 3: .*N2.* NEWS-0"),
    ("news.tsv", "N0\tsports\n", r"news\.tsv, line 1: 2 cells"),
]


@pytest.mark.parametrize(("file", "text", "message"), MIND_BAD)
def test_bad_lines_of_mind(tmp_path: Path, file: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        opened(tmp_path, "mind-small", MIND | {f"MINDsmall_train/{file}": text})


def test_a_model_of_interactions_refuses_a_log(tmp_path: Path) -> None:
    (tmp_path / "criteo").mkdir()
    (tmp_path / "criteo" / "train.txt").write_text(CRITEO)
    config = resolve((), ["--dataset=criteo", "--model=BPR", f"--data.path={tmp_path}"]).config
    with pytest.raises(ValueError, match="names a click log, and this model learns from"):
        named_data(config.data, clicks=False)
