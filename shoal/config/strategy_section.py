"""The section `strategy`: where rows and dense parameters live, and how processes agree."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, with_config
from typing_extensions import TypedDict

from shoal.config.section import STRICT, WRITTEN, Choices, ReadBy, Section
from shoal.config.sizes import PositiveSize, Size

Place = Literal["auto", "row", "table", "column", "replicate"]
SHARDED = ReadBy(("sharded",))


@with_config(STRICT)
class TablePlace(TypedDict, total=False):
    """Where one table goes; what is left out is as for all tables."""

    place: Place
    by: Literal["hash", "range"]  # place row: how ids become ranks
    rank: int  # place table: who holds it


class ServersSection(Section):
    """Strategy ps: parameter servers hold the rows, and by default the dense parameters."""

    read_by: ClassVar[ReadBy] = ReadBy(("ps",))
    mode: Literal["sync", "async", "geo"] = Field(
        "sync",
        description="ps: how the updates of workers are combined, see docs/reference/servers.md",
    )
    dense: Literal["server", "all_reduce"] = Field(
        "server", description="ps: who keeps the dense parameters: the servers, or every worker"
    )
    geo_step: Annotated[int, ReadBy(("ps geo",))] = Field(
        100, ge=1, description="geo: batches between exchanges of differences"
    )
    staleness: Annotated[int, ReadBy(("ps async",))] = Field(
        16, ge=1, description="async: steps that a worker may be ahead of the slowest one"
    )
    # One that is lost ends a run in the other mode.
    elastic: Annotated[bool, ReadBy(("ps async", "ps geo"), refused=True)] = Field(
        False,
        description="async, geo: workers join and leave during the run; batches are lent to "
        "them, and the batches of a lost worker go to another",
    )
    addresses: Annotated[list[str], WRITTEN] = Field(
        default_factory=list,
        description="ps: HOST:PORT or ipc://PATH of every server; `shoal launch` fills it in",
    )
    # Elsewhere nothing would be encrypted.
    keys: Annotated[str | None, ReadBy(("ps",), refused=True)] = Field(
        None,
        description="ps: folder of `shoal keys make`, to encrypt what travels; null: not encrypted",
    )
    plain: bool = Field(False, description="ps: allow servers on other hosts without keys")
    compress: bool = Field(False, description="ps: compress ids and rows that travel")
    timeout: float = Field(
        10.0,
        gt=0,
        description="ps: seconds of silence after which a worker or server counts as lost",
    )
    replicas: int = Field(
        1,
        ge=1,
        description="ps: servers that hold each row; where one dies, workers switch at once to "
        "another",
    )
    journal: bool = Field(
        False,
        description="ps: servers write their updates to disk: one that dies is started again "
        "alone, and workers wait for it for launch.join_timeout seconds",
    )
    restarts: int = Field(
        10, ge=0, description="journal: how often each host starts servers again that were killed"
    )


STRATEGIES = Choices("auto", "single", "ddp", "sharded", "ps")


class StrategySection(Section):
    name: Annotated[str, STRATEGIES] = Field(
        "auto",
        description="where rows and dense parameters live; auto: single, or ddp on many processes",
    )
    ps: ServersSection = Field(default_factory=ServersSection)
    place: Annotated[Place, SHARDED] = Field(
        "auto", description="sharded: how tables are divided over the ranks; auto: by their size"
    )
    row_by: Annotated[Literal["hash", "range"], SHARDED] = Field(
        "hash", description="sharded, place row: how ids are divided over the ranks"
    )
    tables: Annotated[dict[str, TablePlace], SHARDED] = Field(
        default_factory=dict, description="sharded: table -> place, by, rank, for that table alone"
    )
    replicate_below: Annotated[Size, SHARDED] = Field(
        256 * 1024, description="strategy.place auto: tables up to this size are replicated"
    )
    memory: Annotated[PositiveSize | None, SHARDED] = Field(
        None, description="sharded: most memory for the rows of a rank; null: any amount"
    )
    # Elsewhere users would count on what it promises.
    groups: Annotated[int, ReadBy(("sharded",), refused=True)] = Field(
        1,
        ge=1,
        description="sharded: groups of processes; each holds all tables, sharded inside",
    )
    groups_every: Annotated[int, ReadBy(("sharded",), refused=True)] = Field(
        1,
        ge=1,
        description="steps after which groups agree on rows; 1: exact, more: rows are averaged, "
        "see docs/understand/strategies.md",
    )
    wire_dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], ReadBy(("sharded", "ps"), refused=True)
    ] = Field(
        "float32",
        description="sharded, ps: type in which rows and gradients travel, see "
        "docs/understand/strategies.md; servers take float32 and bfloat16",
    )
    prefetch: Annotated[bool, ReadBy(("sharded", "ps"))] = Field(
        True,
        description="what the next batch needs travels while this one computes: its ids (sharded), "
        "its rows (ps)",
    )
    fused: Annotated[bool, ReadBy(("single", "ddp", "sharded"))] = Field(
        True,
        description="rows are updated where their gradients are made, which are never stored: "
        "in the softmax over a whole table of single and sharded, on a GPU by Triton kernels "
        "(Adam, single alone), on CPUs by the core; ddp writes them",
    )
    # true needs a GPU (key_applicability.refuse_unread); auto does without
    graph: Annotated[
        bool | Literal["auto"], ReadBy(("single",), refused=True, harmless=(False,))
    ] = Field(
        "auto",
        description="single on a GPU: record a step once per shape of batch and replay it; auto: "
        "where the model says that every step does equal work, and nothing else prevents it",
    )
