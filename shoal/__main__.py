"""`python -m shoal` is the command `shoal`, and its script begins here too."""

import gc
import os
import signal
from importlib import import_module

from shoal.distributed.openmp_waits import waiting_variables

if "SHOAL_LAUNCHER" not in os.environ:  # a launcher's processes are told by it how to end
    # What follows takes a while to import, and has nothing to put in order yet.
    for _number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(_number, lambda number, frame: os._exit(128 + number))

# torch's allocator on ARM is mimalloc, which returns what a step has freed before the next step
# asks for it. It waits so many milliseconds longer; where torch has another, nobody reads this.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "1000")
os.environ |= waiting_variables(os.environ)

gc.disable()  # while all that is made is kept (shoal.cli.startup)

main = import_module("shoal.cli.main").main  # by name, as the package names all its rooms

if __name__ == "__main__":
    main()
