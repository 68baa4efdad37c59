"""Code and places to write that a run folder's config names are used only with trust."""

import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from typing_extensions import is_typeddict

import shoal
from shoal.config.keys import KEYS, options_of
from shoal.config.section import Choices
from shoal.config.sizes import ItemCount
from shoal.config.trust import RUNS, WRITES
from shoal.models import MODELS, find
from shoal.runs.run import resolve
from shoal.runs.trained_run import open_config

LINE = "click:1 dense_feature:0.5 1:3 2:4\nclick:0 dense_feature:0.25 1:5 2:6\n"

# Keys with free text that need no trust. A new one belongs here or in shoal/config/trust.py.
READ = {  # places that are only read
    *("data.name", "data.path", "data.files", "data.extra_suffixes", "data.presplit"),
    "data.codes",
    *(f"data.{side}_vectors.{one}" for side in ("item", "user") for one in ("file", "ids")),
    *("data.load", "data.unload"),  # by suffix
    *("data.clicks.train", "data.clicks.valid", "data.clicks.test"),
    *("start.run", "start.vocabulary", "start.pretrained", "strategy.ps.keys", "launch.secret"),
}
WORDS = {  # names and other words, no places
    *("data.encoding", "data.escape", "data.quote", "data.separator", "data.seq_separator"),
    *(f"data.clicks.{one}" for one in ("slots", "dense", "label", "group")),
    *(f"data.fields.{one}" for one in ("user", "item", "rating", "time", "label")),
    *(f"data.filter.{one}" for one in ("values", "user_inter_num", "item_inter_num")),
    *("data.threshold", "data.normalize", "data.cells", "data.features", "data.labels"),
    *("data.columns", "data.sample_weight", "data.item_vectors.column"),
    "data.user_vectors.column",
    *("train.optimizer.tables", "rows.tables", "strategy.tables"),
    *("eval.mode", "eval.valid_metric", "eval.groups.user", "eval.groups.item"),
    *("data.split.at", "launch.ip", "run.gpu_ids"),
    "run.project",
}

# Of models: names of columns, and numbers with commas between them.
OPTION_WORDS = {"model.selected_features", "model.item_attribute", "model.reranker_CAN_NUM"}


def holds_text(kind: Any) -> bool:
    """Whether a value of a type may hold any text, in an entry of it."""
    if is_typeddict(kind):
        return any(map(holds_text, get_type_hints(kind, include_extras=True).values()))
    if any(isinstance(one, Choices | ItemCount) for one in get_args(kind)):  # a few words
        return False
    return kind is str or (get_origin(kind) is not Literal and any(map(holds_text, get_args(kind))))


def test_every_key_that_may_name_a_place_is_declared() -> None:
    custom = ("model.name", "eval.metrics")  # FILE.py:Class: asked for before the file is run
    known = [*RUNS, *WRITES, *READ, *WORDS, *custom]
    assert len(known) == len(set(known))
    assert {key for key, leaf in KEYS.items() if holds_text(leaf.kind)} == set(known)
    options = [one for name in MODELS for one in options_of(find(name).Options).items()]
    assert {key for key, leaf in options if holds_text(leaf.kind)} == OPTION_WORDS


PLACES = {
    "run.output": "OUT",
    "run.root": "OUT",
    "checkpoint.copy_to": "file://OUT",
    "rows.tiers.ssd": "OUT",
    "strategy.ps.addresses": ["ipc://OUT/socket"],
}


