"""MetricSet: the metrics of one evaluation, measured together and merged over ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from shoal.distributed.world import World
from shoal.training.metrics.base import (
    CONCATENATED,
    KEPT,
    Groups,
    Ranked,
    Ranking,
    Setting,
    State,
    Valued,
)
from shoal.training.metrics.registry import METRICS, canonical


@dataclass
class UserValues:
    """Kept results of users: ids [u], positives [u], items and hits [u, 10], values by key [u].

    0 fills lists up.
    """

    users: Tensor
    positives: Tensor
    items: Tensor
    hits: Tensor
    values: dict[str, Tensor]


class MetricSet:
    """The metrics of one evaluation: update with blocks, reduce over ranks, compute.

    popularity: training counts of the items, [num_items]. tail_ratio: up to 1 the share of items,
    least popular first, that are the tail; above 1 the tail is the items with at most that count.
    groups: of users and items, for metrics that read them. keep: users whose list, hits and values
    are kept, as `kept_values` returns them.
    Blocks are kept (not copied) until enough have come to be measured at once.
    """

    flush_entries = 2**20  # entries that may wait to be measured: a few tens of MiB
    kept_places = 10  # of a list

    def __init__(
        self,
        names: Sequence[str],
        topk: Sequence[int],
        num_items: int,
        popularity: Tensor,
        tail_ratio: float = 0.1,
        keep: Tensor | None = None,
        groups: Groups | None = None,
    ) -> None:
        popularity = popularity.detach().cpu().double().clone()
        popularity[0] = 0
        cuts = torch.tensor(list(dict.fromkeys(topk)))
        self.setting = Setting(cuts, popularity, tail_ratio, groups or Groups())
        chosen = dict.fromkeys(map(canonical, names))
        self.metrics = {name: METRICS[name](self.setting) for name in chosen}
        needs = {metric.needs for metric in self.metrics.values()}
        self.wants_ranked = bool(needs & {"ranked", "either"})
        self.wants_valued = "valued" in needs
        self.wants_auc_pairs = any(metric.wants_pairs for metric in self.metrics.values())
        self.keep = keep if self.wants_ranked else None
        self._columns: list[str] = []  # of the values that are kept
        self._ranked: list[Ranked] = []
        self._valued: list[Valued] = []
        self._waiting = 0
        self._state: State = {}
        self._parts: dict[str, list[Tensor]] = {}  # of CONCATENATED

    def update(self, block: Ranked | Valued) -> None:
        """Add a block, on any device."""
        if isinstance(block, Ranked):
            self._ranked.append(block)
            self._waiting += block.items.numel()
        else:
            self._valued.append(block)
            self._waiting += block.users.numel()
        if self._waiting >= self.flush_entries:
            self._flush()

    def reduce(self, world: World) -> None:
        """Merge the states of all ranks; every rank calls this once, also one that had no block."""
        state = self._finished()
        for name, part in state.items():
            if part.dtype not in (torch.float64, torch.int64):
                kind = str(part.dtype).removeprefix("torch.")
                raise ValueError(
                    f"metric {name}: a state is float64 or int64, and measure gives {kind}; add "
                    ".double() there"
                )
        for dtype in (torch.float64, torch.int64):
            names = sorted(n for n in state if n not in CONCATENATED and state[n].dtype == dtype)
            if names:
                flat = torch.cat([state[name].reshape(-1) for name in names])
                flat = world.all_reduce(flat.to(world.device)).cpu()
                for name, part in zip(names, flat.split([state[name].numel() for name in names])):
                    state[name] = part.reshape(state[name].shape)
        for name in CONCATENATED:
            if name in state:
                state[name] = world.all_gather(state[name].to(world.device)).cpu()

    def compute(self, data: str = "what was given") -> dict[str, float]:
        """Values by key: `recall@10`, `gauc`, …, in the order of the names and of topk.

        data: what was evaluated, for the error when there was nothing.
        """
        state = self._finished()
        result: dict[str, float] = {}
        for name, metric in self.metrics.items():
            counted = {"ranked": ["users"], "valued": ["rows"], "either": ["users", "rows"]}
            if not any(state[count] for count in counted[metric.needs]):
                raise ValueError(
                    f"{name}: nothing was evaluated; {data} has no users or rows for this metric"
                )
            keys = self._keys(name)
            values = metric.compute(state).double().reshape(-1).tolist()
            if len(keys) != len(values):
                raise ValueError(
                    f"metric {name}: compute gives {len(values)} values, and there are {len(keys)}"
                    f": {', '.join(keys)}"
                )
            result |= zip(keys, values)
        return result

    def kept_values(self) -> UserValues | None:
        """Kept results of users, by ascending id; after `reduce`, of the users of all ranks."""
        if self.keep is None:
            return None
        state = self._finished()
        order = state["kept_users"].argsort()
        users, positives, items, hits, values = (state[part][order] for part in KEPT)
        return UserValues(
            users, positives, items, hits > 0, dict(zip(self._columns, values.unbind(1)))
        )

    def _keys(self, name: str) -> list[str]:
        """The keys of a metric's values."""
        if not self.metrics[name].has_topk:
            return [name.lower()]
        return [f"{name.lower()}@{k}" for k in self.setting.topk.tolist()]

    @property
    def num_users(self) -> int:
        """Users with a list so far; after reduce, those of all ranks."""
        return int(self._finished()["users"])

    @property
    def num_rows(self) -> int:
        """Labelled rows so far; after reduce, those of all ranks."""
        return int(self._finished()["rows"])

    def _flush(self) -> None:
        """Measure the blocks that wait, in host memory: small, and the same on every device."""
        if self._ranked:
            self._add(_join(_same_width(self._ranked)))
        if self._valued:
            rows = _join(self._valued)
            self._add(Valued(rows.users, rows.scores.double(), rows.labels.double()))
        self._ranked, self._valued, self._waiting = [], [], 0

    def _add(self, block: Ranked | Valued) -> None:
        for name, value in self._measure(block).items():
            if name in CONCATENATED:
                self._parts.setdefault(name, []).append(value)
            else:
                self._state[name] = self._state[name] + value if name in self._state else value

    def _measure(self, block: Ranked | Valued) -> State:
        if isinstance(block, Ranked):
            other, size, count = "valued", "users", len(block.items)
        else:
            other, size, count = "ranked", "rows", len(block.users)
        state = {size: torch.tensor(count)}
        chosen = [metric for metric in self.metrics.values() if metric.needs != other]
        if chosen:  # without a metric that reads rankings, their cost is saved
            view = Ranking(block, self.setting) if isinstance(block, Ranked) else block
            for metric in chosen:
                state |= metric.measure(view)
            if isinstance(view, Ranking) and self.keep is not None:
                state |= self._keep(view, self.keep)
        return state

    def _keep(self, view: Ranking, keep: Tensor) -> State:
        """Results to keep of the users of a block, as parts of a state."""
        all_values = {name: metric.of_each(view) for name, metric in self.metrics.items()}
        values_by_metric = {
            name: values for name, values in all_values.items() if values is not None
        }
        self._columns = [key for name in values_by_metric for key in self._keys(name)]
        users = view.block.users
        assert users is not None, "whoever keeps users names them"
        chosen = torch.isin(users, keep)
        lists = [view.items[:, : self.kept_places], view.hits[:, : self.kept_places].long()]
        parts = [users, view.block.num_positives]
        parts += [pad(one, (0, self.kept_places - one.shape[1])) for one in lists]
        parts += [torch.cat([torch.zeros(len(users), 0).double(), *values_by_metric.values()], 1)]
        return {name: part[chosen] for name, part in zip(KEPT, parts)}

    def _finished(self) -> State:
        """The whole state; an empty one where no block came, so that every rank has all parts."""
        self._flush()
        none, lists = torch.zeros(0, dtype=torch.int64), torch.zeros(0, 1, dtype=torch.int64)
        if "users" not in self._state:
            self._add(Ranked(lists, lists.bool(), none, none.double(), none, none.double(), none))
        if "rows" not in self._state:
            self._add(Valued(none, none.double(), none.double()))
        for name, parts in self._parts.items():
            before = [self._state[name]] if name in self._state else []
            self._state[name] = torch.cat([*before, *parts])
        self._parts = {}
        return self._state


def _join(blocks: list[Any]) -> Any:
    """Join many blocks into one, in host memory."""
    columns = [[getattr(block, field.name) for block in blocks] for field in fields(blocks[0])]
    return type(blocks[0])(*[None if c[0] is None else torch.cat(c).cpu() for c in columns])


def _same_width(blocks: list[Ranked]) -> list[Ranked]:
    """Fill up shorter lists with the padding."""
    widths = [block.items.shape[1] for block in blocks]
    if min(widths) == max(widths):
        return blocks
    fills = [(0, max(widths) - width) for width in widths]
    return [
        replace(block, items=pad(block.items, fill), hits=pad(block.hits, fill))
        for block, fill in zip(blocks, fills)
    ]
