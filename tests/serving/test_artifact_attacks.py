"""What the author of an artifact can write into it: nothing runs, grows or takes for ever.

Graphs are written by hand here; those of whole artifacts are in test_artifact.py.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from exported import rewrite
from safetensors.torch import save_file
from small_artifact import MEAN, node, read, write_artifact, write_clicks
from small_artifact import graph as small_graph

from shoal.embedding.rows.store import Rows
from shoal.embedding.rows.table import Init, Table
from shoal.serving.artifact import files
from shoal.serving.artifact import trial_run as trial
from shoal.serving.artifact.artifact import HISTORIES, Artifact, StoredHistories
from shoal.serving.artifact.files import ArtifactError
from shoal.serving.artifact.graph import ExportedGraph
from shoal.serving.artifact.operators import rule
from shoal.serving.artifact.tables import RowTable, write_table

X = read("x")
INTS = {"dtype": {"dtype": "int64"}}


def graph(*nodes: dict[str, Any], **facts: Any) -> ExportedGraph:
    document = small_graph(*nodes, **facts)
    found = ExportedGraph(document, {"weight": torch.eye(3)}, {"item": 3}, "graph.json")
    found.check()
    return found


def test_the_objects_of_operators_lead_nowhere(tmp_path: Path) -> None:
    """Their methods led to the interpreter's own functions: this chain ended in `eval`."""
    witness = tmp_path / "witness"
    chain = [
        node("a", "aten.relu.__reduce_ex__", 2),
        node("b", "operator.getitem", read("a"), 0),
        node("c", "aten.relu.__setattr__", "_op", read("b")),
        node("d", "aten.relu.__getattr__", "__globals__"),
        node("e", "operator.getitem", read("d"), "__builtins__"),
        node("f", "operator.getitem", read("e"), "eval"),
        node("g", "aten.relu.__setattr__", "_op", read("f")),
        node("h", "aten.relu.__call__", f"__import__('os').mkdir({str(witness)!r})"),
    ]
    before = torch.ops.aten.relu._op
    try:
        with pytest.raises(ArtifactError, match="no operator of a graph"):
            graph(*chain)
        assert not witness.exists() and torch.ops.aten.relu._op is before
    finally:
        torch.ops.aten.relu._op = before


@pytest.mark.parametrize(
    "operation",
    [
        "aten.relu.__getattribute__",
        "aten.relu.__class__",
        "aten.relu.overloads",
        "aten.relu.out",  # writes into what it is given
        "aten.add.out",
        "aten.zeros.out",
    ],
)
def test_only_overloads_that_write_nothing(operation: str) -> None:
    with pytest.raises(ArtifactError, match=r"no operator of a graph|is damaged"):
        graph(node("a", operation, X))


COMPLEX = [
    node("p", "aten.view.default", X, [-1, 2, 2]),
    node("c", "aten.view_as_complex.default", read("p")),
]
OUTSIDE = {  # each read or wrote outside an array, or ended the process
    "fft c2r": [*COMPLEX, node("a", "aten._fft_c2r.default", read("c"), [-2], 0, 1 << 20)],
    "fft r2c": [node("a", "aten._fft_r2c.default", X, [-2], 0, True)],
    "repeat": [
        node("i", "aten.full.default", [3], -(1 << 40), **INTS),
        node("a", "aten.repeat_interleave.Tensor", read("i"), output_size=4),
    ],
    "a longer irfft": [*COMPLEX, node("a", "aten.fft_irfft.default", read("c"), 1 << 20, 1)],
    "an axis of rfft": [node("a", "aten.fft_rfft.default", X, None, -3)],
    "a type by number": [node("a", "aten.zeros.default", [3, 4], dtype=255)],
    "the least by -1": [
        node("i", "aten.full.default", [1], -(1 << 62), **INTS),
        node("j", "aten.add.Tensor", read("i"), read("i")),
        node("k", "aten.full.default", [1], -1, **INTS),
        node("a", "aten.div.Tensor_mode", read("j"), -1, rounding_mode="trunc"),
    ],
    "empty": [
        node("e", "aten.zeros.default", [1 << 40, 0]),
        node("a", "aten.sum.dim_IntList", read("e"), [1]),
    ],
    "one name twice": [node("x", "aten.relu.default", X)],
    "many parts": [
        node("e", "aten.zeros.default", [1 << 26]),
        node("a", "aten.unbind.int", read("e")),
    ],
}


