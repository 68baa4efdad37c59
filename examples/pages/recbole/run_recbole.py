"""RecBole's run_recbole.py, by its own flags: the command `shoal train`."""

from __future__ import annotations

import sys

from shoal.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["train"]
    main()
