"""From a config to the parts of a run, stage by stage.

training_data.py   what a model may know of the data set
model_setup.py     the model, in its strategy
readers.py         training samples as the model wants them
data_size.py       what the size of the data decides
fingerprint.py     what must be the same for a checkpoint to fit
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from shoal.clicks import InMemory, Layout, open_clicks
from shoal.clicks.per_feature import log_features
from shoal.config.key_applicability import refuse_unread
from shoal.config.schema import Config, DataSection, StartSection
from shoal.data.dataset import Dataset
from shoal.data.encode import encode
from shoal.data.feature_table import FeatureTable
from shoal.data.features import features_of, labels_of, with_actions
from shoal.data.joined import JoinedSamples, check_packable, packed_rows, weights_of
from shoal.data.loading.encoded_texts import with_encoded_texts
from shoal.data.loading.load import load_dataset, with_side_files
from shoal.data.loading.location import NamedData, interactions_of, named_data
from shoal.data.protocol import decide, decide_log
from shoal.data.reader import Reader
from shoal.distributed.world import World
from shoal.models import find
from shoal.models.base import Facts, Model
from shoal.runs.data_size import DataSize, Decided, decide_by_size, decide_without_size
from shoal.runs.fingerprint import feature_shapes, fingerprint, training_fingerprint
from shoal.runs.model_setup import MakeStrategy, set_up
from shoal.runs.parts import Parts, is_packed
from shoal.runs.readers import make_reader
from shoal.runs.training_data import codes_of, facts_of, refuse_encoded, refuse_labels
from shoal.runs.vectors import RunVectors, refuse_vectors
from shoal.runs.vocabulary_growth import grow, refuse_new_words
from shoal.runs.warm_start import known_words
from shoal.training.evaluation import ClickEvaluator, Evaluator
from shoal.training.evaluation.clicks import TILE_ROWS
from shoal.training.evaluation.leakage import LeakageCheck
from shoal.training.strategies import make_strategy

log = logging.getLogger("shoal")


def build(
    config: Config,
    world: World,
    make: MakeStrategy = make_strategy,
    data: NamedData | None = None,
) -> Parts:
    """Load the data, construct the model and set it up with its strategy, as `make` makes it.

    data: the result of `named_data` for this config, if it was called before.
    """
    refuse_unread(config, world.size, world.device.type)
    torch.set_float32_matmul_precision("high" if config.run.tf32 else "highest")
    model_class = find(config.model.name)
    clicks = model_class.kind == "clicks"
    learns_pairs = model_class.samples == "interactions" and not clicks
    if config.train.positives != "each" and not learns_pairs:
        raise ValueError(
            f"train.positives={config.train.positives} draws pairs of a user and an item, which "
            f"{config.model.title} does not learn from; set train.positives=each"
        )
    data = data or named_data(config.data, clicks)
    if data.kind == "clicks":
        return _build_clicks(config, world, data.source, model_class, make)
    if clicks:
        return _build_joined(config, world, data.source, model_class, make)
    return _build_interactions(config, world, data.source, model_class, make)


def _build_interactions(
    config: Config, world: World, source: str, model_class: type[Model], make: MakeStrategy
) -> Parts:
    """The parts for a model of users and items, or of sequences."""
    # The data, and what a model may know about it.
    title = config.model.title
    refuse_labels(config.data, title, model_class.reads_weights)
    if not model_class.reads_features:
        refuse_encoded(config.data, f"{title} reads no features of items")
    has_codes = model_class.reads_codes and config.data.codes is not None  # made of features before
    dataset, table = load_data(
        config.data,
        config.start,
        config.run.seed,
        title,
        world,
        source,
        reads_features=model_class.reads_features and not has_codes,
    )
    config = decide(config, dataset)
    if len(dataset.context) and model_class.kind != "sequential":
        log.warning(
            "data.split.by is sessions: those that are tested have no training interaction, and %s "
            "knows nothing else of them; choose a model of sequences, such as SRGNN or SASRec",
            title,
        )
    features = () if table is None else table.features
    unread = [feature.name for feature in features if feature.side == "context"]
    if unread:
        log.info("%s does not read features of single interactions: %s", title, unread)
    facts = facts_of(dataset, table, config.train.negatives, config.data.max_len)
    if model_class.reads_codes and config.start.run is not None and config.data.codes is None:
        raise ValueError(
            f"{title} makes codes of items from its data, and new data would make "
            "others; train it anew, or with the codes of a file (data.codes, see shoal codes)"
        )
    codes_version = None
    if config.data.codes is not None:
        codes, item_codes = codes_of(config.data.codes, dataset, title, model_class)
        facts = replace(facts, codes=codes, code_size=item_codes.size)
        codes_version = item_codes.version()
    if config.data.sample_weight is not None:
        weights = weights_of(dataset, config.data.sample_weight)[dataset.splits["train"]]
        facts = replace(facts, train_weights=torch.from_numpy(weights))
    # The model, and the readers of its training and evaluation.
    vectors = RunVectors.of(config.data, dataset)
    model, strategy = set_up(config, world, model_class, facts, make, vectors)
    reader = make_reader(
        config.train,
        dataset,
        table,
        model,
        title=title,
        max_len=config.data.max_len,
        batch_size=decide_without_size(config).samples_per_step(world.size),
        seed=config.run.seed,
        on_gpu=world.device.type == "cuda",
    )
    decided = _decide_by_size(config, world, dataset, reader, model)
    config = decided.config
    evaluator = Evaluator(
        dataset,
        config.eval,
        world,
        config.run.seed,
        config.data.max_len,
        sequential=model.kind == "sequential",
        timed=model.reads_times,
    )
    run_fingerprint = fingerprint(config, dataset, table)
    if facts.codes is not None:
        run_fingerprint["codes"] = hashlib.sha256(facts.codes.numpy().tobytes()).hexdigest()
        run_fingerprint["codes_version"] = codes_version
    run_fingerprint |= vectors.fingerprint()
    return Parts(
        dataset=dataset,
        model=model,
        strategy=strategy,
        reader=reader,
        evaluator=evaluator,
        fingerprint=run_fingerprint,
        config=config,
        notes=decided.notes,
    )


def _build_joined(
    config: Config, world: World, source: str, model_class: type[Model], make: MakeStrategy
) -> Parts:
    """The parts for a click model and labelled interactions, with the features of both sides."""
    dataset, table = load_data(
        config.data,
        config.start,
        config.run.seed,
        config.model.title,
        world,
        source,
        reads_features=True,
        reads_history=model_class.reads_history,
        reads_actions=model_class.reads_actions,
    )
    assert table is not None
    config = decide(config, dataset)
    features, labels = table.features, labels_of(dataset, config.data)
    facts = facts_of(
        dataset,
        table,
        config.train.negatives,
        config.data.max_len,
        num_slots=sum(feature.is_sparse for feature in features),
        num_dense=sum(feature.width for feature in features if not feature.is_sparse),
        rows=packed_rows(features),
        labels=labels,
    )
    vectors = RunVectors.of(config.data, dataset)
    model, strategy = set_up(config, world, model_class, facts, make, vectors)
    packed = is_packed(strategy)
    if packed:
        check_packable(config.model.title, features)
    samples = {
        split: JoinedSamples(dataset, split, table, labels, config.data.sample_weight, packed)
        for split in ("train", "valid", "test")
    }
    layout = Layout((), (), labels[0].name)
    batch_size = decide_without_size(config).samples_per_step(world.size)
    shuffle = config.train.shuffle
    reader = InMemory(samples["train"], layout, batch_size, config.run.seed, shuffle)
    reader.prefetch = bool(dataset.kept)
    _refuse_valid_users(config.eval.valid_users, config.model.title)
    decided = _decide_by_size(config, world, dataset, reader, model)
    config = decided.config
    readers = {
        split: InMemory(samples[split], layout, TILE_ROWS, tile=TILE_ROWS)
        for split in ("valid", "test")
    }
    sources = {split: f"the {split} split of {dataset.name!r} (data.split)" for split in readers}
    leakage = LeakageCheck(readers["valid"], features, (dataset.user_field, dataset.item_field))
    evaluator = ClickEvaluator(
        readers, config.eval, world, dataset.user_field, sources, labels, leakage
    )
    run_fingerprint = fingerprint(config, dataset, table) | vectors.fingerprint()
    return Parts(
        dataset=dataset,
        model=model,
        strategy=strategy,
        reader=reader,
        evaluator=evaluator,
        fingerprint=run_fingerprint,
        config=config,
        notes=decided.notes,
    )


def _build_clicks(
    config: Config, world: World, source: str, model_class: type[Model], make: MakeStrategy
) -> Parts:
    """The parts for a click model and a click log."""
    refuse_labels(config.data, config.model.title)
    refuse_vectors(config.data, "a click log")
    refuse_encoded(config.data, "a click log has no table of items")
    _refuse_valid_users(config.eval.valid_users, config.model.title)
    config = decide_without_size(config)
    data = open_clicks(config, world, TILE_ROWS, source)
    layout = data.layout
    facts = Facts(
        num_slots=len(layout.slots),
        num_dense=len(layout.dense),
        rows=layout.rows,
        features=layout.features(),
    )
    reader, readers = data.reader, data.readers
    if config.data.features is not None:
        features = log_features(layout, config.data)
        facts = replace(
            facts,
            features=features,
            per_feature=True,
            num_slots=sum(feature.is_sparse for feature in features),
            num_dense=sum(feature.width for feature in features if not feature.is_sparse),
        )
        for log_reader in (reader, *readers.values()):
            log_reader.describe(features)
    model, strategy = set_up(config, world, model_class, facts, make)
    if facts.per_feature and is_packed(strategy):
        raise ValueError(
            f"{config.model.title} reads all slots from one table; leave out data.features"
        )
    leakage = LeakageCheck(readers["valid"], facts.features) if "valid" in readers else None
    evaluator = ClickEvaluator(
        readers, config.eval, world, data.group, data.sources, leakage=leakage
    )
    run_fingerprint = {**data.fingerprint, **training_fingerprint(config)}
    if strategy.rows.counted:  # rows without counters cannot go on with rules that need them
        run_fingerprint["counters"] = True
    if facts.per_feature:
        run_fingerprint["features"] = feature_shapes(facts.features)
    return Parts(
        dataset=data,
        model=model,
        strategy=strategy,
        reader=reader,
        evaluator=evaluator,
        fingerprint=run_fingerprint,
        config=decide_log(config),
    )


def _decide_by_size(
    config: Config, world: World, dataset: Dataset, reader: Reader, model: Model
) -> Decided:
    """The config with what the size of the data decides; sets the reader's batch size, too.

    Readers know how many samples an epoch has, so they are made before.
    """
    size = DataSize(
        samples=reader.num_samples,
        rows=len(dataset.splits["train"]),
        users=len(np.unique(dataset.user_ids("valid"))),
        items=dataset.num_items,
    )
    decided = decide_by_size(config, size, model.trainable)
    if reader.batch_tokens is None:
        reader.batch_size = decided.config.samples_per_step(world.size)
    return decided


def _refuse_valid_users(valid_users: int | str | None, title: str) -> None:
    """Refuse a sample of users where rows are evaluated, not users; title: the model."""
    if isinstance(valid_users, int):
        raise ValueError(
            f"eval.valid_users={valid_users}: {title} predicts clicks, "
            "and its validation reads the rows of all users; leave it out"
        )


def load_data(
    data: DataSection,
    start: StartSection,
    seed: int,
    title: str,
    world: World,
    source: str,
    reads_features: bool = False,
    reads_history: bool = False,
    reads_actions: bool = False,
) -> tuple[Dataset, FeatureTable | None]:
    """The data set and, where they are read, its features, with histories and their actions.

    Rank 0 prepares first, so that the others find what it prepared. title: the model,
    for errors; source: where interactions come from.
    """
    data = with_side_files(data, source) if reads_features else data
    if world.is_main:
        dataset = load_dataset(data, seed, source)
        world.barrier()
    else:
        world.barrier()
        dataset = load_dataset(data, seed, source)
    if reads_features:
        dataset = with_encoded_texts(dataset, data, world)
    features = features_of(dataset, data, reads_history) if reads_features else ()
    if start.vocabulary is not None:
        vocabulary = known_words(Path(start.vocabulary))
        if reads_features:
            refuse_new_words(title, dataset, features, vocabulary)
        dataset = grow(dataset, vocabulary)
    if not reads_features:
        return dataset, None
    if reads_actions:
        features = with_actions(dataset, features, labels_of(dataset, data))
    return dataset, encode(dataset, features, all_labels=reads_actions)


def describe_items(config: Config, features: bool) -> tuple[Dataset, Facts]:
    """The data set of a config, and the facts that a model would know about it.

    features: whether they are read where the config's model has no use for them.
    """
    dataset, table = load_data(
        config.data,
        config.start,
        config.run.seed,
        config.model.title,
        World(),
        interactions_of(config.data),
        reads_features=features or find(config.model.name).reads_features,
    )
    return dataset, facts_of(dataset, table, config.train.negatives, config.data.max_len)
