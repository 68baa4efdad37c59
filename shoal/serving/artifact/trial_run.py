"""Trial: before an artifact is served, its graph runs once in a process of its own.

Memory and CPU time of that process are limited, and the service survives its end. Rules and bounds
(graph.py) should let nothing harmful pass; where one is wrong, this process ends and not the
service.

Its words: SECONDS ARTIFACT...
"""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.data.batch import Jagged
from shoal.distributed.child_module import command_of
from shoal.recommender.recommender import History
from shoal.serving.artifact import files
from shoal.serving.artifact.artifact import GRAPHS, Artifact
from shoal.serving.artifact.files import ArtifactError
from shoal.serving.artifact.kept_histories import ALWAYS_EXTENDED

_passed: set[str] = set()  # checksums of artifacts that need not be tried again


def try_apart(*artifacts: Artifact, seconds: int = 60, patience: int = 600) -> None:
    """Refuse artifacts of which a graph ends its process, or takes too much of it.

    One process tries all; where it fails, each is tried alone to find out which it was. seconds: of
    CPU time, of each; patience: seconds until a process that does not compute is given up.
    """
    untried = [
        artifact
        for artifact in artifacts
        if artifact.graph is not None and not was_tried(artifact.manifest["sha256"])
    ]
    if not untried:
        return
    why = _try(untried, seconds, patience)
    if why is None:
        for artifact in untried:
            _passed.add(artifact.manifest["sha256"])
            for copies in files.shared:
                copies.add_tried(artifact.manifest["sha256"])
    elif len(untried) == 1:
        raise ArtifactError(f"artifact {untried[0].folder} is refused: graph.json: {why}")
    else:
        for artifact in untried:
            try_apart(artifact, seconds=seconds, patience=patience)


def was_tried(sha256: str) -> bool:
    """Whether the artifact with this manifest has passed, here or in another process."""
    return sha256 in _passed or any(copies.was_tried(sha256) for copies in files.shared)


def _try(artifacts: Sequence[Artifact], seconds: int, patience: int) -> str | None:
    """Why a process that tries these artifacts fails; None where it does not."""
    folders = [artifact.folder for artifact in artifacts]
    command = command_of("shoal.serving.artifact.trial_run", seconds, *folders)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience)
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess(command, 1, "", f"no answer in {patience} s")
    if done.returncode < 0:
        return f"it ended the process that tried it, by {signal.Signals(-done.returncode).name}"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["the process that tried it failed"])[-1]
    return None


def main() -> None:
    """Ask artifacts for a few answers, within limits."""
    torch.set_num_threads(1)
    seconds, *folders = sys.argv[1:]
    artifacts = [Artifact(Path(folder), check=False) for folder in folders]  # the caller has
    _limit(int(seconds) * len(artifacts))
    try:
        for artifact in artifacts:
            for size in (1, 3, 64):  # samples that are asked together
                _ask(artifact, size, np.random.default_rng(size))
    except (MemoryError, ArtifactError) as error:
        print(str(error) or "it does not fit into memory", file=sys.stderr)
        sys.exit(1)


def _limit(seconds: int) -> None:
    """Bound the CPU time and the memory of this process from here on."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (most, most + 1))
    limit_memory()


def limit_memory() -> None:
    """Bound what this process takes beyond the memory that it has."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    addresses = Path("/proc/self/statm")
    if addresses.exists():
        now = int(addresses.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + (8 << 30), now + (8 << 30)))


def _ask(artifact: Artifact, size: int, rng: np.random.Generator) -> None:
    if artifact.kind in GRAPHS:
        for fields in _samples(artifact, size, rng):
            try:
                artifact.logits(fields)
            except ArtifactError as error:  # ids that a table has not, as strangers send them
                if "allocate memory" in str(error):
                    raise MemoryError(str(error)) from error
        return
    count = len(artifact.items)
    users = rng.integers(min(1, len(artifact.users) - 1), len(artifact.users), size)
    lengths = [rng.integers(0, min(count, 1 + artifact.max_len)) for _ in users]
    taken = [rng.integers(min(1, count - 1), count, length) for length in lengths]
    times = [np.sort(rng.integers(0, 1 << 31, len(one) + 1)) for one in taken]
    query = artifact._query(users, [History(*one) for one in zip(taken, times)])
    items = torch.from_numpy(rng.integers(0, count, min(count, 256)))
    artifact.recommender.scores(query, size, items)
    if artifact.keep_histories(1 << 20, ALWAYS_EXTENDED) is not None:
        artifact.recommender.scores(query, size, items)


def _samples(
    artifact: Artifact, size: int, rng: np.random.Generator
) -> Iterator[dict[str, Tensor | Jagged]]:
    """Samples with small ids and with large ones."""
    assert artifact.graph is not None
    for most in (2, 1 << 40):
        fields: dict[str, Any] = {}
        for name, facts in artifact.graph.inputs.items():
            shape = [size, *facts["shape"][1:]]
            if facts["dtype"].startswith("float"):
                fields[name] = torch.from_numpy(rng.normal(size=shape).astype(facts["dtype"]))
            elif facts.get("list"):
                lengths = torch.from_numpy(rng.integers(0, 4, int(np.prod(shape))))
                ids = torch.from_numpy(rng.integers(0, most, int(lengths.sum())))
                offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
                fields[name] = Jagged(ids, offsets)
            else:
                ids = torch.from_numpy(rng.integers(0, most, shape))
                fields[name] = ids.to(getattr(torch, facts["dtype"]))
        yield fields
