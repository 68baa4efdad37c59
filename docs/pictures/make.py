"""The picture of the README, of a real run: python docs/pictures/make.py

It needs dataset/ml-100k (`shoal data fetch ml-100k`), or another folder that has it: --data FOLDER.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

COMMAND = ["quickstart", "ml-100k", "--run"]
WIDTH = 76
HERE = Path(__file__).parent


def printed(data: Path) -> str:
    """What the command prints, with its colours."""
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(data.resolve(), Path(folder, "dataset"))
        look = {"COLUMNS": str(WIDTH), "FORCE_COLOR": "1", "PYTHONPATH": str(HERE.parents[1])}
        command = [sys.executable, "-m", "shoal", *COMMAND]
        ran = subprocess.run(
            command, cwd=folder, env={**os.environ, **look}, capture_output=True, text=True
        )
    if ran.returncode:
        raise SystemExit(ran.stderr)
    return ran.stdout


def shortened(text: str) -> str:
    """Without the log between the first lines and the table, and with one list of the three."""
    head = text[: re.search(r"^.*INFO", text, re.MULTILINE).start()]  # type: ignore[union-attr]
    table = text.index("EASE on ml-100k")
    begins = text.rindex("\n", 0, table) + 1
    second = [one.start() for one in re.finditer(r"^user ", text, re.MULTILINE)][1]
    return f"$ shoal {' '.join(COMMAND)}\n{head}...\n{text[begins:second].rstrip()}\n..."


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--data", default="dataset", help="the folder that has ml-100k")
    console = Console(record=True, width=WIDTH, file=StringIO())
    shown = shortened(printed(Path(words.parse_args().data)))
    console.print(Text.from_ansi(re.sub(r"^run: .*\n", "", shown, flags=re.MULTILINE)))
    console.save_svg(str(HERE / "quickstart.svg"), title="shoal")
    print(HERE / "quickstart.svg")


if __name__ == "__main__":
    main()
