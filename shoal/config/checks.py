"""Checks that need more than one key, once every value by itself is right."""

from collections.abc import Iterator, Mapping
from typing import Any

from shoal.config.errors import did_you_mean, nearest
from shoal.config.metric_classes import metric_classes
from shoal.config.row_rules import RowsSection
from shoal.config.schema import (
    Config,
    EvalSection,
    LaunchSection,
    StrategySection,
    TrainSection,
)

USUAL_TOPK = 10  # the cut-off of eval.valid_metric where it names none and eval.topk has this one
EXAMPLES = {"user": "gender", "item": "genre"}  # columns, for errors

Problem = tuple[str, str]  # the dotted key to blame, what is wrong


def canonical(values: dict[str, Any]) -> None:
    """Writes names of metrics, which may come in any case, in one form, with their cut-off."""
    classes = metric_classes()
    spelled = {name.lower(): name for name in classes}
    values["eval.metrics"] = [spelled.get(m.lower(), m) for m in values["eval.metrics"]]
    name, at, k = values["eval.valid_metric"].partition("@")
    name, topk = spelled.get(name.lower(), name), values["eval.topk"]
    if name in classes and classes[name].has_topk and not at and topk:
        at, k = "@", str(USUAL_TOPK if USUAL_TOPK in topk else topk[0])
    values["eval.valid_metric"] = name + at + k


def problems(config: Config, origins: Mapping[str, str], clicks: bool = False) -> list[str]:
    """Every failed check as one line with its place. `clicks`: the model is a click model."""
    checks = [
        metrics(config.eval),
        valid_metric(config.eval),
        processes(config.launch, config.strategy),
        row_rules(config.rows),
        elastic(config),
        replicas(config.strategy),
        by_length(config.train, config.strategy),
    ]
    if clicks:
        checks.append(click_model(config.model.title, config.eval, config.train))
    return [
        f"{origins.get(key, 'default')}: {key}: {text}" for check in checks for key, text in check
    ]


def _modes(section: EvalSection) -> set[str]:
    mode = section.mode
    return {mode} if isinstance(mode, str) else set(mode.values())


def metrics(section: EvalSection) -> Iterator[Problem]:
    """Metrics that do not exist, or lack what they compare."""
    classes = metric_classes()
    for name in section.metric_names:
        if name not in classes:
            hint = did_you_mean(name, classes) or f"; metrics are: {', '.join(classes)}"
            yield "eval.metrics", f"there is no metric {name}{hint}"
    chosen = {name: classes[name] for name in section.metric_names if name in classes}
    for name, metric in chosen.items():
        side = metric.reads_groups
        if side is not None and getattr(section.groups, side) is None:
            text = f"{name} compares groups of {side}s: name their column, as in "
            yield f"eval.groups.{side}", f"{text}--eval.groups.{side}={EXAMPLES[side]}"
    if not section.topk and any(metric.has_topk for metric in chosen.values()):
        yield "eval.topk", "is empty, but the metrics need it; name at least one cut-off"
    values = ", ".join(name for name, metric in chosen.items() if metric.needs == "valued")
    if values and "full" in _modes(section):
        text = f"{values} compare scores with labels: choose eval.mode labeled, uniN or popN"
        yield "eval.metrics", text


def valid_metric(chosen: EvalSection) -> Iterator[Problem]:
    """A metric that is to choose the checkpoint, and cannot."""
    key = "eval.valid_metric"
    classes = metric_classes()
    computed: list[str] = []
    for name in chosen.metric_names:
        if name in classes:
            has_topk = classes[name].has_topk
            computed += [f"{name}@{k}" for k in chosen.topk] if has_topk else [name]
    chosen_metric = chosen.valid_metric
    if computed and chosen_metric not in computed:
        alike = [
            name for name in computed if name.partition("@")[0] == chosen_metric.partition("@")[0]
        ]
        suggestion = alike[0] if alike else nearest(chosen_metric, computed)
        hint = f" (did you mean {suggestion}?)" if suggestion else ""
        all_computed = ", ".join(computed)
        yield (
            key,
            f"{chosen_metric} is not computed{hint}; eval.metrics and eval.topk give: "
            f"{all_computed}",
        )
    name = chosen_metric.partition("@")[0]
    if name in classes and (best := classes[name].best_at) is not None:
        text = f"{name} is best at {best:g}, so it cannot choose a checkpoint"
        yield key, f"{text}; use a metric whose best value is the highest or the lowest"


def processes(launch: LaunchSection, strategy: StrategySection) -> Iterator[Problem]:
    """Numbers of processes that do not go together, or not with the strategy."""
    served = strategy.name == "ps"
    world = launch.nproc if launch.world_size == -1 else launch.world_size
    first, last = launch.group_offset, launch.group_offset + launch.nproc
    if world < 1:
        yield "launch.world_size", f"given {world}; allowed: -1 (nproc) or a whole number ≥ 1"
    elif world < last:
        text = f"given {launch.world_size}, but this host runs ranks {first} to {last - 1}"
        yield "launch.world_size", f"{text} (group_offset, nproc); it must be at least {last}"
    elif world > launch.nproc and launch.port == 0:
        yield "launch.port", "must be named when there are several hosts, the same on each"
    if strategy.name == "single" and world > 1:
        text = f"strategy single cannot run on {world} processes; use ddp or sharded"
        yield "strategy.name", text
    elsewhere = world > launch.nproc or launch.hosts > 1
    if served and len(strategy.ps.addresses) > launch.servers:
        elsewhere = True
    if launch.max_restarts and elsewhere and served:
        text = "restarts servers and workers of one host, and this run has several: leave it out"
        yield "launch.max_restarts", f"{text}, and let the cluster start it again with --resume"
    if launch.min_nproc and elsewhere:
        text = "is for runs that one host launches, and this run has several: leave it out"
        yield "launch.min_nproc", text
    if launch.min_nproc > launch.nproc:
        text = f"given {launch.min_nproc}; allowed: up to launch.nproc={launch.nproc}"
        yield "launch.min_nproc", text


