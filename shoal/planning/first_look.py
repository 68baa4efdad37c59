"""A first look at a user's file: which column is what, and which may not be a feature.

Outcomes are known only after what is predicted: `bought` beside `clicked`. A model that reads one
looks perfect in every test. Only the owner of the data knows for sure, so such columns are listed
with the reason, and the caller asks the owner, or leaves them out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal.config.data_section import DataSection
from shoal.data.column_meaning import holds_times, is_outcome
from shoal.data.dates import holds_dates
from shoal.data.reading import filled
from shoal.data.sources.roles import NAMES, need_roles, roles_of
from shoal.data.sources.tables import columns_of, read_frame
from shoal.runs.input_data import check_there, encoding_of
from shoal.training.evaluation.leakage import SUSPICIOUS, auc_alone, bucketed, rows_to_check

if TYPE_CHECKING:
    import polars as pl

# Two values that mean no and yes.
PAIRS = ({"0", "1"}, {"false", "true"}, {"no", "yes"}, {"n", "y"}, {"f", "t"}, {"-1", "1"})

# An order's number beside a click is filled in few rows, so that its AUC is small; but those are
# all clicks.
ALMOST_NONE = 0.05  # of the share of other labels in all rows
BY_CHANCE = 1e-6


@dataclass
class FirstLook:
    """A file with its columns.

    roles: user, item, rating, time, label -> column, by column names or as the owner chose; a label
    that was guessed has both 0 and 1. owner_roles: the roles that the owner chose.
    """

    path: Path
    section: DataSection
    columns: list[str]
    roles: dict[str, str]
    owner_roles: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def frame(self) -> pl.DataFrame:
        """All rows, as they are."""
        return read_frame(self.path, self.section)

    @property
    def label(self) -> str | None:
        """The column whose 0 or 1 marks the rows that were taken; None: there is none."""
        return self.roles.get("label")

    @cached_property
    def two_valued(self) -> dict[str, float]:
        """Column -> the share of ones, of columns that have two values for yes and no."""
        shares = {}
        for name in self.columns:
            column = self.frame[name].drop_nulls()
            if column.dtype.is_nested() or column.n_unique() != 2:
                continue
            values = sorted({_plain(one) for one in column.unique().to_list()})
            if set(values) in PAIRS:
                positive_words = {"1", "true", "yes", "y", "t"}
                ones = [one for one in column.unique().to_list() if _plain(one) in positive_words]
                shares[name] = float(column.is_in(ones).mean() or 0.0)  # type: ignore[arg-type]
        return shares

    @cached_property
    def moments(self) -> list[str]:
        """Columns that hold dates or times, and have no role."""
        used_columns = self.roles.values()
        return [
            name
            for name in self.columns
            if name not in used_columns and _holds_moments(self.frame[name])
        ]

    @property
    def share(self) -> float:
        """The share of rows that were taken, by the label."""
        assert self.label is not None
        return self.two_valued[self.label]

    def outcomes(self, threshold: float | None = None) -> dict[str, str]:
        """Column -> why it may be an outcome of the interaction, for a model that predicts clicks.

        threshold: of the rating that is the label, where no column is.
        """
        label = self.roles["rating"] if threshold is not None else self.label
        assert label is not None, "clicks are predicted from a label"
        input_columns = {self.roles.get(role) for role in ("user", "item", "time")} | {label}
        reasons = {}
        for name in self.columns:
            if name in input_columns or self.frame[name].dtype.is_nested():
                continue
            if is_outcome(name):
                reasons[name] = "its name says so"
            elif name == self.roles.get("rating"):
                reasons[name] = "a rating is given afterwards"
            elif name in self.two_valued:
                reasons[name] = f"it is yes or no, as {label} is"
            elif reason := self._suspicion(name, label, threshold):
                reasons[name] = reason
        return reasons

    def _suspicion(self, name: str, label: str, threshold: float | None) -> str:
        """Why the values of a column may be outcomes, by a sample of the rows; empty: they seem
        not to be.
        """
        import polars as pl

        places = np.linspace(0, len(self.frame) - 1, rows_to_check(len(self.columns)))
        sample = self.frame[np.unique(places.astype(np.int64))]
        clicked = sample[label].cast(pl.Float64, strict=False)
        if threshold is not None:
            clicked = (clicked >= threshold).cast(pl.Float64)
        column = sample[name]
        if column.dtype.is_numeric():
            numbers = column.cast(pl.Float64).fill_nan(None)
            codes = bucketed(numbers.fill_null(0.0).to_numpy())
            codes = np.where(numbers.is_null().to_numpy(), -1, codes)
        else:
            codes = column.cast(pl.String).rank("dense").fill_null(0).to_numpy().astype(np.int64)
        rows = np.flatnonzero(clicked.is_not_null().to_numpy())
        labels = clicked.to_numpy()[rows].astype(np.float32)
        codes = codes[rows]
        auc = auc_alone(np.arange(len(rows)), codes, labels)
        if auc >= SUSPICIOUS:
            return f"it predicts {label} too well: AUC {auc:.2f} from it alone"
        values, numbers_of_values, counts = np.unique(
            codes, return_inverse=True, return_counts=True
        )
        is_usual = numbers_of_values == counts.argmax()
        if len(values) > 1 and _only_clicks(labels[~is_usual], float(labels.mean())):
            usual = column.gather(rows)[int(is_usual.argmax())]
            return f"{label} is 1 wherever it is not {'empty' if usual is None else usual}"
        return ""


def _only_clicks(labels: np.ndarray, share: float) -> bool:
    """Whether nearly all labels are 1, which chance does not give; share: of 1 in all rows."""
    others = 1 - labels.mean()
    return others <= ALMOST_NONE * (1 - share) and share ** len(labels) < BY_CHANCE


def look_at(path: Path, owner_roles: Mapping[str, str]) -> FirstLook:
    """Look at a file; owner_roles: role -> column, as its owner chose."""
    check_there(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name the file in it that says who took what")
    encoding = encoding_of(path)
    section = DataSection(encoding=encoding, bad_rows="skip")
    columns = columns_of(path, section)
    for role, name in owner_roles.items():
        if name not in columns:
            raise ValueError(f"--{role}={name}: {path} has only {', '.join(columns)}")
    roles = roles_of(columns, clicks=True) | dict(owner_roles)
    roles = {role: roles[role] for role in NAMES if role in roles}
    need_roles(str(path), columns, roles, "--{}=NAME")
    look = FirstLook(path, section, columns, roles, owner_roles)
    _check_label(look)
    return look


def _check_label(look: FirstLook) -> None:
    """Keep a label only where rows differ in it; raise ValueError for such a label if the owner
    named it.
    """
    candidates = [look.roles[role] for role in ("label",) if role in look.roles]
    if "label" not in look.owner_roles:
        used_columns = {look.roles.get(role) for role in ("user", "item", "rating", "time")}
        candidates += [
            name for name in look.columns if is_outcome(name) and name not in used_columns
        ]
    look.roles.pop("label", None)
    for name in candidates:
        if name in look.two_valued and _is_number(look.frame[name]):
            look.roles["label"] = name
            return
    if "label" in look.owner_roles:
        name = look.owner_roles["label"]
        values = ", ".join(map(str, look.frame[name].unique().sort().head(5).to_list()))
        raise ValueError(
            f"--label={name}: a label is 0 or 1, and both occur; {look.path} has {values}, … "
            f"there. Numbers such as ratings or counts: --rating={name}"
        )


def _is_number(series: pl.Series) -> bool:
    """Whether a label can be read: 0 and 1 as numbers, or true and false."""
    import polars as pl

    if series.dtype == pl.Boolean:
        return True
    numbers = series.cast(pl.Float64, strict=False)
    return numbers.null_count() == series.null_count() and numbers.min() == 0


def _holds_moments(column: pl.Series) -> bool:
    """Whether all values of a column are dates or times, in text or as numbers."""
    import polars as pl

    if column.dtype.is_temporal():
        return True
    if column.dtype == pl.String:
        text = filled(column)
        numbers = text.cast(pl.Float64, strict=False)
        if numbers.null_count() > text.null_count():
            return any(holds_dates(text, order) for order in ("day", "month"))
    elif column.dtype.is_numeric():
        numbers = column
    else:
        return False
    return holds_times(column.name, numbers.cast(pl.Float64).to_numpy())


def _plain(value: object) -> str:
    """A value as people write it: 1.0 is 1, True is true."""
    text = str(value).strip().lower()
    return text.removesuffix(".0")
