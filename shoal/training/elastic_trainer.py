"""LeasedTrainer: a worker's part in a run whose workers join and leave (strategy.ps.elastic).

Workers do not know each other. Each asks server 0 what to do (shoal.ps.server.ledger) and is told

    a lease     batches to compute; their gradients say which batches they are of, and every server
                applies those of a batch once, so a batch that two workers computed counts once
    the floor   all batches of the turn are done, and this worker is the chief: it evaluates, saves
                and sets the next turn, an epoch or the steps until the next checkpoint
    to wait     others are at work
    it is over

Between turns nothing is under way: a checkpoint is what it is everywhere, a number of samples that
were all taken, and a run is resumed by any number of workers, whether they join and leave or not.
"""

import gc
import json
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from typing import Any, cast

from shoal.data.reader import one_ahead
from shoal.distributed.liveness import BEAT
from shoal.distributed.stop_signals import STOPPING
from shoal.models.nn.dropout import end_steps
from shoal.ps.worker.lease import Lease
from shoal.training.cursor import Cursor
from shoal.training.slow_steps import SLOW
from shoal.training.steps import solve
from shoal.training.strategies.ps import ParameterServers
from shoal.training.trainer import Trainer

log = logging.getLogger("shoal")


class LeasedTrainer(Trainer):
    """Trains leased batches; `fit` returns the result where this worker was the last chief."""

    def __init__(
        self,
        *parts: Any,
        agreed: dict[str, Any],
        take_charge: Callable[[bool], None],
        resume: bool,
    ):
        """parts: as of Trainer. agreed: what must be the same for all workers of a run.

        take_charge: called when this worker becomes the chief; True: the run begins.
        """
        super().__init__(*parts)
        if self.reader.num_batches is None:
            raise ValueError(
                "strategy.ps.elastic lends batches by number, and this reader of clicks knows how "
                "many there are only when it has read all; use data.clicks.reader memory"
            )
        self.servers = cast(ParameterServers, self.strategy)
        self.grain = self.servers.section.geo_step if self.servers.section.mode == "geo" else 1
        self._agreed, self._knows = json.loads(json.dumps(agreed)), False
        self._take_charge, self._in_charge, self._resume = take_charge, False, resume
        self.progress.writes = False  # until this worker is the chief
        self._chunk = self.reader.chunk_samples

    def fit(self, started: float) -> dict[str, Any]:
        """Take part until the run is over, or until this worker gets a signal to leave."""
        epochs = self.config.train.epochs if self.model.trainable else 1
        self._check_parts(epochs)
        self.model.train()
        if not self.model.trainable:
            solve(self.model, self.config.run.seed, self.world.device)
        gc.freeze()
        try:
            with self.trackers, STOPPING.handling_signals(self.config.launch.grace):
                STOPPING.may_leave = True
                result = self._take_part(epochs, started)
        finally:
            self.progress.close()
            end_steps()
        self.checkpoints.wait()
        return result

    def _take_part(self, epochs: int, started: float) -> dict[str, Any]:
        result: dict[str, Any] = {}
        report: dict[str, Any] = {}  # of the last lease
        while True:
            if self._leaves:
                self._ask(wants=False, **report)
                log.info("worker %d leaves; the others go on", self.servers.client.worker)
                return result
            answer = self._ask(**report)
            report = {}
            if "over" in answer:
                self.servers.client.over = True
                return result
            if "floor" in answer:
                result = self._have_floor(answer, epochs, started)
            elif "lease" in answer:
                report = self._compute(Lease.of(answer), epochs)
            else:
                with BEAT.waiting("other workers"):
                    time.sleep(0.1)

    @property
    def _leaves(self) -> bool:
        """Whether a signal ends this worker alone, and not the whole run."""
        return STOPPING.signal is not None and not STOPPING.everyone

    def _ask(self, **report: Any) -> dict[str, Any]:
        """Ask server 0 for the next task; the first time also check that configs agree."""
        stop = STOPPING.signal is not None and STOPPING.everyone
        answer = self.servers.client.ask_lease({**report, "stop": stop, "knows": self._knows})
        agreed = answer.pop("agreed", None)
        if agreed is not None:
            check_agreed(agreed, self._agreed)
            self._knows = True
        return answer

    # ---- a lease --------------------------------------------------------------------------------

    def _compute(self, lease: Lease, epochs: int) -> dict[str, Any]:
        """Train on the batches of a lease; what is reported of it."""
        count, size = lease.last - lease.first, self.reader.batch_size
        samples = lease.first * size + lease.skip
        self.cursor = Cursor(step=lease.step, epoch=lease.epoch, samples=samples)
        self.reader.chunk_samples = min(self._chunk, count * size)  # no more is wanted
        self.servers.begin_lease(lease)
        self.interval.begin()
        self.losses.begin()
        batches = islice(self._parts(), count)
        for parts, following in SLOW.steps(one_ahead(map(self._move, batches))):
            lease.computed += 1
            self._step(parts, following, epochs)
            if self._leaves and (lease.computed - lease.first) % self.grain == 0:
                break  # a window of geo is cut nowhere else, whoever computes it
        else:
            assert lease.computed == lease.last, "a reader with fewer batches than it told"
        self.servers.end_lease()
        self._count_losses()
        report = {"lease": lease.number, "done": lease.done}
        return report | {"loss": self.cursor.loss_sum, "losses": self.cursor.losses}

    # ---- the floor ------------------------------------------------------------------------------

    def _have_floor(self, answer: dict[str, Any], epochs: int, started: float) -> dict[str, Any]:
        """Do what one worker does for all between turns; the result at the end, else {}."""
        turn = answer["turn"]
        number = 1 if turn is None else turn["number"] + 1
        took_over = not self._in_charge
        if took_over:
            self._in_charge = self.progress.writes = True
            self._take_charge(turn is None)
            self.trackers.begin(self.config.model_dump(mode="json"), self.folder.path)
        if turn is None:
            self._begin()
            self._begin_turn(number, epochs, 0.0, self.cursor.batch)
            return {}
        notes = turn["notes"]
        self.cursor = Cursor(**notes["cursor"])
        if took_over:  # the earlier worker may have been lost in the midst of this
            self.folder.forget_after(self.cursor.epoch)
        self._settle_turn(turn, answer)
        seconds, first_batch = notes["seconds"] + answer["seconds"], notes["first_batch"]
        if self._is_finished(epochs):
            self.checkpoints.wait()
            result = self._conclude(epochs, started)
            self._begin_turn(number, epochs, over=True)
            return result
        stops = answer["stop"]
        if self._place[0] >= self._last_batch:
            self._end_epoch(epochs, seconds, first_batch, 0)
            seconds, first_batch = 0.0, 0
        elif not stops:
            self._save()
        if stops:
            self._save()
            self.checkpoints.wait()
            name = signal.Signals(STOPPING.signal or signal.SIGTERM).name
            log.info("stopped by %s; saved at step %d", name, self.cursor.step)
        self._begin_turn(number, epochs, seconds, first_batch, over=stops)
        return {}

    def _begin(self) -> None:
        """The run begins, or continues from its last checkpoint."""
        self.servers.begin_dense()
        if self._resume or self.checkpoints.committed():
            self.restore()
        if self._rows_are_elsewhere and not self.resumed:
            self._save()  # a server that cannot write there reports it now, not after an epoch

    def _settle_turn(self, turn: dict[str, Any], answer: dict[str, Any]) -> None:
        """Move the cursor past a turn, and fetch the model from the servers."""
        steps = turn["last"] - turn["first"]
        self.cursor.count_step(self.reader, steps)
        mean = answer["loss"] / max(1, answer["losses"])  # a batch may have been computed twice
        self.cursor.loss_sum += mean * steps
        self.cursor.losses += steps
        self.servers.synchronize()
        self.servers.rows.steps = dict.fromkeys(self.servers.rows.steps, self.cursor.step)

    @property
    def _place(self) -> tuple[int, int]:
        return self.cursor.position(self.reader)

    @property
    def _last_batch(self) -> int:
        """The number of batches of the epoch, as they are counted after the samples to skip."""
        if not self.model.trainable:
            return 0
        known_samples = getattr(self.reader, "known_samples", None)
        samples = self.reader.num_samples if known_samples is None else known_samples
        return -(-(samples - self._place[1]) // self.reader.batch_size)

    def _is_finished(self, epochs: int) -> bool:
        return self.cursor.finished or self.cursor.epoch >= epochs

    def _begin_turn(
        self,
        number: int,
        epochs: int,
        seconds: float = 0.0,
        first_batch: int = 0,
        over: bool = False,
    ) -> None:
        """Set at server 0 what comes next: the rest of the epoch, or until the next checkpoint.

        seconds: that the epoch took so far. first_batch: steps of it before this run continued.
        """
        cursor, (first, skip) = self.cursor, self._place
        last = first if over or self._is_finished(epochs) else self._last_batch
        if every_steps := self.config.checkpoint.every_steps:
            last = min(last, first + every_steps - cursor.step % every_steps)
        notes = {"cursor": asdict(cursor), "seconds": seconds, "first_batch": first_batch}
        self.servers.client.set_turn(
            {
                "number": number,
                "epoch": cursor.epoch,
                "first": first,
                "last": max(first, last),
                "skip": skip,
                "step": cursor.step,
                "grain": self.grain,
                "notes": {**notes, "agreed": self._agreed},
                "over": over,
            }
        )


def check_agreed(first: dict[str, Any], own: dict[str, Any]) -> None:
    """Refuse to join a run that was started with other settings."""
    for section, values in own.items():
        first_values = first.get(section, {})
        for key in {**first_values, **values}:
            if first_values.get(key) != values.get(key):
                raise ValueError(
                    f"the {section} of this worker differs from that of the run it would join: "
                    f"{key} is {values.get(key)!r} here and {first_values.get(key)!r} there; give "
                    "every worker the same"
                )
