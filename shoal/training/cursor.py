"""Cursor: where a run stands; saved with every checkpoint as plain JSON."""

from dataclasses import dataclass, field

from shoal.data.reader import Reader


@dataclass
class Cursor:
    """The position of a run in its epochs.

    Samples are counted, not only steps: where workers make their own updates, a run that continues
    with more of them takes more samples a step.
    """

    step: int = 0  # optimizer steps done
    epoch: int = 0  # epoch to continue with
    batch: int = 0  # steps of that epoch already done
    samples: int | None = None  # that these took; None: `batch` of today's global batches
    loss_sum: float = 0.0  # mean losses of the epoch's batches so far, as one process has them
    losses: int = 0  # how many these are
    best_step: int | None = None
    best_epoch: int | None = None
    best_score: float | None = None
    best_valid: dict[str, float] = field(default_factory=dict)
    stale: int = 0  # evaluations since the best one
    finished: bool = False

    def position(self, reader: Reader) -> tuple[int, int]:
        """The position in the epoch: whole global batches, and further samples."""
        if reader.batch_tokens is not None:  # which have any number of samples
            return self.batch, 0
        done = self.batch * reader.batch_size if self.samples is None else self.samples
        return divmod(done, reader.batch_size)

    def check(self, reader: Reader) -> None:
        """Refuse to continue in an epoch whose order depends on how many samples a step takes."""
        done = self.batch * reader.batch_size
        if getattr(reader, "bucket", False) and self.samples not in (None, done):
            raise ValueError(
                "train.bucket orders samples by batches, and workers that update apart took "
                "batches of another size in this epoch; resume with as many workers as before"
            )

    def count_step(self, reader: Reader, steps: int = 1) -> None:
        """A step with a global batch was done, or several."""
        batches, extra_samples = self.position(reader)
        self.samples = (batches + steps) * reader.batch_size + extra_samples
        if reader.batch_tokens is not None:
            self.samples = None
        self.step += steps
        self.batch += steps

    def begin_epoch(self, epoch: int) -> None:
        """An epoch of which nothing was done yet."""
        self.epoch, self.batch, self.samples = epoch, 0, 0
        self.loss_sum, self.losses = 0.0, 0

    def lr_step(self, reader: Reader) -> int:
        """The step that the learning rate goes by: how much of the data was read."""
        if reader.num_batches is None:
            return self.step
        return self.epoch * reader.num_batches + self.position(reader)[0]
