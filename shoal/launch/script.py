"""One rank of `python -m shoal.launch`: runs the script, and leaves the cause where it fails."""

from __future__ import annotations

import os
import runpy
import sys

from shoal.launch.child import follow_launcher, record_failure


def main() -> None:
    """`python -m shoal.launch.script SCRIPT ARGUMENTS`"""
    follow_launcher(f"rank-{os.environ['RANK']}")
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(script))  # as `python SCRIPT` has it
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception as error:
        record_failure(error, fault=True)
        sys.stdout.flush()
        os._exit(1)  # a rank must not wait for peers that are gone


if __name__ == "__main__":
    main()
