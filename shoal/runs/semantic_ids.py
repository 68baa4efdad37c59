"""Codes for a catalogue: semantic ids of items, of what is known of them or of a trained model."""

import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.config.schema import Config
from shoal.data.ids import Ids
from shoal.data.item_codes import distinguished, quality, write_codes
from shoal.models.nn.semantic_ids import Method, item_vectors, quantise
from shoal.runs.build import describe_items

log = logging.getLogger("shoal")
WIDTH = 64  # of vectors that are made of interactions or of several features


def make_codes(
    items: Ids,
    vectors: Tensor,
    to: str | Path,
    levels: int = 3,
    size: int = 256,
    steps: int = 300,
    method: Method = "rqvae",
    seed: int = 42,
) -> dict[str, Any]:
    """Write codes of items by their vectors [num_items, width]; what can be said of them.

    The last code distinguishes items that share the others; `quality` is about the others.
    """
    rows = vectors[1:].float()
    odd = int((~rows.isfinite().all(1)).sum())
    if odd or not len(rows):
        raise ValueError(
            f"{odd} of {len(rows)} items have a vector with values that are no numbers (NaN or "
            "infinite); codes need finite ones"
            if odd
            else "there are no items to make codes of"
        )
    torch.manual_seed(seed)
    codes, lost = quantise(rows, levels, size, steps, method)
    write_codes(to, items.words[1:], distinguished(codes))
    return {**quality(codes), "size": size, "kept": 1.0 - lost}


def vectors_of_data(config: Config, source: str) -> tuple[Ids, Tensor]:
    """Items of a config's data, and their vectors.

    source: what vectors are made of: interactions, features, or the name of a feature.
    """
    dataset, facts = describe_items(config, source != "interactions")
    for feature in facts.of_side("item"):
        if feature.name == source and feature.width == 1:
            log.warning(
                "%s is read as %s, not as vectors: items with equal values are alike; if it holds "
                "N numbers, set --data.features='{%s: {kind: numbers, length: N, side: item}}'",
                source,
                feature.kind,
                source,
            )
    torch.manual_seed(config.run.seed)
    return Ids(dataset.vocab[dataset.item_field]), item_vectors(facts, source, WIDTH)
