"""`python3 -m tensorflow.python.distribute.launch SCRIPT`: the command `python -m shoal.launch`."""

from __future__ import annotations

import sys

from shoal.launch.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
