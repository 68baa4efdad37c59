"""From a config to the parts of a run: data set, model, strategy, reader, evaluator."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.clicks import ClickData, InMemory, Layout, open_clicks
from shoal.clicks.encoder import FeatureEncoder, LogEncoder, encoder_of
from shoal.clicks.per_feature import log_features
from shoal.config.key_applicability import refuse_unread
from shoal.config.schema import Config, StrategySection
from shoal.data.dataset import Dataset
from shoal.data.encode import encode
from shoal.data.feature_table import FeatureTable
from shoal.data.features import Feature, features_of, labels_of, with_actions
from shoal.data.history import Histories
from shoal.data.ids import Ids
from shoal.data.item_codes import fitted, read_codes
from shoal.data.joined import JoinedSamples, check_packable, packed_rows, weights_of
from shoal.data.knowledge import knowledge_of
from shoal.data.loading.load import load_dataset, with_side_files
from shoal.data.loading.location import NamedData, interactions_of, named_data
from shoal.data.masking import MaskedWindows, Masking
from shoal.data.protocol import click_log_protocol, decide, decide_log, protocol_of
from shoal.data.reader import Interactions, Reader
from shoal.data.sampler import log_weights
from shoal.data.samples import ByUser, Prefixes, Users
from shoal.data.statistics import describe, find_data_warnings
from shoal.data.windows import LengthReader, Windows
from shoal.distributed.world import World
from shoal.models import find
from shoal.models.base import Facts, Model
from shoal.optimizers.selection import row_optimizer_names_of
from shoal.runs.data_size import DataSize, Decided, decide_by_size, decide_without_size
from shoal.runs.vocabulary_growth import grow, refuse_new_words
from shoal.runs.warm_start import frozen_optimizer, known_words
from shoal.training.averages import Averages
from shoal.training.evaluation import ClickEvaluator, Evaluator
from shoal.training.evaluation.clicks import TILE_ROWS
from shoal.training.evaluation.leakage import LeakageCheck
from shoal.training.strategies import Strategy, make_strategy

log = logging.getLogger("shoal")
SAMPLES_BY = {"each": Interactions, "by_user": ByUser}
MakeStrategy = Callable[[StrategySection, World, float], Strategy]


@dataclass
class Parts:
    """The parts of a run."""

    dataset: Dataset | ClickData
    model: Model
    strategy: Strategy
    reader: Reader
    evaluator: Evaluator | ClickEvaluator
    fingerprint: dict[str, Any]  # must be the same for a checkpoint to fit
    config: Config  # with what the data decided in place of `auto`
    notes: list[str] = dataclasses.field(
        default_factory=list
    )  # lines for the log about what it decided

    @property
    def protocol(self) -> str:
        """One line: the tested part, the validation part and the ranked items."""
        if isinstance(self.dataset, ClickData):
            return click_log_protocol(self.dataset.sources)
        return str(protocol_of(self.config.data, self.config.eval))

    def ranking(self) -> Evaluator | None:
        """The evaluator that ranks items for users; None for click logs, which know neither."""
        if isinstance(self.evaluator, Evaluator) or not isinstance(self.dataset, Dataset):
            return self.evaluator if isinstance(self.evaluator, Evaluator) else None
        return Evaluator(
            self.dataset,
            self.config.eval,
            self.strategy.world,
            self.config.run.seed,
            self.config.data.max_len,
        )

    def encoder(self, config: Config) -> FeatureEncoder | LogEncoder:
        """The encoder of raw rows into samples of a click model."""
        facts = self.model.facts
        if isinstance(self.dataset, ClickData):
            columns = {f.name: f.column for f in facts.features if facts.per_feature}
            return LogEncoder(self.dataset.layout, self.dataset.form, columns)
        assert facts.table is not None, "click models on interactions read features"
        packed, data = _packed(self.strategy), with_side_files(config.data)
        return encoder_of(self.dataset, facts.table, data, packed, facts.labels)


def _packed(strategy: Strategy) -> bool:
    """True for a model that reads the ids of all features from one table."""
    return any("slots" in embed.fields for embed in strategy.embeddings)


def build(
    config: Config,
    world: World,
    make: MakeStrategy = make_strategy,
    data: NamedData | None = None,
) -> Parts:
    """Load the data, construct the model and set it up with its strategy, as `make` makes it.

    data: what `named_data` says of the config, where it was asked before.
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
    # The data, and what a model may know about it.
    refuse_labels(config, model_class.reads_weights)
    dataset, table = _load(config, world, data.source, model_class.reads_features)
    config = decide(config, dataset)
    features = () if table is None else table.features
    unread = [feature.name for feature in features if feature.side == "context"]
    if unread:
        title = config.model.title
        log.info("%s does not read features of single interactions: %s", title, unread)
    facts = _facts(config, dataset, table)
    if model_class.reads_codes and config.start.run is not None and config.data.codes is None:
        raise ValueError(
            f"{config.model.title} makes codes of items from its data, and new data would make "
            "others; train it anew, or with the codes of a file (data.codes, see shoal codes)"
        )
    if config.data.codes is not None:
        facts = replace(facts, codes=_codes(config, dataset, model_class))
    if config.data.sample_weight is not None:
        weights = weights_of(dataset, config.data.sample_weight)[dataset.splits["train"]]
        facts = replace(facts, train_weights=torch.from_numpy(weights))
    # The model, and the readers of its training and evaluation.
    model, strategy = set_up(config, world, model_class, facts, make)
    reader = _reader(config, world, dataset, table, model)
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
    return Parts(
        dataset, model, strategy, reader, evaluator, run_fingerprint, config, decided.notes
    )


