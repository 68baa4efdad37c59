"""MLPerf's LoadGen drives artifacts and pipelines in one process, without HTTP.

    pip install mlcommons-loadgen
    python benchmarks/pipeline_serve.py --prepared shop --cpu 10   # or any other artifacts
    python benchmarks/loadgen.py shop/sasrec shop/pipeline.yaml [--rate 30] [--latency 100]

Two scenarios of LoadGen's: Server sends one question at a time, `--rate` a second at random moments
(Poisson), and is valid where p99 is within `--latency` milliseconds; Offline hands over all
questions at once. Questions are made of the users, histories and samples that an artifact knows,
those of `shoal serve --bench`. Those that wait are answered in one batch, at most `--batch`, by
`--threads` threads. Latencies and validity are LoadGen's own, of its summary (`--summary` prints
it); it decides on `VALID` by the seconds and queries set here, which are fewer than a submission's.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

try:
    import mlperf_loadgen as loadgen
except ImportError:
    sys.exit("MLPerf's LoadGen is not installed here: pip install mlcommons-loadgen")

Answer = Callable[[Sequence[Any]], Sequence[Any]]


def main() -> None:
    """Measure each place in each scenario, and print the table."""
    options = command_line()
    import torch

    torch.set_num_threads(1)  # batches side by side, one core each, as a service has them
    print(f"$ python {' '.join(sys.argv)}")
    print(f"{platform.machine()}, {os.cpu_count()} cores, LoadGen included")
    print("| | scenario | answers/s | p50, ms | p99, ms | LoadGen says |")
    print("| --- " * 6 + "|")
    for place in options.places:
        questions, answer = opened(place)
        rate = options.threads * rate_of_batches(questions, answer, options)
        for scenario in ("Server", "Offline"):
            summary = tested(questions, answer, scenario, rate, options)
            print(
                f"| {place} | {scenario} | {' | '.join(figures(summary, scenario))} |", flush=True
            )
            if options.summary:
                print(f"\n{summary}\n")


def opened(place: str) -> tuple[list[Any], Answer]:
    """Questions to an artifact or a pipeline, and what answers many of them at once."""
    from shoal.serving.load.questions import artifact_questions, pipeline_questions

    manifest = Path(place, "manifest.json")
    if not manifest.exists() or json.loads(manifest.read_text()).get("kind") == "pipeline":
        from shoal.serving.pipeline.pipeline import Pipeline
        from shoal.serving.pipeline_service import questions as of_pipelines

        pipeline = Pipeline(place, limits=False)
        _, bodies = pipeline_questions(pipeline)
        answers = of_pipelines.PipelineAnswers()
        kind = of_pipelines.QUESTIONS["recommend"]
        return [kind.model_validate(body) for body in bodies], lambda asked: answers(
            pipeline, "recommend", asked
        )
    import shoal
    from shoal.serving.service.questions import QUESTIONS, answer_batch

    artifact = shoal.load(place)
    artifact.prepare()
    path, bodies = artifact_questions(artifact)
    name = path.rpartition("/")[2]
    return [QUESTIONS[name].model_validate(body) for body in bodies], lambda asked: answer_batch(
        artifact, name, asked
    )


def rate_of_batches(questions: Sequence[Any], answer: Answer, options: argparse.Namespace) -> float:
    """Answers a second of one thread, by one batch; before it, what is done at first use."""
    batch = questions[: options.batch]
    answer(batch)
    begin = time.perf_counter()
    answer(batch)
    return len(batch) / (time.perf_counter() - begin)


class System:
    """The system under test: threads that answer what waits, in batches."""

    def __init__(self, questions: Sequence[Any], answer: Answer, options: argparse.Namespace):
        self.questions, self.answer, self.batch = questions, answer, options.batch
        self.waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.failure: BaseException | None = None
        self.threads = [threading.Thread(target=self.work) for _ in range(options.threads)]
        for thread in self.threads:
            thread.start()

    def issue(self, samples: Sequence[Any]) -> None:
        """What LoadGen calls with new questions."""
        for sample in samples:
            self.waiting.put((sample.id, sample.index))

    def work(self) -> None:
        """Answer batches until None waits."""
        while (first := self.waiting.get()) is not None:
            taken = [first]
            while len(taken) < self.batch and not self.waiting.empty():
                try:
                    taken.append(self.waiting.get_nowait())
                except queue.Empty:
                    break
                if taken[-1] is None:
                    self.waiting.put(taken.pop())
                    break
            try:
                answers = self.answer([self.questions[index] for _, index in taken])
                failures = [one for one in answers if isinstance(one, Exception)]
            except Exception as error:
                failures = [error]
            self.failure = self.failure or next(iter(failures), None)
            loadgen.QuerySamplesComplete(
                [loadgen.QuerySampleResponse(number, 0, 0) for number, _ in taken]
            )

    def end(self) -> None:
        """Let threads end."""
        for _ in self.threads:
            self.waiting.put(None)
        for thread in self.threads:
            thread.join()
        if self.failure is not None:
            sys.exit(f"a question was not answered: {self.failure}")


def tested(
    questions: Sequence[Any],
    answer: Answer,
    scenario: str,
    expected: float,
    options: argparse.Namespace,
) -> str:
    """LoadGen's summary of a scenario. expected: answers a second, which sizes Offline's query."""
    settings = loadgen.TestSettings()
    settings.scenario = getattr(loadgen.TestScenario, scenario)
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.min_duration_ms = int(1000 * options.seconds)
    settings.max_duration_ms = int(10_000 * options.seconds)  # for one that falls behind
    settings.min_query_count = 1
    settings.server_target_qps = options.rate
    settings.server_target_latency_ns = int(1e6 * options.latency)
    settings.server_target_latency_percentile = 0.99
    settings.offline_expected_qps = expected
    system = System(questions, answer, options)
    under_test = loadgen.ConstructSUT(system.issue, lambda: None)
    library = loadgen.ConstructQSL(
        len(questions), len(questions), lambda indices: None, lambda indices: None
    )
    with tempfile.TemporaryDirectory(prefix="loadgen-") as folder:
        logs = loadgen.LogSettings()
        logs.log_output.outdir = folder
        logs.log_output.copy_summary_to_stdout = False
        logs.enable_trace = False
        try:
            loadgen.StartTestWithLogSettings(
                under_test, library, settings, logs, str(Path(folder, "audit.config"))
            )
        finally:
            loadgen.DestroyQSL(library)
            loadgen.DestroySUT(under_test)
            system.end()
        return Path(folder, "mlperf_log_summary.txt").read_text()


def figures(summary: str, scenario: str) -> list[str]:
    """Answers per second, p50 and p99 in milliseconds, and whether LoadGen takes it as valid."""
    values = {}
    for line in summary.splitlines():
        name, sign, value = line.partition(":")
        if sign:
            values[name.strip()] = value.strip()
    rate = values["Samples per second" if scenario == "Offline" else "Completed samples per second"]
    latencies = ["–", "–"]  # of Offline that of the one query that holds all questions
    if scenario == "Server":
        latencies = [
            f"{float(values[f'{percentile} percentile latency (ns)']) / 1e6:.1f}"
            for percentile in ("50.00", "99.00")
        ]
    missed = [name for name, value in values.items() if "satisfied" in name and value == "NO"]
    verdict = values["Result is"] + "".join(f"; {name}: no" for name in missed)
    return [f"{float(rate):.1f}", *latencies, verdict]


def command_line() -> argparse.Namespace:
    """What is typed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("places", nargs="+", help="artifacts, and files of pipelines")
    parser.add_argument("--rate", type=float, default=30.0, help="questions a second, of Server")
    parser.add_argument(
        "--latency", type=float, default=100.0, help="milliseconds, of Server's p99"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of each scenario, at least")
    parser.add_argument("--batch", type=int, default=64, help="questions answered together")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--summary", action="store_true", help="print LoadGen's summaries as well")
    return parser.parse_args()


if __name__ == "__main__":
    main()
