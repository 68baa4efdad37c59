"""Model: what every recommender answers. A model never names a rank, a device or a weight table.

What a model file is written with is importable from here: batches, tables, embeddings, bases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from shoal.data.batch import Batch, Jagged
from shoal.data.feature_table import FeatureTable
from shoal.data.features import Feature, Label
from shoal.data.joined import candidates
from shoal.data.knowledge import Knowledge
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.table import Init, Table
from shoal.models.folding import Folding
from shoal.models.former_names import adopt_former_methods, former_argument

__all__ = [
    "Batch",
    "ClickModel",
    "Embeddings",
    "Facts",
    "Feature",
    "Init",
    "Jagged",
    "Label",
    "Model",
    "Output",
    "Propagated",
    "Retrieval",
    "Samples",
    "Table",
    "WholeData",
    "item_blocks",
]
Samples = Literal["interactions", "windows", "prefixes", "users"]  # what one sample is


@dataclass(frozen=True)
class Output:
    """The loss *summed* over the batch, and how many terms the sum has.

    The strategy divides by the count of the global batch, so uneven slices change nothing.
    """

    loss: Tensor  # scalar
    count: int | Tensor
    scores: Tensor | None = None  # [b] or [b, labels], of click models: logits without gradient


@dataclass(frozen=True)
class Facts:
    """What a model may know of the data: sizes, field names and the training interactions."""

    num_users: int = 0  # padding included
    num_items: int = 0  # padding included
    user_field: str = "user_id"
    item_field: str = "item_id"
    max_len: int = 0
    train_users: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    train_items: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    train_weights: Tensor | None = None  # of data.sample_weight, where the model reads them
    num_negatives: int = 1
    codes: Tensor | None = None  # [num_items, levels], of item 0 zeros: semantic ids (data.codes)
    code_size: int | None = None  # values that a code has; None: as many as `codes` use
    # ln of how often an item is drawn as a negative, up to a constant [num_items]; empty: none is
    negative_logq: Tensor = field(default_factory=lambda: torch.empty(0))
    # of click models
    num_slots: int = 0  # features with ids
    num_dense: int = 0  # values of features with numbers
    rows: int | None = None  # ids are below this number; None: any 64-bit id
    labels: tuple[Label, ...] = ()  # none: one, of clicks
    # of models that read features
    features: tuple[Feature, ...] = ()
    per_feature: bool = False  # a batch has a field for each feature; else `slots` and `dense`
    table: FeatureTable | None = None
    knowledge: Knowledge | None = None

    @property
    def sparse(self) -> tuple[Feature, ...]:
        """Features with ids, in the order of a batch's slots."""
        return tuple(feature for feature in self.features if feature.is_sparse)

    @property
    def numeric(self) -> tuple[Feature, ...]:
        """Features with numbers, in the order of a batch's dense values."""
        return tuple(feature for feature in self.features if not feature.is_sparse)

    def of_side(self, side: str) -> tuple[Feature, ...]:
        """Features of users, of items or of single interactions (context)."""
        return tuple(feature for feature in self.features if feature.side == side)

    def side(self, side: str, ids: Tensor) -> Batch:
        """The features of any users or items: ids of any shape -> a sample for each of them."""
        assert self.table is not None, "this data has no features of users and items"
        return self.table.side(side, ids)


@dataclass(frozen=True)
class WholeData:
    """All samples of a run in one process, for a model that `solves_from_samples`.

    train     batches of the training samples, every sample once; each call reads them again
    valid     the same of the validation samples; None: there are none
    continues to be called every few seconds of a long computation: other processes wait for it
    """

    train: Callable[[], Iterator[Batch]]
    valid: Callable[[], Iterator[Batch]] | None = None
    continues: Callable[[], None] = lambda: None


