"""Files of runs: what a run leaves in its folder, and what is given to one that exists."""

import io
import json
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fuzz.target import Target

RESULT = {"model": "BPR", "data": "ml", "epochs": 2, "test": {"recall@10": 0.5}}
RESULT |= {"best_valid": {"recall@10": 0.5}, "exports": [{"to": "x"}]}
PIPELINE = b"""items: items.csv
retrieve:
  - {artifact: exported/bpr, number: 200, quota: 100}
  - {artifact: exported/bpr, by: last_item, number: 50}
rank: {artifact: exported/deepfm}
rules: [seen, {boost: {attribute: price, weight: 0.5}}, {at_most: {number: 2, attribute: kind}}]
fallback: {artifact: exported/pop, by: popularity, number: 10}
"""
REQUESTS = b"".join(
    b'{"request": "r%d", "time": 1.5, "user": "7", "history": null, "context": {"device": "phone"},'
    b' "items": ["i31", 9], "scores": [0.8, null], "propensity": [0.9, 0.1]}\n' % number
    for number in range(3)
)
METRICS = b"".join(b'{"epoch": %d, "loss": 0.5, "valid": {"recall@10": 0.1}}\n' % k for k in (0, 1))
WORDS = {"user_id": ["[PAD]", "a", "b"], "item_id": ["[PAD]", "v", "w"]}


def runs(folder: Path) -> dict[str, Target]:
    """Everything that is read out of a run's folder, and files of a trained model's users."""
    from types import SimpleNamespace

    from safetensors.torch import save

    from shoal.daily.follow import TrainedFiles
    from shoal.experiments.board.app import named_run
    from shoal.experiments.board.run_index import Root
    from shoal.experiments.board.summary import details, summary
    from shoal.experiments.tuning.trial_files import read_curve
    from shoal.runs.decay import _read
    from shoal.runs.listing import list_runs
    from shoal.runs.run_files import read_list, read_result
    from shoal.runs.run_record import read_runs
    from shoal.runs.vocabulary_growth import read_taken, read_vocabularies
    from shoal.runs.warm_start import keep_before
    from shoal.serving.http.guard import RefusedRequest
    from shoal.training.checkpoint.remote import Copies
    from shoal.training.run_folder import RunFolder

    home = folder / "runs" / "one"
    (home / "checkpoints").mkdir(parents=True)
    (home / "evaluation").mkdir()
    (home / "config.yaml").write_text("model: BPR\ndata: {name: ml}\n")
    run = RunFolder(home)
    entry = {"name": "day", "bytes": 3, "run": "x", "done": True, "before": {}, "export": None}

    def of(name: str, seeds: list[bytes], use: Callable[[], Any]) -> Target:
        def read(made: Path) -> None:
            (home / name).write_bytes(made.read_bytes())
            try:
                use()
            finally:
                (home / name).unlink()

        return Target(seeds, f"{Path(name).name}-made", read)

    def on_board() -> None:
        root = Root(home)  # which remembers files that did not change
        for one in root.runs().values():
            assert json.dumps([summary(root, one), details(root, one)])

    def asked(made: Path) -> None:
        with suppress(RefusedRequest):
            named_run(made.read_bytes())

    ages = save({"user_id": _tensor([1, 2, 3])})
    taken = save({"users": _tensor([1, 2]).int(), "items": _tensor([2, 1]).int()})
    three: Any = SimpleNamespace(num_users=3, num_items=3)
    sent = {"url": f"file://{folder}/far", "sent": {"step-000000001": "0" * 64}}
    copies = Copies(f"file://{folder}/far", home / "checkpoints")
    return {
        "result": of("result.json", [json.dumps(RESULT).encode()], lambda: list_runs(home.parent)),
        "metrics": of("metrics.jsonl", [METRICS], lambda: run.forget_after(1)),
        "ledger": of("ledger.json", [json.dumps([entry]).encode()], lambda: TrainedFiles(home)),
        "before": of("before.json", [b'{"recall@10": 0.5}'], lambda: keep_before(home, {})),
        "ages": of("ages.safetensors", [ages], lambda: _read(home / "ages.safetensors")),
        "copied": of(
            "checkpoints/copied.json", [json.dumps(sent).encode()], lambda: copies._sent()
        ),
        "words": of(
            "vocabulary.safetensors",
            [_vocabulary()],
            lambda: read_vocabularies(home / "vocabulary.safetensors"),
        ),
        "taken": of("taken.safetensors", [taken], lambda: read_taken(home, three)),
        "report": of("result.json", [json.dumps(RESULT).encode()], lambda: read_runs([home])),
        "epochs": of("metrics.jsonl", [METRICS], lambda: read_runs([home])),
        "users": of("evaluation/users.parquet", [_users()], lambda: read_runs([home])),
        "curve": of("metrics.jsonl", [METRICS], lambda: read_curve(home, "recall@10")),
        "outcome": of(
            "result.json",
            [json.dumps(RESULT).encode()],
            lambda: read_result(home / "result.json"),
        ),
        "exports": of("exports.json", [b'[{"to": "x"}]'], lambda: read_list(home / "exports.json")),
        "board": of("metrics.jsonl", [METRICS], on_board),
        "board result": of("result.json", [json.dumps(RESULT).encode()], on_board),
        "stop": Target([b'{"run": "0123456789abcdef"}'], "request", asked),
        "category": Target([b"item,kind\n1,a\n2,b\n"], "items.csv", _category),
        "archive": Target([_archive()], "ml-100k.zip", _unpack),
        "public set": Target([_archive()], "big_matrix.zip", _unpack_beside),
        "pipeline": Target([PIPELINE], "pipeline.yaml", _pipeline),
        "requests": Target([REQUESTS], "requests-1.jsonl", _requests),
    }


