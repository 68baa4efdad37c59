"""The operators that a graph may call: each is answered or refused, whatever its arguments are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fuzz import operators
from fuzz.child import Status
from small_artifact import graph, node, read

from shoal.serving.artifact.files import ArtifactError
from shoal.serving.artifact.graph import ExportedGraph
from shoal.serving.artifact.operators import indexing, rule, shapes
from shoal.serving.artifact.operators.table import OPERATORS, operator

TESTS = Path(__file__).parents[1]
EACH = 30  # hostile calls of an operator


@pytest.mark.parametrize("name", OPERATORS)
def test_examples_are_allowed(name: str) -> None:
    """So what is hostile is close to what is right."""
    for example in operators.examples(name):
        arguments = operators.named(operator(name), example)
        found = {key: operators.plain(one) for key, one in arguments.items()}
        assert operator(name).cost(found).numbers > 0
        operator(name)(found, "cpu")


def test_hostile_arguments_end_no_process(tmp_path: Path) -> None:
    """`make fuzz` runs more of them."""
    paths = os.pathsep.join(map(str, (TESTS.parent, TESTS)))
    seed, status = 11, tmp_path / "status"
    command = [sys.executable, "-m", "fuzz.child", "operators", str(seed), str(status)]
    done = subprocess.run(
        [*command, str(tmp_path), str(EACH * len(OPERATORS))],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (seed, Status(status).read()[2], done.stderr[-2000:])
    assert not done.stdout  # a finding would be a line
    assert Status(status).read()[0] == EACH * len(OPERATORS)


@pytest.mark.parametrize("name", OPERATORS)
def test_rules_that_look_into_tensors_run_before_every_call(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All other rules run once for each shape of a graph's inputs, so they may see shapes alone."""
    looked: list[str] = []

    def noting(index: torch.Tensor, low: int, high: int) -> None:
        looked.append(name)
        rule.within(index, low, high)

    for module in (indexing, shapes):
        monkeypatch.setattr(module, "within", noting)
    for example in operators.examples(name):
        arguments = operators.named(operator(name), example)
        operator(name).cost({key: operators.plain(one) for key, one in arguments.items()})
    assert operator(name).reads_values or not looked
    if not operator(name).reads_values:  # of shapes without numbers it finds the same
        for example in operators.examples(name):
            arguments = operators.named(operator(name), example)
            plain = {key: operators.plain(one) for key, one in arguments.items()}
            meta = {key: _without_numbers(one) for key, one in plain.items()}
            assert operator(name).cost(plain) == operator(name).cost(meta)


def _without_numbers(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    return [_without_numbers(one) for one in value] if isinstance(value, list) else value


def test_shapes_that_have_passed_do_not_let_values_pass() -> None:
    """The second run with inputs of the same shapes leaves out rules of shapes, not of values."""
    document = graph(
        node("picked", "aten.index_select.default", read("w"), 0, read("x")),
        node("more", "aten.mul.Tensor", read("picked"), 2.0),
        dtype="int64",
        shape=[None],
    )
    weight = torch.arange(9.0).view(3, 3)
    exported = ExportedGraph(document, {"weight": weight}, {"item": 3}, "graph.json")

    def run(*places: int) -> torch.Tensor:
        return exported({"x": torch.tensor(places)}, lambda *_: torch.empty(0))

    for places in ([0, 1], [2, 2], [1, 0]):
        assert torch.equal(run(*places), weight[places] * 2)
    assert len(exported._passed) == 1
    for places in ([0, 3], [-1, 0], [1 << 40, 0]):
        with pytest.raises(ArtifactError, match="picked: values"):
            run(*places)
    assert torch.equal(run(0, 1, 2), weight * 2) and len(exported._passed) == 2
