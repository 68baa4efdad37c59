"""A module of Shoal that runs as a process of its own, and ends with the one that started it."""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module

from shoal.distributed.parent_process import end_with_parent


def command_of(module: str, *words: object) -> list[str]:
    """The command that calls main() of a module, with `words` behind its name in sys.argv.

    subprocess.run(command_of("shoal.serving.artifact.trial_run", 60, "exported/monday"))
    """
    command = [sys.executable, "-m", "shoal.distributed.child_module", str(os.getpid()), module]
    return [*command, *map(str, words)]


def main() -> None:
    """Import the module and call its main()."""
    parent, *sys.argv = sys.argv[1:]
    end_with_parent(int(parent))
    gc.disable()  # a fifth of the time that torch takes: what it makes stays, and none is garbage
    module = import_module(sys.argv[0])
    gc.freeze()
    gc.enable()
    sys.exit(module.main())


if __name__ == "__main__":
    main()
