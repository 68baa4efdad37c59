"""The two processes of `zoo_recbole.py`: each trains what it is told to, a line of JSON each way.

Started as a program, this is the side of Shoal; the other is `recbole_peer.py --many`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import IO, Any


class Side:
    """A process that trains what it is told to, a line of JSON each way."""

    def __init__(self, command: list[str], folder: str):
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "SHOAL_BENCHMARK_CLOCK": "cpu"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )

    def ask(self, what: dict[str, Any]) -> dict[str, Any]:
        """What came of it: seconds, or why it failed."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        answer = last_json(self.process.stdout)
        if answer is None:
            self.errors.seek(0)
            sys.exit(f"{what['model']}: the process ended\n{self.errors.read()[-3000:]}")
        if "failed" in answer:
            return answer
        seconds = answer["seconds"]
        test = {name: round(value, 4) for name, value in answer["test"].items()}
        return {
            "epoch": seconds["train_epoch_median"],
            "eval": seconds["eval_median"],
            "test": test,
        }


def last_json(output: IO[str]) -> dict[str, Any] | None:
    """The next line that is an answer; a library may print others between."""
    for said in output:
        if said.startswith('{"'):
            return json.loads(said)
    return None


def serve() -> None:
    """Train here whatever the input names."""
    import shoal

    for said in sys.stdin:
        asked = json.loads(said)
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = shoal.run(
                    model=asked["model"],
                    dataset="ml-100k",
                    config_file_list=[asked["config"]],
                    config_dict={
                        **asked["here"],
                        "data_path": asked["data"],
                        "run.output": f"{folder}/run",
                        "run.progress": False,
                        "run.trackers": [],
                    },
                )
            except Exception as error:  # one model that fails is a line of the table, no more
                result = {"failed": f"{type(error).__name__}: {error}"}
        kept = {key: result[key] for key in ("failed", "seconds", "test") if key in result}
        print(json.dumps(kept), flush=True)


if __name__ == "__main__":
    if os.environ.get("SHOAL_BENCHMARK_CLOCK") == "cpu":
        time.perf_counter = time.process_time
    serve()
