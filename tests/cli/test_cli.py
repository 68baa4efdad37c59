"""The command line, apart from training on several processes (see tests/cluster)."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import shoal
from shoal.cli import exit
from shoal.cli.arguments import split_arguments
from shoal.cli.main import app, main
from shoal.cli.ranking import typed_items
from shoal.config.keys import KEYS
from shoal.data.ids import Ids
from shoal.models import MODELS, describe, find
from shoal.models.options import meanings

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    "--data.name=synthetic",
    *(
        "--data.synthetic.users=60",
        "--data.synthetic.items=40",
        "--data.synthetic.interactions=1200",
    ),
    *("--train.epochs=1", "--run.progress=false", "--run.trackers=[]"),
]


def call(*words: str | Path) -> str:
    """Output of a command that succeeds."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return re.sub(r"\x1b\[[0-9;]*m", "", result.output)


@pytest.fixture()
def fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Iterator[Any]:
    """Call the whole command, as its entry point does; its status and what it wrote to stderr."""

    def leave(status: int) -> NoReturn:
        raise SystemExit(status)  # instead of ending this process

    def call(*words: str | Path) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["shoal", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            main()
        return int(caught.value.code or 0), capsys.readouterr().err

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr("shoal.cli.exit.leave", leave)
    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    output = call("train", *SMALL, "--output", folder)
    assert f"run: {folder}" in output and "recall@10" in output
    return folder


def test_models() -> None:
    listed = re.findall(r"^  (\S+) +(.*)", call("models"), re.MULTILINE)
    assert [name for name, _ in listed] == list(MODELS)
    assert all(title for _, title in listed)
    assert {"Pop", "BPR", "NeuMF", "LightGCN", "SASRec"} <= set(MODELS)


@pytest.mark.parametrize(
    "words, meant",
    [(("trian",), "train"), (("recomend", "x"), "recommend"), (("config", "shwo"), "show")],
)
def test_typo_in_a_command(words: tuple[str, ...], meant: str) -> None:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 2
    assert f"No such command '{words[-1] if words[0] == 'config' else words[0]}'" in result.output
    assert f"Did you mean '{meant}'" in result.output


def test_config_show_tells_origins(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("train: {epochs: 7}\n")
    output = call("config", "show", tmp_path / "c.yaml", "--train.batch_size=64", "--nproc", "2")
    lines = {line.split("#")[0].strip(): line.partition("#")[2] for line in output.splitlines()}
    assert "c.yaml" in lines["epochs: 7"]
    assert "command line" in lines["batch_size: 64"]
    assert "command line" in lines["nproc: 2"]
    assert "default" in lines["seed: 2020"]


def test_config_keys_by_a_word(fail: Any) -> None:
    lines = call("config", "keys", "Duplicates").splitlines()
    assert lines[0].startswith("data.filter.duplicates: null  # one of") and lines[1].startswith(
        "  "
    )
    assert call("config", "keys", "twice").startswith("data.escape: null  # ")  # of its text
    assert r"such as `\`; null" in call("config", "keys")  # Markdown keeps it
    status, error = fail("config", "keys", "seperator")
    assert status == 2 and "did you mean separator" in error


def test_config_schema_is_json() -> None:
    schema = json.loads(call("config", "schema"))
    assert "train" in schema["properties"]


def test_arguments() -> None:
    words = ["a.yaml", "--config_files=b.yaml c.yaml", "--epochs", "5", "--x=-1", "k=v", "--flag"]
    assert split_arguments(words) == (
        ["a.yaml", "b.yaml", "c.yaml"],
        ["--epochs=5", "--x=-1", "k=v", "--flag"],
    )


def test_recommend(run: Path) -> None:
    output = call("recommend", run, "--user", "5", "--topk", "4")
    rows = re.findall(r"│\s+(\d+)\s+│\s+(\S+)\s+│\s+(-?[\d.]+)\s+│", output)
    expected = shoal.recommend(run, "5", 4)
    assert [(int(n), item) for n, item, _ in rows] == [
        (n, item) for n, (item, _) in enumerate(expected, start=1)
    ]
    assert len(rows) == 4
    output = call("recommend", run, "--user", "nobody", "--topk", "2")
    assert "not known: 'nobody'; these are the most popular items" in output


def test_a_history_of_items_that_hold_commas(tmp_path: Path) -> None:
    titles = ["Science with O'Brien, Part 1", 'The "Best", of All', "Plain", "Other", "More"]
    rows = [(user, title) for user in range(12) for k, title in enumerate(titles) if user % 5 != k]
    table = tmp_path / "views.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("user_id", "item_id"), *rows])
    run = tmp_path / "run"
    call("train", table, "--model=EASE", *SMALL[-3:], "--output", run)
    for typed in (titles[0], titles[1], "Plain, Other", f'"{titles[0]}",Plain'):
        output = call("recommend", run, "--history", typed, "--topk", "2")
        assert "not known" not in output, output
    output = call("recommend", run, "--history", f"{titles[0]},Plain", "--topk", "2")
    assert "not known: \"Science with O'Brien\", 'Part 1'; left out" in output
    assert """an item that holds a comma is quoted: --history '"A, b",C'""" in output
    items = Ids(["[PAD]", *titles])
    assert typed_items(f'Plain, "{titles[0]}"', items) == ["Plain", titles[0]]
    assert typed_items('Plain,"The ""Best"", of All"', items) == ["Plain", titles[1]]
    assert typed_items('"never closed, \n', items) == ["never closed,"]  # no item, no failure


def test_recommend_and_why(run: Path, fail: Any) -> None:
    output = call("recommend", run, "--user", "5", "--topk", "2", "--explain")
    assert "rest" in output and "why: the 3 largest shares of the score, by items" in output
    output = call("recommend", run, "--user", "nobody", "--topk", "2", "--explain")
    assert "most popular" in output and "why" not in output
    status, error = fail("recommend", run, "--all", "--output", "x.csv", "--explain")
    assert status == 2 and "answers --user and --history" in error


def test_a_run_says_how_to_answer_all_users(run: Path, fail: Any) -> None:
    words = ["--all", "--output", "all users.csv", "--topk", "5", "--no-seen"]
    status, error = fail("recommend", run, *words)
    assert status == 2
    assert re.findall("`(.*?)`", error) == [
        f"shoal export {run} --to exported/run",
        "shoal recommend exported/run --all --output 'all users.csv' --topk 5 --no-seen",
    ]


def test_a_run_of_an_own_model_asks_for_trust(tmp_path: Path, fail: Any) -> None:
    """The advice fits a command that takes no keys."""
    call("new", "model", "Taste", "--to", tmp_path)
    run = tmp_path / "run"
    call("train", *SMALL, f"--model={tmp_path}/taste.py:Taste", "--output", run)
    status, error = fail("recommend", run, "--user", "5")
    assert status == 2 and "add --trust" in error
    assert "Commands that take keys, such as train and eval" in error
    assert "for user 5" in call("recommend", run, "--user", "5", "--trust")


def test_eval_prints_the_table(run: Path, tmp_path: Path) -> None:
    output = call("eval", run, "--output", tmp_path / "out")
    assert "best valid" in output and "recall@10" in output
    written = json.loads((tmp_path / "out" / "result.json").read_text())
    assert written["test"] == json.loads((run / "result.json").read_text())["test"]


def test_errors_are_one_line_and_status_2(run: Path, tmp_path: Path, fail: Any) -> None:
    (tmp_path / "file").touch()
    cases = [
        (("recommend", run, "--user", "5", "--only", "f"), "is a run, which answers --user and"),
        (("recommend", run, "--user", "5", "--topk", "0"), "topk is 0"),
        (("train", *SMALL, "--output", run), "already holds a run; continue it with --resume"),
        (("train", *SMALL, "--output", tmp_path / "file"), "cannot write the run's folder"),
        (("train", *SMALL, "--output", "/proc/shoal"), "cannot write the run's folder"),
        (("eval", tmp_path), "is not a run's folder"),
        (("eval", run, "--output", tmp_path / "file"), "cannot write the run's folder"),
        (("train", "--resume", tmp_path), "is not a run's folder"),
        (("train", "--resume", "/nowhere"), "/nowhere is not a run's folder"),
        (("launch", "--resume", tmp_path), "is not a run's folder"),
        (("launch", "--strategy.name=ddp"), "strategy.name is ddp (command line"),
        (("train", "--trian.epochs=1"), "did you mean train.epochs"),
        (("train", "nowhere.yaml"), "nowhere.yaml"),
    ]
    for words, said in cases:
        status, text = fail(*words)
        assert status == 2 and said in text
        assert len(text.splitlines()) == 1 and text.startswith("error: "), text


def test_a_fault_of_ours_shows_where(fail: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("shoal.cli.training.run_arguments", broken)
    status, text = fail("train")
    assert status == 1 and "Traceback" in text and "in broken" in text


@pytest.mark.parametrize(
    "words, said",
    [
        (["train", "--resume", *SMALL], "needs the run's folder"),
        (["launch", "--resume", *SMALL], "needs the run's folder"),
        (["train", "-m"], "-m needs a value: -m CONFIG.yaml"),
        (["train", *SMALL, "-o"], "-o needs a value: -o key=value"),
    ],
)
def test_commands_that_lack_something(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2 and said in result.output


def test_a_run_that_is_refused_stays_as_it_was(run: Path, fail: Any) -> None:
    """It can still be evaluated, resumed and asked."""
    before = (run / "config.yaml").read_text()
    for word in ("--run.seed=3", "--train.batch_size=14", "--data.synthetic.users=61"):
        status, text = fail("train", "--resume", run, word)
        assert status == 2 and "belong to another run" in text
    status, text = fail("train", "--resume", run, "--data.name=nope")
    assert status == 2 and "nope" in text
    assert (run / "config.yaml").read_text() == before
    call("train", "--resume", run, "--train.epochs=1", "--run.loss_decimals=6")
    assert "loss_decimals: 6" in (run / "config.yaml").read_text()


# ---- runs, and how they ended --------------------------------------------------------------------


def test_runs_are_listed_whole_for_people_and_for_programs(run: Path, tmp_path: Path) -> None:
    name = "a-name-that-is-as-long-as-those-of-the-tables-of-eighty-columns-are-wide-and-longer"
    shutil.copytree(run, tmp_path / name)
    assert name in call("runs", tmp_path)
    (found,) = json.loads(call("runs", tmp_path, "--json"))
    written = json.loads((run / "result.json").read_text())
    assert found["folder"] == str(tmp_path / name) and found["test"] == written["test"]["mrr@10"]
    assert (found["model"], found["epochs"], found["state"]) == ("BPR", 1, "finished")


def test_runs_of_a_sweep_are_found(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "sweep" / "runs" / "BPR-synthetic-1")
    folder = tmp_path / "sweep"
    assert call("runs", folder).splitlines() == [
        f"{folder} holds no runs; these folders in it hold some: {folder}/runs"
    ]
    assert json.loads(call("runs", folder, "--json")) == []
    assert "BPR-synthetic-1" in call("runs", folder / "runs")


def test_a_run_that_fails_keeps_why(fail: Any, tmp_path: Path) -> None:
    """One process, and one that a launcher started; a second attempt that goes well ends it."""
    wrong = ["--train.optimizer.lr=1e38", "--train.batch_size=50"]
    for name, more in (("alone", []), ("launched", ["--launch.max_restarts=1"])):
        folder = tmp_path / name
        status, text = fail("train", *SMALL, *wrong, *more, "--output", folder)
        assert status == 2 and "the loss became NaN" in text
        (found,) = json.loads(call("runs", folder, "--json"))
        assert found["state"] == "failed" and found["reason"] in text, found
        assert "became NaN" in found["reason"]
        assert f"why: {found['reason']}\n" in call("runs", folder)  # whole, for one run
    head, _, *rows = [line for line in call("runs", tmp_path).splitlines() if line.strip()]
    place = head.index("state")
    assert [row[place:].split()[0] for row in rows] == ["failed", "failed"]
    assert head.split()[-1] == "why" and all(row.rstrip().endswith("…") for row in rows)
    right = "--train.optimizer.lr=0.001"
    call("train", *SMALL, right, "--output", tmp_path / "alone", "--resume")
    state = [("finished", None)]
    found = json.loads(call("runs", tmp_path / "alone", "--json"))
    assert [(one["state"], one["reason"]) for one in found] == state
    assert fail("train", "--resume", tmp_path / "alone", "--run.seed=3")[0] == 2  # refused
    found = json.loads(call("runs", tmp_path / "alone", "--json"))
    assert [(one["state"], one["reason"]) for one in found] == state


def test_a_run_that_is_stopped_and_one_that_is_under_way(tmp_path: Path) -> None:
    from shoal.training.run_folder import RunFolder

    def state() -> tuple[str, str | None]:
        (found,) = json.loads(call("runs", tmp_path, "--json"))
        return found["state"], found["reason"]

    folder = RunFolder(tmp_path)
    with pytest.raises(shoal.Interrupted), folder.locked(), folder.recording_failure():
        folder.write_config("model: BPR\n")
        assert state() == ("running", None)
        raise shoal.Interrupted(signal.SIGTERM)
    assert state() == ("stopped", "stopped by SIGTERM")
    folder.write_config("model: BPR\n")  # it resumes, and is killed: nothing could be recorded
    assert state() == ("not finished", None)


# ---- every option has a meaning ------------------------------------------------------------------


def options_of(command: Any, name: str = "shoal") -> Iterator[tuple[str, Any]]:
    for option in command.params:
        yield f"{name} {option.name}", option
    for word, one in getattr(command, "commands", {}).items():
        yield from options_of(one, f"{name} {word}")


def test_every_option_of_every_command_has_a_meaning() -> None:
    helps = {name: option.help for name, option in options_of(get_command(app))}
    assert len(helps) > 60 and [name for name, text in helps.items() if not text] == []


def test_every_key_of_a_config_has_a_meaning() -> None:
    assert [key for key, leaf in KEYS.items() if not leaf.description] == []


@pytest.mark.parametrize("name", MODELS)
def test_every_option_of_a_model_has_a_meaning(name: str) -> None:
    """In `shoal models NAME`, and on the page of models."""
    found = meanings(find(name).Options)
    assert [option for option, text in found.items() if not text] == []
    lines = list(describe(name))
    for option, text in found.items():
        place = next(k for k, one in enumerate(lines) if one.startswith(f"  model.{option}: "))
        assert lines[place + 1].strip() == text


def test_the_page_of_models_leaves_no_option_without_a_meaning() -> None:
    page = (ROOT / "docs" / "reference" / "every_model.md").read_text().splitlines()
    rows = [line.split(" | ") for line in page if re.match(r"\| [^|]*\| `\w", line)]
    assert len(rows) > 300 and [row for row in rows if not row[-1].strip(" |")] == []


def test_the_package_is_the_command() -> None:
    command = [sys.executable, "-m", "shoal", "--version"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    first, *others = found.stdout.splitlines()
    assert first == f"shoal {shoal.__version__}"
    assert [line.split(" ")[0] for line in others] == ["core", "python", "torch"]


def test_a_run_without_a_named_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    output = call("train", *SMALL)
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"run: runs/{folder.name}" in output
    assert folder.name.startswith("BPR-synthetic-") and (folder / "result.json").is_file()


def test_resume_in_all_its_spellings(run: Path) -> None:
    expected = json.loads((run / "result.json").read_text())["test"]
    for words in (["--resume", run], ["--resume", "--output", run], [*SMALL, "--output", run]):
        call("train", *words, *([] if "--resume" in words else ["--resume"]))
        assert json.loads((run / "result.json").read_text())["test"] == expected


def test_ranks_that_start_say_nothing_of_ctrl_c() -> None:
    """Their launcher does, once for all; imports take seconds on a busy machine."""
    code = "import shoal, time; print('here', flush=True); time.sleep(60)"
    rank = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "SHOAL_LAUNCHER": str(os.getpid()), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert rank.stdout is not None and rank.stdout.readline() == "here\n"
    rank.send_signal(signal.SIGINT)
    assert rank.communicate(timeout=60) == ("", "") and rank.returncode == 130


def test_ctrl_c_while_a_command_imports() -> None:
    """Nothing is raised: native code that is importing would abort."""
    code = (
        "import signal, time; from shoal.cli import exit, startup\n"
        "signal.signal(signal.SIGINT, exit.stop)\n"
        "try:\n"
        "    with startup.importing():\n"
        "        print('here', flush=True)\n"
        "        time.sleep(60)\n"
        "except BaseException as error:\n"
        "    print('raised', error, flush=True)\n"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert command.stdout is not None and command.stdout.readline() == "here\n"
    command.send_signal(signal.SIGINT)
    output, errors = command.communicate(timeout=60)
    assert output == "" and errors.startswith("stopped by SIGINT") and command.returncode == 130


def test_data_fetch_knows_its_archives() -> None:
    """tests/data/test_fetch.py fetches them."""
    with pytest.raises(ValueError, match="ml-10k"):
        call("data", "fetch", "ml-10k")


def test_a_signal_in_the_midst_of_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is imported in part is not used."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(exit, "raised", [])
    monkeypatch.setitem(
        sys.modules, "shoal.distributed.stop_signals", ModuleType("as it is at first")
    )
    try:
        with pytest.raises(shoal.Interrupted, match="SIGTERM") as caught:
            exit.stop(signal.SIGTERM, None)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert exit.raised == [caught.value]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_when_all_is_done_changes_nothing(number: signal.Signals) -> None:
    program = (
        "import atexit, os, sys\n"
        f"atexit.register(os.kill, os.getpid(), {int(number)})\n"
        "from shoal.__main__ import main\n"
        "sys.argv = ['shoal', 'config', 'keys']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert "train.epochs" in done.stdout


def test_a_signal_that_python_drops_comes_again() -> None:
    """What is raised while an object is destroyed is dropped, with a line about it."""
    program = (
        "import os, sys, time\n"
        "from shoal.cli import main as cli\n"
        "class Held:\n"
        "    def __del__(self):\n"
        f"        os.kill(os.getpid(), {int(signal.SIGINT)})\n"
        "@cli.app.command('held')\n"
        "def held():\n"
        "    Held()\n"
        "    time.sleep(60)\n"
        "sys.argv = ['shoal', 'held']\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 130 and done.stderr.startswith("stopped by SIGINT"), done.stderr


def test_the_old_name_of_a_command_still_works_and_a_line_names_the_new_one(fail: Any) -> None:
    for words in (("server",), ("ps", "server")):
        status, error = fail(*words, "--keys", "no-such-folder")
        lines = error.splitlines()
        assert status == 2 and "cannot read the key no-such-folder" in lines[-1]
        renamed = "shoal server is now shoal ps server; the old name works until the next release"
        assert lines[:-1] == ([renamed] if words == ("server",) else [])
