"""The fuzzer calls every function of the native core, and every function that parses a file or a
message.
"""

import ast
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from fuzz import core as native
from fuzz import files
from fuzz.__main__ import Watch, usage
from fuzz.child import rng_of

ROOT = Path(__file__).parents[2]
core = native.load(None)

# ---- the native core ----------------------------------------------------------------------------


class Watched:
    """A function, a class or the module, which notes what is called of it."""

    def __init__(self, name: str, given: Any, called: set[str]):
        self.name, self.given, self.called = name, given, called

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.called.add(self.name)
        return self.given(*args, **kwargs)

    def __getattr__(self, part: str) -> Any:
        found = getattr(self.given, part)
        name = f"{self.name}.{part}" if self.name else part
        return Watched(name, found, self.called) if callable(found) else found


@pytest.mark.skipif(core is None, reason="there is no native core")
def test_every_function_of_the_core_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    called: set[str] = set()
    exported = {name: one for name, one in vars(core).items() if name[0] != "_" and callable(one)}
    expected = set(exported) - {"Table"}  # which make_table makes
    for name, one in exported.items():
        for method, given in list(vars(one).items()) if isinstance(one, type) else []:
            if type(given).__name__.startswith("nb_") and not method.startswith("__"):
                expected.add(f"{name}.{method}")
                monkeypatch.setattr(one, method, noting(f"{name}.{method}", given, called))
    watched = Watched("", core, called)
    for name, call in native.CALLS.items():
        for number in range(200):
            native._held.clear()
            with suppress(*native.REFUSED):
                call(watched, rng_of(1, name, number))
    assert expected - called == set()


def noting(name: str, given: Any, called: set[str]) -> Any:
    def call(*args: Any) -> Any:
        called.add(name)
        return given(*args)

    return staticmethod(call) if type(given).__name__ == "nb_func" else call


# ---- readers ------------------------------------------------------------------------------------

# Calls that turn bytes from elsewhere into values.
PARSERS = {"json.loads", "tomllib.loads", "parse_tensors", "safe_open", "load_file", "np.load"}
PARSERS |= {
    "np.fromfile",
    "np.memmap",
    "zipfile.ZipFile",
    "gzip.open",
    "csv.reader",
    "yaml.compose",
}
PARSERS |= {"struct.unpack", "struct.unpack_from", "torch.frombuffer", "torch.from_file"}
PARSERS |= {"zstandard.ZstdDecompressor", "_core.parse_slots"}
ENDINGS = ("unpack", "unpack_from")  # of any struct
TABLES = ("pl.read_", "pl.scan_")

# Functions that parse what this program wrote itself: in its own memory, in a file that only it can
# write, or verified before by another function that is fuzzed.
OWN = "written by this run, read by it alone"
CHECKED = "read after the checksums, the format and the numbers of its file were checked"
EXEMPT = {
    "training/checkpoint/snapshot.py": CHECKED,
    "runs/decay.py:change_rows": CHECKED,
    "runs/warm_start.py:_take_vectors": "NumPy's own format, without pickles",
    "compat/implicit/matrix.py:read_arrays": "NumPy's own format, without pickles",
    "cli/pipeline.py:_parse_context": "what the person at the terminal has typed",
    "cli/ranking.py:typed_items": "what the person at the terminal has typed",
    "runs/run.py": OWN,
    "planning/probes.py:_links": OWN,
    "experiments/tuning/worker.py:main": OWN,
    "runs/fit.py": OWN,
    "runs/trained_run.py:Trained.types": "Polars reads the schema of Parquet files",
    "loop/loop.py": OWN,
    "serving/bulk.py:parts_of": OWN,
    "training/checkpoint/writing.py:Checkpoints._shared": OWN,
    "distributed/world.py:World.exchange": "no bytes: pieces of a tensor between ranks",
    "embedding/placements/sharded.py:Route.arrive": "no bytes: row ids in a tensor",
    "serving/processes/copies.py": OWN,
    "serving/processes/parent.py:Parent._read": OWN,
    "serving/processes/service_process.py:ServiceProcess._read": OWN,
    "serving/versions/shadow.py:Shadow._read": OWN,
    "serving/versions/shadow_process.py:main": OWN,
    "serving/artifact/check.py": OWN,
    "serving/artifact/export.py": OWN,
    "compat/estimator/export.py": OWN,
    "launch/children.py": OWN,
    "training/steps.py:solve_from_samples": OWN,
    "models/clicks/trees.py:Trees._keep": OWN,
    "training/elastic_trainer.py": OWN,
    "distributed/tunnel.py": OWN,
    "distributed/newcomers.py": "peers.py sends handshakes to a live port",
    "distributed/shm_group.py": OWN,
    "distributed/liveness.py": OWN,
    "kernels/tables.py": OWN,
    "embedding/engines/row_records.py": OWN,
    "embedding/engines/gpu_cache.py": OWN,
    "data/fingerprint.py": OWN,
    "data/prepared/views.py": OWN,
    "ps/server/shards.py:ShardWriter.report": OWN,
    "ps/wire.py:parse_place": "frames.py sends pushes of lent batches to a live server",
    "ps/wire.py:parse_pull": "frames.py sends requests for rows to a live server",
    "ps/wire.py:join_pieces": "frames.py sends pieces to a live server",
}


