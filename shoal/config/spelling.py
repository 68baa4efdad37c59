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
    beside = {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == section}
    if meant := _meant(key, known, beside, others):
        return f"unknown key {key}; did you mean {meant}?"
    if section == "model":
        names = ", ".join(sorted(name[6:] for name in options)) or "none"
        return f"unknown key {key}; the model's options are: {names}"
    if section in SECTIONS:
        return f"unknown key {key}; keys of {section} are: {', '.join(beside)}"
    tops = ", ".join(name for name in SECTIONS if "." not in name)
    return f"unknown key {key}; the sections are: {tops}"


def _meant(
    key: str, known: list[str], beside: Mapping[str, str], others: Mapping[str, str]
) -> str | None:
    """The nearest key of the same section, or else of all; how it is shown."""
    section, _, last = key.rpartition(".")
    if found := nearest(last, beside, ALIKE):
        return beside[found]
    ends: dict[str, str] = {}
    top = key.partition(".")[0] + "."
    # Of several of a name, one below the same section, or else the shallowest.
    for name in sorted(known, key=lambda name: (not name.startswith(top), name.count("."))):
        ends.setdefault(name.rpartition(".")[2], name)
    if not section:
        ends |= others
    elif section not in SECTIONS:
        # Where the section is right, a likeness of whole keys would only be that of the section.
        whole = {name: name for name in known} | dict(others)
        if found := nearest(key, whole, ALIKE):
            return whole[found]
    return ends.get(nearest(last, ends, ALIKE) or "")
