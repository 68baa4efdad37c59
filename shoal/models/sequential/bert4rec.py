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

from shoal.models.base import Batch, Facts, Init, Output, Table
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.losses import LossType
from shoal.models.nn.masking import append_mask, masked_places
from shoal.models.nn.transformer import Activation, Transformer
from shoal.models.options import Count, NotNegative, Share
from shoal.models.sequential.base import (
    SEQUENCE_DEFAULTS,
    AttentionOptions,
    num_places,
    tokens_of,
)
from shoal.models.sequential.output_layer import OutputLayer, with_one


class BERT4Rec(OutputLayer):
    """Bidirectional self-attention over a sequence with masks.

    The item table has one row more than there are items, for the mask token. Output rows and their
    bias are separate tables, so that they shard; `tied` reads the item table instead. With b
    sequences of l places, n of them hidden, and states of d numbers:

        history, target [b, l]    states [n, d]    query [b, d + 1]    scores of k items [b, k]
    """

    recbole_only: ClassVar[Mapping[str, tuple[object, str]]] = {
        "transform": ("mask_itemseq", "items are hidden by the model, as mask_ratio says")
    }

    class Options(AttentionOptions, OutputLayer.Options):
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
        rows = facts.num_items + 1  # the last one is the mask token's
        self.make_tables(Table("item", width, rows, Init("normal", std), padding=0))
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
        wanted = masked_places(batch)
        vectors = self.embed.field("history", batch)
        states = self.encode(batch.tensor("history"), wanted, vectors, tokens_of(batch))
        return self.loss(states, batch, wanted)

    def encode_query(self, batch: Batch) -> Tensor:
        masked, wanted = append_mask(batch.tensor("history"), self.mask_token, self.facts.max_len)
        return with_one(self.encode(masked, wanted))
