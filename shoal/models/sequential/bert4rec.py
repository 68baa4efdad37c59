"""BERT4Rec: Sequential Recommendation with Bidirectional Encoder Representations from
Transformer, Sun et al., CIKM 2019.

A transformer that sees a whole sequence is asked for the items that were hidden in it. To
recommend, a mask token is set behind the history: what item is there?

    training   history  c M e x g      (M: mask token, x: a random item in place of f)
               target   . d . f .
    asking     history  d e f g M      score(item) = <state at M, output row of item> + bias
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Embeddings, Facts, Init, Jagged, Output, Retrieval, Table
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.losses import (
    LossType,
    against_negatives,
    in_batch_softmax,
    missing_negatives,
)
from shoal.models.nn.transformer import Activation, Transformer
from shoal.models.options import Count, NotNegative, Share
from shoal.models.sequential.base import (
    SEQUENCE_DEFAULTS,
    AttentionOptions,
    lengths,
    num_places,
    tokens_of,
)


class BERT4Rec(Retrieval):
    """Bidirectional self-attention over a sequence with masks.

    The item table has one row more than there are items, for the mask token. Output rows and their
    bias are separate tables, so that they shard; `tied` reads the item table instead. With b
    sequences of l places, n of them hidden, and states of d numbers:

        history, target [b, l]    states [n, d]    query [b, d + 1]    scores of k items [b, k]
    """

    kind = "sequential"
    recbole_only: ClassVar[Mapping[str, tuple[object, str]]] = {
        "transform": ("mask_itemseq", "items are hidden by the model, as mask_ratio says")
    }
    popularity: Tensor

    class Options(AttentionOptions, Retrieval.Options):
        hidden_size: int = 64
        # width inside the feed-forward layers; null: 4 × hidden_size
        inner_size: Count | None = None
        hidden_dropout_prob: float = 0.1
        attn_dropout_prob: float = 0.1
        hidden_act: Activation = "relu"
        initializer_range: float = 0.02
        tied: bool = False  # use the items' own vectors as output layer
        loss_type: LossType = "CE"  # training loss; sampled, gBCE and BPR also need train.negatives
        # gBCE: calibration, 0: plain binary cross entropy, 1: scores as calibrated as with CE
        gbce_t: Share = 0.75
        mask_ratio: Share = 0.2  # share of the items that are hidden and predicted
        # share of the hidden items that show a random item; the others show the mask
        random_ratio: Share = 0.2
        # share of the samples that end anywhere and hide their last item alone
        ft_ratio: Share = 0.0
        dupe_factor: Count = 1  # samples of each window in an epoch, each with its own masks
        window_stride: Count | None = None  # items between windows; null: a tenth of data.max_len
        # true: windows start at items 0, stride, ...; false: counted from the end
        windows_from_start: bool = False
        mask_last: bool = False  # always predict the last item of a window, besides the masked ones
        label_smoothing: Share = 0.0  # CE: share of the target that is spread over all items
        # items are ranked by score - debias · ln(times an item occurs in training)
        debias: NotNegative = 0.0

        DEFAULTS: ClassVar[dict[str, Any]] = SEQUENCE_DEFAULTS
        RANKING: ClassVar[tuple[str, ...]] = ("debias",)

        def __post_init__(self) -> None:
            if self.mask_ratio == 0.0 and self.ft_ratio == 0.0:
                raise ValueError("mask_ratio is 0: nothing would be asked for; give it more")
            if self.label_smoothing and self.loss_type != "CE":
                raise ValueError(
                    "label_smoothing spreads the truth over all items, and loss_type sampled sees "
                    "some of them; set loss_type to CE, or label_smoothing to 0"
                )

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.cuda_graph_safe = options.loss_type == "CE"
        self.mask_token = facts.num_items
        self.masking = {  # see shoal.data.masking
            "mask_ratio": options.mask_ratio,
            "random_ratio": options.random_ratio,
            "last_ratio": options.ft_ratio,
            "copies": options.dupe_factor,
            "stride": options.window_stride,
            "from_start": options.windows_from_start,
            "hide_last": options.mask_last,
        }
        width, std = options.hidden_size, options.initializer_range
        init, zeros = Init("normal", std), Init("constant", 0.0)
        items = Table("item", width, facts.num_items + 1, init, padding=0)
        outputs = Table("output", width, facts.num_items, init, padding=0, whole=True)
        outputs = items if options.tied else outputs
        bias = Table("output_bias", 1, outputs.rows, zeros, padding=0, whole=True)
        # label smoothing reads the mean of all beside the softmax
        whole = {"every": outputs, "every_bias": bias} if options.label_smoothing else {}
        self.embed = Embeddings(whole, history=items, output=outputs, output_bias=bias)
        counts = torch.bincount(facts.train_items, minlength=facts.num_items)
        self.register_buffer("popularity", counts.clamp(min=1).log(), persistent=False)
        self.positions = nn.Parameter(torch.randn(facts.max_len, width) * std)
        self.norm = nn.LayerNorm(width, eps=options.layer_norm_eps)
        self.dropout = Dropout(options.hidden_dropout_prob)
        self.transformer = Transformer.of(options, width, std, causal=False)

    def encode(
        self,
        history: Tensor,
        wanted: Tensor,
        vectors: Tensor | None = None,
        tokens: Tensor | None = None,
    ) -> Tensor:
        """States of wanted places ([n], counted in [b * l]) of sequences [b, l] with masks: [n, d].

        vectors [b, l, d] are the rows of the sequences' items; tokens [n] places that are no pads.

        Positions are counted from the end of a sequence: its last item is at position max_len - 1
        however long it is, as if pads came first.
        """
        length = num_places(history, self.facts)
        if vectors is None:
            vectors = self.embed.rows("history", history)
        pads = history == 0
        first = self.facts.max_len - length + pads.sum(1, keepdim=True)
        position = first + torch.arange(length, device=history.device)
        positions = F.embedding(position.clamp_(max=self.facts.max_len - 1), self.positions)
        x = self.dropout(self.norm(vectors + positions))
        return self.transformer(x, pads, wanted, tokens)

    def forward(self, batch: Batch) -> Output:
        history, target = batch.tensor("history"), batch.tensor("target")
        wanted = places(batch)
        vectors = self.embed.field("history", batch)
        states = self.encode(history, wanted, vectors, tokens_of(batch))
        targets = target.view(-1)[wanted]
        if self.options.loss_type == "CE":
            stop = self.mask_token
            loss = self.embed.full_softmax("output", states, targets, "output_bias", stop)
            if self.options.label_smoothing:
                every, bias = self.embed.whole("every"), self.embed.whole("every_bias").squeeze(-1)
                distance = mean_distance(states, every, bias, targets, stop)
                loss = loss + self.options.label_smoothing * distance
            return Output(loss, torch.count_nonzero(targets))
        states = F.pad(states, (0, 1), value=1.0)  # meets the bias
        if self.options.loss_type == "in_batch":
            items, gather = self._output(targets), self.gather_global
            loss = in_batch_softmax(states, items, targets, gather, self.popularity)
            return Output(loss, len(targets))
        if "neg_item" not in batch.ids:
            raise missing_negatives("BERT4Rec", self.options.loss_type)
        loss, count = against_negatives(
            self.options.loss_type,
            states,
            targets,
            batch.tensor("neg_item"),  # [b, k], shared by the positions of a sequence
            self._output,
            (batch.dense["target_logq"].view(-1)[wanted], batch.dense["neg_logq"]),
            self.facts.num_items - 1,
            self.options.gbce_t,
            owner=wanted // history.shape[1],
        )
        return Output(loss, count)

    def _output(self, ids: Tensor) -> Tensor:
        """Output rows of ids and, behind them, their bias: ids' shape + [d + 1]."""
        rows = self.embed.rows("output", ids)
        return torch.cat([rows, self.embed.rows("output_bias", ids)], -1)

    def encode_query(self, batch: Batch) -> Tensor:
        masked, wanted = append_mask(batch.tensor("history"), self.mask_token, self.facts.max_len)
        states = self.encode(masked, wanted)
        return F.pad(states, (0, 1), value=1.0)  # meets the bias that encode_item appends

    def encode_item(self, ids: Tensor) -> Tensor:
        # The softmax learns how likely an item comes next, and what is popular always is. Less all
        # of ln(popularity), the score is how much likelier than usual the history makes it.
        vectors = self._output(ids)
        if not self.options.debias:
            return vectors
        less = self.options.debias * self.popularity[ids].unsqueeze(-1)
        return vectors - F.pad(less, (vectors.shape[-1] - 1, 0))


