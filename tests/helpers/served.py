"""`shoal serve` as a process, as people start it."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

PATIENCE = 240.0  # seconds that a test waits for what must come, on a busy machine too


class Served:
    """A running `shoal serve`: `with Served(artifact, tmp_path) as served: ...`."""

    python = sys.executable
    command = ("serve",)

    def __init__(self, artifact: Path, scratch: Path, *words: str, **environment: str):
        announce = scratch / "url"
        self.log = scratch / "serve.log"
        command = [self.python, "-m", "shoal", *self.command, str(artifact), "--port=0"]
        command += ["--threads=1", "--refresh=0.05", f"--announce={announce}", *words]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **environment}
            )
        try:
            self.until(lambda: announce.exists() and announce.read_text())
        except BaseException:
            self.process.kill()
            raise
        self.port = int(announce.read_text().rpartition(":")[2])

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()

    def until(self, holds: Callable[[], Any]) -> None:
        """Wait for something that must come; the process must live."""
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def call(self, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        headers = {"content-type": "application/json"}
        method, data = ("GET", None) if body is None else ("POST", json.dumps(body))
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        is_json = answer.headers.get("content-type") == "application/json"
        return answer.status, json.loads(text) if is_json else text

    def figure(self, name: str) -> int:
        """A number of /metrics."""
        lines = self.call("/metrics")[1].splitlines()
        return int(float(next(one for one in lines if one.startswith(f"shoal_{name} ")).split()[1]))


class ServedPipeline(Served):
    """A running `shoal pipeline serve`."""

    command = ("pipeline", "serve")
