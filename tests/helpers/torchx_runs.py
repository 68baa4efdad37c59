"""`torchx` commands for tests, and the small configs that they run."""

import os
import sys
from pathlib import Path

import pytest
from commands import ROOT, Command

BIN = Path(sys.executable).parent
COMPONENT = ROOT / "shoal" / "cli" / "torchx.py"
assert COMPONENT.is_file(), "it moved: what needs TorchX would fail where it is installed"
QUIET = ["--run.threads=1", "--run.progress=false", "--run.trackers=[]"]
CLICKS = [  # synthetic: the same log on every host
    "--model=DNN",
    "--model.dim=4",
    "--model.layers=[16]",
    "--data.format=synthetic_clicks",
    "--data.clicks.synthetic.samples=3000",
    "--train.epochs=2",
    "--train.batch_size=256",
    *QUIET,
]


def need_torchx() -> None:
    """Skip where TorchX is not installed."""
    pytest.importorskip("torchx", reason="TorchX is not installed: make extras EXTRAS=torchx")
    if not (BIN / "torchx").is_file() or not (BIN / "torchrun").is_file():
        pytest.skip(f"{BIN} has no torchx and torchrun commands", allow_module_level=True)


def torchx(*words: str | Path, cwd: Path, **env: str) -> Command:
    """Start `torchx WORDS`, with our Python's commands first on the path."""
    path = os.pathsep.join([env.pop("PATH", ""), str(BIN), os.environ["PATH"]]).strip(os.pathsep)
    env = {"OMP_NUM_THREADS": "1", "LOGLEVEL": "WARNING", **env, "PATH": path}
    return Command((str(BIN / "torchx"), *map(str, words)), cwd, **env)