@pytest.mark.parametrize("how", OUTSIDE)
def test_nothing_outside_an_array(how: str) -> None:
    with pytest.raises(ArtifactError, match=r"graph\.json"):
        graph(*OUTSIDE[how])


INDEXED = {
    "gather": [node("a", "aten.gather.default", read("w"), 1, X)],
    "embedding": [node("a", "aten.embedding.default", read("w"), X)],
    "index": [node("a", "aten.index.Tensor", read("w"), [X])],
    "scatter": [node("a", "aten.scatter.value", read("w"), 0, X, 1.0)],
    "division": [
        node("o", "aten.ones_like.default", X),
        node("a", "aten.div.Tensor_mode", read("o"), X, rounding_mode="floor"),
    ],
}


@pytest.mark.parametrize("how", INDEXED)
def test_values_are_looked_at_in_every_run(how: str) -> None:
    """Which places an index names is not known before: whoever asks sends it."""
    found = graph(*INDEXED[how], dtype="int64", shape=[1, 3])
    right = torch.tensor([[2, 1, 2]])
    assert found({"x": right}, lambda *_: right).shape[-1] == 3
    for wrong in (-(1 << 40), -4) if how == "division" else (-(1 << 40), -4, 1 << 40):
        with pytest.raises(ArtifactError, match=r"graph\.json is damaged: a: values"):
            found({"x": torch.tensor([[1, wrong, 2]])}, lambda *_: right)


def doubled(first: Any, operation: str, times: int) -> list[dict[str, Any]]:
    nodes = [node("n0", operation, first, first)]
    nodes += [node(f"n{k}", operation, *[read(f"n{k - 1}")] * 2) for k in range(1, times)]
    return nodes


ONES = node("a", "aten.ones.default", [1 << 13, 1 << 13])
GROWING = {
    "lists": [node("a", "operator.mul", [0], 1 << 40)],
    "text": [node("a", "operator.mul", "x", 1 << 40)],
    "lists added": doubled([1], "operator.add", 60),
    "numbers": doubled(3, "operator.mul", 60),
    "a place": [node("a", "aten.new_full.default", X, [1 << 30], 1.0, device="cpu")],
    "a place of zeros": [node("a", "aten.zeros.default", [1 << 30], device="cpu")],
    "a tensor": [node("a", "aten.zeros.default", [1 << 40])],
    "a negative one": [node("a", "aten.zeros.default", [-(1 << 40)])],
    "many tensors": [node(f"m{k}", "aten.zeros.default", [1 << 29]) for k in range(100)],
    "products": [ONES, *[node(f"m{k}", "aten.mm.default", *[read("a")] * 2) for k in range(100)]],
    "a window": [
        node("a", "aten.ones.default", [1, 1, 1 << 20]),
        node("b", "aten.conv1d.default", read("a"), read("a"), None, [1], [1 << 16]),
    ],
    "parts of what is gone": [
        one
        for k in range(100)
        for one in (
            node(f"m{k}", "aten.zeros.default", [1 << 26]),
            node(f"p{k}", "aten.slice.Tensor", read(f"m{k}"), 0, 0, 1),
        )
    ]
    + [node("z", "aten.cat.default", [read(f"p{k}") for k in range(100)])],
}


