"""How the cells of a column are read: found by looking at a sample of its values.

    "a|b|c"                  a list, split at "|"
    "$1,234.50"              a number: "$" and "," are taken away
    "12,5 %"                 a number: "," is its decimal sign, "%" is taken away
    "1704412800000"          a time, in milliseconds since 1970
    "02134"                  a text: a number would lose its zero

`find_reading` looks; `numbers_of`, `lists_of` and `times_of` read all values as it says, and give
null for a value that does not agree. Every path from a file to a model comes here: tables, prepared
folders, click logs, frames, rows to predict. The key data.cells says otherwise, column by column.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, cast

from shoal.config.data_section import KINDS_OF_CELLS, CellOptions
from shoal.data.column_meaning import seconds_of_numbers, unit_of
from shoal.data.dataset import FieldType
from shoal.data.dates import DateOrder, holds_dates, seconds_of_dates

if TYPE_CHECKING:
    import polars as pl

# What people write where there is nothing, in lower case.
NOTHING = ("", "-", "--", "–", "—", "?", "n/a", "#n/a", "na", "nan", "nat", "null", "none", r"\n")
# What stands for nothing in a column of ids, where NA may be a country and nan a name.
NO_ID = ("", "-", "n/a", "#n/a", "null", "none", r"\n")
IS_ID = re.compile(r"(^|_)ids?$|[a-z]Id$", re.IGNORECASE)
MOSTLY = 0.9  # of a sample must be numbers, or lists in brackets, where a column is such
ZEROS = 0.01  # of a sample, with a zero before other digits, make whole numbers texts
SOME = 0.1  # of the different cells of a sample must hold the sign that separates lists
# An address holds such signs too: https://…?a=1;b=2, data:image/png;base64,…
ADDRESS = r"^[a-z][a-z0-9+.-]*:(//|\w+/)"
BRACKETS = "[]"  # in the place of a separator: lists in brackets, ['a', 'b'] or [1, 2]
SEPARATORS = ("|", ";", ",", " ")
CURRENCIES = "$€£¥"
SPACES = " \u00a0\u202f"
SIGNED_NUMBER = (
    rf"^[-+−]?\s?([{CURRENCIES}]?)\s?[-+−]?"
    rf"(\d[\d.,'{SPACES}]*\d|\d|[.,]\d+)\s?([{CURRENCIES}]?)(\s?%)?$"
)
# Which sign is a decimal one, by the digits of a value: after it fewer or more than three, or one
# that stands behind groups of three; and which is not, because it comes twice.
DECIMAL = (
    r"^\d+{sign}(\d{{1,2}}|\d{{4,}})$|^0?{sign}\d+$|^\d{{4,}}{sign}\d+$|\d{other}\d{{3}}{sign}\d"
)
GROUPS = r"^\d{{1,3}}({sign}\d{{2,3}}){{2,}}(\D|$)"


@dataclass(frozen=True)
class ColumnReading:
    """How the cells of a column are read.

    kind       of the column that is made of them
    separator  of lists; BRACKETS: they are written as ['a', 'b']
    currency, thousands, percent   signs that are taken away from numbers
    decimal    the decimal sign of numbers
    order      of dates such as 05/06/2024: "day" or "month" first; "": there are none
    is_time    whether the values are moments, as dates or as numbers
    unit       of times that are numbers: s, ms, us or ns since 1970

    >>> ColumnReading("float", currency="$", thousands=",").shown()
    "numbers, '$' and ',' taken away"
    """

    kind: FieldType
    separator: str = ""
    currency: str = ""
    thousands: str = ""
    decimal: str = "."
    percent: bool = False
    order: str = ""
    unit: str = ""
    is_time: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether numbers are as Python writes them."""
        return not (self.currency or self.thousands or self.percent) and self.decimal == "."

    def shown(self) -> str:
        """The reading in words; empty where cells are read as they stand."""
        if self.kind.endswith("_seq") and self.separator:
            kind_text = "lists" if self.kind == "token_seq" else "lists of numbers"
            if self.separator == BRACKETS:
                return f"{kind_text} in brackets"
            return f"{kind_text}, split at {self.separator!r}"
        parts = []
        if signs := [s for s in (self.currency, self.thousands, "%" * self.percent) if s]:
            *before, last = map(repr, signs)
            parts.append(
                f"{', '.join(before)} and {last} taken away" if before else last + " taken away"
            )
        if self.decimal != ".":
            parts.append(f"{self.decimal!r} as the decimal sign")
        if parts:
            return f"numbers, {', '.join(parts)}"
        if self.order:
            return f"dates, {self.order} first"
        units = {"ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
        if self.unit in units:
            return f"{units[self.unit]} since 1970"
        return "text, read as dates" if self.is_time and not self.unit else ""

    def options(self) -> dict[str, Any]:
        """The reading as data.cells would say it: what is not as by default."""
        kind = next(key for key, kind in KINDS_OF_CELLS.items() if kind == self.kind)
        kind = "time" if self.is_time else kind
        names = [field.name for field in fields(self) if field.name not in ("kind", "is_time")]
        values = {name: getattr(self, name) for name in names}
        plain = ColumnReading(self.kind)
        return {"kind": kind, **{k: v for k, v in values.items() if v != getattr(plain, k)}}


def reading_of(options: CellOptions) -> ColumnReading:
    """The reading that data.cells, or the manifest of a folder, says in full."""
    return _with_options(ColumnReading(KINDS_OF_CELLS[options.get("kind", "id")]), options)


def find_reading(
    values: pl.Series,
    kind: FieldType | None = None,
    is_time: bool = False,
    options: CellOptions | None = None,
    separator: str = " ",
) -> ColumnReading:
    """How a column is read, by a sample of its values; its name distinguishes ids from numbers.

    kind: that of the column, where it is known. is_time: its values are moments. options: what
    data.cells says of it. separator: of lists whose values show none (data.seq_separator).

    >>> import polars as pl
    >>> find_reading(pl.Series("genres", ["a|b|c", "b", "c|a"])).shown()
    "lists, split at '|'"
    >>> find_reading(pl.Series("price", ["$1,234.50", "$7", None])).shown()
    "numbers, '$' and ',' taken away"
    """
    import polars as pl

    options = options or {}
    if "kind" in options:
        kind = KINDS_OF_CELLS[options["kind"]]
        is_time = is_time or options["kind"] == "time"
    dtype = values.dtype
    if dtype == pl.String:
        reading = _of_text(
            filled(values).drop_nulls(), kind, is_time, values.name, options, separator
        )
    elif isinstance(dtype, pl.List | pl.Array):
        reading = ColumnReading(kind or ("float_seq" if dtype.inner.is_float() else "token_seq"))
    elif isinstance(dtype, pl.Enum | pl.Categorical):
        reading = ColumnReading(kind or "token")
    else:
        is_id = dtype.is_integer() and IS_ID.search(values.name) is not None
        reading = ColumnReading(kind or ("token" if is_id else "float"))
        if is_time and dtype.is_numeric():
            reading = replace(reading, unit=unit_of(values), is_time=True)
    return _with_options(reading, options)


def _with_options(reading: ColumnReading, options: Mapping[str, Any]) -> ColumnReading:
    """A reading with what data.cells says of it."""
    is_time = reading.is_time or options.get("kind") == "time"
    values = {key: value for key, value in options.items() if key != "kind"}
    return replace(reading, **values, is_time=is_time)


def _of_text(
    text: pl.Series,
    kind: FieldType | None,
    is_time: bool,
    name: str,
    options: CellOptions,
    separator: str,
) -> ColumnReading:
    """The reading of cells of text, without empty ones."""

    if is_time and kind in (None, "float"):
        return _of_times(text)
    if kind is None or kind == "float":
        reading, share = _of_numbers(text)
        if kind == "float" and (share > 0 or not len(text)):
            return reading
        if kind is None and share >= MOSTLY:  # an id such as 1,234 or 02134 stays text
            zeros = _share(text.str.contains(r"^0\d+$"))
            is_id = IS_ID.search(name) is not None or zeros >= ZEROS
            return ColumnReading("token") if is_id else reading
        if kind == "float" or IS_ID.search(name) is None:
            times = _of_times(text)
            if holds_dates(text, times.order or "day"):
                return times
        if kind == "float":
            return reading
    if kind == "token":
        return ColumnReading("token")
    cells = text.unique()
    if "separator" in options:
        mark = options["separator"]
    elif kind is not None and separator != " ":
        mark = separator
    else:
        mark = _separator(cells, declared=kind is not None)
    if not mark and kind is None:
        return ColumnReading("token")
    reading = ColumnReading(kind or "token_seq", separator=mark or separator)
    pieces = lists_of(cells, reading).explode().drop_nulls()
    if kind is None and pieces.str.contains(".", literal=True).any() and _all_numbers(pieces):
        reading = replace(reading, kind="float_seq")
    return reading


def _of_times(text: pl.Series) -> ColumnReading:
    """The reading of moments, as dates or as numbers in the unit that their size shows."""
    import polars as pl

    numbers = text.cast(pl.Float64, strict=False)
    reading = ColumnReading("float", unit=unit_of(numbers) if numbers.count() else "", is_time=True)
    if not numbers.has_nulls():  # no dates
        return reading
    order = DateOrder()
    order.add(text)
    return replace(reading, order=order.leading)


def _share(rows: pl.Series) -> float:
    """The share of rows that are true."""
    return int(rows.sum() or 0) / max(1, len(rows))


def _all_numbers(pieces: pl.Series) -> bool:
    import polars as pl

    return pieces.cast(pl.Float64, strict=False).null_count() == 0


# ---- numbers ------------------------------------------------------------------------------------


def _of_numbers(text: pl.Series) -> tuple[ColumnReading, float]:
    """The reading of a column as numbers, and the share of the values that are such numbers."""
    import polars as pl

    plain = ColumnReading("float")
    if not len(text):
        return plain, 0.0
    num_plain = text.cast(pl.Float64, strict=False).count()
    if num_plain == len(text):
        return plain, 1.0
    groups = text.str.extract_groups(SIGNED_NUMBER).struct.unnest()
    before, digits, after, percent = groups.get_columns()
    digits = digits.drop_nulls()
    signs = pl.concat([before, after]).drop_nulls()
    counts = signs.filter(signs != "").value_counts(sort=True)
    currency = str(counts[0, 0]) if len(counts) else ""
    decimal = _decimal_sign(digits, bool(currency))
    candidates = (",", "'") if decimal == "." else (".", "'")
    thousands = next(
        (one for one in candidates if digits.str.contains(one, literal=True).any()), ""
    )
    thousands = thousands or ("space" if digits.str.contains(rf"[{SPACES}]").any() else "")
    reading = ColumnReading(
        "float",
        currency=currency,
        thousands=" " if thousands == "space" else thousands,
        decimal=decimal,
        percent=bool(percent.is_not_null().any()),
    )
    num_found = numbers_of(text, reading).count()
    if num_found > num_plain:
        return reading, num_found / len(text)
    return plain, num_plain / len(text)


def _decimal_sign(digits: pl.Series, is_price: bool) -> str:
    """The decimal sign of numbers such as 1.234,50; where nothing shows it, it is a point.

    A price has no three digits behind its decimal sign: 1.234 € are more than a thousand.
    """

    def count(pattern: str, sign: str, other: str) -> int:
        escaped = {"sign": re.escape(sign), "other": f"[{other}'{SPACES}]"}
        return int(digits.str.contains(pattern.format(**escaped)).sum())

    points = count(DECIMAL, ".", ",") + count(GROUPS, ",", ".")
    commas = count(DECIMAL, ",", ".") + count(GROUPS, ".", ",")
    if not points and not commas and is_price:
        return "," if digits.str.contains(".", literal=True).any() else "."
    return "," if commas > points else "."


def numbers_of(text: pl.Series, reading: ColumnReading) -> pl.Series:
    """Numbers, Float64; null for what is empty, and for what is no number in this reading.

    >>> import polars as pl
    >>> german = ColumnReading("float", currency="€", thousands=".", decimal=",")
    >>> numbers_of(pl.Series(["1.234,50 €", "-7", "12.50", None]), german).to_list()
    [1234.5, -7.0, None, None]
    """
    import polars as pl

    plain = text.cast(pl.Float64, strict=False)
    if reading.is_plain:
        return plain
    sign = f"[{re.escape(reading.currency)}]?" if reading.currency else ""
    group = f"[{SPACES}]" if reading.thousands == " " else re.escape(reading.thousands)
    whole = rf"(?:\d{{1,3}}(?:{group}\d{{2,3}})*{group}\d{{3}}|\d+)" if group else r"\d+"
    decimal = re.escape(reading.decimal)
    percent = r"\s?%?" if reading.percent else ""
    digits = rf"(?:{whole}(?:{decimal}\d+)?|{decimal}\d+)"
    is_number = text.str.contains(rf"^[-+−]?\s?{sign}\s?[-+−]?{digits}\s?{sign}{percent}$")
    removed_signs = {
        mark for mark in (reading.currency, reading.thousands, "%", "+", *SPACES) if mark
    }
    number_text = text.str.replace_many([*removed_signs, "−"], [*("" for _ in removed_signs), "-"])
    if reading.decimal != ".":
        number_text = number_text.str.replace(reading.decimal, ".", literal=True)
    numbers = number_text.set(~is_number.fill_null(False), None).cast(pl.Float64, strict=False)
    if reading.decimal == ".":  # with an exponent
        numbers = numbers.zip_with(numbers.is_not_null(), plain)
    return numbers


# ---- lists --------------------------------------------------------------------------------------


def _separator(cells: pl.Series, declared: bool) -> str:
    """What separates the entries of lists in different cells; empty where they are no lists.

    declared: they are lists, so that any sign that some of them hold separates them.
    """
    if not len(cells):
        return ""
    if _share(cells.str.contains(r"^\[.*\]$")) >= MOSTLY:
        return BRACKETS
    if not declared and _share(cells.str.contains(ADDRESS)) >= SOME:
        return ""
    for sign in SEPARATORS:
        if _share(cells.str.contains(sign, literal=True)) < SOME:
            continue
        if declared or _are_lists(cells, sign):
            return sign
    return ""


def _are_lists(cells: pl.Series, sign: str) -> bool:
    """Whether different cells are lists of entries, and no sentences.

    Entries are short, and those of one list come in others again. A comma or a space also stands in
    names, so there lists differ in length, and words that a space separates stand alone, too.
    """

    lists = lists_of(cells, ColumnReading("token_seq", separator=sign))
    lengths, entries = lists.list.len(), lists.explode().drop_nulls()
    entries = entries.filter(entries != "")
    if not len(entries):
        return False
    count, different = len(entries), entries.n_unique()
    words = int(entries.str.count_matches(r"\S+").sum() or 0) / count
    numbers = _all_numbers(entries)
    if sign in "|;":
        often = _share(lengths > 1)
        return words <= 3 and (sign == "|" or numbers or often >= 0.5 or count >= 2 * different)
    if numbers and cells.str.contains(".", literal=True).all():  # a vector
        return bool((lengths > 1).all())
    if lengths.n_unique() == 1:
        return False
    if sign == ",":
        return words <= 2 and (numbers or count >= 2 * different)
    alone = _share(entries.is_in(cells.filter(lengths == 1).implode()))
    return (numbers and count >= 2 * different) or (count >= 4 * different and alone >= 0.5)


def lists_of(text: pl.Series, reading: ColumnReading) -> pl.Series:
    """Lists of text; an empty cell is an empty list, an empty entry is none.

    >>> import polars as pl
    >>> lists_of(pl.Series(["['a', 'b, c']", "[]"]), ColumnReading("token_seq", "[]")).to_list()
    [['a', 'b, c'], []]
    """
    import polars as pl

    text = text.fill_null("")
    nothing = text.str.to_lowercase().is_in(NO_ID)
    text = text.set(nothing, "") if nothing.any() else text
    if reading.separator == BRACKETS:
        # numpy writes [1 2 3]: where there is neither a comma nor a quote, spaces separate.
        spaced = text.str.replace_all(r"\s+", ",")
        text = text.zip_with(text.str.contains(r"""[,'"]"""), spaced)
        lists = text.str.extract_all(r"""'[^']*'|"[^"]*"|[^,\[\]'"]+""")
    else:
        lists = text.str.split(reading.separator)
    if reading.separator == BRACKETS:
        entry = pl.element().str.strip_chars().str.strip_chars("'\"")
    elif reading.separator.strip():
        entry = pl.element().str.strip_chars()
    else:
        entry = pl.element()
    lists = lists.list.eval(entry)
    return lists.list.eval(pl.element().filter(pl.element() != ""))


# ---- times and empty cells ----------------------------------------------------------------------


def times_of(text: pl.Series, reading: ColumnReading) -> pl.Series:
    """Seconds since 1970, Float64, of dates and numbers as text; each value by itself.

    >>> import polars as pl
    >>> text = pl.Series(["2024-01-05", "5 Jan 2024", "1704412800000", "soon"])
    >>> times_of(text, ColumnReading("float", unit="ms")).to_list()
    [1704412800.0, 1704412800.0, 1704412800.0, None]
    """
    import polars as pl

    numbers = seconds_of_numbers(text.cast(pl.Float64, strict=False), reading.unit)
    is_date = text.is_not_null() & numbers.is_null()
    if not is_date.any():
        return numbers
    dates = seconds_of_dates(text.set(~is_date, None), reading.order)
    return numbers.zip_with(~is_date, dates)


def filled(text: pl.Series) -> pl.Series:
    """Text of numbers or dates without the space around it; null where it says NOTHING."""
    text = text.str.strip_chars()
    return text.set(text.str.to_lowercase().is_in(NOTHING), None)


def cells_of(readings: Mapping[str, ColumnReading]) -> dict[str, CellOptions]:
    """What a manifest keeps: the readings of columns that are not read as they stand.

    >>> cells_of({"age": ColumnReading("float"), "tags": ColumnReading("token_seq", "|")})
    {'tags': {'kind': 'ids', 'separator': '|'}}
    """
    options = {name: reading.options() for name, reading in readings.items() if reading.shown()}
    return cast(dict[str, CellOptions], options)


def shown_readings(cells: Mapping[str, CellOptions]) -> list[str]:
    """A line for each column that is not read as it stands.

    >>> shown_readings({"genres": {"kind": "ids", "separator": "|"}, "age": {"kind": "number"}})
    ["genres: lists, split at '|'"]
    """
    texts = {name: reading_of(options).shown() for name, options in cells.items()}
    return [f"{name}: {shown}" for name, shown in texts.items() if shown]
