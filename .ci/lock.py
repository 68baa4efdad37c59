"""Write into each lock, for every pin in it, the hashes that the index states.

To raise a version or add a package: change its `NAME==VERSION` line, then run this. Kept are the
source and the wheels for Linux and macOS on x86_64 and ARM, of every Python that CI runs.
"""

from __future__ import annotations

import os
import re
import sys
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
LOCKS = (
    HERE.parent / "constraints.txt",
    *(HERE / f"{name}.txt" for name in ("build", "tools", "wheels")),
)
INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
PYTHONS = ("311", "312", "313", "314")
PLATFORM = re.compile(r"any|(manylinux|macosx)\S*_(x86_64|aarch64|arm64|universal2)")


def is_kept(name: str) -> bool:
    """True for a source archive, and for a wheel that one of our machines can use."""
    if not name.endswith(".whl"):
        return name.endswith((".tar.gz", ".zip"))
    python, abi, platform = name.removesuffix(".whl").split("-")[-3:]
    tags = [tag for tag in python.split(".") if tag.startswith(("cp3", "py3"))]
    if abi == "abi3":
        fits = any(int(tag[2:]) <= int(PYTHONS[-1]) for tag in tags)
    else:
        fits = any(tag in ("py3", *(f"cp{version}" for version in PYTHONS)) for tag in tags)
    return fits and not abi.endswith("t") and PLATFORM.fullmatch(platform) is not None


def list_hashes(package: str, version: str) -> list[str]:
    """SHA-256 of every kept file of a version, in the order of their names."""
    project = re.sub(r"[-_.]+", "-", package).lower()
    with urllib.request.urlopen(f"{INDEX}/{project}/", timeout=60) as page:
        found = re.findall(r'#sha256=(\w{64})"[^>]*>([^<]+)<', page.read().decode())
    own = re.compile(rf"[^-]+(-[^-]+)*?-{re.escape(version)}(-.*\.whl|\.tar\.gz|\.zip)")
    hashes = [digest for digest, name in found if own.fullmatch(name) and is_kept(name)]
    if not hashes:
        sys.exit(f"{package}=={version}: {INDEX}/{project}/ has no such version")
    return sorted(hashes)


def lock(file: Path) -> None:
    text = file.read_text()
    head = [line for line in text.splitlines() if line.startswith(("#", "-r "))]
    pins = sorted(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE), key=lambda p: p[0].lower())
    lines = head
    for package, version in pins:
        marks = [f"    --hash=sha256:{digest}" for digest in list_hashes(package, version)]
        lines.append(" \\\n".join([f"{package}=={version}", *marks]))
    file.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    for one in LOCKS:
        lock(one)
