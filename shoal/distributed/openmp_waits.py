"""Waiting: torch's threads of OpenMP sleep soon after they have nothing to do.

By default they spin for several milliseconds, after every operation. On a machine with other work
they then hold cores that other processes need, and an operation of microseconds takes milliseconds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

# GNU's OpenMP: nearly a millisecond, longer than a training step has between two operations (with
# 40 microseconds, steps of small batches took a tenth longer). LLVM's and Intel's: milliseconds, 1
# is the least above none.
VARIABLES = {"GOMP_SPINCOUNT": "20000", "KMP_BLOCKTIME": "1"}
CHOICES = (*VARIABLES, "OMP_WAIT_POLICY")  # who sets one of these has decided
_lock = threading.Lock()
_shortened = False


def waiting_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables for a process that has not loaded torch yet; none where the user has set some.

    >>> from shoal.distributed.openmp_waits import waiting_variables
    >>> waiting_variables({})
    {'GOMP_SPINCOUNT': '20000', 'KMP_BLOCKTIME': '1'}
    >>> waiting_variables({"OMP_WAIT_POLICY": "active"})
    {}
    """
    return {} if any(name in environment for name in CHOICES) else dict(VARIABLES)


def shorten_waits() -> None:
    """Shorten the waits of this process, where torch was loaded without `waiting_variables`.

    GNU's OpenMP reads its variables once, when it is loaded. But it spins only for some
    microseconds while it has more threads than there are cores: so a second team of them is
    started here, which sleeps as long as the process lives.
    """
    import torch

    global _shortened
    if any(name in os.environ for name in CHOICES) or torch.get_num_threads() == 1:
        return
    with _lock:
        if _shortened or "OpenMP" not in torch.__config__.parallel_info():
            return
        _shortened = True
        started = threading.Event()

        def hold() -> None:
            try:
                torch.ones(torch.get_num_threads() << 16).add_(1.0)  # some for every thread
            finally:
                started.set()
            threading.Event().wait()

        threading.Thread(target=hold, name="shoal waits", daemon=True).start()
        started.wait()