def describe_items(config: Config, features: bool) -> tuple[Dataset, Facts]:
    """The data set of a config, and the facts that a model would know about it.

    features: whether they are read where the config's model has no use for them.
    """
    reads_features = features or find(config.model.name).reads_features
    dataset, table = _load(config, World(), interactions_of(config.data), reads_features)
    return dataset, _facts(config, dataset, table)


def _codes(config: Config, dataset: Dataset, model_class: type[Model]) -> Tensor:
    """The codes of a data set's items that the config names."""
    path = config.data.codes
    assert path is not None
    if not model_class.reads_codes:
        raise ValueError(
            f"data.codes: {config.model.title} reads no codes of items; leave it out, or choose "
            "TIGER"
        )
    return fitted(path, read_codes(path), Ids(dataset.vocab[dataset.item_field]))


def _facts(
    config: Config, dataset: Dataset, table: FeatureTable | None, **extra_facts: Any
) -> Facts:
    """The facts that a model may know about interactions."""
    negatives, logq = config.train.negatives, torch.empty(0)
    if negatives is not None:
        popularity = np.bincount(dataset.item_ids("train"), minlength=dataset.num_items)
        drawn = log_weights(popularity, negatives.distribution, negatives.alpha)
        logq = torch.from_numpy(drawn)
    return Facts(
        num_users=dataset.num_users,
        num_items=dataset.num_items,
        user_field=dataset.user_field,
        item_field=dataset.item_field,
        max_len=config.data.max_len,
        train_users=torch.from_numpy(dataset.user_ids("train")),
        train_items=torch.from_numpy(dataset.item_ids("train")),
        num_negatives=negatives.num if negatives else 0,
        negative_logq=logq,
        features=() if table is None else table.features,
        per_feature=table is not None,
        table=table,
        knowledge=knowledge_of(dataset) if "kg" in dataset.extra else None,
        **extra_facts,
    )