def places(batch: Batch) -> Tensor:
    """Which places of the flattened history [b * l] are asked for: [n]."""
    masked = batch.ids.get("masked")
    if isinstance(masked, Jagged):
        return masked.values
    return (batch.tensor("target").view(-1) > 0).nonzero().view(-1)


def append_mask(history: Tensor, mask_token: int, max_len: int) -> tuple[Tensor, Tensor]:
    """A mask token behind each history [b, l], whose oldest item makes room where it must.

    Returns sequences [b, w], w = min(l + 1, max_len), and the places of their masks [b] in [b * w].
    """
    count = lengths(history).unsqueeze(1)
    longer = F.pad(history, (0, 1)).scatter(1, count, mask_token)
    width = min(longer.shape[1], max_len)
    first = (count + 1 - width).clamp(min=0)
    column = torch.arange(width, device=history.device)
    rows = width * torch.arange(history.shape[0], device=history.device)
    return longer.gather(1, first + column), rows + (count - first).view(-1)


def mean_distance(
    hidden: Tensor, items: Tensor, bias: Tensor, targets: Tensor, stop: int
) -> Tensor:
    """Sum of (logit of the target - mean logit of items 1 to stop - 1): what smooths labels.

    Cross entropy + s * this is the cross entropy with labels smoothed by s. hidden [n, d], items
    [rows, d], bias [rows], targets [n] (0 does not count) -> scalar. The mean is that of the rows,
    taken before the product: no logits of all items are made.
    """
    distances = (hidden * (items[targets] - items[1:stop].mean(0))).sum(-1)
    distances = distances + bias[targets] - bias[1:stop].mean()
    return distances.where(targets > 0, 0.0).sum()
