"""Encoded texts: a column of text of the items becomes one of vectors (data.encode).

Texts are encoded once: vectors are kept in SHOAL_CACHE/encoded/KEY.safetensors, in half precision,
where KEY is the hash of the different texts and of the encoder. One process encodes for all.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from shoal.config.encode_section import EncodeOptions, encoder_of
from shoal.config.errors import did_you_mean
from shoal.config.schema import DataSection
from shoal.data.dataset import Dataset, Ragged
from shoal.data.loading.sentence_encoders import SentenceEncoder, content_key, sentence_encoder
from shoal.distributed.world import World
from shoal.files.durable import open_regular, replace_durably

log = logging.getLogger("shoal")
SUFFIX = "_vector"  # of the column of vectors that a column of text gets


def with_encoded_texts(dataset: Dataset, data: DataSection, world: World) -> Dataset:
    """The data set with a column of vectors for each column of text that data.encode names."""
    for column, options in (data.encode or {}).items():
        texts = _texts(dataset, column, options, data.seq_separator)
        different = list(dict.fromkeys(texts))
        key = f"data.encode.{column}"
        encoder = sentence_encoder(encoder_of(options), key)
        content = content_key(encoder.identity, different)
        own = _vectors(encoder, different, content, key) if world.is_main else None
        sent = world.broadcast_bytes(None if own is None else save({"vectors": own}))
        vectors = load(sent)["vectors"]
        place = {text: number for number, text in enumerate(different)}
        values = vectors[[place[text] for text in texts]]
        offsets = np.arange(len(texts) + 1, dtype=np.int64) * values.shape[1]
        name = column + SUFFIX
        if name in dataset.items:
            raise ValueError(f"{key}: the items have a column {name!r} already; rename that")
        dataset = replace(
            dataset,
            items={**dataset.items, name: Ragged(values.reshape(-1), np.insert(offsets, 0, 0))},
            types={**dataset.types, name: "float_seq"},
            encoded={**dataset.encoded, name: content},
        )
    return dataset


def _texts(dataset: Dataset, column: str, options: EncodeOptions, separator: str) -> list[str]:
    """The text of every item, without the padding; refuses a column that is none."""
    key = f"data.encode.{column}"
    of_text = [name for name in dataset.items if dataset.types[name].startswith("token")]
    if column not in of_text:
        raise ValueError(
            f"{key}: the items have no column of text {column!r}{did_you_mean(column, of_text)}; "
            f"they have {', '.join(of_text) or 'none'} (a table of items is data.files.item, or "
            "NAME.item)"
        )
    values, words = dataset.items[column], dataset.vocab[column].tolist()
    if isinstance(values, Ragged):
        entries, ends = [words[code] for code in values.values.tolist()], values.offsets.tolist()
        texts = [separator.join(map(str, entries[a:b])) for a, b in pairwise(ends)][1:]
    else:
        texts = ["" if not code else str(words[code]) for code in values[1:].tolist()]
    empty = sum(not text.strip() for text in texts)
    if empty and "missing" not in options:
        raise ValueError(
            f"{key}: {empty:,} of {len(texts):,} items have no text; fill them, or name a text "
            f"that stands in for it: --data.encode='{{{column}: {{missing: unknown}}}}'"
        )
    if empty:
        log.info(
            "%s: %d of %d items have no text, read as %r",
            key,
            empty,
            len(texts),
            options["missing"],
        )
    return [text if text.strip() else options["missing"] for text in texts]


def _vectors(encoder: SentenceEncoder, texts: Sequence[str], content: str, key: str) -> np.ndarray:
    """Vectors of different texts [n, width], half precision: kept ones, or encoded now."""
    cache = Path(os.environ.get("SHOAL_CACHE") or Path.home() / ".cache" / "shoal")
    file = cache / "encoded" / f"{content}.safetensors"
    if file.exists():
        log.info("%s: vectors of %d different texts, from %s", key, len(texts), file)
        return _kept(file, len(texts))
    log.info("%s: %s encodes %d different texts", key, encoder.name, len(texts))
    vectors = encoder.vectors(list(texts), key)
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(file, save({"vectors": vectors}))
    return vectors


def _kept(file: Path, count: int) -> np.ndarray:
    """The vectors of a kept file."""
    try:
        with open_regular(file) as opened:
            vectors = load(opened.read())["vectors"]
    except (OSError, KeyError, SafetensorError) as error:
        raise ValueError(f"{file} is damaged ({error}); delete it: it is made again") from error
    half = vectors.ndim == 2 and vectors.dtype == np.float16
    if not half or len(vectors) != count or not np.isfinite(vectors).all():
        raise ValueError(f"{file} is damaged; delete it: it is made again")
    return vectors
