"""A page: one self-contained file that asks nothing of any other place."""

import base64
import hashlib
import html
from collections.abc import Iterable, Sequence
from typing import Any

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5d6b7c; --line: #d8dee6;
  --paper: #ffffff; --shade: #f4f6f9; --accent: #1769aa; --good: #1b7f4b; --bad: #b3261e;
  --c0: #1769aa; --c1: #d9730d; --c2: #1b7f4b; --c3: #a3308c; --c4: #8a6d00; --c5: #0f8b8d;
  --c6: #b3261e; --c7: #5b5fc7; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa7b6; --line: #344052;
  --paper: #12171f; --shade: #1b222d; --accent: #6db3f2; --good: #5fcf95; --bad: #ff8a80;
  --c0: #6db3f2; --c1: #ffab5e; --c2: #5fcf95; --c3: #e58ad2; --c4: #d9c04a; --c5: #58d1d3;
  --c6: #ff8a80; --c7: #a5a8ff; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 74rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 0 0 .25rem; }
p { margin: 0 0 .75rem; max-width: 60rem; overflow-wrap: anywhere; } a { color: var(--accent); }
.soft { color: var(--soft); } .good { color: var(--good); } .bad { color: var(--bad); }
section { margin-top: 2rem; min-width: 0; }
svg { overflow: hidden; }
.wide + .grid { margin-top: 1rem; }
.grid { display: grid; gap: 1rem 2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(27rem, 100%), 1fr)); }
.grid > svg:only-child, .grid > section:only-child svg { max-width: 36rem; }
.small-grid { display: grid; gap: .5rem 1rem;
  grid-template-columns: repeat(auto-fill, minmax(max(9.5rem, 17%), 1fr)); }
.items { margin: .25rem 0 1rem; padding-left: 1.6rem; font-size: .9rem; columns: 2;
  column-gap: 2.2rem; }
.items li { break-inside: avoid; overflow-wrap: anywhere; }
summary { cursor: pointer; color: var(--accent); margin: .5rem 0; }
.facts { display: grid; gap: .75rem; margin: 1rem 0;
  grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); }
/* a long word must not widen the page */ .grid > *, .facts > * { min-width: 0; }
.facts div { background: var(--shade); border-radius: .5rem; padding: .6rem .8rem;
  overflow-wrap: anywhere; }
.facts b { display: block; font-size: 1.25rem; }
.wide { overflow-x: auto; } pre { overflow-x: auto; background: var(--shade); padding: .75rem;
  border-radius: .5rem; font-size: .85rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: left; padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; } th { color: var(--soft); font-weight: 600; }
td.number, th.number { text-align: right; } td.number { white-space: nowrap; }
svg { display: block; width: 100%; height: auto; }
button, input, select { font: inherit; color: inherit; background: var(--shade);
  border: 1px solid var(--line); border-radius: .4rem; padding: .3rem .6rem; }
button { cursor: pointer; } button:hover { border-color: var(--accent); }
@media print { :root { color-scheme: light; } body { max-width: none; padding: 0; }
  section { break-inside: avoid; } button, input, select { display: none; } }
"""


# Within a foreign page, such as a notebook: text and background are the page's own.
INLINE = """
.shoal { --ink: currentColor; --soft: #808895; --line: #8088956b; --c0: #3d8fd1; --c1: #e2832b;
  --c2: #35a56c; --c3: #c05aac; --c4: #a88a1c; --c5: #2aa3a5; --c6: #d9534a; --c7: #7d81dd; }
.shoal .wide { overflow-x: auto; max-width: 60rem; } .shoal p { margin: 0 0 .4rem; }
.shoal table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0 0 .6rem; }
.shoal th, .shoal td { text-align: left; padding: .2rem 1rem .2rem 0; vertical-align: top;
  border-bottom: 1px solid var(--line); background: none; overflow-wrap: anywhere; }
.shoal th { white-space: nowrap; } .shoal th, .shoal .soft { color: var(--soft); }
.shoal td.number, .shoal th.number { text-align: right; white-space: nowrap; }
.shoal .grid { display: flex; flex-wrap: wrap; gap: 0 2rem; align-items: flex-start; }
.shoal svg { display: block; width: 100%; min-width: 18rem; max-width: 26rem; height: auto; }
"""


class Html(str):
    """Text that is markup already; any other text is escaped."""


class Numeral(Html):
    """A number as it is to be read; in a table it stands to the right."""


def escape(value: Any) -> Html:
    """Escape text for a page; Html is not changed."""
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def join(parts: Iterable[Any]) -> Html:
    """Join parts one after the other."""
    return Html("".join(escape(part) for part in parts))


def rules_of(script: str = "") -> str:
    """The Content-Security-Policy of a page: this script runs in it, and nothing else."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'self'"
    )


def page(title: str, *body: Any, script: str = "") -> str:
    """A whole page. Only `script` runs in it, and only the page's own host can be asked."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{rules_of(script)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'  # else a browser asks the host for one
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1>{join(body)}"
        + (f"<script>{script}</script>" if script else "")
        + "</body></html>\n"
    )


def inline(title: Any, *body: Any) -> Html:
    """A part of a foreign page, such as a notebook: a bold line, and its content."""
    head = f"<p><b>{escape(title)}</b></p>" if title else ""
    return Html(f'<div class="shoal"><style>{INLINE}</style>{head}{join(body)}</div>')


def section(title: str, text: Any = "", *body: Any) -> Html:
    """A headline, a sentence or two, and what they are about."""
    paragraph = f"<p>{escape(text)}</p>" if text else ""
    return Html(f"<section><h2>{escape(title)}</h2>{paragraph}{join(body)}</section>")


def grid(*parts: Any) -> Html:
    """Parts side by side where there is room."""
    return Html(f'<div class="grid">{join(parts)}</div>')


def facts(values: dict[str, Any]) -> Html:
    """A few figures, large, each under its name."""
    boxes = (f"<div>{escape(name)}<b>{escape(value)}</b></div>" for name, value in values.items())
    return Html(f'<div class="facts">{"".join(boxes)}</div>')


def table(heads: Sequence[Any], rows: Iterable[Sequence[Any]]) -> Html:
    """A table; columns of numbers stand to the right, None is a dash."""
    body = [list(row) for row in rows]
    right = [
        any(_is_number(row[k]) for row in body) and all(_is_number(row[k], True) for row in body)
        for k in range(len(heads))
    ]
    kinds = [' class="number"' if one else "" for one in right]
    head = "".join(f"<th{kind}>{escape(text)}</th>" for kind, text in zip(kinds, heads))
    lines = "".join(
        "<tr>" + "".join(f"<td{kind}>{_shown(x)}</td>" for kind, x in zip(kinds, row)) + "</tr>"
        for row in body
    )
    whole = f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
    return Html(f'<div class="wide">{whole}</div>')


def _is_number(value: Any, or_none: bool = False) -> bool:
    return isinstance(value, int | float | Numeral) or (or_none and value is None)


def _shown(value: Any) -> Html:
    if value is None:
        return Html("–")
    if isinstance(value, float):
        return escape(f"{value:,.4f}" if abs(value) < 1000 else f"{value:,.0f}")
    return escape(f"{value:,}" if isinstance(value, int) else value)
