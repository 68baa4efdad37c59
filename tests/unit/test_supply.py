"""What is installed, and what the docs tell people to install."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_pin_has_a_hash() -> None:
    text = (ROOT / "constraints.txt").read_text().replace("\\\n", " ")
    pins = [line for line in text.splitlines() if "==" in line and not line.startswith("#")]
    assert len(pins) > 20
    assert [line.split()[0] for line in pins if "--hash=sha256:" not in line] == []
    assert "--require-hashes" in (ROOT / "Makefile").read_text()


def test_docs_name_no_package_of_ours_that_an_index_might_have() -> None:
    """Whoever claims the name there would be installed."""
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("shoal/**/*.py")]
    found = [path for path in texts if re.search(r"pip install\S*\s+\S*shoal", path.read_text())]
    assert found == []


def test_docs_bring_no_secret_to_hosts_that_do_not_need_it() -> None:
    """A copy names the part of one role, never the folder that holds both secrets."""
    lines = [line for path in ROOT.glob("docs/**/*.md") for line in path.read_text().splitlines()]
    copies = [line for line in lines if re.search(r"\b(scp|rsync|cp)\s.*(keys|\.secret)", line)]
    assert [line for line in copies if not re.search(r"keys/for-(workers|servers)\b", line)] == []
    assert any("scp -rp keys/for-workers" in line for line in copies)
