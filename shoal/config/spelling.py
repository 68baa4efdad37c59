"""Which key was meant, where one is unknown: of Shoal, of another tool, or an option of a command.

`others` in this file: words besides Shoal's own keys, each with how it is shown when it was meant.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.config.errors import nearest
from shoal.config.keys import KEYS, SECTIONS, Key, allowed

ALIKE = 0.7  # of so many keys one that is less alike was not meant
# Options of commands for which a config has no key. The command line itself stands far above here.
COMMANDS = {
    name: f"--{name}, an option of `shoal launch`"
    for name in ("worker_num", "server_num", "workers", "servers", "role", "index")
} | {"resume": "--resume, an option of `shoal train` and `shoal launch`"}


def unknown(key: str, options: Mapping[str, Key], others: Mapping[str, str]) -> str:
    """Says that a key is unknown, and which was meant."""
    above = section = key.rpartition(".")[0]
    while above:
        if above in KEYS:
            return f"unknown key {key}; {above} holds one value: {allowed(KEYS[above].kind)}"
        above = above.rpartition(".")[0]
    known = [*KEYS, *SECTIONS, *options]
    if meant := _meant(key, known, others):
        return f"unknown key {key}; did you mean {meant}?"
    if section not in SECTIONS:
        tops = ", ".join(name for name in SECTIONS if "." not in name)
        return f"unknown key {key}; the sections are: {tops}"
    beside = [name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == section]
    return f"unknown key {key}; keys of {section} are: {', '.join(beside)}"


def _meant(key: str, known: list[str], others: Mapping[str, str]) -> str | None:
    """How the nearest key is shown: of one section before another, of a few parts before more."""
    section, _, last = key.rpartition(".")
    if section and section not in SECTIONS:  # else the section alone would make keys alike
        whole = {name: name for name in known} | dict(others)
        if found := nearest(key, whole, ALIKE):
            return whole[found]
    order = {name: name.rpartition(".")[0] != section for name in known}
    top = key.partition(".")[0] + "."
    ends: dict[str, str] = {}
    # Of several of a name, one of this section, one below the same top, or else the shallowest.
    for name in sorted(known, key=lambda n: (order[n], not n.startswith(top), n.count("."))):
        ends.setdefault(name.rpartition(".")[2], name)
    if not section:
        ends |= others
    return ends.get(nearest(last, ends, ALIKE) or "")
