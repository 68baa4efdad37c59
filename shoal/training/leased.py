"""LeasedTrainer: a worker's part in a run whose workers come and go (strategy.ps.elastic).

Workers do not know each other. Each asks server 0 what to do (shoal.ps.server.ledger) and is told

    a lease     batches to compute; their gradients say which batches they are of, and every server
                applies those of a batch once, so a batch that two workers computed counts once
    the floor   all batches of the turn are done, and this worker is the chief: it evaluates, saves
                and says what the next turn is, an epoch or the steps until the next checkpoint
    to wait     others are at work
    it is over

Between turns nothing is under way: a checkpoint is what it is everywhere, a number of samples that
were all taken, and a run is resumed by any number of workers, whether they come and go or not.
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

from shoal.models.nn.dropout import end_steps
from shoal.ps.worker.lease import Lease
from shoal.training.cursor import Cursor
from shoal.training.slow import SLOW
from shoal.training.steps import one_ahead
from shoal.training.strategy.ps import ParameterServers
from shoal.training.trainer import Trainer
from shoal.world.liveness import BEAT
from shoal.world.stopping import STOPPING

log = logging.getLogger("shoal")


class LeasedTrainer(Trainer):
    """Trains what is lent to it; `fit` returns the result where this worker was the last chief."""

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
        gc.freeze()
        try:
            with self.trackers, STOPPING.heeded(self.config.launch.grace):
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
            told = self._ask(**report)
            report = {}
            if "over" in told:
                self.servers.client.over = True
                return result
            if "floor" in told:
                result = self._have_floor(told, epochs, started)
            elif "lease" in told:
                report = self._compute(Lease.of(told), epochs)
            else:
                with BEAT.waiting("other workers"):
                    time.sleep(0.1)

    @property
    def _leaves(self) -> bool:
        """Whether this worker got a signal to leave, and not the whole run."""
        return STOPPING.signal is not None and not STOPPING.everyone

    def _ask(self, **said: Any) -> dict[str, Any]:
        """What to do; the first time also whether this worker fits in with the others."""
        stop = STOPPING.signal is not None and STOPPING.everyone
        told = self.servers.client.ask_lease({**said, "stop": stop, "knows": self._knows})
        agreed = told.pop("agreed", None)
        if agreed is not None:
            check_agreed(agreed, self._agreed)
            self._knows = True
        return told

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

    def _have_floor(self, told: dict[str, Any], epochs: int, started: float) -> dict[str, Any]:
        """What one worker does for all between turns; the result, where nothing is left to do."""
        turn = told["turn"]
        number = 1 if turn is None else turn["number"] + 1
        took_over = not self._in_charge
        if took_over:
            self._in_charge = self.progress.writes = True
            self._take_charge(turn is None)
            self.trackers.begin(self.config.model_dump(mode="json"), self.folder.path)
        if turn is None:
            self._begin()
            self._go_on(number, epochs, 0.0, self.cursor.batch)
            return {}
        notes = turn["notes"]
        self.cursor = Cursor(**notes["cursor"])
        if took_over:  # the one before may have been lost in the midst of this
            self.folder.forget_after(self.cursor.epoch)
        self._settle_turn(turn, told)
        seconds, first_batch = notes["seconds"] + told["seconds"], notes["first_batch"]
        if self._is_finished(epochs):
            self.checkpoints.wait()
            result = self._conclude(epochs, started)
            self._go_on(number, epochs, over=True)
            return result
        stops = told["stop"]
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
        self._go_on(number, epochs, seconds, first_batch, over=stops)
        return {}

    def _begin(self) -> None:
        """The run begins, or continues from its last checkpoint."""
        self.servers.begin_dense()
        if self._resume or self.checkpoints.committed():
            self.restore()
        if self._rows_are_elsewhere and not self.resumed:
            self._save()  # a server that cannot write there reports it now, not after an epoch

    def _settle_turn(self, turn: dict[str, Any], told: dict[str, Any]) -> None:
        """The cursor stands after a turn, and the model is what the servers have."""
        steps = turn["last"] - turn["first"]
        self.cursor.count_step(self.reader, steps)
        mean = told["loss"] / max(1, told["losses"])  # a batch may have been computed twice
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
        known = getattr(self.reader, "known_samples", None)
        samples = self.reader.num_samples if known is None else known
        return -(-(samples - self._place[1]) // self.reader.batch_size)

    def _is_finished(self, epochs: int) -> bool:
        return self.cursor.finished or self.cursor.epoch >= epochs

    def _go_on(
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
        if every := self.config.checkpoint.every_steps:
            last = min(last, first + every - cursor.step % every)
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


def check_agreed(first: dict[str, Any], mine: dict[str, Any]) -> None:
    """Refuse to take part in a run that was begun with something else."""
    for what, values in mine.items():
        theirs = first.get(what, {})
        for key in {**theirs, **values}:
            if theirs.get(key) != values.get(key):
                raise ValueError(
                    f"the {what} of this worker differs from that of the run it would join: {key} "
                    f"is {values.get(key)!r} here and {theirs.get(key)!r} there; give every worker "
                    "the same"
                )
