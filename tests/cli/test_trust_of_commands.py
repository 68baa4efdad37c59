"""Every command that takes a folder, and every key that needs trust: nothing of it is used without.

A folder of a run or of a search may be somebody else's. A new command, or a new parameter of one,
must join PARAMETERS, and a parameter that brings a config a line of CALLS.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from shoal.cli import main as cli
from shoal.config.trust import RUNS, WRITES
from shoal.training.run_folder import start_logging

# What a parameter of a command that holds any text names. CONFIG: words without an option.
RUN, STUDY, CONFIG_FILE = "a run's folder", "a search's folder", "configs, and their data"
WRITTEN = "a folder or file of the user's own to write, see test_linked_folders.py"
READ = "a file or folder that is read, and holds no config"
NOTHING = "no place"
PARAMETERS: dict[str, dict[str, str]] = {
    "artifact add-items": {
        **{"artifact": READ, "file": READ, "to": WRITTEN, "ids": READ, "column": NOTHING},
    },
    "arena": {"file": READ, "launch": NOTHING, "output": STUDY},
    "backtest": {"CONFIG": CONFIG_FILE, "at": NOTHING, "output": WRITTEN},
    "board": {
        **{"root": READ, "host": NOTHING, "token_file": READ, "tls_cert": READ, "tls_key": READ},
        "announce": WRITTEN,
    },
    "checkpoint copy": {"run": READ, "to": WRITTEN},
    "checkpoint prune": {"run": READ},
    "checkpoint verify": {"run": READ},
    "codes append": {
        **{"codes": READ, "vectors": READ, "to": WRITTEN, "ids": READ, "column": NOTHING},
        "item": NOTHING,
    },
    "codes check": {"CONFIG": CONFIG_FILE, "file": READ},
    "codes make": {
        **{"CONFIG": RUN, "to": WRITTEN, "of": NOTHING, "ids": READ, "column": NOTHING},
    },
    "config keys": {"word": NOTHING},
    "config schema": {},
    "config show": {"CONFIG": CONFIG_FILE},
    "data describe": {"CONFIG": CONFIG_FILE, "write": WRITTEN, "html": WRITTEN},
    "data fetch": {"name": NOTHING, "to": WRITTEN},
    "data make": {"CONFIG": CONFIG_FILE, "to": WRITTEN},
    "doctor": {},
    "eval": {"CONFIG": NOTHING, "run": RUN, "output": WRITTEN, "per_user": WRITTEN},
    "export": {"run": RUN, "to": WRITTEN, "delta": READ},
    "import recbole": {"path": READ, "to": WRITTEN, "config": READ},
    "keys make": {"folder": WRITTEN},
    "launch": {
        **{"CONFIG": CONFIG_FILE, "workers": NOTHING, "servers": NOTHING, "role": NOTHING},
        "output": RUN,
    },
    "models": {"name": "a model of the user's own"},
    "new model": {"name": NOTHING, "to": WRITTEN},
    "pipeline check": {"file": READ},
    "pipeline eval": {
        **{"file": READ, "test": READ, "user": NOTHING, "item": NOTHING, "label": NOTHING},
        **{"output": WRITTEN},
    },
    "pipeline estimate": {"file": READ, "log": READ, "outcomes": READ, "output": WRITTEN},
    "pipeline export": {"file": READ, "output": WRITTEN},
    "pipeline impressions": {"log": READ, "outcomes": READ, "output": WRITTEN},
    "pipeline recommend": {
        **{"file": READ, "user": NOTHING, "history": NOTHING, "users": READ, "input": READ},
        **{"output": WRITTEN, "context": NOTHING},
    },
    "pipeline serve": {
        **{"file": READ, "host": NOTHING, "token_file": READ, "tls_cert": READ, "tls_key": READ},
        **{"announce": WRITTEN, "log": WRITTEN},
    },
    "plan": {
        **{"CONFIG": CONFIG_FILE, "compare": RUN, "cluster": READ, "target": NOTHING},
        **{"launch": NOTHING, "output": WRITTEN},
    },
    "predict": {"artifact": READ, "input": READ, "output": WRITTEN},
    "prepare": {
        **{"CONFIG": CONFIG_FILE, "to": WRITTEN, "memory": NOTHING, "engine": NOTHING},
        "ray_address": NOTHING,
    },
    "quickstart": {
        **{"file": READ, "to": WRITTEN},
        **dict.fromkeys(("user", "item", "time", "rating", "label", "feature"), NOTHING),
    },
    "recommend": {
        **{"run": RUN, "user": NOTHING, "history": NOTHING, "users": READ, "output": WRITTEN},
        **{"exclude": READ, "only": READ, "category": READ},
    },
    "report": {"runs": READ, "output": WRITTEN},
    "runs": {"root": READ},
    "serve": {
        **{"artifact": READ, "host": NOTHING, "token_file": READ, "tls_cert": READ},
        **{"tls_key": READ, "announce": WRITTEN, "items": WRITTEN, "items_token_file": READ},
    },
    "ps server": {
        **{"bind": NOTHING, "keys": READ, "announce": WRITTEN, "folder": WRITTEN, "log": NOTHING},
        **{"log_level": NOTHING, "tiers_host": NOTHING, "tiers_ssd": WRITTEN},
    },
    "sweep": {
        **{"CONFIG": CONFIG_FILE, "models": CONFIG_FILE, "data": READ, "seeds": NOTHING},
        **{"grid": READ, "launch": NOTHING, "output": STUDY},
    },
    "train": {
        **{"CONFIG": CONFIG_FILE, "output": RUN, "start": RUN, "data": READ, "join": RUN},
        **{"ray": NOTHING, "follow": READ, "export": WRITTEN, "every": NOTHING},
    },
    "tune": {
        **{"CONFIG": CONFIG_FILE, "space": CONFIG_FILE, "sampler": NOTHING, "prune": NOTHING},
        **{"launch": NOTHING, "output": STUDY},
    },
}

FOLDER, FILE = "FOLDER", "FOLDER/config.yaml"
# (command, parameter) -> its words. FOLDER is the planted one; OUT is a place that is not there.
CALLS: dict[tuple[str, str], tuple[str, ...]] = {
    ("backtest", "CONFIG"): ("backtest", FILE, "--output", "OUT"),
    ("codes check", "CONFIG"): ("codes", "check", "CODES", FILE),
    ("codes make", "CONFIG"): ("codes", "make", FOLDER, "--to", "OUT"),
    ("config show", "CONFIG"): ("config", "show", FILE),
    ("data describe", "CONFIG"): ("data", "describe", FILE),
    ("data make", "CONFIG"): ("data", "make", FILE, "--to", "OUT"),
    ("eval", "run"): ("eval", FOLDER),
    ("export", "run"): ("export", FOLDER, "--to", "OUT"),
    ("launch", "CONFIG"): ("launch", FILE, "--worker_num=1", "--server_num=1"),
    ("launch", "output"): ("launch", "--resume", FOLDER, "--worker_num=1", "--server_num=1"),
    ("plan", "CONFIG"): ("plan", FILE),
    ("plan", "compare"): ("plan", "--compare", FOLDER),
    ("prepare", "CONFIG"): ("prepare", "DATA", FILE, "--to", "OUT"),
    ("recommend", "run"): ("recommend", FOLDER, "--user", "1"),
    ("sweep", "CONFIG"): ("sweep", FILE, "--output", "OUT"),
    ("sweep", "models"): ("sweep", "--models", FILE, "--output", "OUT"),
    ("train", "CONFIG"): ("train", FILE, "--output", "OUT"),
    ("train", "output"): ("train", "--resume", FOLDER),
    ("train", "start"): ("train", "--from", FOLDER, "--data", "DATA", "--output", "OUT"),
    ("train", "join"): ("train", "--join", FOLDER),
    ("tune", "CONFIG"): ("tune", FILE, "--output", "OUT"),
}
MORE_CALLS: list[tuple[str, ...]] = [
    ("codes", "make", FILE, "--to", "OUT"),
    ("launch", "--resume", "--output", FOLDER),
    ("train", "--resume", "--output", FOLDER),
    ("train", "--from", FOLDER, "--follow", "DAYS", "--once", "--output", "OUT"),
]
# Where these are tested: in tests/runs/test_tuning_trust.py, a folder of a search at a time.
OF_SEARCHES = {("tune", "output"), ("tune", "space"), ("sweep", "output"), ("arena", "output")}
EVERY_CALL = sorted({*CALLS.values(), *MORE_CALLS})
# Commands that use a trained model neither follow it nor write where its config says.
USES = ("eval", "export", "recommend", "codes", "plan")

WITNESS = "open({witness!r}, 'w').close()\n"
MODEL = WITNESS + "from shoal.models.general.bpr import BPR\nclass Planted(BPR):\n    pass\n"
METRIC = WITNESS + (
    "from shoal.training.metrics.definitions import Recall\nclass Planted(Recall):\n    pass\n"
)
TRACKER = WITNESS + (
    "class Planted:\n"
    "    def begin(self, config, folder): pass\n"
    "    def epoch(self, line): pass\n"
    "    def end(self, result): pass\n"
)
# Key -> its value, and the file that it names.
CODE: dict[str, tuple[str, str]] = {
    "model.name": ("CODE:Planted", MODEL),
    "eval.metrics": ("[MRR, 'CODE:Planted']", METRIC),
    "run.plugins": ("[CODE]", WITNESS),
    "run.trackers": ("['CODE:Planted']", TRACKER),
    "data.clicks.pipe_command": ("python3 CODE", WITNESS),
    "data.clicks.custom": ("CODE", WITNESS),
    "data.encode": ("{title: {encoder: 'CODE:planted'}}", WITNESS),
}
PLACES = {
    "checkpoint.copy_to": "file://OUT",
    "rows.tiers.ssd": "OUT",
    "strategy.ps.addresses": "['ipc://OUT/socket']",
}
# These commands name the folder of the run themselves; see tests/config/test_trust.py.
NAMED_BY_COMMANDS = {"run.output", "run.root"}


def commands() -> dict[str, Any]:
    """Every command by its words, as typer knows it."""

    def walk(prefix: str, app: typer.Typer) -> Iterator[tuple[str, Any]]:
        for command in app.registered_commands:
            yield f"{prefix}{command.name}", command
        for group in app.registered_groups:
            yield from walk(f"{prefix}{group.name} ", cast(typer.Typer, group.typer_instance))

    return dict(walk("", cli.app))


def texts(command: Any) -> set[str]:
    """Its parameters that hold any text; CONFIG where it takes further words."""
    words = {"CONFIG"} if (command.context_settings or {}).get("allow_extra_args") else set()
    kinds = get_type_hints(command.callback)
    return words | {name for name, kind in kinds.items() if holds_text(kind)}


def holds_text(kind: Any) -> bool:
    """Whether a type is one of text or paths, or of several."""
    if get_origin(kind) is Literal:
        return False
    return kind in (str, Path) or any(map(holds_text, get_args(kind)))


def test_every_parameter_that_may_name_a_place_is_listed() -> None:
    found = {name: texts(command) for name, command in commands().items()}
    assert found == {name: set(parameters) for name, parameters in PARAMETERS.items()}


def test_every_parameter_that_brings_a_config_is_called() -> None:
    brings = (RUN, STUDY, CONFIG_FILE)
    wanted = {
        (name, parameter)
        for name, parameters in PARAMETERS.items()
        for parameter, what in parameters.items()
        if what in brings
    }
    assert wanted == {*CALLS, *OF_SEARCHES}
    trusting = {name for name, _ in wanted}
    commands_ = commands()
    without = [n for n in trusting if "trust" not in get_type_hints(commands_[n].callback)]
    assert not without, f"{without}: without --trust nobody can agree"


def test_every_key_that_needs_trust_is_planted() -> None:
    assert {*CODE} == {*RUNS, "model.name", "eval.metrics", "run.plugins"}
    assert {*PLACES, *NAMED_BY_COMMANDS} == {*WRITES}


class Planted:
    """A run's folder as its author made it: a config that names code, or a place to write to."""

    def __init__(self, root: Path, key: str):
        self.root, self.key = root, key
        self.folder, self.witness, self.out = root / "run", root / "witness", root / "OUT"
        self.folder.mkdir()
        (root / "days").mkdir()
        (self.folder / "metrics.jsonl").touch()
        (root / "data.csv").write_text("user,item\n1,2\n")
        (root / "codes.json").write_text('{"1": [0, 1], "2": [0, 2]}\n')
        value, text = CODE[key] if key in CODE else (PLACES[key], "")
        code = root / "planted.py"
        code.write_text(text.format(witness=str(self.witness)))
        clicks = "pipe" in key or "custom" in key
        # Data that is not there: a command that goes on ends soon.
        lines = [] if key == "model.name" else [f"model.name: {'LR' if clicks else 'BPR'}"]
        lines += [f"data.path: {root}/nothing"]
        lines += ["data.clicks.reader: custom"] * ("custom" in key)
        lines += ["rows.tiers.host: 1GB"] * ("ssd" in key)
        lines += ["strategy.name: ps", "launch.servers: 1"] * ("addresses" in key)
        lines += [f"{key}: {value.replace('CODE', str(code)).replace('OUT', str(self.out))}"]
        (self.folder / "config.yaml").write_text("\n".join(lines) + "\n")

    def words(self, words: tuple[str, ...]) -> list[str]:
        names = {
            "FOLDER": str(self.folder),
            "OUT": str(self.out),
            "DATA": str(self.root / "data.csv"),
            "CODES": str(self.root / "codes.json"),
            "DAYS": str(self.root / "days"),
        }
        made = []
        for word in words:
            for name, place in names.items():
                word = place if word == name else word.replace(f"{name}/", f"{place}/")
            made.append(word)
        return made


