"""The figures that README and the first table of RESULTS.md state, measured again at this code.

    python benchmarks/figures.py --data FOLDER --recbole PYTHON [--repeats 3]

FOLDER and PYTHON are those of bpr_ml100k.py. The command that made a table stands above it in
RESULTS.md and is run again as it is written there. Printed is a table: a figure as the page has it,
today's, and their ratio; and what could not be measured here, with the reason. The status is 1
where a figure was not measured: before a release every one is, on the machine that the page names.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README_CLAIM = re.compile(r"\*\*([\d.]+) times as fast as RecBole\*\*")


@dataclass(frozen=True)
class Section:
    """The first section of RESULTS.md that has a table."""

    title: str
    command: list[str]
    machine: str
    rows: dict[str, list[str]]  # name of a row -> its cells


def first_section(page: str) -> Section:
    """Read the section; its command and machine stand in lines before the table."""
    title = command = machine = ""
    for line in page.splitlines():
        if line.startswith("#"):
            title = line.lstrip("# ")
        elif line.startswith("- command: "):
            command = line.partition("`")[2].rpartition("`")[0]
        elif line.startswith("- machine: "):
            machine = line.removeprefix("- machine: ")
        elif line.startswith("|"):
            return Section(title, shlex.split(command), machine, table_rows(page, line))
    raise SystemExit("RESULTS.md has no table")


def table_rows(text: str, header: str | None = None) -> dict[str, list[str]]:
    """The rows of a Markdown table by their first cell; of the first one, or below a header."""
    rows: dict[str, list[str]] = {}
    lines = text.splitlines()
    begin = next(
        number
        for number, line in enumerate(lines)
        if line.startswith("|") and (header is None or line == header)
    )
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[name] = cells
    return rows


def number_in(cell: str) -> float | None:
    """The first number of a cell; a range of several runs stands behind it."""
    found = re.match(r"-?[\d.]+", cell)
    return None if found is None else float(found.group())


def command_with(section: Section, options: argparse.Namespace) -> list[str]:
    """The command of a section, with the places of this machine in it."""
    words = [sys.executable, *section.command[1:]]
    places = {"FOLDER": options.data, "PYTHON": options.recbole}
    words = [str(places.get(word) or word) for word in words]
    if options.recbole is None:  # bpr_ml100k.py then measures Shoal alone
        place = words.index("--recbole")
        del words[place : place + 2]
    if options.repeats is not None:
        words[words.index("--repeats") + 1] = str(options.repeats)
    return words


def main() -> None:
    """Measure, print the table and what could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds ml-100k/")
    parser.add_argument("--recbole", default=os.environ.get("RECBOLE_PYTHON"), help="its Python")
    parser.add_argument("--repeats", type=int, help="runs of each side; as on the page by default")
    options = parser.parse_args()
    section = first_section((ROOT / "benchmarks" / "RESULTS.md").read_text())
    claim = README_CLAIM.search((ROOT / "README.md").read_text())
    if claim is None:
        raise SystemExit("README.md does not state how fast Shoal is beside RecBole")
    print(f"{platform.machine()}, {os.cpu_count()} cores; load average {os.getloadavg()[0]:.2f}")
    print(f"the page: {section.machine}\n")
    reasons = []
    measured: dict[str, list[str]] = {}
    if options.data is None or not (options.data / "ml-100k" / "ml-100k.inter").is_file():
        reasons.append("no ml-100k: give --data FOLDER, which holds ml-100k/ml-100k.inter")
    else:
        if options.recbole is None:
            reasons.append("no RecBole: give --recbole PYTHON, or RECBOLE_PYTHON")
        command = command_with(section, options)
        print(f"$ {shlex.join(command)}", flush=True)
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            reasons.append(f"{section.command[1]} ended with status {done.returncode}")
        else:
            measured = table_rows(done.stdout)
    missing = report(section, measured, float(claim.group(1)))
    if missing:
        why = "; ".join(reasons) or "the benchmark does not print them"
        print(f"\nnot measured here ({why}): {', '.join(missing)}")
    sys.exit(1 if missing else 0)


def report(section: Section, measured: dict[str, list[str]], claim: float) -> list[str]:
    """Print the table; the figures that were not measured."""
    print("\n| figure | page | today | today ÷ page |\n| --- | --- | --- | --- |")
    missing = []
    sides = ("RecBole", "Shoal", "RecBole ÷ Shoal")
    # A benchmark that measures Shoal alone prints one column.
    today = {name: ["", *cells] if len(cells) == 1 else cells for name, cells in measured.items()}
    figures = [("README: times as fast", claim, today.get("whole command, s", ["", "", ""])[2:])]
    for row, cells in section.rows.items():
        for place, (side, cell) in enumerate(zip(sides, cells)):
            figure = number_in(cell)
            if figure is not None:
                figures.append((f"{row}: {side}", figure, today.get(row, [])[place : place + 1]))
    for name, page, cell in figures:
        found = number_in(cell[0]) if cell else None
        if found is None:
            missing.append(name)
        else:
            print(f"| {name} | {page:g} | {found:g} | {found / page:.3f} |")
    return missing


if __name__ == "__main__":
    main()