@pytest.mark.parametrize("how", GROWING)
def test_nothing_grows_without_bound(how: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ArtifactError, match=r"graph\.json"):
        graph(*GROWING[how])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


@pytest.mark.parametrize("shape", [[1 << 40, 1 << 40], [-1], ["x"], [None, 1.5], None])
def test_inputs_have_shapes(shape: Any) -> None:
    with pytest.raises((ArtifactError, TypeError)):
        graph(node("a", "aten.relu.default", X), shape=shape)


def test_sizes_are_still_computed() -> None:
    nodes = [
        node("n", "aten.sym_size.int", X, 0),
        node("m", "operator.floordiv", read("n"), 2),
        node("half", "aten.view.default", X, [read("m"), -1]),
        node("two", "aten.split.Tensor", read("half"), 4, 1),
        node("last", "operator.getitem", read("two"), 1),
        node("made", "aten.arange.start_step", 0, 4, 1, **INTS),
        node("sum", "aten.add.Tensor", read("last"), read("made")),
    ]
    given = torch.arange(16.0).view(4, 4)
    found = graph(*nodes)({"x": given}, lambda *_: given)
    assert torch.equal(found, given.view(2, 8)[:, 4:] + torch.arange(4))


@pytest.mark.parametrize(
    "change",
    [
        {"offsets": None},
        {"items": None},
        {"offsets": torch.tensor(2)},
        {"offsets": torch.tensor([0, 2, 1])},
        {"items": torch.tensor([[1, 2]])},
        {"items": torch.tensor([1.0, 2.0])},
        {"items": torch.tensor([1, 9])},
    ],
)
def test_histories_that_are_none(change: dict[str, Any], tmp_path: Path) -> None:
    found = {"items": torch.tensor([1, 2]), "offsets": torch.tensor([0, 1, 2]), **change}
    save_file({name: one for name, one in found.items() if one is not None}, tmp_path / HISTORIES)
    with pytest.raises(ArtifactError, match="its histories is damaged"):
        StoredHistories(tmp_path, {"files": {HISTORIES: {}}}, num_users=2, num_items=5)


@pytest.mark.parametrize("ids", [torch.tensor([0.0]), torch.tensor([True]), torch.tensor([1j])])
def test_ids_that_are_no_whole_numbers(ids: torch.Tensor, tmp_path: Path) -> None:
    rows = Rows(torch.arange(6), torch.rand(6, 3))
    table = Table("item", 3, 6, Init("uniform", 0.1))
    facts = write_table(tmp_path, table, iter([rows]), "float32")
    found = RowTable(
        tmp_path, {"files": {name: {} for name in os.listdir(tmp_path)}}, "item", facts
    )
    assert found.rows(torch.tensor([5])).shape == (1, 3)
    with pytest.raises(ArtifactError, match="not whole numbers"):
        found.rows(ids)


# ---- bounds and processes -----------------------------------------------------------------------

SQUARE = [  # numbers by the square of the number of samples
    node("n", "aten.sym_size.int", read("slots"), 0),
    node("m", "operator.mul", read("n"), read("n")),
    node("z", "aten.zeros.default", [read("m")]),
    node("s", "aten.sum.dim_IntList", read("z"), [0]),
    node("f", "aten._to_copy.default", read("slots"), dtype={"dtype": "float32"}),
    node("t", "aten.sum.dim_IntList", read("f"), [1]),
    node("a", "aten.add.Tensor", read("t"), read("s")),
]


def test_a_batch_that_is_too_large_is_answered_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = Artifact(write_clicks(tmp_path / "a", *SQUARE))
    monkeypatch.setattr(rule, "NUMBERS", 1 << 10)  # 22 samples have as many; sums count twice
    slots = torch.arange(200).view(100, 2)
    assert torch.equal(artifact.logits({"slots": slots}), slots.sum(1).float())
    assert artifact.running._fit == 12
    monkeypatch.setattr(rule, "NUMBERS", 1)
    # Eleven samples: a graph checks no bounds again for shapes that have passed, as twelve have.
    with pytest.raises(ArtifactError, match=r"a/graph\.json makes 2 numbers at a time; 1 are"):
        artifact.logits({"slots": slots[:11]})


