"""The body of `POST /items`: new items, each with its vector, bounded."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from shoal.data.loading.captions import ENDINGS
from shoal.serving.artifact.new_items import NewItems
from shoal.serving.service.questions import Question, Word

MOST_POSTED = 1_000  # items of a request
MOST_NUMBERS = 1 << 16  # of a vector
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class PostedItem(Question):
    """An item that the model was not trained with."""

    item: Word = Field(description="its id, as the data would have it")
    vector: Annotated[list[Number], Field(min_length=1, max_length=MOST_NUMBERS)] = Field(
        description="its vector, as those of data.item_vectors"
    )
    title: Word | None = Field(None, description="where the artifact has titles")
    picture: Annotated[str, Field(min_length=1, max_length=1 << 16)] | None = Field(
        None, description="where the artifact has pictures"
    )


class PostItems(Question):
    """Take new items, which are recommended from the answer on."""

    items: Annotated[list[PostedItem], Field(min_length=1, max_length=MOST_POSTED)]

    def new_items(self) -> NewItems:
        """The items; ValueError where their vectors have not one width."""
        first = self.items[0]
        for item in self.items:
            if len(item.vector) != len(first.vector):
                raise ValueError(
                    f"the vector of {item.item[:80]!r} has {len(item.vector)} numbers and that of "
                    f"{first.item[:80]!r} has {len(first.vector)}; all must have as many"
                )
        texts = {role: [getattr(one, role) or "" for one in self.items] for role in ENDINGS}
        vectors = torch.tensor([one.vector for one in self.items], dtype=torch.float64)
        return NewItems(
            source="the request",
            ids=[one.item for one in self.items],
            vectors=vectors.float(),
            captions={role: listed for role, listed in texts.items() if any(listed)},
        )