def _reader(
    config: Config, world: World, dataset: Dataset, table: FeatureTable | None, model: Model
) -> Reader:
    """Training samples as the model wants them."""
    shuffle = config.train.shuffle
    batch_size = decide_without_size(config).samples_per_step(world.size)
    bucket = config.train.bucket
    if bucket and (model.samples not in ("windows", "prefixes") or hasattr(model, "masking")):
        raise ValueError(
            f"train.bucket sorts histories by length, and {config.model.title} does not read such "
            "histories in training; set train.bucket=false"
        )
    negatives, seed = config.train.negatives, config.run.seed
    reader: Reader
    if model.samples == "users":
        reader = Users(dataset, batch_size, seed, shuffle)
    elif model.kind != "sequential":
        reader = SAMPLES_BY[config.train.positives](
            dataset, negatives, batch_size, seed, shuffle, table
        )
    else:
        histories = Histories(dataset, ("train",), config.data.max_len, model.reads_times)
        masking = getattr(model, "masking", None)  # how a bidirectional model wants its windows
        if masking is not None:
            reader = MaskedWindows(
                dataset, histories, Masking(**masking), negatives, batch_size, seed, shuffle
            )
        elif model.samples == "prefixes":
            reader = Prefixes(dataset, histories, negatives, batch_size, seed, shuffle, bucket)
        else:
            reader = Windows(dataset, histories, negatives, batch_size, seed, shuffle, bucket)
    if isinstance(reader, LengthReader):
        reader.balance = config.train.balance
        if config.train.batch_tokens is not None:
            reader.cut_by_tokens(config.train.batch_tokens)
    # A disk may have to be waited for; a GPU must not wait for the host.
    reader.prefetch = bool(dataset.kept) or world.device.type == "cuda"
    return reader


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


def _refuse_valid_users(config: Config) -> None:
    """Refuse a sample of users where rows are evaluated, not users."""
    if isinstance(config.eval.valid_users, int):
        raise ValueError(
            f"eval.valid_users={config.eval.valid_users}: {config.model.title} predicts clicks, "
            "and its validation reads the rows of all users; leave it out"
        )


def _build_joined(
    config: Config, world: World, source: str, model_class: type[Model], make: MakeStrategy
) -> Parts:
    """The parts for a click model and labelled interactions, with the features of both sides."""
    dataset, table = _load(
        config,
        world,
        source,
        reads_features=True,
        reads_history=model_class.reads_history,
        reads_actions=model_class.reads_actions,
    )
    assert table is not None
    config = decide(config, dataset)
    features, labels = table.features, labels_of(dataset, config.data)
    facts = _facts(
        config,
        dataset,
        table,
        num_slots=sum(feature.is_sparse for feature in features),
        num_dense=sum(feature.width for feature in features if not feature.is_sparse),
        rows=packed_rows(features),
        labels=labels,
    )
    model, strategy = set_up(config, world, model_class, facts, make)
    packed = _packed(strategy)
    if packed:
        check_packable(config.model.title, features)
    samples = {
        phase: JoinedSamples(dataset, phase, table, labels, config.data.sample_weight, packed)
        for phase in ("train", "valid", "test")
    }
    layout = Layout((), (), labels[0].name)
    batch_size = decide_without_size(config).samples_per_step(world.size)
    shuffle = config.train.shuffle
    reader = InMemory(samples["train"], layout, batch_size, config.run.seed, shuffle)
    reader.prefetch = bool(dataset.kept)
    _refuse_valid_users(config)
    decided = _decide_by_size(config, world, dataset, reader, model)
    config = decided.config
    readers = {
        phase: InMemory(samples[phase], layout, TILE_ROWS, tile=TILE_ROWS)
        for phase in ("valid", "test")
    }
    sources = {phase: f"the {phase} split of {dataset.name!r} (data.split)" for phase in readers}
    leakage = LeakageCheck(readers["valid"], features, (dataset.user_field, dataset.item_field))
    evaluator = ClickEvaluator(
        readers, config.eval, world, dataset.user_field, sources, labels, leakage
    )
    run_fingerprint = fingerprint(config, dataset, table)
    return Parts(
        dataset, model, strategy, reader, evaluator, run_fingerprint, config, decided.notes
    )


def refuse_labels(config: Config, weighted: bool = False) -> None:
    """Refuse labels and weights of samples where they are not read; weighted: weights are read."""
    for key in ("labels",) if weighted else ("labels", "sample_weight"):
        if getattr(config.data, key) is not None:
            also = ", for IALS and for ItemKNN" if key == "sample_weight" else ""
            raise ValueError(
                f"data.{key} is for click models on tables of interactions (data.files, atomic "
                f"files){also}, and {config.model.title} reads something else here; leave it out"
            )