def _tensor(values: list[int]) -> Any:
    import torch

    return torch.tensor(values)


def _vocabulary() -> bytes:
    import tempfile
    from types import SimpleNamespace

    from shoal.runs.vocabulary_growth import FILE, save_vocabularies

    with tempfile.TemporaryDirectory() as name:
        save_vocabularies(Path(name), SimpleNamespace(vocab=WORDS))  # type: ignore[arg-type]
        return (Path(name) / FILE).read_bytes()


def _users() -> bytes:
    import polars as pl

    file = io.BytesIO()
    columns = {"user": ["a", "b"], "train": [1, 2], "positives": [1, 1], "recall@10": [0.0, 1.0]}
    lists = {"items": [["v"], ["w", "v"]], "hits": [[False], [True, False]]}
    pl.DataFrame(columns | lists).write_parquet(file, metadata={"shoal.users": "2"})
    return file.getvalue()


def _category(path: Path) -> None:
    from shoal.serving.bulk import items_of_category

    items_of_category(f"{path}:kind=a")


def _archive() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ml-100k/u.data", "1\t2\t3\t4\n" * 20)
    return packed.getvalue()


def _unpack(path: Path) -> None:
    import shutil

    from shoal.data.sources.fetch import _unpack as unpack

    target = path.parent / "unpacked"
    try:
        unpack(path, "ml-100k", target)
    finally:
        shutil.rmtree(target, ignore_errors=True)


def _unpack_beside(path: Path) -> None:
    import shutil

    from shoal.data.sources.fetch import _unpack_beside as unpack

    packed, target = path.with_name("packed.zip"), path.parent / "unpacked"
    shutil.copyfile(path, packed)
    try:
        unpack(packed, target)
    finally:
        packed.unlink(missing_ok=True)
        shutil.rmtree(target, ignore_errors=True)


def _requests(path: Path) -> None:
    from shoal.serving.pipeline.request_log import read_log

    list(read_log(path))


def _pipeline(path: Path) -> None:
    from shoal.serving.pipeline.file import read_pipeline

    read_pipeline(path)
