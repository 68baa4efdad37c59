"""Small configs for tests."""

from collections.abc import Iterator
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from shoal.config.schema import Config
from shoal.data.batch import Batch
from shoal.data.reader import Reader
from shoal.distributed.world import World
from shoal.runs.run import resolve

DATA = {
    "data.name": "synthetic",
    "data.synthetic.users": 131,
    "data.synthetic.items": 97,
    "data.synthetic.interactions": 4000,
    "data.max_len": 12,
    "run.progress": False,
    "run.trackers": [],
}
FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
# Vectors of 6 numbers in 16 bits: one is zeros, some ids are unknown, some items have none.
VECTORS = {
    "data__item_vectors__file": str(FIXTURES / "item_vectors.npy"),
    "data__item_vectors__normalise": "standard",
}
NO_DROPOUT = {
    "BPR": {"model.embedding_size": 16},
    "NeuMF": {
        "model.mf_embedding_size": 8,
        "model.mlp_embedding_size": 8,
        "model.mlp_hidden_size": [16, 8],
        "model.dropout_prob": 0.0,
    },
    "LightGCN": {"model.embedding_size": 16},
    "SASRec": {
        "model.hidden_size": 16,
        "model.inner_size": 32,
        "model.hidden_dropout_prob": 0.0,
        "model.attn_dropout_prob": 0.0,
    },
    "BERT4Rec": {
        "model.hidden_size": 16,
        "model.inner_size": 32,
        "model.hidden_dropout_prob": 0.0,
        "model.attn_dropout_prob": 0.0,
        "model.window_stride": 6,
    },
    "Pop": {},
}


def small_config(model: str = "BPR", **values: Any) -> Config:
    """A config of one model on small synthetic data; keyword a__b stands for the key a.b."""
    given = {key.replace("__", "."): value for key, value in values.items()}
    return resolve(values={"model": model, **DATA, **NO_DROPOUT[model], **given}).config


def first_batches(reader: Reader, world: World, steps: int, start: int = 0) -> Iterator[Batch]:
    """This rank's slices of so many global batches, epoch after epoch."""
    epochs = (reader.batches(epoch, world.rank, world.size) for epoch in count())
    return islice(chain.from_iterable(epochs), start, start + steps)
