"""Every row optimizer on every engine: none is missing, and all do what the plain form does."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from small import small_config
from torch import Tensor

import shoal.kernels.gpu
from shoal.distributed.world import World
from shoal.embedding.engines.device import Device
from shoal.embedding.engines.local import _log_plain_form, make_engines, make_local
from shoal.embedding.engines.reference import Reference
from shoal.embedding.engines.row_engine import RowEngine
from shoal.embedding.rows.table import Table
from shoal.kernels.core import has_core
from shoal.kernels.tables import core_optimizers
from shoal.optimizers.registry import DEFINITIONS, row_optimizer
from shoal.optimizers.row_optimizer import RowOptimizer, row_optimizer_names, update_rows
from shoal.runs.build import build

TABLE = Table("t", 6, 20)
NAMES = row_optimizer_names()


def in_triton() -> set[str]:
    """Names that the chain of kernels/gpu/optim.py has a branch for."""
    text = (Path(next(iter(shoal.kernels.gpu.__path__))) / "optim.py").read_text()
    return set(re.findall(r'KIND == "(\w+)"', text))


@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer_has_a_form_on_every_engine(name: str) -> None:
    optimizer = RowOptimizer(name)
    assert optimizer.triton_form in in_triton()
    if has_core():
        assert optimizer.core_form in core_optimizers()


def make(engine: str, optimizer: RowOptimizer) -> RowEngine:
    if engine == "device":
        return Device(TABLE, optimizer, 3, "cpu")
    return make_local(TABLE, optimizer, 3, backend=engine)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("engine", ["reference", "native", "device"])
def test_engines_do_what_the_plain_form_does(engine: str, name: str) -> None:
    if engine == "native" and not has_core():
        pytest.skip("the native core is not built")
    optimizer = RowOptimizer(name)
    store = make(engine, optimizer)
    ids = torch.tensor([2, 5, 7, 11])
    values = store.pull(ids).clone()
    before, state = values.clone(), Reference(TABLE, optimizer, 3).fresh_state(4)
    for step in range(1, 4):
        grads = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
        update_rows(optimizer, values, state, grads, 0.1, step)
        store.push(ids, grads, 0.1)
    assert (values != before).any(1).all()  # it moves
    torch.testing.assert_close(store.pull(ids), values, rtol=1e-5, atol=1e-6)


@pytest.fixture
def sign_sgd() -> Iterator[str]:
    """An optimizer from outside of the package."""

    @row_optimizer("sign_sgd", {"steps": "row"})
    def step(o: RowOptimizer, now, values: Tensor, state: dict[str, Tensor], grads: Tensor) -> None:  # type: ignore[no-untyped-def]
        state["steps"] += 1
        values.sub_(now.size * grads.sign())

    _log_plain_form.cache_clear()
    yield "sign_sgd"
    del DEFINITIONS["sign_sgd"]


@pytest.mark.parametrize("rows", [20, None])
def test_one_from_outside_runs_its_plain_form(
    sign_sgd: str, rows: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "shoal")
    table = Table("t", 6, rows)
    (store,) = make_engines(
        {"t": table}, {"t": RowOptimizer(sign_sgd)}, 3, admissions={"t": None}
    ).values()
    ids = torch.tensor([4, 9, 4])
    before = store.pull(ids)
    store.push(ids, torch.ones(3, 6), 0.5)
    torch.testing.assert_close(store.pull(ids), before - 0.5)
    (chunk,) = store.export()
    assert chunk.state["steps"].sum() == 2
    assert not has_core() or "sign_sgd: the native core has no form of it" in caplog.text


def test_one_from_outside_is_chosen_in_a_config(sign_sgd: str) -> None:
    config = small_config("BPR", train__optimizer__rows={"name": sign_sgd, "lr": 0.01})
    parts = build(config, World())
    losses = [float(parts.strategy.train_step(b)) for b in parts.reader.batches(0)]
    assert losses[-1] < losses[0]


def test_tiers_refuse_what_has_a_plain_form_alone(sign_sgd: str, tmp_path: Path) -> None:
    from shoal.config.row_rules import TiersSection

    tiers = TiersSection(host="1MB", ssd=str(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sign_sgd has a plain form alone"):
        make_engines(
            {"t": Table("t", 64, 10**5)},
            {"t": RowOptimizer(sign_sgd)},
            3,
            admissions={"t": None},
            tiers=tiers,
        )