def elastic(config: Config) -> Iterator[Problem]:
    """What needs all workers at once, where workers join and leave."""
    if not config.elastic:
        return
    key, servers = "strategy.ps.elastic", config.strategy.ps
    if servers.dense == "all_reduce":
        yield "strategy.ps.dense", f"all_reduce does not go with {key}: leave it at server"
    if servers.journal:
        yield "strategy.ps.journal", f"does not go with {key}: set one of the two to false"
    if config.data.clicks.split_files:
        yield (
            "data.clicks.split_files",
            f"does not go with {key}, which lends batches: set it to false",
        )
    if config.train.ema is not None:
        yield "train.ema", f"does not go with {key}, where no process sees all steps: leave it out"
    if config.start.run is not None:
        yield "start.run", f"is not read with {key} yet: set that to false"
    if config.start.pretrained:
        yield "start.pretrained", f"is not read with {key} yet: set that to false"


def replicas(strategy: StrategySection) -> Iterator[Problem]:
    """What cannot be combined with servers that hold the same rows."""
    key, servers = "strategy.ps.replicas", strategy.ps
    count = servers.replicas
    if strategy.name != "ps" or count == 1:
        return
    if servers.journal:
        yield "strategy.ps.journal", f"does not go with {key}={count}: choose one of the two"
    if servers.elastic:
        text = f"given {count}; what strategy.ps.elastic lends is kept by one server alone"
        yield key, f"{text}: set replicas=1, or elastic=false"
    if len(servers.addresses) % count:
        text = f"given {count}, and there are {len(servers.addresses)} servers: name {count} for"
        yield key, f"{text} each part of the rows, first one of each part, then the next of each"


def by_length(train: TrainSection, strategy: StrategySection) -> Iterator[Problem]:
    """Batches and slices that are cut by length, where a worker's own number of samples counts."""
    enabled = {
        "train.balance": train.balance,
        "train.batch_tokens": train.batch_tokens is not None,
    }
    servers = strategy.ps
    for key in (key for key, on in enabled.items() if on and strategy.name == "ps"):
        if servers.mode != "sync":
            text = f"does not go with strategy.ps.mode={servers.mode}, where every worker updates "
            yield key, f"{text}by its own samples: leave it out, or choose sync"
        elif servers.elastic and key == "train.batch_tokens":
            text = "does not go with strategy.ps.elastic, which lends batches of so many samples"
            yield key, f"{text}: leave it out, or set that to false"


def row_rules(section: RowsSection) -> Iterator[Problem]:
    """Rules of growing tables that could never do anything."""
    key = "rows.shrink.every"
    all_rules = [section, *(section.rules_of(name) for name in section.tables)]
    limits = "rows.shrink.max_age, capacity, min_score or min_norm"
    drops = any(rules.drops for rules in all_rules)
    if section.shrink.every and not drops:
        yield key, f"given {section.shrink.every}, but nothing says which go; set {limits}"
    if not section.shrink.every and drops:
        yield key, f"given 0, so nothing is ever dropped; set it, or leave out {limits}"
    most = 255 * section.admission.show_coefficient
    threshold = max(rules.admission.threshold for rules in all_rules)
    if section.admission.bloom_counters and threshold > most:
        text = (
            f"given {threshold:g}, but the counters of a Bloom filter end at 255 shows ({most:g})"
        )
        yield (
            "rows.admission.threshold",
            f"{text}; lower it, or set rows.admission.bloom_counters=0",
        )


def click_model(model: str, section: EvalSection, train: TrainSection) -> Iterator[Problem]:
    """What is for models that rank items, and this one predicts clicks."""
    ranked = [name for name, metric in metric_classes().items() if metric.needs == "ranked"]
    ranking = [name for name in section.metric_names if name in ranked]
    if ranking:
        text = f"{', '.join(ranking)} rank items for a user, and {model} predicts clicks of single"
        alternatives = ", ".join(name for name in metric_classes() if name not in ranked)
        yield "eval.metrics", f"{text} samples; choose among {alternatives}"
    for side in EXAMPLES:
        if getattr(section.groups, side) is not None:
            text = f"is for metrics of lists, and {model} predicts clicks: leave it out"
            yield f"eval.groups.{side}", text
    if _modes(section) != {"labeled"}:
        text = f"given {section.mode}; click logs have labels: leave it out, or write labeled"
        yield "eval.mode", text
    if train.negatives is not None:
        yield "train.negatives", f"{model} learns from labels: leave it out, or write null"
