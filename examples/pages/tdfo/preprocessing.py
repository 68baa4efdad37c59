"""Goodreads, prepared for train.py: the folder that data_dir in config.toml names.

python preprocessing.py

It is the command `shoal prepare DATA_DIR/goodreads_interactions.csv config.toml --to
DATA_DIR/prepared_bert4rec`: users with 20 to 200 interactions, in the order of the file, the last
two of each left out of training (docs/from/tdfo.md). The same inputs again do nothing.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from shoal.cli.main import main

CONFIG = Path(__file__).parent / "config.toml"

if __name__ == "__main__":
    data = Path(tomllib.loads(CONFIG.read_text())["data_dir"])
    raw, to = data / "goodreads_interactions.csv", data / "prepared_bert4rec"
    sys.argv[1:1] = ["prepare", str(raw), str(CONFIG), "--to", str(to)]
    main()
