"""Known: what a server is, less its rows, as a record of its journal, and that taken over again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as format_tensors

from shoal.config.section import Section
from shoal.ps.server.journal import Rows, committed
from shoal.ps.server.roster import Roster
from shoal.ps.server.shards import load_shards
from shoal.ps.server.steps import Steps, flat_floats
from shoal.ps.wire import WireError, send_rows


class KnownWorker(Section):
    """What a server knows of a worker, besides its hello."""

    step: int = Field(ge=0)
    done: bool
    orders: list[int] = Field(description="numbers of those that were carried out")
    answer: str | None = Field(description="to its last push: loss and count, in hex")
    with_dense: bool = Field(description="whether dense parameters follow in that answer")


class Known(Section):
    """What a server knows when a save begins, besides rows, dense parameters and hellos."""

    save: str = Field(description="name of the folder that is saved into")
    delta: bool
    applied: int = Field(ge=0)
    has_dense: bool
    steps: dict[str, int] = Field(description="table -> steps that its rows have had")
    workers: dict[str, KnownWorker]


def describe(steps: Steps, roster: Roster, save: str, delta: bool) -> list[Any]:
    """The frames of a record: JSON, dense parameters, the state of their optimizer."""
    state, workers = steps.state, {}
    for number, worker in roster.workers.items():
        answer = worker.answer or []
        workers[str(number)] = KnownWorker(
            step=worker.step,
            done=worker.done,
            orders=[order for order, carried_out in worker.orders.items() if carried_out],
            answer=bytes(answer[0]).hex() if answer else None,
            with_dense=len(answer) > 1,
        )
    known = Known(
        save=save,
        delta=delta,
        applied=steps.applied,
        has_dense=state.has_dense,
        steps={one.name: store.step for one, store in zip(state.spec.tables, state.stores)},
        workers=workers,
    )
    dense = [state.flat_dense()] if state.has_dense else []
    optimizer = state.dense_state() if state.has_dense else {}
    return [known.model_dump_json().encode(), send_rows(dense, 0), format_tensors(optimizer)]


def take_over(
    steps: Steps, roster: Roster, frames: list[memoryview], rows: Rows, folder: Path | None
) -> Known:
    """Become what a record says, with the rows of these files; the workers have said hello."""
    known, dense, optimizer = _parse(frames)
    state = steps.state
    for number, (name, files) in enumerate(rows):
        values = {"name": committed(name), "files": files, "steps": known.steps}
        for _ in load_shards(state, folder, {**values, "fresh": number == 0}):
            pass
    state.mark_saved()
    if known.has_dense:
        try:
            tensors = parse_tensors(bytes(optimizer))
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise WireError(f"the optimizer's state cannot be read: {error}") from None
        state.set_dense(flat_floats(dense, state.num_dense), tensors)
    steps.applied = known.applied
    for name, one in known.workers.items():
        worker = roster.workers.get(int(name)) if name.isdecimal() else None
        if worker is None:
            raise WireError(f"a journal tells of worker {name[:20]}, who never said hello")
        worker.step, worker.done = one.step, one.done
        worker.orders = dict.fromkeys(one.orders, True)
        if one.answer is not None:
            told = [bytes.fromhex(one.answer)]
            worker.answer = [*told, *([send_rows([state.flat_dense()], 0)] * one.with_dense)]
    return known


def check_same(steps: Steps, frames: list[memoryview]) -> Known:
    """Refuse a journal that did not lead to what the server was: its numbers would be wrong."""
    known, dense, _ = _parse(frames)
    here = bytes(send_rows([steps.state.flat_dense()] if known.has_dense else [], 0))
    if known.applied != steps.applied or known.has_dense != steps.state.has_dense or here != dense:
        raise WireError("the journal does not lead to what the server was at its last save")
    return known


def _parse(frames: list[memoryview]) -> tuple[Known, memoryview, memoryview]:
    if len(frames) != 3:
        raise WireError(f"a journal's state in {len(frames)} frames; there must be 3")
    try:
        return Known.model_validate_json(bytes(frames[0])), frames[1], frames[2]
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise WireError(f"a journal's state is not right: {place}: {first['msg']}") from None
