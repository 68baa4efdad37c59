"""A ranking as a table on the terminal: titles where items have them, and why they are there."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from shoal.data.ids import Ids
    from shoal.recommender.explanation import Explanation
    from shoal.recommender.ranked_items import RankedItems

REASONS = 3  # shares that are shown of each score


def print_ranking(
    who: str,
    ranking: "RankedItems",
    titles: Mapping[Any, str],
    why: "Sequence[Explanation] | None" = None,
) -> None:
    """Print a ranking; who: for whom it is; why: an explanation of each item."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if ranking.unknown:
        popular = "these are the most popular items" if ranking.by == "popularity" else "left out"
        # In quotes: an item may hold a comma, and signs that would steer a terminal.
        typer.echo(f"not known: {', '.join(repr(str(one)) for one in ranking.unknown)}; {popular}")
    heads = ["rank", "item", *["title"] * bool(titles), "score", *["why"] * (why is not None)]
    table = Table(*heads, title=Text(printable(f"for {who}")))
    for number, (item, score) in enumerate(ranking):
        cells = [str(number + 1), item, *([titles.get(item, "")] if titles else []), f"{score:.4f}"]
        cells += [_reasons(why[number])] if why is not None else []
        table.add_row(*(Text(printable(one)) for one in cells))  # no markup: data wrote it
    Console().print(table)
    if why:
        off = max(one.error for one in why)
        precision = f", each known to ± {off:.2g}" if off else ""
        rest = [f"rest: {why[0].rest_is}"] if why[0].rest else []
        shares = [f"the {REASONS} largest shares of the score, by {why[0].of}{precision}"] * any(
            why
        )
        typer.echo(f"why: {'; '.join(shares + rest)}")


def _reasons(why: "Explanation") -> str:
    """The largest shares in one line."""
    shown = [(why.titles.get(what, str(what)), share) for what, share in why[:REASONS]]
    parts = [f"{name[:40]} {share:+.3g}" for name, share in shown]
    remainder = sum(share for _, share in why[REASONS:])
    parts += [f"{len(why) - REASONS} more {remainder:+.3g}"] if len(why) > REASONS else []
    parts += [f"rest {why.rest:+.3g}"] if why.rest else []
    return ", ".join(parts)


def typed_items(text: str, items: "Ids") -> list[str]:
    """The items of a history that was typed: one, or several with commas between them.

    An item that holds a comma itself is quoted as in csv, unless it is the only one.
    """
    if items.find([text]).all():
        return [text]
    plain = [one.strip() for one in text.split(",")]
    if '"' not in text or items.find(plain).all():
        return plain
    lines = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    return [one.strip() for line in lines for one in line]


def printable(value: Any) -> str:
    """Text of data without signs that would steer a terminal."""
    return "".join(one if one.isprintable() else "\ufffd" for one in str(value))


def print_table(heads: list[str], rows: list[list[Any]], title: str) -> None:
    """Print a table whose cells are shown as they are."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*heads, box=SIMPLE, title=Text(printable(title)), title_justify="left")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))  # no markup: data wrote it
    Console(width=10_000).print(table)
