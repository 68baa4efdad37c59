"""Trainer: epochs, evaluation, early stopping, checkpoints.

The cursor of a run is (epoch, sample); the order of samples, the negatives, dropout and the
learning rate are pure functions of the seed and that cursor. So a run that was killed and resumed
does what it would have done.
"""

import gc
import logging
import math
import signal
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any, TypeVar

from torch import Tensor

import shoal
from shoal.config.schema import Config
from shoal.data.batch import Batch
from shoal.data.dataset import Split
from shoal.data.fingerprint import DIGESTS
from shoal.data.reader import Reader, one_ahead
from shoal.distributed.stop_signals import STOPPING, Agreement
from shoal.kernels.host_memory import keep_freed_memory
from shoal.models.nn.dropout import end_steps
from shoal.training.averages import Averages
from shoal.training.checkpoint.reading import check_fingerprint
from shoal.training.checkpoint.writing import Checkpoints, restore_into
from shoal.training.cursor import Cursor
from shoal.training.estimate import EvaluationSeconds, RunEstimate
from shoal.training.evaluation import ClickEvaluator, Evaluator
from shoal.training.losses import LogInterval, Losses
from shoal.training.measurements import measure
from shoal.training.metrics import higher_is_better
from shoal.training.progress import bar
from shoal.training.progress_file import ProgressFile
from shoal.training.run_folder import RunFolder, host_log
from shoal.training.slow_steps import SLOW
from shoal.training.steps import (
    check_reader,
    check_solver,
    in_step,
    keep_hardest,
    learning_rate,
    seed_step,
    solve,
    solve_from_samples,
)
from shoal.training.strategies.base import Strategy
from shoal.training.trackers.tracker import Trackers

log = logging.getLogger("shoal")
T = TypeVar("T")


