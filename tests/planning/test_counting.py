"""The work of a config, counted on few samples: beside what its formulas say."""

from __future__ import annotations

import pytest
import torch
from click_model import click_config, tiny_clicks  # noqa: F401

from shoal.planning.step_counter import StepCounter, count_work, products
from shoal.runs.run import resolve

SMALL = {
    "data.synthetic": {"users": 120, "items": 80, "interactions": 4000},
    **{"dataset": "synthetic", "run.log_level": "error", "run.progress": False},
}


def work_of(model: str, **more):
    return count_work(resolve([], [], {"model": model, **SMALL, **more}).config)


def test_products_of_shapes():
    a, b = torch.ones(2, 3, 4), torch.ones(2, 4, 5)
    assert products("bmm", (a, b), a @ b) == 2 * 2 * 3 * 5 * 4
    assert products("einsum", ("bij,bjk->bik", a, b), a @ b) == 2 * 2 * 3 * 5 * 4
    assert products("mul", (a, a), a) == 0


def test_what_functions_move():
    counter, x, w = StepCounter(), torch.ones(8, 4), torch.ones(16, 4, requires_grad=True)
    with counter:
        y = torch.nn.functional.linear(x, w)
        y.view(-1).relu()
    forward, backward = counter.counted.forward, counter.counted.backward
    assert forward.products == 2 * 8 * 4 * 16 and backward.products == 2 * forward.products
    assert forward.elementwise == 2 * 8 * 16 * 4  # relu reads and writes; a view does nothing
    assert forward.kernels == 2


def test_bpr():
    work = work_of("BPR", **{"train.batch_size": 500})
    by_name = {table.name: table for table in work.tables}
    assert (work.batch, work.parameters) == (500, 0)
    assert by_name["user"].ids == 1 and by_name["item"].ids == 2  # one taken, one negative
    assert by_name["item"].rows == 81 and by_name["item"].value_bytes == 4 * 64
    assert by_name["item"].state_bytes == 8 * 64  # Adam
    assert work.forward.products == 0 and work.forward.elementwise >= 3 * 64 * 4
    assert 50 < by_name["item"].popularity.distinct(1000) <= 81


def test_a_perceptron():
    work = count_work(click_config(model="DNN"))
    dense = [one for one in work.tables if not one.whole]
    assert dense and work.parameters > 0
    # Every weight of a linear layer is multiplied once for a sample: biases are the difference.
    assert 0.9 * 2 * work.parameters < work.forward.products < 2 * work.parameters
    assert work.backward.products == pytest.approx(2 * work.forward.products)


def test_a_softmax_over_all_items():
    work = work_of("SASRec", **{"train.batch_size": 64, "data.max_len": 10})
    (table,) = work.tables
    assert table.whole and table.ids == pytest.approx(10)
    assert work.forward.attention > 0
    layers = 2 * 2 * (4 * 64 * 64 + 2 * 64 * 256) * 10  # of two layers, ten places
    softmax = 2 * 81 * 64 * 10
    whole = work.forward.products + work.forward_step.products / 32
    assert whole == pytest.approx(layers + softmax, rel=0.35)


def test_rows_are_never_made(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_, **__):
        raise AssertionError("rows were made")

    monkeypatch.setattr("shoal.training.strategies.base.make_engines", refuse)
    assert work_of("BPR").tables


def test_closed_forms_have_no_steps():
    with pytest.raises(ValueError, match="EASE is solved in closed form"):
        work_of("EASE")
