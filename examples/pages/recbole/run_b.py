"""Host B of two: ranks 4 to 7 of eight. See run_a.py."""

from __future__ import annotations

from run_a import main

if __name__ == "__main__":
    main(group_offset=4)
