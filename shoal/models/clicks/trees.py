"""What models of gradient-boosted trees share: samples as a matrix, and a booster as its own text.

    samples  ->  matrix [n, columns]  ->  booster  ->  text, in the checkpoint
    logits = sum over trees of the value of the leaf that a sample falls into

Nothing is optimised step by step: the first process reads all training samples twice, once to count
their ids and once to fill the matrix, and trains the booster; the others are given its text.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from shoal.models.base import Batch, ClickModel, Facts, WholeData
from shoal.models.nn.closed_form import Progress, check_memory, expect_solution
from shoal.models.options import Count, Positive
from shoal.trees.checks import check_size
from shoal.trees.columns import TreeColumns
from shoal.trees.library import import_library
from shoal.trees.matrix import Matrix, SampleReader

log = logging.getLogger("shoal")
FEWER_SAMPLES = (
    "train on fewer rows, leave features out (data.features), or set model.list_columns lower"
)


class Trees(ClickModel):
    """Base of gradient-boosted trees; a subclass trains and reads the booster of one library."""

    trainable = False
    solves_from_samples = True
    cuda_graph_safe = False
    package: ClassVar[str]  # what Python imports
    metric_key: ClassVar[str]  # the library's parameter that names metrics
    objectives: ClassVar[Mapping[str, str]]  # loss of the label -> the library's name for it
    not_exported: ClassVar[str | None] = (
        "an artifact is a graph of torch operators, and trees are none. Use the run itself "
        "(shoal.runs.trained_run.Trained(RUN).predict, shoal recommend), or take the library's own "
        "file from it: Trained(RUN).model.booster_text()"
    )
    recbole_options: ClassVar[Mapping[str, str]] = {
        "token_num_threhold": "max_categories",
        "lgb_early_stopping_rounds": "stopping_rounds",
    }
    recbole_switches: ClassVar[Mapping[str, tuple[str, str, str]]] = {
        "convert_token_to_onehot": ("ids", "one_hot", "numbers")
    }
    booster: Tensor  # uint8 [bytes]: the library's text
    column_kinds: Tensor  # int64 [num_slots]
    vocabulary_sizes: Tensor  # int64 [num_slots]
    vocabularies: Tensor  # int64: those of all features, one after the other

    class Options(ClickModel.Options):
        rounds: Count = 300  # trees, one after the other
        learning_rate: Positive = 0.05  # what a tree adds is multiplied by it
        # how ids are read: as categories, which a split divides into two groups; one_hot: each
        # against all others; as numbers
        ids: Literal["categories", "one_hot", "numbers"] = "categories"
        max_categories: Count = 10000  # ids of a feature with more than these are numbers
        list_columns: Count = 64  # most frequent ids of a feature with lists, a column each
        # rounds without a better validation, after which training ends; null: it does not
        stopping_rounds: Count | None = None

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        self.library = import_library(self.package, type(self).__name__)
        self.objective = self.objectives[self._labels[0].loss]
        chosen = options.params.get("objective", self.objective)
        if chosen != self.objective:
            raise ValueError(
                f"model.params.objective is {chosen}, and a label with loss "
                f"{self._labels[0].loss} needs {self.objective}; leave it out"
            )
        expect_solution(self, "booster", None, dtype=torch.uint8)
        expect_solution(self, "column_kinds", None, dtype=torch.int64)
        expect_solution(self, "vocabulary_sizes", None, dtype=torch.int64)
        expect_solution(self, "vocabularies", None, dtype=torch.int64)
        self._ready: tuple[TreeColumns, Any] | None = None  # the columns, and the library's booster
        self.register_load_state_dict_post_hook(_open_loaded)

    # ---- what a library does --------------------------------------------------------------------

    @abstractmethod
    def train_booster(
        self, train: Matrix, valid: Matrix | None, seed: int, after_round: Any
    ) -> bytes:
        """The text of a booster; after_round: called with the number of trees that are done."""

    @abstractmethod
    def open_booster(self, text: bytes, columns: TreeColumns) -> Any:
        """The booster of a text, which is checked before the library reads it."""

    @abstractmethod
    def raw_scores(self, booster: Any, values: np.ndarray) -> np.ndarray:
        """Log odds of samples: [b, columns] -> [b]."""

    # ---- the solution ---------------------------------------------------------------------------

    def solve_from(self, data: WholeData) -> None:
        name, options = type(self).__name__, self.options
        reader = self.sample_reader
        num_samples, counts = reader.count(data.train(), data.continues)
        columns = TreeColumns.of_counts(
            counts,
            reader.num_dense,
            options.ids != "numbers",
            options.max_categories,
            options.list_columns,
        )
        if not num_samples or not columns.width:
            raise ValueError(f"{name} has no {'features' if num_samples else 'samples'}")
        train = self._matrix(num_samples, columns, data.train, data.continues)
        valid = self._validation(data, columns)
        log.info("%s: %d samples, %s", name, num_samples, columns)
        progress = Progress(name, options.rounds)

        def after_round(done: int) -> None:
            progress(done)
            data.continues()

        text = self.train_booster(train, valid, torch.initial_seed() % (1 << 31), after_round)
        data.continues()
        self._keep(text, columns)
        log.info("%s: %d trees, %.1f kB of text", name, self.num_trees, len(text) / 1e3)

    @property
    def sample_reader(self) -> SampleReader:
        """How the features of a batch are read."""
        facts = self.facts
        names = [one.name for one in facts.sparse] if facts.per_feature else None
        title = type(self).__name__
        return SampleReader(title, names, facts.num_slots, facts.num_dense, self.dense)

    def _matrix(
        self, num_samples: int, columns: TreeColumns, batches: Any, continues: Any
    ) -> Matrix:
        """All samples of a split, whose labels the loss can learn from."""
        name = type(self).__name__
        num_bytes = Matrix.num_bytes(num_samples, columns)
        check_memory(f"{name} of {num_samples:,} samples", num_bytes, FEWER_SAMPLES)
        matrix = self.sample_reader.matrix(num_samples, columns, batches(), continues)
        labels = matrix.labels
        if self._labels[0].loss == "logistic" and not ((labels == 0) | (labels == 1)).all():
            raise ValueError(f"{name} learns clicks, and a label is neither 0 nor 1")
        return matrix

    def _validation(self, data: WholeData, columns: TreeColumns) -> Matrix | None:
        """The samples that say when to stop; None: training does not stop early."""
        options = self.options
        if options.stopping_rounds is None:
            if self.metric_key in options.params:
                message = "%s: model.params.%s is read with model.stopping_rounds only"
                log.info(message, type(self).__name__, self.metric_key)
            return None
        if data.valid is None:
            raise ValueError(
                "model.stopping_rounds needs samples to validate on, and there are none; "
                "leave it out, or name some (data.split, data.clicks.valid)"
            )
        num_samples = sum(batch.size for batch in data.valid())
        return self._matrix(num_samples, columns, data.valid, data.continues)

    def _keep(self, text: bytes, columns: TreeColumns) -> None:
        """Hold a booster and its columns in buffers; they are read as a checkpoint's are."""
        self.booster = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        names = ("column_kinds", "vocabulary_sizes", "vocabularies")
        for name, numbers in zip(names, columns.arrays()):
            setattr(self, name, torch.from_numpy(numbers))
        self.open()

    def open(self) -> None:
        """Read the booster and its columns from the buffers, after checking them."""
        self._ready = None
        if not len(self.booster):  # of a run that was stopped before it had any
            return
        check_size(len(self.booster))
        columns = TreeColumns.of_arrays(
            self.column_kinds.cpu().numpy(),
            self.vocabulary_sizes.cpu().numpy(),
            self.vocabularies.cpu().numpy(),
            self.facts.num_slots,
            self.facts.num_dense,
        )
        self._ready = columns, self.open_booster(self.booster_text(), columns)

    def booster_text(self) -> bytes:
        """The booster in its library's own form, as a file that the library reads."""
        return self.booster.cpu().numpy().tobytes()

    @property
    @abstractmethod
    def num_trees(self) -> int:
        """Trees of the booster."""

    @property
    def ready(self) -> tuple[TreeColumns, Any]:
        """The columns, and the library's booster."""
        if self._ready is None:
            raise ValueError(f"{type(self).__name__} has no trees yet; train it first")
        return self._ready

    def logits(self, batch: Batch) -> Tensor:
        columns, booster = self.ready
        if not batch.size:
            return torch.zeros(0, device=self.booster.device)
        on_host = batch.to("cpu")
        values = np.empty((batch.size, columns.width), np.float32)
        self.sample_reader.fill(columns, values, on_host)
        scores = self.raw_scores(booster, values).astype(np.float32)
        return torch.from_numpy(scores).to(self.booster.device)


def _open_loaded(model: Trees, *_: Any) -> None:
    """After a checkpoint was loaded."""
    model.open()