@pytest.mark.parametrize("key", WRITES)
def test_a_run_folder_names_no_place_to_write_without_trust(tmp_path: Path, key: str) -> None:
    place, config = PLACES[key], tmp_path / "config.yaml"
    lines = [f"{key}: {place}", "strategy.name: ps", "launch.servers: 1"]
    config.write_text("\n".join(lines if "ps" in key else lines[:1]) + "\nmodel: LR\n")
    if key == "rows.tiers.ssd":
        config.write_text(config.read_text() + "rows.tiers.host: 1GB\n")
    with pytest.raises(ValueError, match="--trust") as told:
        resolve([config], folder=tmp_path)
    assert f"config.yaml:1: {key} is " in str(told.value) and "OUT" in str(told.value)
    resolve([config], folder=tmp_path, trust=True)
    resolve([config], [f"--{key}={place}"], folder=tmp_path)  # the user's own word
    assert "OUT" not in str(open_config(tmp_path).config)  # to use it takes no place


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A run on a small log, as a user trained it."""
    (tmp_path / "log.txt").write_text(LINE * 20)
    shoal.run(
        config_dict={
            "model": "LR",
            "data.path": str(tmp_path),
            "data.format": "slots",
            "data.clicks.train": "log.txt",
            "data.clicks.valid": "log.txt",
            "data.clicks.slots": 2,
            "data.clicks.dense": 1,
            "data.clicks.rows": 100,
            "train.epochs": 1,
            "train.batch_size": 10,
            "run.output": str(tmp_path / "run"),
            "run.progress": False,
            "run.trackers": [],
        }
    )
    return tmp_path / "run"


def plant(run: Path, key: str, value: str) -> None:
    """What the author of a run folder can do: a line of its config."""
    config = run / "config.yaml"
    lines = config.read_text().splitlines()
    found = [n for n, line in enumerate(lines) if line.strip().startswith(f"{key}:")]
    assert len(found) == 1
    indent = lines[found[0]][: -len(lines[found[0]].lstrip())]
    lines[found[0]] = f"{indent}{key}: {value}"
    config.write_text("\n".join(lines) + "\n")


def command(*words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "shoal.cli.main", *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("how", ["pipe_command", "custom"])
def test_a_run_folder_runs_no_code_without_trust(trained: Path, tmp_path: Path, how: str) -> None:
    witness = tmp_path / "witness"
    script = tmp_path / "reader.py"
    script.write_text(f"open({str(witness)!r}, 'w')\nimport sys\nprint(sys.stdin.read(), end='')\n")
    value = f"{sys.executable} {script}" if how == "pipe_command" else str(script)
    plant(trained, how, value)
    if how == "custom":
        plant(trained, "reader", "custom")
    calls: list[Any] = [
        lambda: shoal.evaluate(trained),
        lambda: shoal.recommend(trained, "1"),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="--trust") as told:
            call()
        assert how in str(told.value) and str(script) in str(told.value)
    assert not witness.exists()


@pytest.mark.slow
def test_commands_ask_for_trust(trained: Path, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    script = tmp_path / "program.py"
    script.write_text(f"open({str(witness)!r}, 'w')\nimport sys\nprint(sys.stdin.read(), end='')\n")
    plant(trained, "pipe_command", f"{sys.executable} {script}")
    refused = command("eval", str(trained))
    assert refused.returncode == 2 and "--trust" in refused.stderr, refused.stderr
    refused = command("train", "--resume", str(trained), "--train.epochs=2")
    assert refused.returncode == 2 and "pipe_command" in refused.stderr, refused.stderr
    assert not witness.exists()
    plant(trained, "pipe_command", "null")
    plant(trained, "copy_to", f"file://{tmp_path}/store")
    refused = command("train", "--resume", str(trained), "--train.epochs=2")
    assert refused.returncode == 2 and "checkpoint.copy_to is" in refused.stderr, refused.stderr
    assert not (tmp_path / "store").exists()
    plant(trained, "pipe_command", f"{sys.executable} {script}")
    # The ranks of a launch inherit the trust.
    done = command("eval", str(trained), "--trust", "--nproc=2")
    assert witness.exists(), done.stderr


def test_ones_own_config_needs_no_trust(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("model: LR\ndata: {clicks: {pipe_command: cat}}\n")
    assert resolve([tmp_path / "own.yaml"]).config.data.clicks.pipe_command == "cat"


def test_readers_of_other_tools_count_as_code(tmp_path: Path) -> None:
    from shoal.runs.run import resolve_run

    (tmp_path / "config.yaml").write_text(
        "runner:\n  train_data_dir: log\n  train_reader_path: my_reader\n"
        "  reader_type: DataLoader\n  train_batch_size: 5\n  epochs: 1\n"
        "  model_save_path: out\n  use_gpu: false\n"
        "hyper_parameters: {optimizer: {class: Adam, learning_rate: 0.001}}\nmodel: LR\n"
    )
    with pytest.raises(ValueError, match="my_reader"):
        resolve_run(tmp_path)
    assert resolve_run(tmp_path, trust=True).config.data.clicks.custom is not None


def test_a_model_of_a_run_folder_is_not_run_without_trust(tmp_path: Path) -> None:
    """Not even for its options, with which a config is read."""
    from shoal.runs.run import resolve_run

    witness, script = tmp_path / "witness", tmp_path / "planted.py"
    script.write_text(
        f"open({str(witness)!r}, 'w')\n"
        "from shoal.models.general.bpr import BPR\nclass M(BPR):\n    pass\n"
    )
    config = tmp_path / "run" / "config.yaml"
    config.parent.mkdir()
    for text in (
        f"model: {{name: '{script}:M'}}\n",
        f"model: '{script}:M'\n",
        f"model.name: '{script}:M'\n",
    ):
        config.write_text(text)
        calls: list[Any] = [
            lambda: resolve_run(config.parent),
            lambda: shoal.evaluate(config.parent),
            lambda: shoal.recommend(config.parent, "1"),
        ]
        for call in calls:
            with pytest.raises(ValueError, match="--trust") as told:
                call()
            assert str(script) in str(told.value)
    (config.parent / "metrics.jsonl").touch()
    with pytest.raises(ValueError, match="--trust"):
        resolve([config])  # to look at it, or to train the same again
    config.write_text("model: this:M\n")  # a module would be imported
    with pytest.raises(ValueError, match="--trust"):
        resolve_run(config.parent)
    assert not witness.exists()
    config.write_text(f"model: '{script}:M'\n")
    assert resolve_run(config.parent, trust=True).config.model.title == "M"
    assert witness.exists()
    # What the user names is the user's own.
    config.write_text("model: that.py:M\n")
    assert resolve_run(config.parent, [f"--model={script}:M"]).config.model.title == "M"
