"""Checks that need more than one value, after every value alone is known to be sound."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

from shoal.config.errors import did_you_mean, nearest
from shoal.config.intervals import parse_intervals
from shoal.config.schema import Config

TOPK_METRICS = ["Recall", "MRR", "NDCG", "Hit", "MAP", "Precision", "ItemCoverage"]
TOPK_METRICS += ["AveragePopularity", "GiniIndex", "ShannonEntropy", "TailPercentage"]
LABEL_METRICS = ["AUC", "LogLoss", "Calibration", "MAE", "RMSE"]  # of values against labels
METRICS = [*TOPK_METRICS, "GAUC", *LABEL_METRICS]  # shoal.training.metrics.register adds to these
MODE = re.compile(r"full|labeled|(?:uni|pop)[1-9]\d*")

Problem = tuple[str, str]  # the dotted key to blame, what is wrong


def canonical(values: dict[str, Any]) -> None:
    """Writes names that may come in any case, and escaped separators, in one form."""
    spelled = {name.lower(): name for name in METRICS}
    values["eval.metrics"] = [spelled.get(m.lower(), m) for m in values["eval.metrics"]]
    name, at, k = values["eval.valid_metric"].partition("@")
    values["eval.valid_metric"] = spelled.get(name.lower(), name) + at + k
    for key in ("data.separator", "data.seq_separator"):
        values[key] = values[key].replace("\\t", "\t")  # as a shell passes '\t'


def problems(
    config: Config, origins: dict[str, str], failed: Collection[str], clicks: bool = False
) -> list[str]:
    """Every failed check as one line with its place; checks of keys in `failed` cannot be made.

    `clicks`: the model is a click model.
    """
    return [
        f"{origins.get(key, 'default')}: {key}: {text}"
        for check, keys in {**CHECKS, **(CLICK_CHECKS if clicks else {})}.items()
        if not any(key.startswith(keys) for key in failed)
        for key, text in check(config)
    ]


def split(config: Config) -> Iterator[Problem]:
    ratio = config.data.split.ratio
    if min(ratio) < 0 or sum(ratio) <= 0:
        yield "data.split.ratio", f"given {ratio}; parts must not be negative, nor all zero"
    parts = config.data.presplit
    if parts is not None and len(parts) not in (2, 3):
        yield (
            "data.presplit",
            f"given {len(parts)} name parts ({', '.join(parts)}); there must be three, for train, "
            "valid and test, or two, for train and test",
        )


def filters(config: Config) -> Iterator[Problem]:
    chosen = config.data.filter
    for name, text in chosen.values.items():
        yield from _interval("data.filter.values", text, f"{name}: ")
    yield from _interval("data.filter.user_inter_num", chosen.user_inter_num)
    yield from _interval("data.filter.item_inter_num", chosen.item_inter_num)
    if config.data.threshold is not None and len(config.data.threshold) != 1:
        yield "data.threshold", f"given {len(config.data.threshold)} fields; a label comes from one"


def _interval(key: str, text: str, prefix: str = "") -> Iterator[Problem]:
    try:
        parse_intervals(text)
    except ValueError as error:
        yield key, f"{prefix}{error}"


def separators(config: Config) -> Iterator[Problem]:
    if len(config.data.separator) != 1:
        yield "data.separator", f"given {config.data.separator!r}; it must be one character"
    if config.data.quote is not None and len(config.data.quote) != 1:
        yield "data.quote", f"given {config.data.quote!r}; it must be one character, or null"
    if config.data.escape is not None and len(config.data.escape) != 1:
        yield "data.escape", f"given {config.data.escape!r}; it must be one character, or null"
    if config.data.escape in (config.data.quote, config.data.separator) and config.data.escape:
        yield "data.escape", f"given {config.data.escape!r}, which data.quote or data.separator is"
    if not config.data.seq_separator:
        yield "data.seq_separator", "is empty; it must be at least one character"


def negatives(config: Config) -> Iterator[Problem]:
    chosen = config.train.negatives
    if chosen is not None and chosen.dynamic and chosen.candidates < 2:
        yield (
            "train.negatives.candidates",
            f"given {chosen.candidates}; dynamic negatives choose among at least 2 candidates",
        )


def modes(config: Config) -> Iterator[Problem]:
    mode = config.eval.mode
    by_phase = {"": mode} if isinstance(mode, str) else mode
    if not by_phase:
        yield "eval.mode", "given an empty mapping; name a mode for valid and for test"
    for phase, text in by_phase.items():
        if not MODE.fullmatch(text):
            at = f"{phase}: " if phase else ""
            yield (
                "eval.mode",
                f"{at}given {text}; allowed: full, labeled, uniN or popN (uni100)"
                f"{_mode_meant(text)}",
            )
    if isinstance(mode, dict) and len(mode) == 1:
        missing = "test" if "valid" in mode else "valid"
        yield "eval.mode", f"has no mode for {missing}; name both phases or give one mode for both"


def _mode_meant(text: str) -> str:
    """The nearest mode, with the number that was given."""
    word = text.rstrip("0123456789")
    found = nearest(word, ["full", "labeled", "uni", "pop"]) or ""
    number = (text[len(word) :] or "100") if found in ("uni", "pop") else ""
    found += number
    return f"; did you mean {found}?" if MODE.fullmatch(found) else ""


def metrics(config: Config) -> Iterator[Problem]:
    chosen = config.eval
    if not chosen.metrics:
        yield "eval.metrics", "is empty; name at least one metric"
    for name in chosen.metrics:
        if name not in METRICS:
            hint = did_you_mean(name, METRICS) or f"; metrics are: {', '.join(METRICS)}"
            yield "eval.metrics", f"there is no metric {name}{hint}"
    for k in chosen.topk:
        if k < 1:
            yield "eval.topk", f"given {k}; each must be at least 1"
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
            "brings back servers and workers of one host, and this run has several; leave it out, "
            "and let the cluster start the command again with --resume",
        )
    if launch.min_nproc and elsewhere:
        yield (
            "launch.min_nproc",
            "is for runs that one host launches, and this run has several: they go on with all "
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
    """What needs all workers at once, where they come and go."""
    if not config.workers_come_and_go:
        return
    key, servers = "strategy.ps.elastic", config.strategy.ps
    if servers.dense == "all_reduce":
        yield (
            "strategy.ps.dense",
            f"all_reduce sums over workers that must all be there, and with {key} they come and "
            "go: leave it at server",
        )
    if servers.journal:
        yield (
            "strategy.ps.journal",
            f"does not keep what {key} lends to workers yet: set one of the two to false; with "
            "launch.max_restarts a run that lost a server goes on from its last checkpoint",
        )
    if config.data.clicks.split_files:
        yield (
            "data.clicks.split_files",
            f"gives every worker files of its own, and with {key} batches are lent: set it to "
            "false",
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
    """What does not go with servers that hold the same rows."""
    key, servers = "strategy.ps.replicas", config.strategy.ps
    count = servers.replicas
    if config.strategy.name != "ps" or count == 1:
        return
    if servers.journal:
        yield (
            "strategy.ps.journal",
            f"is for servers that come back, and with {key}={count} others go on in their place: "
            "choose one of the two",
        )
    if servers.elastic:
        yield (
            key,
            f"given {count}; what strategy.ps.elastic lends to workers is kept by one server "
            "alone: set one of the two back (replicas=1, or elastic=false)",
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
            f"rows are looked at every {section.shrink.every} steps, but nothing says which go; "
            "set rows.shrink.max_age, capacity, min_score or min_norm",
        )
    if not section.shrink.every and any(rules.drops for rules in every):
        yield (
            "rows.shrink.every",
            "given 0, so nothing is ever dropped; say after how many steps to look, or leave out "
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


# Each check with the keys (or beginnings of keys) that it reads.
CHECKS: dict[Callable[[Config], Iterator[Problem]], tuple[str, ...]] = {
    split: ("data.split", "data.presplit"),
    filters: ("data.filter", "data.threshold"),
    separators: ("data.separator", "data.seq_separator", "data.quote", "data.escape"),
    negatives: ("train.negatives",),
    modes: ("eval.mode",),
    metrics: ("eval.metrics", "eval.topk", "eval.mode"),
    valid_metric: ("eval.metrics", "eval.topk", "eval.valid_metric"),
    processes: ("launch.",),
    single: ("launch.", "strategy.name"),
    row_rules: ("rows.",),
    elastic: ("strategy.", "data.clicks", "train.ema", "start."),
    replicas: ("strategy.",),
}
# Those of click models besides.
CLICK_CHECKS: dict[Callable[[Config], Iterator[Problem]], tuple[str, ...]] = {
    click_metrics: ("eval.metrics", "eval.mode", "data.clicks"),
    click_negatives: ("train.negatives",),
}
