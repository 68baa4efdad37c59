"""python -m shoal.launch SCRIPT ARGUMENTS: a process for each visible GPU, or --nproc of them.

CUDA_VISIBLE_DEVICES=0,1 COLLECTIVE_STRATEGY=native python -m shoal.launch train.py --epochs 3
python -m shoal.launch --nproc 2 train.py --epochs 3

The script finds the others with shoal.CollectiveStrategy(). A process that fails ends all of them:
one message names it and says why, and the exit status is that of the process. Plain torchrun starts
the same script.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

import shoal
from shoal.config.collective import choose_backend
from shoal.config.schema import LaunchSection
from shoal.distributed.gpus import count_gpus
from shoal.launch.hosts import LaunchError, scratch_folder
from shoal.launch.ranks import launch


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The words before the script are ours, those after it the script's."""
    parser = argparse.ArgumentParser(
        prog="python -m shoal.launch",
        description="Run a script as many processes that train together.",
        epilog="On several hosts: the same command on each, with its own --group_offset, and "
        "SHOAL_SECRET (any long random text) in the environment of all.",
    )
    parser.add_argument("--nproc", type=int, help="processes here; default: visible GPUs, or 1")
    parser.add_argument("--world_size", type=int, default=-1, help="processes on all hosts")
    parser.add_argument("--group_offset", type=int, default=0, help="rank of the first one here")
    parser.add_argument("--hosts", type=int, default=0, help="where hosts differ in --nproc")
    parser.add_argument(
        "--host_index", type=int, default=0, help="with --hosts: which this is, from 0"
    )
    parser.add_argument("--host", type=int, help=argparse.SUPPRESS)  # the name in 0.1
    parser.add_argument("--ip", default="localhost", help="of the first host")
    parser.add_argument("--port", type=int, default=0, help="a free one of the first host")
    parser.add_argument(
        "--hang_timeout", type=float, default=60.0, help="seconds without any work of a process"
    )
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(words)
    if options.host is not None:
        text = "--host is now called --host_index; the old name works until the next release"
        print(text, file=sys.stderr)
        options.host_index = options.host
    return options


def section_of(options: argparse.Namespace) -> LaunchSection:
    """The launch section of the command-line options."""
    nproc = options.nproc
    if nproc is None:
        gpus = count_gpus(None)
        count_text = (
            f"{gpus} processes, one for each visible GPU"
            if gpus
            else "no GPU is visible: 1 process"
        )
        print(f"{count_text}; --nproc=N starts as many as you name", file=sys.stderr)
        nproc = max(1, gpus)
    if nproc < 1:
        raise ValueError(f"--nproc={nproc}: there must be at least one process")
    if not os.path.isfile(options.script):
        raise ValueError(f"there is no script {options.script}")
    keys = vars(options).keys() - {"script", "arguments", "nproc", "host"}
    return LaunchSection(nproc=nproc, **{key: getattr(options, key) for key in keys})


def main() -> int:
    """Launch, and the exit status."""
    options = parse()
    try:
        section = section_of(options)
        choose_backend(report=False)
        command = [options.script, *options.arguments]
        with scratch_folder() as scratch:
            launch(command, section, scratch, module="shoal.launch.script", ending="")
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.status
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, shoal.Interrupted) as error:
        number = error.number if isinstance(error, shoal.Interrupted) else signal.SIGINT
        print(f"stopped by {signal.Signals(number).name}", file=sys.stderr)
        return 128 + number
    return 0


if __name__ == "__main__":
    sys.exit(main())
