"""What must work wherever Shoal is installed, run by the Python that has it; needs the extra serve.

    python smoke.py EMPTY_FOLDER

Prints the steps with their seconds as one line of JSON. `make matrix` and the tests call it.
"""

import json
import os
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 600.0  # seconds; an emulated processor is slow
USE = """
import shoal
print(shoal.__file__)
print(shoal.recommend("run", "u1", topk=3))
"""
RUN = ("--train.epochs=2", "--output=run")


def run(*words: str) -> str:
    """What a command of this Python prints; it must succeed."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


@contextmanager
def serving(model: str) -> Iterator[str]:
    """`shoal serve` of an artifact as a process: its address."""
    announce, log = Path(f"{model}.url"), Path(f"{model}.log")
    words = ["serve", model, "--port=0", "--threads=1", f"--announce={announce}"]
    with log.open("w") as output:
        command = [sys.executable, "-m", "shoal", *words]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + PATIENCE
        while not (announce.exists() and announce.read_text()):
            if process.poll() is not None or time.monotonic() > until:
                sys.exit(f"shoal serve {model} does not answer\n{log.read_text()}")
            time.sleep(0.05)
        yield announce.read_text().strip()
    finally:
        process.kill()
        process.wait()


def ask(url: str, user: str) -> None:
    """Three items for a user, over HTTP."""
    body = json.dumps({"user": user, "topk": 3}).encode()
    request = urllib.request.Request(
        f"{url}/v1/recommend", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        assert len(json.load(answer)["items"]) == 3


def main(folder: Path) -> None:
    os.environ.pop("PYTHONPATH", None)  # no way to a clone
    os.chdir(folder)
    rows = [f"u{user},i{(user * 7 + k * k) % 40}" for user in range(30) for k in range(9)]
    Path("ratings.csv").write_text("\n".join(["user,item", *rows]))
    seconds: dict[str, float] = {}
    begun = time.monotonic()

    def step(name: str) -> None:
        nonlocal begun
        seconds[name], begun = round(time.monotonic() - begun, 1), time.monotonic()

    log = run("-m", "shoal", "train", "ratings.csv", "--model=BPR", *RUN)
    assert "test" in json.loads(Path("run", "result.json").read_text()), log
    step("train")
    place, *items = run("-c", USE).splitlines()
    assert Path(place).is_relative_to(sys.prefix) and items, place
    step("recommend")
    # As somebody new to it: a file, the commands that quickstart prints, a list over HTTP.
    log = run("-m", "shoal", "quickstart", "ratings.csv", "--run")
    printed = [line for line in log.splitlines() if line.startswith("  shoal ")]
    *commands, serve = [shlex.split(line, comments=True) for line in printed]
    for command in commands:
        run("-m", *command)
    with serving(serve[-1]) as url:
        ask(url, "u1")
    step("quickstart to served")
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
