"""Keys that the chosen strategy does not read (`ReadBy` in the schema): a note, or an error."""

from collections.abc import Iterator

from shoal.config.keys import KEYS, value_of
from shoal.config.schema import Config, StrategySection
from shoal.config.section import ReadBy
from shoal.config.yaml_io import inline

READERS = {key: mark for key, one in KEYS.items() for mark in [one.mark(ReadBy)] if mark}
STALENESS = "strategy.ps.staleness"
EACH_STEP = (
    "rows are counted or dropped (rows.admission, rows.counter_decay, rows.shrink) or gradients "
    "clipped "
    "(train.clip_grad_norm), which groups must agree upon in each step: set strategy.groups_every=1"
)


def unread(config: Config, processes: int | None = None) -> Iterator[tuple[str, str, ReadBy]]:
    """(key, what is wrong, its readers) of every given key that the strategy does not read.

    `processes`: how many there are, where that is known; strategy auto depends on it.
    """
    name = config.strategy.name
    modes = {name, f"{name} {config.strategy.ps.mode}"}
    if name == "auto":
        several = config.launch.nproc > 1 or config.launch.world_size > 1
        modes = {"ddp"} if several or (processes or 1) > 1 else {"single"}
        if processes is None:
            modes.add("ddp")  # another launcher may have started several
    if config.elastic and config.strategy.ps.staleness != KEYS[STALENESS].default:
        text = "has no effect with strategy.ps.elastic: nobody waits for a slow worker"
        yield STALENESS, text, READERS[STALENESS]
    for key, readers in READERS.items():
        value = value_of(config, key)
        asks = value not in (KEYS[key].default, *readers.harmless)
        if asks and not modes & set(readers.strategies):
            yield key, f"has no effect under strategy {name}; it is read under {readers}", readers


def notes(config: Config) -> list[str]:
    """A line about every key without effect that is not an error."""
    return [f"{key} {text}" for key, text, readers in unread(config) if not readers.refused]


def refusals(config: Config, processes: int | None = None) -> Iterator[tuple[str, str]]:
    """(key, what is wrong and the remedy) of every key without effect that is an error."""
    for key, text, readers in unread(config, processes):
        if readers.refused:
            default = inline(KEYS[key].default)
            value = inline(value_of(config, key))
            yield key, f"given {value}, which {text}: choose that, or set {key}={default}"
    counts_steps = config.rows.enabled or config.train.clip_grad_norm is not None
    yield from _sharded_refusals(config.strategy, config.launch.encrypt, counts_steps)
    if config.strategy.name == "ps" and config.strategy.wire_dtype == "float16":
        text = "given float16, and parameter servers take float32 or bfloat16: choose one of them"
        yield "strategy.wire_dtype", text
    elsewhere = config.strategy.ps.addresses and not config.launch.servers
    if config.strategy.name == "ps" and config.rows.tiers.ssd is not None and elsewhere:
        yield (
            "rows.tiers.ssd",
            "servers that were started separately (strategy.ps.addresses) have their own budgets: "
            "leave out rows.tiers, and start them with --tiers-host and --tiers-ssd",
        )


def _sharded_refusals(
    section: StrategySection, encrypt: bool, counts_steps: bool
) -> Iterator[tuple[str, str]]:
    """What strategy sharded cannot do together.

    encrypt: what ranks send; counts_steps: all ranks must agree on something in every step.
    """
    if section.groups == 1 and section.groups_every > 1:
        yield "strategy.groups_every", "there is one group: set strategy.groups to 2 or more"
    if section.groups > 1 and encrypt:
        yield (
            "strategy.groups",
            "launch.encrypt leads all ranks through one tunnel, and groups need their own: leave "
            "out one of the two",
        )
    if section.groups_every > 1 and counts_steps:
        yield "strategy.groups_every", EACH_STEP


def refuse_unread(config: Config, processes: int, device: str) -> None:
    """Raise about a key without effect, once processes run: the strategy and device are known."""
    for key, text in refusals(config, processes):
        raise ValueError(f"{key}: {text}")
    if config.strategy.graph is True and device != "cuda":
        raise ValueError(
            "strategy.graph: given true, but steps are recorded as CUDA graphs, and this process "
            f"computes on {device}: set strategy.graph=false, or run.device=cuda"
        )
