"""The section `rows`: in which memory rows are kept, which ids of a growing table have one."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Required

from pydantic import Field, model_validator, with_config
from typing_extensions import TypedDict

from shoal.config.section import STRICT, WRITTEN, ReadBy, Section
from shoal.config.sizes import Size, SizeBelow

# Elsewhere a user would count on memory that is taken all the same: servers have their own budgets,
# and in geo workers hold rows in memory.
IN_PROCESS = ReadBy(("single", "ddp", "sharded"), refused=True)
OVER_DISK = ReadBy((*IN_PROCESS.strategies, "ps sync", "ps async"), refused=True)


class TiersSection(Section):
    """Budgets of one process, for the rows of all its tables with their optimizer state."""

    gpu: Annotated[Size | None, IN_PROCESS] = Field(
        None, description="GPU memory for rows; 0: rows stay in host memory; null: any amount"
    )
    host: Annotated[Size | None, OVER_DISK] = Field(
        None,
        description="host memory for rows; those above it lie in rows.tiers.ssd; null: any amount",
    )
    ssd: Annotated[str | None, OVER_DISK, WRITTEN] = Field(
        None, description="folder on a local disk for rows that host memory has no room for"
    )

    @model_validator(mode="after")
    def _together(self) -> TiersSection:
        if (self.host is None) != (self.ssd is None):
            lacks, has = ("ssd", "host") if self.ssd is None else ("host", "ssd")
            raise ValueError(
                f"rows.tiers.{has}: is given without rows.tiers.{lacks}: host is how many bytes "
                "stay in memory (60GB), ssd the folder where the other rows lie"
            )
        return self


Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Age = Annotated[int, Field(ge=0, lt=1 << 62)]
Capacity = Annotated[int, Field(ge=1, lt=1 << 62)]
Order = Literal["lfu", "lru"]


class AdmissionSection(Section):
    """When an id gets a row.

    score = show_coefficient * (show - click) + click_coefficient * click
    """

    threshold: Amount = Field(
        0.0,
        description="score from which an id has a row; below, it reads as its initial value and "
        "is not updated; 0: every id has one at once",
    )
    show_coefficient: Amount = Field(
        1.0, description="how much an occurrence without a click adds to the score"
    )
    click_coefficient: Amount = Field(
        1.0, description="how much an occurrence with a click adds to the score"
    )
    bloom_counters: Annotated[int, SizeBelow(1 << 36)] = Field(
        0,
        description="size, over all processes that share a table, of a counting Bloom filter for "
        "ids without a row; 0: exact counts",
    )


class ShrinkSection(Section):
    """Which rows are dropped again, and when."""

    every: int = Field(0, ge=0, description="steps between searches for rows to drop; 0: never")
    min_score: Amount = Field(0.0, description="rows of a lower score are dropped; 0: none is")
    min_norm: Amount = Field(0.0, description="rows of a smaller L2 norm are dropped; 0: none is")
    max_age: Age | None = Field(
        None, description="rows without an update for more steps are dropped; null: none is"
    )
    capacity: Capacity | None = Field(
        None, description="most rows of a table, over all processes that share it; null: any number"
    )
    order: Order = Field(
        "lfu",
        description="rows that are dropped first above capacity: lfu: least frequent, lru: least "
        "recent",
    )


class DecaySection(Section):
    """How counts of shows and clicks fade."""

    every: int = Field(
        0,
        ge=0,
        description="steps between decays of the counts of shows and clicks; 0: they never decay",
    )
    rate: float = Field(
        0.98,
        gt=0,
        lt=1,
        description="factor by which the counts of shows and clicks are multiplied at every decay",
    )


class RowRules(Section):
    """What one growing table does with its ids and rows over time."""

    admission: AdmissionSection = Field(default_factory=AdmissionSection)
    shrink: ShrinkSection = Field(default_factory=ShrinkSection)
    counter_decay: DecaySection = Field(default_factory=DecaySection)

    @property
    def on(self) -> bool:
        """Whether any rule is set."""
        return self.counted or (self.shrink.every > 0 and self.drops)

    @property
    def drops(self) -> bool:
        """Whether a rule says which rows are dropped."""
        return self.shrink.min_norm > 0 or self._by_counters

    @property
    def _by_counters(self) -> bool:
        rule = self.shrink
        return rule.min_score > 0 or rule.max_age is not None or rule.capacity is not None

    @property
    def counted(self) -> bool:
        """Whether rows must carry counters for it."""
        shrinks = self.shrink.every > 0 and self._by_counters
        return self.admission.threshold > 0 or shrinks or self.counter_decay.every > 0


Dtype = Literal["float32", "bfloat16"]


@with_config(STRICT)
class InitOptions(TypedDict, total=False):
    """Initial values of rows: a pure function of (seed, table, id, column)."""

    kind: Required[Literal["uniform", "normal", "xavier", "xavier_normal", "constant"]]
    scale: Amount  # of uniform, normal and constant


FIXED_KEYS = ("dtype", "init")  # of TableRules: keys that a table which does not grow has, too


@with_config(STRICT)
class TableRules(TypedDict, total=False):
    """The rules of one table; what is left out is as for all tables."""

    threshold: Amount
    min_score: Amount
    min_norm: Amount
    max_age: Age | None
    capacity: Capacity | None
    order: Order
    dtype: Dtype
    init: InitOptions


class RowsSection(RowRules):
    """How rows are kept, the rules of all growing tables, and those of single ones."""

    dtype: Dtype = Field(
        "float32",
        description="type of values in memory; bfloat16 takes half of it (state stays float32), "
        "and "
        "updates round at random, up or down, so that small ones add up; rows that a softmax "
        "reads whole stay float32",
    )
    init: InitOptions | None = Field(
        None,
        description="initial values of rows: kind (uniform in [-scale, scale), normal with "
        "deviation scale, constant, and xavier or xavier_normal by the size of the table) and "
        "scale; null: each model's own",
    )
    tables: dict[str, TableRules] = Field(
        default_factory=dict,
        description="table -> dtype, init, threshold, min_score, min_norm, max_age, capacity, "
        "order, for that table alone",
    )
    tiers: TiersSection = Field(default_factory=TiersSection)

    def rules_of(self, table: str) -> RowRules:
        """The rules of one table."""
        overrides: dict[str, Any] = dict(self.tables.get(table, {}))
        for key in FIXED_KEYS:
            overrides.pop(key, None)
        threshold = {"threshold": overrides.pop("threshold")} if "threshold" in overrides else {}
        return RowRules(
            admission=self.admission.model_copy(update=threshold),
            shrink=self.shrink.model_copy(update=overrides),
            counter_decay=self.counter_decay,
        )

    @property
    def narrow(self) -> bool:
        """Whether any table is to be kept in bfloat16."""
        dtypes = [one.get("dtype") for one in self.tables.values()]
        return self.dtype == "bfloat16" or "bfloat16" in dtypes

    @property
    def enabled(self) -> bool:
        """Whether any rule is set, for any table."""
        return self.on or any(self.rules_of(name).on for name in self.tables)