def test_a_table_that_is_read_whole_holds_its_rows(tmp_path: Path) -> None:
    """Of no row and 2^20 columns: its 2 MB asked for 839 GB."""
    home = write_artifact(tmp_path / "a", MEAN)
    save_file({"values": torch.zeros(0, 1 << 20)}, home / "rows-item_vectors.safetensors")
    save_file({"ids": torch.zeros(0, dtype=torch.int64)}, home / "ids-item_vectors.safetensors")
    facts = {"dim": 1 << 20, "rows": 0, "listed": True}
    rewrite(home, files.SIGNATURE, lambda d: d["tables"]["item_vectors"].update(facts))
    with pytest.raises(
        ArtifactError, match=r"a is damaged: rows-item_vectors\S+ holds 0 of 6 rows"
    ):
        Artifact(home)


def test_the_trial_of_a_graph_ends_in_time(tmp_path: Path) -> None:
    """It is within all bounds, and takes minutes."""
    slow = [node("e0", "aten.zeros.default", [1 << 26])]
    slow += [node(f"e{k}", "aten.exp.default", read(f"e{k - 1}")) for k in range(1, 3000)]
    slow += [node("a", "aten.sum.dim_IntList", read("e2999"), [0])]
    with pytest.raises(ArtifactError, match=r"a is refused: graph\.json: it ended .* by SIGXCPU"):
        trial.try_apart(Artifact(write_clicks(tmp_path / "a", *slow)), seconds=1)


# ---- a real service -----------------------------------------------------------------------------

BY_VALUE = [  # ids of the request are places of a tensor with three rows
    node("rows", "aten.embedding.default", read("w"), read("slots")),
    node("a", "aten.sum.dim_IntList", read("rows"), [1, 2]),
]


def serve(home: Path, *more: str) -> subprocess.Popen[str]:
    command = [str(Path(sys.executable).with_name("shoal")), "serve", str(home), "--port", "0"]
    return subprocess.Popen(
        [*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_service_refuses_a_hostile_graph_in_one_line(tmp_path: Path) -> None:
    home = write_artifact(tmp_path / "a", small_graph(*OUTSIDE["fft c2r"]))
    process = serve(home)
    _, errors = process.communicate()
    assert process.returncode == 2
    assert [line for line in errors.splitlines() if "INFO" not in line] == [
        f"error: {home}/graph.json calls 'aten._fft_c2r.default', which is no operator of a graph"
    ]


@pytest.mark.slow
def test_a_service_lives_on_when_a_graph_goes_wrong(tmp_path: Path) -> None:
    """It passed every check, and what a request holds leads outside its arrays."""
    pytest.importorskip("starlette", reason="shoal serve needs the extra `serve`")
    place = tmp_path / "place"
    process = serve(write_clicks(tmp_path / "a", *BY_VALUE), "--announce", str(place))
    try:
        while not place.exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)

        def ask(*samples: dict[str, int]) -> tuple[int, Any]:
            body = json.dumps({"samples": samples}).encode()
            url, kind = f"{place.read_text()}/v1/predict", {"content-type": "application/json"}
            try:
                with urllib.request.urlopen(urllib.request.Request(url, body, kind)) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)

        right = ask({"p": 1, "q": 2})
        assert right[0] == 200 and right[1]["clicks"] == pytest.approx([0.8808], abs=1e-4)
        for wrong in (3, -1, 1 << 40, -(1 << 62)):
            status, answer = ask({"p": 1, "q": wrong})
            assert status == 422 and "graph.json is damaged: rows: values" in answer["error"]
        assert ask({"p": 1, "q": 2}) == right
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        process.communicate()