@pytest.fixture
def invoke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[int, str]]]:
    """Call a command in this process: its status, and what it says."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(cli.app, words)
        return result.exit_code, f"{result.output}\n{result.exception}"

    yield call
    start_logging("info")


def is_used(call: tuple[str, ...], key: str) -> bool:
    """Whether a command would use what a key of code names."""
    named_as_file = FOLDER not in call
    if key in ("model.name", "eval.metrics", "run.plugins"):
        return True  # a config cannot be read without
    if key == "run.trackers" and not named_as_file:
        return call[0] not in USES
    return True


@pytest.mark.parametrize("key", CODE)
def test_no_command_runs_planted_code(tmp_path: Path, invoke: Any, key: str) -> None:
    planted = Planted(tmp_path, key)
    for call in EVERY_CALL:
        status, said = invoke(*planted.words(call))
        assert not planted.witness.exists(), call
        assert status != 0, call
        if is_used(call, key):
            assert key in said and "--trust" in said, (call, said)


@pytest.mark.parametrize("key", PLACES)
def test_no_command_writes_to_a_planted_place(tmp_path: Path, invoke: Any, key: str) -> None:
    planted = Planted(tmp_path, key)
    for call in EVERY_CALL:
        named_as_file = FOLDER not in call  # the user's word, for a place
        chooses_servers = call[0] == "launch" or "--join" in call
        if named_as_file or call[0] in USES or ("addresses" in key and chooses_servers):
            continue
        status, said = invoke(*planted.words(call))
        assert status != 0 and key in said and "--trust" in said, (call, said)
        assert not planted.out.exists(), call


@pytest.mark.parametrize("key", CODE)
def test_with_trust_a_config_is_read(tmp_path: Path, invoke: Any, key: str) -> None:
    planted = Planted(tmp_path, key)
    status, said = invoke("config", "show", f"{planted.folder}/config.yaml", "--trust")
    assert status == 0 and "planted.py" in said, said
    if key in ("model.name", "eval.metrics", "run.plugins"):
        assert planted.witness.exists()


@pytest.mark.slow
@pytest.mark.parametrize("call", EVERY_CALL, ids=" ".join)
def test_with_trust_every_command_goes_on(
    tmp_path: Path, invoke: Any, call: tuple[str, ...]
) -> None:
    """It runs the model's file, and ends where the data is not there."""
    planted = Planted(tmp_path, "model.name")
    _, said = invoke(*planted.words(call), "--trust")
    assert planted.witness.exists() and "add --trust" not in said, said
