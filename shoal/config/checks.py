"""Checks that need more than one key, once every value by itself is right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shoal.config.errors import did_you_mean, nearest
from shoal.config.schema import Config

TOPK_METRICS = ["Recall", "MRR", "NDCG", "Hit", "MAP", "Precision", "ItemCoverage"]
TOPK_METRICS += ["AveragePopularity", "GiniIndex", "ShannonEntropy", "TailPercentage"]
LABEL_METRICS = ["AUC", "LogLoss", "Calibration", "MAE", "RMSE"]  # of values against labels
METRICS = [*TOPK_METRICS, "GAUC", *LABEL_METRICS]  # shoal.training.metrics.register adds to these

Problem = tuple[str, str]  # the dotted key to blame, what is wrong


def canonical(values: dict[str, Any]) -> None:
    """Writes names of metrics, which may come in any case, in one form."""
    spelled = {name.lower(): name for name in METRICS}
    values["eval.metrics"] = [spelled.get(m.lower(), m) for m in values["eval.metrics"]]
    name, at, k = values["eval.valid_metric"].partition("@")
    values["eval.valid_metric"] = spelled.get(name.lower(), name) + at + k


def problems(config: Config, origins: Mapping[str, str], clicks: bool = False) -> list[str]:
    """Every failed check as one line with its place. `clicks`: the model is a click model."""
    checks = [metrics, valid_metric, processes, single, row_rules, elastic, replicas]
    checks += [click_metrics, click_negatives] if clicks else []
    return [
        f"{origins.get(key, 'default')}: {key}: {text}"
        for check in checks
        for key, text in check(config)
    ]


def metrics(config: Config) -> Iterator[Problem]:
    chosen = config.eval
    for name in chosen.metrics:
        if name not in METRICS:
            hint = did_you_mean(name, METRICS) or f"; metrics are: {', '.join(METRICS)}"
            yield "eval.metrics", f"there is no metric {name}{hint}"
    if not chosen.topk and any(name in TOPK_METRICS for name in chosen.metrics):
        yield "eval.topk", "is empty, but the metrics need it; name at least one cut-off"
    used = {chosen.mode} if isinstance(chosen.mode, str) else set(chosen.mode.values())
    values = [name for name in chosen.metrics if name in LABEL_METRICS]
    if values and "full" in used:
        yield (
            "eval.metrics",
            f"{', '.join(values)} compare scores with labels, which eval.mode full does not have; "
            "choose eval.mode labeled, uniN or popN",
        )


def valid_metric(config: Config) -> Iterator[Problem]:
    chosen = config.eval
    known = [name for name in chosen.metrics if name in METRICS]
    computed = [
        name
        for metric in known
        for name in ([f"{metric}@{k}" for k in chosen.topk] if metric in TOPK_METRICS else [metric])
    ]
    if computed and chosen.valid_metric not in computed:
        yield (
            "eval.valid_metric",
            f"{chosen.valid_metric} is not computed{_meant(chosen.valid_metric, computed)}; "
            f"eval.metrics and eval.topk give: {', '.join(computed)}",
        )

    if chosen.valid_metric == "Calibration":
        yield (
            "eval.valid_metric",
            "Calibration is best at 1, neither high nor low, so it cannot choose a checkpoint; "
            "use AUC or LogLoss",
        )


def _meant(given: str, computed: list[str]) -> str:
    alike = [name for name in computed if name.partition("@")[0] == given.partition("@")[0]]
    found = alike[0] if alike else nearest(given, computed)
    return f" (did you mean {found}?)" if found else ""


def _world_size(config: Config) -> int:
    launch = config.launch
    return launch.nproc if launch.world_size == -1 else launch.world_size


def processes(config: Config) -> Iterator[Problem]:
    launch, world = config.launch, _world_size(config)
    if world < 1:
        yield "launch.world_size", f"given {world}; allowed: -1 (nproc) or a whole number ≥ 1"
    elif world < launch.group_offset + launch.nproc:
        yield (
            "launch.world_size",
            f"given {launch.world_size}, but this host runs ranks {launch.group_offset} to "
            f"{launch.group_offset + launch.nproc - 1} (launch.group_offset, launch.nproc); it "
            f"must be at least {launch.group_offset + launch.nproc}, the processes of all hosts",
        )
    elif world > launch.nproc and launch.port == 0:
        yield "launch.port", "must be named when there are several hosts, the same on each"
    elsewhere = world > launch.nproc or launch.hosts > 1
    if config.strategy.name == "ps" and len(config.strategy.ps.addresses) > launch.servers:
        elsewhere = True
    if launch.max_restarts and elsewhere and config.strategy.name == "ps":
        yield (
            "launch.max_restarts",
            "restarts servers and workers of one host, and this run has several; leave it out, and "
            "let the cluster start the command again with --resume",
        )
    if launch.min_nproc and elsewhere:
        yield (
            "launch.min_nproc",
            "is for runs that one host launches, and this run has several, which always use all "
            "their processes; leave it out",
        )
    if launch.min_nproc > launch.nproc:
        yield (
            "launch.min_nproc",
            f"given {launch.min_nproc}; allowed: up to launch.nproc={launch.nproc}",
        )


def single(config: Config) -> Iterator[Problem]:
    if config.strategy.name == "single" and _world_size(config) > 1:
        yield (
            "strategy.name",
            f"strategy single cannot run on {_world_size(config)} processes; use ddp or sharded",
        )


def elastic(config: Config) -> Iterator[Problem]:
    """What needs all workers at once, where workers join and leave."""
    if not config.workers_come_and_go:
        return
    key, servers = "strategy.ps.elastic", config.strategy.ps
    if servers.dense == "all_reduce":
        yield (
            "strategy.ps.dense",
            f"all_reduce needs every worker at every step, and with {key} they join and leave: "
            "leave it at server",
        )
    if servers.journal:
        yield (
            "strategy.ps.journal",
            f"does not record yet what {key} lends to workers: set one of the two to false; with "
            "launch.max_restarts a run that lost a server continues from its last checkpoint",
        )
    if config.data.clicks.split_files:
        yield (
            "data.clicks.split_files",
            f"gives every worker its own files, and with {key} batches are lent: set it to false",
        )
    if config.train.ema is not None:
        yield (
            "train.ema",
            f"averages over the steps of a run, which with {key} no process sees all of: leave it "
            "out",
        )
    if config.start.run is not None or config.start.pretrained:
        yield (
            "start.run" if config.start.run is not None else "start.pretrained",
            f"is not read with {key} yet: set that to false",
        )


def replicas(config: Config) -> Iterator[Problem]:
    """What cannot be combined with servers that hold the same rows."""
    key, servers = "strategy.ps.replicas", config.strategy.ps
    count = servers.replicas
    if config.strategy.name != "ps" or count == 1:
        return
    if servers.journal:
        yield (
            "strategy.ps.journal",
            f"is for servers that are restarted, and with {key}={count} others take their place: "
            "choose one of the two",
        )
    if servers.elastic:
        yield (
            key,
            f"given {count}; what strategy.ps.elastic lends to workers is kept by one server "
            "alone: reset one of the two (replicas=1, or elastic=false)",
        )
    if len(servers.addresses) % count:
        yield (
            key,
            f"given {count}, and there are {len(servers.addresses)} servers: name all of them, "
            f"{count} for each part of the rows (--servers: first one of each part, then, in the "
            "same order, the next)",
        )


def row_rules(config: Config) -> Iterator[Problem]:
    """Rules of growing tables that could never do anything."""
    section = config.rows
    every = [section, *(section.of(name) for name in section.tables)]
    if section.shrink.every and not any(rules.drops for rules in every):
        yield (
            "rows.shrink.every",
            f"rows are checked every {section.shrink.every} steps, but nothing says which go; "
            "set rows.shrink.max_age, capacity, min_score or min_norm",
        )
    if not section.shrink.every and any(rules.drops for rules in every):
        yield (
            "rows.shrink.every",
            "given 0, so nothing is ever dropped; set the steps between checks, or leave out "
            "max_age, capacity, min_score and min_norm",
        )
    most = 255 * section.admission.show_coefficient
    threshold = max(rules.admission.threshold for rules in every)
    if section.admission.bloom_counters and threshold > most:
        yield (
            "rows.admission.threshold",
            f"given {threshold:g}, but the counters of a Bloom filter end at 255 shows, a score of "
            f"{most:g}; lower it, or set rows.admission.bloom_counters=0 to count exactly",
        )


def click_metrics(config: Config) -> Iterator[Problem]:
    chosen = config.eval
    ranking = [name for name in chosen.metrics if name in TOPK_METRICS]
    if ranking:
        yield (
            "eval.metrics",
            f"{', '.join(ranking)} rank items for a user, and {config.model.title} predicts clicks "
            f"of single samples; choose among {', '.join([*LABEL_METRICS, 'GAUC'])}",
        )
    modes = {chosen.mode} if isinstance(chosen.mode, str) else set(chosen.mode.values())
    if modes != {"labeled"}:
        yield (
            "eval.mode",
            f"given {chosen.mode}; click logs have labels, and {config.model.title} is evaluated "
            "on them: leave it out, or write labeled",
        )


def click_negatives(config: Config) -> Iterator[Problem]:
    if config.train.negatives is not None:
        yield (
            "train.negatives",
            f"{config.model.title} learns from labels, and click logs hold their own negatives: "
            "leave it out, or write null",
        )