def _build_clicks(
    config: Config, world: World, source: str, model_class: type[Model], make: MakeStrategy
) -> Parts:
    """The parts for a click model and a click log."""
    refuse_labels(config)
    _refuse_valid_users(config)
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
    if facts.per_feature and _packed(strategy):
        raise ValueError(
            f"{config.model.title} reads all slots from one table; leave out data.features"
        )
    leakage = LeakageCheck(readers["valid"], facts.features) if "valid" in readers else None
    evaluator = ClickEvaluator(
        readers, config.eval, world, data.group, data.sources, leakage=leakage
    )
    run_fingerprint = {**data.fingerprint, **_training(config)}
    if strategy.rows.counted:  # rows without counters cannot go on with rules that need them
        run_fingerprint["counters"] = True
    if facts.per_feature:
        run_fingerprint["features"] = _shapes(facts.features)
    return Parts(data, model, strategy, reader, evaluator, run_fingerprint, decide_log(config))


def set_up(
    config: Config, world: World, model_class: type[Model], facts: Facts, make: MakeStrategy
) -> tuple[Model, Strategy]:
    """The model of a config, and the strategy with the model in it."""
    torch.manual_seed(config.run.seed)  # dense parameters: the same on every rank
    model = model_class(model_class.Options(**config.model.options), facts)
    if config.train.recompute:
        layers: list[Any] = [layer for layer in model.modules() if hasattr(layer, "recompute")]
        if not layers:
            raise ValueError(
                f"train.recompute=true: {config.model.title} has no layers of transformers"
            )
        for layer in layers:
            layer.recompute = True
    if config.train.ema is not None:
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ValueError(
                f"train.ema averages dense parameters, and {config.model.title} has none"
            )
        model.averages = Averages(model, config.train.ema)
    strategy = make(config.strategy, world, config.launch.join_timeout)
    strategy.setup(
        model,
        frozen_optimizer(config),
        config.run.seed,
        config.train.clip_grad_norm,
        rows=config.rows,
        precision=config.train.precision,
        compiled=config.train.compile,
    )
    return model, strategy


def _load(
    config: Config,
    world: World,
    source: str,
    reads_features: bool = False,
    reads_history: bool = False,
    reads_actions: bool = False,
) -> tuple[Dataset, FeatureTable | None]:
    """The data set and, where they are read, its features, with histories and their actions.

    Rank 0 prepares first, so that the others find the prepared columns.
    """
    data = with_side_files(config.data, source) if reads_features else config.data
    if world.is_main:
        dataset = load_dataset(data, config.run.seed, source)
        world.barrier()
    else:
        world.barrier()
        dataset = load_dataset(data, config.run.seed, source)
    features = features_of(dataset, data, reads_history) if reads_features else ()
    if config.start.vocabulary is not None:
        words = known_words(Path(config.start.vocabulary))
        if reads_features:
            refuse_new_words(config.model.title, dataset, features, words)
        dataset = grow(dataset, words)
    if not reads_features:
        return dataset, None
    if reads_actions:
        features = with_actions(dataset, features, labels_of(dataset, data))
    return dataset, encode(dataset, features, all_labels=reads_actions)


def fingerprint(
    config: Config, dataset: Dataset, table: FeatureTable | None = None
) -> dict[str, Any]:
    """All that must be the same for a checkpoint to fit."""
    facts: dict[str, Any] = {} if table is None else {"features": _shapes(table.features)}
    digests = dataset.digests or _digests(dataset)
    facts |= {"num_users": dataset.num_users, "num_items": dataset.num_items}
    return facts | {key: digests[key] for key in ("interactions", "splits")} | _training(config)


def _training(config: Config) -> dict[str, Any]:
    return {
        "model": config.model.title,
        "options": config.model.options,
        "optimizer": config.train.optimizer.name,
        "row_optimizers": row_optimizer_names_of(config.train.optimizer),
        "batch_size": config.train.samples,
        "batch_tokens": config.train.batch_tokens,
        "seed": config.run.seed,
    }


def _shapes(features: tuple[Feature, ...]) -> list[list[Any]]:
    return [[f.name, f.kind, f.table, f.rows, f.dim] for f in features]


