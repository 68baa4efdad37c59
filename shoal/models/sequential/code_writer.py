"""CodeWriter: models that write the codes of the next item, its semantic id (nn/semantic_ids.py).

To recommend, a history is read once, and what follows it is written code by code; an item's score
is ln p of its codes. The codes of all items are one table: row 0 pads, and code c of level k is row
1 + k * size + c.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Embeddings, Facts, Init, Model, Table
from shoal.models.nn.code_tree import CodeTree
from shoal.models.nn.recorded import Recorded, padded_rows
from shoal.models.sequential.base import lengths


def _same_codes(module: CodeWriter, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Refuse a checkpoint whose items had other codes; items that came since stand behind."""
    name = prefix + "codes"
    saved, now = state.get(name), module.codes
    if saved is None or saved.dim() != 2 or len(saved) > len(now):
        return  # load_state_dict says what is wrong
    first = now[: len(saved)]
    if saved.shape != first.shape or not torch.equal(saved.to(now.device), first):
        raise ValueError(
            "data.codes: items have other codes than those that the model was trained with; give "
            "the same file, or codes that were appended to it (shoal codes append)"
        )
    if module.facts.code_size is None and len(saved) < len(now):
        size = int(saved.max()) + 1
        if size != module.size:
            raise ValueError(
                f"data.codes: codes of the model's items are below {size}, and codes of the new "
                f"ones below {module.size}, which it has no vectors for; give new items codes of "
                "those values (shoal codes append)"
            )
    state[name] = now


class CodeWriter(Model):
    """A sequential model that scores items by what it writes behind a history, see `written`."""

    kind = "sequential"
    samples = "prefixes"
    reads_codes = True
    codes: Tensor  # [num_items, levels], of item 0 zeros
    begin: nn.Parameter  # [d], which stands in front of the first code

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        self._tree: CodeTree | None = None
        self._written = Recorded(self.written)

    def make_codes(self, codes: Tensor, size: int, width: int) -> None:
        """Codes of all items [num_items, levels], each below `size`, and the table of vectors."""
        self.levels, self.size = codes.shape[1], size
        self.register_buffer("codes", codes)
        if self.facts.codes is not None:
            self.register_load_state_dict_pre_hook(_same_codes)
        rows = 1 + self.levels * size
        self.embed = Embeddings(code=Table("code", width, rows, Init("normal", 0.02), padding=0))

    def train(self, mode: bool = True) -> CodeWriter:
        """Set the mode as torch does, and drop the tree of codes: a checkpoint may have others."""
        self._tree, self._written = None, Recorded(self.written)
        return super().train(mode)

    @property
    def tree(self) -> CodeTree:
        """The codes that items have."""
        if self._tree is None:
            self._tree = CodeTree(self.codes, self.size)
        return self._tree

    def rows(self) -> Tensor:
        """The vectors of all codes, as layers read them: [1 + levels * size, d]."""
        return self.embed.whole("code").to(self.begin.dtype)

    def tokens(self, items: Tensor) -> Tensor:
        """Rows of items' codes: ids of any shape -> that shape + [levels]."""
        offsets = torch.arange(self.levels, device=items.device) * self.size
        return self.codes[items] + offsets + 1

    def written(self, history: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        """The beginnings that continue at each level, and ln p of the next code of each.

        history [b, l], `rows` of all codes
        -> nodes [b, w], [b, w, size], nodes of the next level, ...
        """
        raise NotImplementedError  # every such model writes its own

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        """Scores as in `Model`: beginnings continue whichever items are asked for, so scores of
        some items are those among all."""
        return self.scorer(batch)(items)

    def scorer(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        history = batch.tensor("history")
        if not torch.compiler.is_exporting():  # pads at the end of all histories are not read
            longest = max(lengths(history).tolist(), default=1)
            history = history[:, : max(8, padded_rows(longest))]
        written, tree = self._written(history, self.rows()), self.tree
        return lambda items: tree.scores(written, torch.atleast_2d(items))