class Model(nn.Module):
    """Base of all models.

    A training batch of a `general` model has ids user_field [b], item_field [b] and neg_item
    [b, k] (absent without negatives; then `labels` [b] may be there). One of a `sequential` model
    has ids history [b, l] (left-aligned, 0 pads), target [b, l] (the next item at each position, 0
    where there is none) and neg_item [b, l, k]; one whose `samples` are prefixes has target [b] and
    neg_item [b, k], one whose samples are users has their items in a Jagged `taken` of b lists.
    When asked for scores a batch has ids user_field [b] and, for sequential models, history [b, l].
    A model that `reads_times` also has history_time [b, l + 1], in seconds: the time of every item
    of the history and, behind the last one, of the request (in training, of the last target).

    >>> from shoal.models.base import Embeddings, Output, Retrieval, Table
    >>> class Dot(Retrieval):
    ...     def __init__(self, options, facts):
    ...         super().__init__(options, facts)
    ...         users, items = Table("user", 8, facts.num_users), Table("item", 8, facts.num_items)
    ...         self.embed = Embeddings({"user_id": users, "item_id": items, "neg_item": items})
    ...
    ...     def forward(self, batch):
    ...         rows = self.embed(batch)
    ...         better = rows["item_id"][:, None] - rows["neg_item"]  # [b, k, 8]
    ...         gain = (rows["user_id"][:, None] * better).sum(-1).sigmoid().log()
    ...         return Output(-gain.sum(), gain.numel())  # a sum, and how many terms it has
    ...
    ...     def encode_query(self, batch):
    ...         return self.embed(batch, ["user_id"])["user_id"]
    ...
    ...     def encode_item(self, ids):
    ...         return self.embed.rows("item_id", ids)
    >>> import shoal
    >>> small = {"data.synthetic": {"users": 90, "items": 60, "interactions": 2000}, "epochs": 1}
    >>> keys = {"run.output": "runs/dot", "run.log_level": "warning", "run.progress": False}
    >>> shoal.run(Dot, "synthetic", **small, **keys)["model"]
    'Dot'
    """

    kind: ClassVar[Literal["general", "sequential", "clicks"]] = "general"
    reads_features: ClassVar[bool] = False  # True: batches have the features of users and items
    reads_codes: ClassVar[bool] = False  # True: facts have the codes that data.codes gives
    reads_weights: ClassVar[bool] = False  # True: of interactions, each of which counts so much
    reads_history: ClassVar[bool] = False  # True: of clicks, a feature is what the user took before
    # True: that is all that the user did, with labels and times (data/features.py: with_actions)
    reads_actions: ClassVar[bool] = False
    # False: there is nothing to optimise; `solve`, or the constructor (Pop), computes the model.
    trainable: ClassVar[bool] = True
    # True: it is computed from all training samples, by `solve_from` in place of `solve`.
    solves_from_samples: ClassVar[bool] = False
    # Why `shoal export` cannot write it, and what to do instead; None: it can.
    not_exported: ClassVar[str | None] = None
    samples: ClassVar[Samples] = "interactions"
    reads_times: ClassVar[bool] = False
    # What of a score `terms` does not account for; None: nothing, it is their sum.
    rest_is: ClassVar[str | None] = None
    # How keys of RecBole's property files are read (compat/dialects/recbole.py). A key that is an
    # option by its own name needs no entry, and a class has the entries of its bases as well.
    # Key -> the option that it is here.
    recbole_options: ClassVar[Mapping[str, str]] = MappingProxyType({})
    # Key that is true or false -> the option that it is here, and its values for either.
    recbole_switches: ClassVar[Mapping[str, tuple[str, str, str]]] = MappingProxyType({})
    # Key -> why it changes nothing here, a short sentence.
    recbole_without_effect: ClassVar[Mapping[str, str]] = MappingProxyType({})
    # Key -> the only value that is honoured, and why others are not.
    recbole_only: ClassVar[Mapping[str, tuple[object, str]]] = MappingProxyType({})
    # True: every step is the same kernels and the host reads no result, so a CUDA graph can record
    # it. A class from outside this package must set it in its own body.
    cuda_graph_safe: bool = False

    @dataclass
    class Options:
        """The model's own options, with defaults; shown by `shoal config show`."""

        RANKING: ClassVar[tuple[str, ...]] = ()  # those that learning does not depend on

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """The Options of every model are a dataclass, also without the decorator."""
        super().__init_subclass__(**kwargs)
        adopt_former_methods(cls)
        if "Options" in vars(cls) and "__dataclass_fields__" not in vars(cls.Options):
            dataclass(cls.Options)

    def __init__(self, options: Any, facts: Facts):
        super().__init__()
        self.options = options
        self.facts = facts
        self._gather: Callable[[Tensor], Tensor] | None = None

    def attach(self, gather: Callable[[Tensor], Tensor] | None) -> None:
        """Set by the strategy: what gathers a global batch; None: all of it is in this process."""
        self._gather = gather

    def gather_global(self, tensor: Tensor) -> Tensor:
        """The tensor of the whole global batch, in order of sample: [b, ...] -> [global b, ...].

        Sample k of this batch is number `batch.first + k` there. Gradients return to the process
        that has the sample, so a sum over `gather_global(x)` is the same for every number of
        processes. It is the identity in evaluation, and where each worker trains its own batch.
        """
        if self._gather is None or not self.training:
            return tensor
        return self._gather(tensor)

    across = gather_global  # the name of 0.1.0

    def negatives(self, batch: Batch, number: int = 1) -> Tensor:
        """The negatives of a batch: [b, k]; refuses one without, and suggests how many to draw."""
        if "neg_item" not in batch.ids:
            raise ValueError(
                f"{type(self).__name__} learns from negatives and has none; set "
                f"train.negatives.num to {number}"
            )
        return batch.tensor("neg_item")

    def same_width(self, dim: int) -> None:
        """Refuse features of other widths, where all vectors are added or multiplied."""
        for feature in self.facts.sparse:
            if self.facts.per_feature and feature.dim not in (None, dim):
                raise ValueError(
                    f"{type(self).__name__} adds or multiplies the vectors of features, so all are "
                    f"{dim} wide, and data.features.{feature.name}.dim is {feature.dim}; leave it "
                    "out, or choose DNN, WideDeep or DCNV2"
                )

    def solve(self) -> None:
        """Compute a model in closed form from its facts, on the CPU.

        Training calls it once. A trained model is opened without it: its checkpoint has the result,
        in buffers that `models.nn.closed_form.expect_solution` announced.
        """

    def solve_from(self, data: WholeData) -> None:
        """Compute a model from all training samples, on the CPU, where it `solves_from_samples`.

        The first process calls it once; the others are given its buffers.
        """
        raise NotImplementedError  # every such model writes its own

    def forward(self, batch: Batch) -> Output:
        """The training loss of one batch."""
        raise NotImplementedError  # every trainable model writes its own

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        """Scores of candidate items, higher is better: items [b, n] -> [b, n].

        Also takes items [n], one list for every row of the batch -> [b, n].
        """
        raise NotImplementedError  # retrieval models inherit it, others write their own

    def scorer(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        """`score` of one batch, for block after block of items: a model that computes something
        for all of them, whichever they are, computes it once."""
        return partial(self.score, batch)

    def terms(self, user: Tensor, taken: Tensor, item: Tensor) -> Tensor:
        """The terms of the score of an item, where it is a sum over the items that a user took.

        user [], item [], different items taken [n] -> [n]

        Where the score has another part, `rest_is` says what that is.
        """
        raise NotImplementedError  # where a score is such a sum


class Retrieval(Model):
    """A model whose score is a dot product of a query vector and an item vector."""

    # True: query vectors are mostly zeros, and evaluation multiplies their other values alone.
    sparse_queries: ClassVar[bool] = False

    def encode_query(self, batch: Batch) -> Tensor:
        """Query vectors [b, dim]."""
        raise NotImplementedError  # every retrieval model writes its own

    def encode_item(self, ids: Tensor) -> Tensor:
        """Item vectors: ids of any shape -> that shape + [dim]."""
        raise NotImplementedError  # every retrieval model writes its own

    def fold_in(self, lists: Jagged) -> Tensor:
        """Query vectors of anybody by what they took: b lists of different items -> [b, dim].

        Of models that answer from items alone; others know the users of their data, and no more.
        """
        raise NotImplementedError  # where a model can

    def folding(self) -> Folding | None:
        """How a query is made of what anybody took, by stored vectors alone; None: it is not.

        Models that learn a vector of each user answer others so, near what training would give.
        """
        return None

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        queries, vectors = self.encode_query(batch), self.encode_item(items)
        if items.dim() == 1:
            return queries @ vectors.T
        return torch.einsum("bd,bnd->bn", queries, vectors)


class Propagated(Retrieval):
    """A model that computes the vectors of all users and items at once, along a graph."""

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        self._cached: tuple[Tensor, Tensor] | None = None

    def propagate(self) -> tuple[Tensor, Tensor]:
        """What rows become along the graph: two tensors, which the model defines."""
        raise NotImplementedError  # every such model writes its own

    def propagated(self) -> tuple[Tensor, Tensor]:
        """`propagate`; in evaluation rows do not change, so it is computed once."""
        if self._cached is not None:
            return self._cached
        vectors = self.propagate()
        self._cached = None if self.training else vectors
        return vectors

    def train(self, mode: bool = True) -> Propagated:
        """Set training or evaluation, as torch does, and drop what was propagated before."""
        self._cached = None
        return super().train(mode)


def item_blocks(items: int, floats: int) -> list[slice]:
    """Slices of candidates for models that compute each pair of user and item.

    floats: what one item takes for the whole batch; a block takes what a cache holds.
    """
    if torch.compiler.is_exporting():  # a graph has no sizes that depend on values
        return [slice(None)]
    step = max(1, (1 << 17) // max(1, floats))
    return [slice(start, start + step) for start in range(0, max(1, items), step)]


class ClickModel(Model):
    """A model of the probability of a click.

        slots [b, s], dense [b, k]  ->  vectors [b, s, dim]  ->  logits [b]  ->  loss, summed

    A batch of a click log has ids `slots`: a tensor [b, num_slots] where every slot holds one id,
    else a Jagged of b * num_slots lists, sample after sample; and dense `dense` [b, num_dense]
    where there are any. With `facts.per_feature` a batch has ids and dense values by feature
    instead: `embeddings`, `slots`, `flat` and `dense` read either. Labels are [b], 1 for a click,
    or [b, labels] where there are several.
    """

    kind = "clicks"
    reads_features = True
    cuda_graph_safe = True
    several_labels: ClassVar[bool] = False  # True: there is a logit for each label
    recbole_options: ClassVar[Mapping[str, str]] = {
        "embedding_size": "dim",
        "mlp_hidden_size": "layers",
        "dropout_prob": "dropout",
        "num_heads": "n_heads",
    }

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        self._labels = facts.labels or (Label("label"),)
        if len(facts.labels) > 1 and not self.several_labels:
            names = ", ".join(label.name for label in facts.labels)
            raise ValueError(
                f"{type(self).__name__} predicts one label, and data.labels names {names}; keep "
                "one of them, or choose a model for several, such as DNN"
            )

    @former_argument("beside", "suffix")
    def embeddings(self, dim: int, init: Init, suffix: str = "") -> Embeddings:
        """A table for every feature, or one of all slots; `dim` wide unless a feature has its own.

        suffix: ends the names of further tables for the same ids, which are all `dim` wide.
        """
        if not self.facts.per_feature:
            return Embeddings({"slots": Table("slots" + suffix, dim, self.facts.rows, init)})
        tables = {}
        for feature in self.facts.sparse:  # id 0 is a missing value
            width = dim if suffix else feature.dim or dim
            name = feature.table + suffix
            tables[feature.name] = Table(name, width, feature.rows, init, padding=0)
        return Embeddings(tables)

    def width(self, dim: int) -> int:
        """How wide the rows of all features are side by side."""
        if not self.facts.per_feature:
            return self.facts.num_slots * dim
        return sum(feature.dim or dim for feature in self.facts.sparse)

    def slots(self, embed: Embeddings, batch: Batch) -> Tensor:
        """The row of every feature, pooled where it has several ids: [b, num_slots, dim].

        Separate features stay one after the other in memory: sums over them are quick, and their
        gradients need no copies.
        """
        if "slots" in embed.fields:
            packed = embed.pooled("slots", batch)
            return packed.view(batch.size, self.facts.num_slots, packed.shape[-1])
        rows = list(self.rows(embed, batch, self.facts.sparse).values())
        return torch.stack(rows).transpose(0, 1)

    def flat(self, embed: Embeddings, batch: Batch) -> Tensor:
        """The rows of all features side by side, of any widths and pooled: [b, width]."""
        if "slots" in embed.fields:
            return self.slots(embed, batch).flatten(1)
        return torch.cat(list(self.rows(embed, batch, self.facts.sparse).values()), 1)

    def rows(
        self, embed: Embeddings, batch: Batch, features: tuple[Feature, ...]
    ) -> dict[str, Tensor]:
        """Rows of some separate features, by name: [b, its dim] each."""
        pooling: dict[str, Any] = {feature.name: feature.pooling for feature in features}
        return embed.each_pooled(batch, pooling)

    def dense(self, batch: Batch) -> Tensor:
        """The dense values: [b, num_dense], of no columns where there are none."""
        if not self.facts.num_dense:
            device = batch.flat_ids(next(iter(batch.ids))).device
            return torch.zeros(batch.size, 0, device=device)
        if not self.facts.per_feature:
            return batch.dense["dense"]
        parts = [batch.dense[f.name].view(batch.size, f.width) for f in self.facts.numeric]
        return torch.cat(parts, 1)

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        """Log odds of the users of a batch for candidate items, by their features alone: [b, n].

        What belongs to single interactions is missing then; of several labels the first counts.
        """
        assert self.facts.table is not None, "build lets click logs rank nothing"
        users = batch.tensor(self.facts.user_field)
        every = items.expand(len(users), -1) if items.dim() == 1 else items
        packed = any("slots" in m.fields for m in self.modules() if isinstance(m, Embeddings))
        pair_users, pair_items = users[:, None].expand_as(every).reshape(-1), every.reshape(-1)
        candidate_batch = candidates(self.facts.table, pair_users, pair_items, packed, users.device)
        logits = self.logits(candidate_batch)
        return (logits if logits.dim() == 1 else logits[:, 0]).view(every.shape)

    def logits(self, batch: Batch) -> Tensor:
        """The log odds of a click: [b]; of models for several labels [b, labels]."""
        raise NotImplementedError  # every click model writes its own

    def forward(self, batch: Batch) -> Output:
        logits = self.logits(batch)
        return Output(self.losses(logits, batch).sum(), batch.size, logits.detach())

    def losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """The loss of every sample, all labels together: [b]."""
        assert batch.labels is not None, "a click model learns from labels"
        shape = batch.size, len(self._labels)
        each: list[Tensor] = []
        columns = logits.view(shape).unbind(1)
        for label, logit, truth in zip(self._labels, columns, batch.labels.view(shape).unbind(1)):
            if label.loss == "logistic":
                label_loss = binary_cross_entropy_with_logits(logit, truth, reduction="none")
            else:
                label_loss = (logit - truth).square()
            each.append(label_loss if label.weight == 1.0 else label.weight * label_loss)
        total = sum(each[1:], each[0])
        return total if batch.weights is None else total * batch.weights