def _digests(dataset: Dataset) -> dict[str, str]:
    """Digests of the interactions and of their splits; a prepared folder has them already."""
    digest = hashlib.sha256()
    for phase in ("train", "valid", "test"):
        rows = np.ascontiguousarray(dataset.splits[phase])
        digest.update(np.int64(len(rows)).tobytes() + rows.tobytes())
    contents = hashlib.sha256()
    for field in (dataset.user_field, dataset.item_field):
        contents.update(np.ascontiguousarray(dataset.inter[field]).tobytes())
        contents.update("\n".join(map(str, dataset.vocab[field])).encode())
    return {"interactions": contents.hexdigest(), "splits": digest.hexdigest()}


def describe_data(dataset: Dataset | ClickData) -> str:
    """The block of figures of a data set."""
    return dataset.describe() if isinstance(dataset, ClickData) else describe(dataset)


def warn(parts: Parts, evaluated: bool = True) -> None:
    """Log what makes the metrics of the data doubtful: on one rank, which counts it."""
    if parts.strategy.world.is_main:
        # Of clicks nothing is ranked, and no item is left out.
        is_click_model = isinstance(parts.evaluator, ClickEvaluator)
        may_repeat = parts.config.eval.repeatable is True or is_click_model
        is_ranked = not is_click_model and getattr(parts.reader, "labels", None) is None
        for warning in find_data_warnings(parts.dataset, evaluated, may_repeat, is_ranked):
            log.warning("%s", warning)
        if evaluated and isinstance(parts.evaluator, ClickEvaluator):
            for warning in parts.evaluator.check_features():
                log.warning("%s", warning)
        if _has_no_order(parts):
            log.warning(
                "%s reads items in the order of the file's rows, since there is no time, and a "
                "random part is tested; if rows stand in the order in which they happened, set "
                "data.split.order=file",
                parts.config.model.title,
            )


def _has_no_order(parts: Parts) -> bool:
    """True for a sequential model that is tested on random items: the data has no order."""
    data = parts.dataset
    is_random = parts.config.data.split.order == "random"
    is_timed = not isinstance(data, Dataset) or data.time_field is not None
    return parts.model.kind == "sequential" and is_random and not is_timed


def _batch_words(config: Config, reader: Reader) -> str:
    """How large a batch is, for the log."""
    most = config.train.batch_tokens
    size = str(config.train.samples)
    return size if most is None else f"{most} items at most, about {reader.batch_size} samples"


def announce(parts: Parts) -> None:
    """The block of facts at the head of a log."""
    config = parts.config
    log.info("%s", describe_data(parts.dataset))
    log.info("protocol: %s", parts.protocol)
    warn(parts, bool(config.train.eval_every))
    for note in parts.notes:
        log.info("%s", note)
    if isinstance(parts.dataset, ClickData):
        order = "in the order of the files"
        if getattr(getattr(parts.reader, "inner", parts.reader), "shuffle", False):
            order = "shuffled"
        log.info("[Training]: train_batch_size = [%d] %s", config.train.samples, order)
        log.info("[Evaluation]: metrics: [%s]", ", ".join(config.eval.metrics))
    else:
        section = config.train.negatives
        negatives = {section.distribution: section.num} if section else None
        log.info(
            "[Training]: train_batch_size = [%s] negative sampling: [%s]",
            _batch_words(config, parts.reader),
            negatives,
        )
        split = config.data.split
        split_arguments: dict[str, Any] = {"LS": split.leave}
        if split.by == "ratio":
            split_arguments = {"RS": split.ratio}
        arguments = {
            "group_by": split.group_by,
            "order": {"random": "RO", "time": "TO", "file": "FO"}[split.order],
            "split": split_arguments,
            "mode": config.eval.mode,
        }
        if split.at is not None:
            arguments = {"split": {"at": split.at}, "mode": config.eval.mode}
        log.info(
            "[Evaluation]: eval_batch_size = [%d] eval_args: [%s]",
            config.eval.batch_size,
            arguments,
        )
    tables = list(parts.strategy.tables.values())
    count = sum((table.rows or 0) * table.dim for table in tables)
    count += sum(p.numel() for p in parts.model.parameters() if p.requires_grad)
    log.info("%s\nTrainable parameters: %d", parts.model, count)
    world = parts.strategy.world
    log.info(
        "strategy %s on %d process%s (%s)",
        parts.strategy.name,
        world.size,
        "" if world.size == 1 else "es",
        world.device.type,
    )
