"""This checkout beside another commit: the same runs, taken in turn, and the ratio of their times.

    python benchmarks/against.py 2fefa8e
    python benchmarks/against.py main --cases bpr "bpr, 2 processes" --rounds 9

Both commits are put into folders of their own, each with its native core, and are used through the
command line alone; with `--keep FOLDER` they stay there for the next time. Times are seconds of an
epoch as result.json has them (`start`: from the command to the first step; `evaluation`: of one
evaluation), and those of a whole run after its start. Of the cases `service` they are seconds of a
request, by the clock (all requests, then those of the slowest one in a hundred) and of CPU time of
the service: each side trains a SASRec (50 positions, width 64, some 7,000 items), exports and
serves it, and answers a fixed number of requests. Medians over rounds; a ratio above 1 is slower
than before.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from serve import cpu_seconds

ROOT = Path(__file__).resolve().parents[1]
QUIET = ["--run.progress=false", "--run.tensorboard=false", "--run.log_level=warning"]
BERT4REC = [
    *("recipes/random-bert4rec.yaml", "--train.eval_every=0"),
    *("--data.random.users=400", "--data.random.items=49077", "--data.random.interactions=6400"),
    "--data.max_len=16",
]
SIXTEEN = ["--train.batch_size=16", "--train.epochs=2", "--nproc=2"]
# Written out, in words that both versions read: recipes and keys have other names before 0.2.
DEFAULT = ["--model=BPR", "--data.name=planted", "--train.batch_size=4096", "--train.patience=10"]
DEFAULT += ["--data.split.by=ratio", "--data.split.order=random", "--eval.repeatable=false"]
PLANTED = [*DEFAULT, "--train.epochs=12"]
CLICKS = ["--model=DNN", "--model.dim=8", "--model.layers=[64,32]", "--data.format=planted_clicks"]
CLICKS += ["--train.batch_size=256", "--strategy.name=ps"]
CLICKS += ["--train.epochs=8"]


def planted(model: str, users: int, items: int) -> list[str]:
    """Words of a run on data of this size."""
    sizes = {"users": users, "items": items, "interactions": 20 * users}
    by = "leave_one_out" if model == "SASRec" else "ratio"
    order = "time" if model == "SASRec" else "random"
    # Written out: a version from before the data decided had a split by model.
    split = [f"--data.split.by={by}", f"--data.split.order={order}"]
    split.append(f"--eval.repeatable={str(model == 'SASRec').lower()}")
    return [f"--model={model}", "--data.name=planted", *split] + [
        f"--data.planted.{key}={value}" for key, value in sizes.items()
    ]


CASES = {
    "start": ["train", *DEFAULT, "--train.epochs=1"],
    "bpr": ["train", *PLANTED],
    "bpr, 2 processes": ["train", *PLANTED, "--nproc=2"],
    "bpr, 4 processes": ["train", *PLANTED, "--nproc=4"],
    "bert4rec, batch 8": ["train", *BERT4REC, "--train.batch_size=8", "--train.epochs=2"],
    # Four steps an epoch: two epochs are too few to tell.
    "bert4rec, batch 128": ["train", *BERT4REC, "--train.batch_size=128", "--train.epochs=10"],
    "bert4rec, ddp": ["train", *BERT4REC, *SIXTEEN],
    "bert4rec, sharded": [
        *("train", *BERT4REC, *SIXTEEN, "--strategy.name=sharded"),
    ],
    "servers, sync": [
        *("launch", "--worker_num=2", "--server_num=1", *CLICKS, "--strategy.ps.mode=sync"),
    ],
    "sasrec": [
        *("train", *planted("SASRec", 1500, 3000), "--train.epochs=3", "--train.batch_size=256"),
    ],
    "evaluation": ["train", *planted("BPR", 5000, 20000), "--train.epochs=3"],
    "servers, async": [
        *("launch", "--worker_num=2", "--server_num=1", *CLICKS, "--strategy.ps.mode=async"),
    ],
}


# Clients that ask at the same time, of a service.
SERVICES = {"service, 1 client": 1, "service, 64 clients": 64}
REQUESTS = {1: 300, 64: 2000}
# As both sides understand it, through Python: options of `shoal export` were renamed, and so was
# the list of an artifact's items.
EXPORT = """
import json, pathlib, shoal, sys
place = pathlib.Path(sys.argv[1])
shoal.run(model="SASRec", config_dict={
    "data.name": "planted", "data.planted.users": 4000, "data.planted.items": 20_000,
    "data.planted.interactions": 20_000, "data.max_len": 50, "train.epochs": 1,
    "train.eval_every": 0, "run.progress": False, "run.tensorboard": False,
    "run.log_level": "warning", "run.output": str(place / "run"),
})
shoal.export(place / "run", place / "artifact")
items = shoal.load(place / "artifact").items
names = items.words if hasattr(items, "words") else items.all
(place / "names.json").write_text(json.dumps([str(name) for name in names[1:].tolist()]))
"""


def make_side(commit: str | None, folder: Path) -> Path:
    """A tree (None: this one as it is committed) with its core and an environment of its own."""
    if not folder.exists():
        subprocess.run(["git", "-C", ROOT, "clone", "-q", str(ROOT), folder], check=True)
    named = ["git", "-C", ROOT, "rev-parse", commit or "HEAD"]
    wanted = subprocess.run(named, capture_output=True, text=True, check=True).stdout.strip()
    for words in (["fetch", "-q", "origin"], ["checkout", "-q", wanted]):
        subprocess.run(["git", "-C", folder, *words], check=True)
    # Packages may lie in several folders: those that a .pth file of this environment adds, too.
    packages = [entry for entry in sys.path if entry.endswith("site-packages")]
    venv.create(folder / ".side", with_pip=False)
    inner = next((folder / ".side" / "lib").glob("python*")) / "site-packages"
    # Plain folders: what was installed as editable there stays out.
    (inner / "side.pth").write_text("\n".join([str(folder), *packages, ""]))
    python = folder / ".side" / "bin" / "python"
    found = [sys.executable, "-m", "nanobind", "--cmake_dir"]
    nanobind = subprocess.run(found, capture_output=True, text=True, check=True).stdout.strip()
    tools = Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    build = ["cmake", "-S", folder, "-B", folder / "build", f"-DPython_EXECUTABLE={python}"]
    build += [f"-Dnanobind_DIR={nanobind}"]
    for command in (build, ["cmake", "--build", folder / "build", "-j"]):
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
    # As an installed package is: where bytecode may not be written, each start would compile.
    subprocess.run([python, "-m", "compileall", "-q", folder / "shoal"], check=True)
    if not list((folder / "shoal").glob("_core*")):
        raise SystemExit(f"{folder}: the native core of {commit or 'HEAD'} was not built")
    return folder


def seconds_of(side: Path, name: str, words: list[str]) -> tuple[float, float]:
    """One run of a case: its median epoch, start or evaluation, and all that follows its start.

    An epoch has what is written meanwhile of the checkpoint before it, which a commit may do
    before the epoch instead; all together is the same work on both sides.
    """
    with tempfile.TemporaryDirectory(prefix="against-") as output:
        command = [side / ".side" / "bin" / "python", "-m", "shoal", *words, *QUIET]
        command += ["--output", f"{output}/run"]
        subprocess.run(command, cwd=side, check=True, capture_output=True)
        found = json.loads(Path(f"{output}/run/result.json").read_text())["seconds"]
    key = {"start": "startup", "evaluation": "eval_median"}.get(name, "train_epoch_median")
    return found[key], found["total"] - found["startup"]


def seconds_of_request(side: Path, clients: int) -> tuple[float, float, float]:
    """Seconds of a request to the service of a side: by the clock, of its CPU time, and p99."""
    python, place = side / ".side" / "bin" / "python", side / ".service"
    if not (place / "names.json").exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        subprocess.run([python, "-c", EXPORT, place], cwd=side, check=True, capture_output=True)
    announced = place / "url"
    announced.unlink(missing_ok=True)
    words = ["-m", "shoal", "serve", place / "artifact", "--port=0", f"--announce={announced}"]
    process = subprocess.Popen([python, *words], cwd=side, stderr=subprocess.DEVNULL)
    try:
        while not (announced.exists() and announced.read_text()):
            if process.poll() is not None:
                raise SystemExit(f"{side}: its service ended with {process.returncode}")
            time.sleep(0.05)
        load = [sys.executable, ROOT / "benchmarks" / "serve.py", "--load", announced.read_text()]
        load += [f"--names={place / 'names.json'}", f"--clients={clients}"]
        for requests in (REQUESTS[clients] // 4, REQUESTS[clients]):  # the first warm it up
            used = cpu_seconds(process.pid)
            asked = [*load, f"--requests={requests}"]
            done = subprocess.run(asked, check=True, capture_output=True, text=True)
            used = cpu_seconds(process.pid) - used
        found = json.loads(done.stdout)
        return 1 / found["rate"], used / found["all"], found["p99"] / 1e3
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cases = [*CASES, *SERVICES]
    parser.add_argument("commit")
    parser.add_argument("--cases", nargs="+", default=cases, choices=cases)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="folder for both, used again if it is there")
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, {options.rounds} rounds in turn")
    with tempfile.TemporaryDirectory(prefix="against-") as scratch:
        place = (options.keep or Path(scratch)).resolve()
        place.mkdir(exist_ok=True)
        sides = [make_side(options.commit, place / "before"), make_side(None, place / "now")]
        print(
            f"\n| case | {options.commit}, s | now, s | now ÷ before "
            "| after the start (service: CPU), s | now, s | now ÷ before |\n"
            "| --- | --- | --- | --- | --- | --- | --- |"
        )
        for name in options.cases:
            times: list[list[tuple[float, ...]]] = [[], []]
            for _ in range(options.rounds):
                for side, spent in zip(sides, times):
                    if name in SERVICES:
                        spent.append(seconds_of_request(side, SERVICES[name]))
                    else:
                        spent.append(seconds_of(side, name, CASES[name]))
            cells = []
            for seconds_before, seconds_now in zip(zip(*times[0]), zip(*times[1])):
                before, now = statistics.median(seconds_before), statistics.median(seconds_now)
                cells.append(f"{before:.5f} | {now:.5f} | {now / before:.3f}")
            print(f"| {name} | {' | '.join(cells[:2])} |")
            if name in SERVICES:
                print(f"| {name}: p99 | {cells[2]} | | | |")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