def parsing() -> Iterator[tuple[str, str, int]]:
    """File below shoal/, qualified name and first line of each function that calls a parser."""

    def visit(node: ast.AST, names: list[str], first: int) -> Iterator[tuple[str, int]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [*names, node.name]
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        if isinstance(node, ast.Call) and names:
            name = ast.unparse(node.func)
            parses = name in PARSERS or name.startswith(TABLES)
            if parses or name.rpartition(".")[2] in ENDINGS:
                yield ".".join(names), first
        for child in ast.iter_child_nodes(node):
            yield from visit(child, names, first)

    for path in sorted((ROOT / "shoal").rglob("*.py")):
        file = path.relative_to(ROOT / "shoal").as_posix()
        for name, first in sorted(set(visit(ast.parse(path.read_text()), [], 0))):
            yield file, name, first


def test_every_reader_is_fuzzed() -> None:
    started: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            started.add(frame.f_code)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            for target in files.make(folder).values():
                for seed in target.seeds:
                    (folder / target.name).write_bytes(seed)
                    with suppress(ValueError):  # the parser runs, whatever it says
                        target.read(folder / target.name)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    reached = {(code.co_filename, code.co_firstlineno) for code in started}
    found = list(parsing())
    left = [
        f"{file}:{name}"
        for file, name, first in found
        if (str(ROOT / "shoal" / file), first) not in reached
        and not {file, f"{file}:{name}"} & EXEMPT.keys()
    ]
    assert left == [], "\n".join(left)
    named = {one for file, name, _ in found for one in (file, f"{file}:{name}")}
    assert EXEMPT.keys() - named == set(), "functions that are no more"


# ---- the fuzzer itself --------------------------------------------------------------------------


@pytest.mark.parametrize("target, inputs", [("files", 40), ("core", 500), ("frames", 600)])
def test_a_short_run_finds_nothing(tmp_path: Path, target: str, inputs: int) -> None:
    done = fuzz("--inputs", str(inputs), "--only", target, "--findings", str(tmp_path))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "0 crashes or hangs, 0 other findings" in done.stdout


def fuzz(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fuzz", "--minutes", "10", "--seed", "11", *words]
    paths = os.pathsep.join(str(ROOT / name) for name in ("tests", "tests/helpers"))
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)


def test_an_input_is_judged_by_its_cpu_time() -> None:
    """Not by the clock: a process that waits for its turn, or is stopped, does not get slower."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    stopped = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    asleep = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    try:
        while min(usage(one.pid)[0] for one in (busy, stopped)) < 0.1:
            time.sleep(0.01)
        stopped.send_signal(19)
        watches = {one: Watch("input") for one in (busy, stopped, asleep)}
        found = dict.fromkeys(watches, "")
        while not (found[busy] and found[asleep]):
            for one, watch in watches.items():
                found[one] = found[one] or watch.look([one.pid], 0.5)
            time.sleep(0.05)
        assert "CPU time" in found[busy] and "slept" in found[asleep]
        assert "CPU time" not in found[stopped]
    finally:
        for one in (busy, stopped, asleep):
            one.kill()
            one.wait()
