"""The reader of a run: training samples as its model wants them."""

from __future__ import annotations

from shoal.config.schema import TrainSection
from shoal.data.dataset import Dataset
from shoal.data.feature_table import FeatureTable
from shoal.data.history import Histories
from shoal.data.masking import MaskedWindows, Masking
from shoal.data.reader import Interactions, Reader
from shoal.data.samples import ByUser, Prefixes, Users
from shoal.data.windows import LengthReader, Windows
from shoal.models.base import Model

SAMPLES_BY = {"each": Interactions, "by_user": ByUser}


def make_reader(
    train: TrainSection,
    dataset: Dataset,
    table: FeatureTable | None,
    model: Model,
    title: str,
    max_len: int,
    batch_size: int,
    seed: int,
    on_gpu: bool,
) -> Reader:
    """Training samples as the model wants them.

    title: the model, for errors; max_len: of a history; on_gpu: the model computes on a GPU.
    """
    shuffle, bucket, negatives = train.shuffle, train.bucket, train.negatives
    if bucket and (model.samples not in ("windows", "prefixes") or hasattr(model, "masking")):
        raise ValueError(
            f"train.bucket sorts histories by length, and {title} does not read such "
            "histories in training; set train.bucket=false"
        )
    reader: Reader
    if model.samples == "users":
        reader = Users(dataset, batch_size, seed, shuffle)
    elif model.kind != "sequential":
        reader = SAMPLES_BY[train.positives](dataset, negatives, batch_size, seed, shuffle, table)
    else:
        histories = Histories(dataset, ("train",), max_len, model.reads_times)
        masking = getattr(model, "masking", None)  # how a bidirectional model wants its windows
        if masking is not None:
            reader = MaskedWindows(
                dataset, histories, Masking(**masking), negatives, batch_size, seed, shuffle
            )
        elif model.samples == "prefixes":
            reader = Prefixes(dataset, histories, negatives, batch_size, seed, shuffle, bucket)
        else:
            reader = Windows(dataset, histories, negatives, batch_size, seed, shuffle, bucket)
    if reader.num_samples == 0 and train.epochs:
        raise ValueError(
            f"data set {dataset.name!r} has no training interaction, so there is nothing to learn "
            "from; look at its files (`shoal data describe` shows what they hold), the filters and "
            "the split"
        )
    if isinstance(reader, LengthReader):
        reader.balance = train.balance
        if train.batch_tokens is not None:
            reader.cut_by_tokens(train.batch_tokens)
    # A disk may have to be waited for; a GPU must not wait for the host.
    reader.prefetch = bool(dataset.kept) or on_gpu
    return reader