class Trainer:
    """Trains one model; `fit` returns what result.json holds."""

    def __init__(
        self,
        config: Config,
        strategy: Strategy,
        reader: Reader,
        evaluator: Evaluator | ClickEvaluator,
        folder: RunFolder,
        fingerprint: dict[str, Any],
        on_step: Callable[[int, Tensor], None] | None = None,
    ):
        self.config, self.strategy, self.reader = config, strategy, reader
        self.evaluator, self.folder, self.fingerprint = evaluator, folder, fingerprint
        self.world, self.model = strategy.world, strategy.model
        self.averages: Averages | None = getattr(self.model, "averages", None)
        self.on_step = on_step
        self.cursor, self.resumed = Cursor(), False
        section = config.checkpoint
        self.checkpoints = Checkpoints(
            folder.checkpoints,
            self.world,
            section.keep,
            strategy.saves_rows,
            section.whole_every,
            section.copy_to,
            strategy.saves_rows and config.strategy.ps.journal,
        )
        self.extra_results: dict[str, Any] = {}  # for result.json, known before training
        self.train_seconds: list[float] = []
        self.phases: dict[str, float] = {}  # seconds of the last epoch
        self.eval_seconds: list[float] = []
        self.test_seconds: float | None = None
        self.trackers = Trackers(config.run.trackers if self.world.is_main else [])
        self.begun: float | None = None  # when the first step began
        self.estimate: RunEstimate | None = None
        self.stopping = Agreement(self.world)
        samples = min(reader.batch_size, getattr(reader, "num_samples", reader.batch_size))
        self.progress = ProgressFile(folder.path, strategy, self.stopping, samples)
        self.losses = Losses(strategy, config.train.samples)
        self.interval = LogInterval(
            self.model,
            self.world,
            Losses(strategy, config.train.samples),
            config.train.print_every,
            config.run.loss_decimals,
        )
        check_reader(reader, config)
        check_solver(self.model, config.data.clicks, config.elastic)

    def fit(self, started: float) -> dict[str, Any]:
        """Train, evaluate, and test the best checkpoint."""
        epochs = self.config.train.epochs if self.model.trainable else 1
        self._check_splits(epochs)
        self.trackers.begin(self.config.model_dump(mode="json"), self.folder.path)
        self.model.train()
        self.checkpoints.claim()
        if self._rows_are_elsewhere and not self.resumed:
            self._save()  # a server that cannot write there reports it now, not after an epoch
        self.estimate = self._estimate(epochs)
        keep_freed_memory()  # a step takes as much as the one before
        gc.freeze()  # what stands now stays: the collector need not walk all of it every time
        try:
            with self.trackers:
                with STOPPING.handling_signals(self.config.launch.grace):
                    while self.cursor.epoch < epochs and not self.cursor.finished:
                        self._epoch(epochs)
                self.checkpoints.wait()
                return self._conclude(epochs, started)
        finally:
            self.progress.close()
            end_steps()

    def _check_splits(self, epochs: int) -> None:
        """Refuse splits without anything to evaluate on; the valid split, if epochs need it."""
        if eval_every := self.config.train.eval_every:
            self.evaluator.check(["valid", "test"] if eval_every <= epochs else ["test"])

    def _conclude(self, epochs: int, started: float) -> dict[str, Any]:
        """Test the best checkpoint, and write down what came of the run."""
        train_started = self.begun or time.perf_counter()  # nothing was left to train
        result = self._test(epochs)
        result["seconds"] = {
            "total": time.perf_counter() - started,
            "train_epoch_median": _median(self.train_seconds),
            "eval_median": _median(self.eval_seconds),
            "startup": train_started - started,
            "test": self.test_seconds,
        }
        result |= measure(self.strategy, self.config) | self.extra_results
        if not_copied := self.checkpoints.finish_copies():
            result["not_copied"] = not_copied
        if self.world.is_main:
            self.folder.write_result(result)
        self.trackers.end(result)
        return result

    def _estimate(self, epochs: int) -> RunEstimate:
        """Measures evaluations, on every rank; the first steps are measured as they come."""
        eval_every, seconds = self.config.train.eval_every, EvaluationSeconds()
        if eval_every and isinstance(self.evaluator, Evaluator):
            valid, test = (self.evaluator.measure(self.model, p) for p in ("valid", "test"))
            seconds = EvaluationSeconds(valid, test)
        epochs -= self.cursor.epoch
        evaluations = -(-epochs // eval_every) if eval_every else 0
        steps = self.reader.num_batches
        estimate = RunEstimate(steps, epochs, evaluations, seconds, self.world.device)
        if not self.model.trainable:
            estimate.log_test()
        return estimate

    @property
    def _rows_are_elsewhere(self) -> bool:
        """Whether servers on other hosts write their rows of a checkpoint."""
        launch, servers = self.config.launch, self.config.strategy.ps.addresses
        return self.strategy.saves_rows and (launch.hosts > 1 or len(servers) > launch.servers)

    # ---- one epoch ------------------------------------------------------------------------------

    def _epoch(self, epochs: int) -> None:
        started, phases = time.perf_counter(), dict(self.strategy.phases)
        first_batch, sent = self.cursor.batch, self.world.bytes_sent
        self._train(epochs)
        seconds = time.perf_counter() - started
        self.phases = {key: v - phases[key] for key, v in self.strategy.phases.items()}
        self._end_epoch(epochs, seconds, first_batch, sent)

    def _end_epoch(self, epochs: int, seconds: float, first_batch: int, sent: int) -> None:
        """Report an epoch, evaluate and save; sent: bytes before its first batch."""
        cursor, section = self.cursor, self.config.train
        if first_batch == 0:  # a resumed part of an epoch says nothing about the time of one
            self.train_seconds.append(seconds)
        epoch = cursor.epoch
        loss = cursor.loss_sum / max(1, cursor.losses)
        line: dict[str, Any] = {"epoch": epoch, "step": cursor.step, "loss": loss}
        line["train_seconds"] = seconds
        if self.phases and self.world.device.type == "cpu":  # the clock of a GPU is another
            line["phases"] = self.phases | {"rest": seconds - sum(self.phases.values())}
        if len(self.losses.by_rank) > 1:
            line["loss_by_rank"] = self.losses.by_rank
        shown = f"{cursor.loss_sum:z.{self.config.run.loss_decimals}f}"  # z: no minus before a zero
        text = "epoch %d training [time: %.2fs, train loss: %s]"
        host_log.info(text, epoch, seconds, shown, extra={"figures": dict(line)})
        steps = cursor.batch - first_batch
        if steps > 0:  # the last batch of an epoch may be smaller
            records = steps * self.reader.batch_size
            records = min(records, getattr(self.reader, "num_samples", records))
            log.info("epoch %d trained %.0f records/s", epoch, records / max(1e-9, seconds))
        if self.world.size > 1 and steps > 0:
            sent = (self.world.bytes_sent - sent) // steps
            log.info("epoch %d sent %.1f KiB per step from this process", epoch, sent / 1024)
        cursor.begin_epoch(epoch + 1)
        improved = False
        due = section.eval_every and (epoch + 1) % section.eval_every == 0
        if due or (section.eval_every and cursor.epoch == epochs and self.evaluator.has("valid")):
            improved = self._validate(epoch, line)
        if self.world.is_main:
            self.folder.append_metrics(line)
            self.trackers.epoch(line)
        last = cursor.finished or cursor.epoch == epochs
        if improved or last or (epoch + 1) % self.config.checkpoint.every_epochs == 0:
            self._save()

    def _train(self, epochs: int) -> None:
        """Train the rest of the current epoch; save on the way where it is due."""
        cursor, config, reader = self.cursor, self.config, self.reader
        every_steps = config.checkpoint.every_steps
        if not self.model.trainable:
            self._solve()
            return
        batches = self._parts()
        self.losses.begin(cursor.loss_sum, cursor.losses)
        self.interval.begin()
        self.progress.begin_epoch()
        first, label = cursor.position(reader)[0], f"Train {cursor.epoch:5d}"
        shown = self._bar(batches, reader.num_batches, label, first)
        for parts, following in SLOW.steps(one_ahead(map(self._move, shown))):
            self._step(parts, following, epochs)
            stop_signal = self.stopping.stops(cursor.step)
            is_due = bool(every_steps) and cursor.step % every_steps == 0
            if stop_signal or (is_due and following is not None):
                self._count_losses()
                self.strategy.synchronize()
                self._save()
                if stop_signal:
                    self._stop(stop_signal)
        self.strategy.synchronize()
        self._count_losses()

    def _solve(self) -> None:
        """Compute a model in closed form, from its facts or from all samples."""
        seed, model = self.config.run.seed, self.model
        if not model.solves_from_samples:
            solve(model, seed, self.world.device)
            return
        assert isinstance(self.evaluator, ClickEvaluator), "other models solve from their facts"
        valid = self.evaluator.readers.get("valid") if self.evaluator.has("valid") else None
        solve_from_samples(model, self.reader, valid, self.world, seed)

    @property
    def _drawn_later(self) -> bool:
        """Whether a batch is changed before its rows can be looked up."""
        negatives = self.config.train.negatives
        return negatives is not None and negatives.dynamic

    def _move(self, parts: list[Batch]) -> list[Batch]:
        """The parts of a batch where the strategy wants them."""
        if self._drawn_later:
            return [part.to(self.world.device) for part in parts]
        return [self.strategy.receive(part) for part in parts]

    def _step(self, parts: list[Batch], following: list[Batch] | None, epochs: int) -> None:
        """Train one step, and move the cursor behind it."""
        cursor, config, reader = self.cursor, self.config, self.reader
        self.begun = self.begun or time.perf_counter()
        seed_step(config.run.seed, cursor.step, self.world.rank, self.world.device)
        parts = [keep_hardest(self.model, part, config) for part in parts]
        if following is not None and len(following) == 1 and not self._drawn_later:
            self.strategy.prefetch(following[0])
        steps = reader.num_batches or 0
        lr = learning_rate(config.train.optimizer, cursor.lr_step(reader), steps, epochs)
        loss = self.strategy.step(parts, lr)
        if self.averages is not None:
            self.averages.update()
        cursor.count_step(reader)
        if self.estimate is not None:
            self.estimate.count_step()
        if self.on_step is not None:
            self.on_step(cursor.step, loss)
        samples = sum(part.size for part in parts)
        self.losses.add(loss, samples)
        self.interval.step(cursor.epoch, cursor.step, samples, loss)
        done = cursor.position(reader)[0]
        self.progress.trained(cursor.epoch, epochs, done, reader.num_batches)

    def _stop(self, number: int) -> None:
        """End the run after a signal; all ranks have saved."""
        self.checkpoints.wait()
        self.world.barrier()  # no rank ends while another still needs it
        log.info("stopped by %s; saved at step %d", signal.Signals(number).name, self.cursor.step)
        raise shoal.Interrupted(number)

    def _count_losses(self) -> None:
        """Put the losses so far into the cursor; all ranks call it.

        NaN is refused, before it is saved in the place of what was good.
        """
        loss_sum, batches = self.losses.sums()
        if math.isnan(loss_sum):
            self.checkpoints.wait()  # one may still be being written
            raise ValueError(
                f"the loss became NaN in epoch {self.cursor.epoch}; lower train.optimizer.lr or "
                "set train.clip_grad_norm. The checkpoints before it are kept"
            )
        self.cursor.loss_sum, self.cursor.losses = loss_sum, batches

    def _parts(self) -> Iterator[list[Batch]]:
        """This rank's slices of the epoch's batches, each in `train.accumulate` parts.

        A part is the slice that a rank would have if there were that many times more ranks.
        """
        cursor, reader, world = self.cursor, self.reader, self.world
        number = self.config.train.accumulate
        place = cursor.position(reader)
        if reader.num_batches is None:
            whole = reader.batches(cursor.epoch, world.rank, world.size, *place)
            return ([batch] for batch in in_step(whole, reader, world))
        slices = [
            reader.batches(cursor.epoch, world.rank * number + k, world.size * number, *place)
            for k in range(number)
        ]
        return (list(parts) for parts in zip(*slices))

    def _validate(self, epoch: int, line: dict[str, Any]) -> bool:
        """Evaluate, and decide whether to continue. A tie counts as an improvement."""
        cursor = self.cursor
        values, seconds = self._evaluate("valid")
        self.eval_seconds.append(seconds)
        score = values[self.config.eval.valid_metric.lower()]
        validation = {"valid": values, "eval_seconds": seconds}
        line |= validation
        text, figures = "epoch %d evaluating [time: %.2fs, valid_score: %.6f]", {"epoch": epoch}
        log.info(text, epoch, seconds, score, extra={"figures": figures | validation})
        log.info("valid result: \n%s", self._spread(values))
        sign = 1.0 if higher_is_better(self.config.eval.valid_metric) else -1.0
        if cursor.best_score is None or sign * score >= sign * cursor.best_score:
            cursor.best_score, cursor.best_valid = score, values
            cursor.best_epoch, cursor.best_step, cursor.stale = epoch, cursor.step, 0
            return True
        cursor.stale += 1
        if cursor.stale > self.config.train.most_stale:
            log.info("Finished training, best eval result in epoch %d", cursor.best_epoch)
            cursor.finished = True
        return False

    def _evaluate(self, split: Split, keep: bool = False) -> tuple[dict[str, float], float]:
        started = time.perf_counter()

        def shown(steps: Iterable[T], total: int | None) -> Iterator[T]:
            steps = self.progress.evaluated(split, steps, total)
            return self._bar(SLOW.steps(steps), total, "Evaluate   ")

        values = self.evaluator.evaluate(self.model, split, shown, keep)
        return values, time.perf_counter() - started

    def _test(self, epochs: int) -> dict[str, Any]:
        """Reload the best checkpoint and evaluate it on the test split."""
        cursor = self.cursor
        test, extra_results = dict[str, float](), dict[str, Any]()
        if self.config.train.eval_every:
            if cursor.best_step is not None and cursor.best_step != cursor.step:
                log.info("Loading model structure and parameters from %s", self._best_name())
                restore_into(self.strategy, self.checkpoints.load_step(cursor.best_step))
            if cursor.best_score is None and self.evaluator.has("valid"):  # nothing was trained
                cursor.best_valid, _ = self._evaluate("valid")
            test, self.test_seconds = self._evaluate("test", keep=self.config.eval.per_user)
            log.info("best valid : %s", self._rounded(cursor.best_valid))
            figures = {"best_valid": cursor.best_valid, "test": test}
            host_log.info("test result: %s", self._rounded(test), extra={"figures": figures})
            extra_results = self.evaluator.leave(self.folder.path, self.config.data)
        return {
            "model": self.config.model.title,
            "dataset": self.config.data.title,
            "world_size": self.world.size,
            "best_valid": cursor.best_valid,
            "test": test,
            **extra_results,
            "epochs": cursor.epoch,
            "best_epoch": cursor.best_epoch,
            "higher_is_better": higher_is_better(self.config.eval.valid_metric),
            # Runs of equal ones were tested on the same.
            "data": {key: self.fingerprint[key] for key in DIGESTS if key in self.fingerprint},
        }

    # ---- saving and resuming --------------------------------------------------------------------

    def _save(self) -> None:
        state = {**asdict(self.cursor), "fingerprint": self.fingerprint}
        self.checkpoints.save(self.strategy, state)
        if self.cursor.best_step == self.cursor.step:
            log.info("Saving current: %s", self._best_name())

    def _best_name(self) -> str:
        return str(self.folder.checkpoints / f"step-{self.cursor.best_step:09d}")

    def restore(self) -> bool:
        """Continue from the newest checkpoint; False where there is none. To be called before
        `fit`.
        """
        self.resumed = True
        snapshot = self.checkpoints.load_newest()
        if snapshot is None:
            log.info("%s has no checkpoint yet: starting from the beginning", self.folder.path)
            if self.world.is_main:
                self.folder.forget_after(0)
            return False
        state = dict(snapshot.state)
        check_fingerprint(
            state.pop("fingerprint"), self.fingerprint, self.folder.path, self.model.options
        )
        state.pop("steps")
        state.setdefault("losses", state["batch"])  # 0.1.0 kept the loss of each step
        restore_into(self.strategy, snapshot)
        self.cursor = Cursor(**state)
        self.cursor.check(self.reader)
        if self.checkpoints.load_best(snapshot, "the best of the epochs to come is tested") is None:
            self.cursor.best_step = self.cursor.best_epoch = self.cursor.best_score = None
            self.cursor.best_valid, self.cursor.stale = {}, 0
        if self.world.is_main:
            self.folder.forget_after(self.cursor.epoch)
        log.info(
            "resuming %s at epoch %d, batch %d (step %d)",
            self.folder.path,
            self.cursor.epoch,
            self.cursor.position(self.reader)[0],
            self.cursor.step,
        )
        return True

    # ---- showing --------------------------------------------------------------------------------

    def _bar(self, steps: Iterable[T], total: int | None, label: str, at: int = 0) -> Iterator[T]:
        show = self.config.run.shows_bars and self.world.is_main
        return bar(steps, total, label, self.world.device, show, at)

    def _rounded(self, values: dict[str, float]) -> dict[str, float]:
        return {name: round(value, self.config.eval.decimals) for name, value in values.items()}

    def _spread(self, values: dict[str, float]) -> str:
        return "    ".join(f"{name} : {value}" for name, value in self._rounded(values).items())


def _median(seconds: list[float]) -> float | None:
    return statistics.median(seconds) if seconds else None
