"""What docs/understand/architecture.md promises: things from outside the package, registered by
a plugin, are chosen by a config and used in real runs of the command, on one process and on two.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.config import ConfigError
from shoal.experiments.report import run_page
from shoal.experiments.report.figures import curve
from shoal.pages.html import Html, section
from shoal.runs.run import resolve
from shoal.runs.run_record import RunRecord
from shoal.training import metrics
from tests.helpers.commands import finish

PLUGIN = '''
from pathlib import Path

import numpy as np

from shoal.config import dialect
from shoal.data import sources
from shoal.data.raw_columns import Raw, RawColumn, RawTable
from shoal.models.general.neumf import NeuMF
from shoal.optimizers.dense import dense_optimizer
from shoal.optimizers.registry import row_optimizer
from shoal.training import metrics
from shoal.training import strategies as strategy
from shoal.training.strategies.base import Single

HERE = Path(__file__).parent
ROWS = {"n_epochs": dialect.same("n_epochs", "train.epochs")}


def note(thing):
    with open(HERE / "used.txt", "a") as file:
        print(thing, file=file)


class Ours(dialect.Dialect):
    tool = "Ours"

    def knows(self, key, source):
        return key in ROWS

    def row(self, name):
        return ROWS[name]


class Mine(NeuMF):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        note("model")


class Recall(metrics.PerUser):
    """The name of a class may be one of the package's: states are not mixed up."""

    def value(self, ranking):
        return ranking.hits_at / ranking.num_positives / 2


class Counting(Single):
    name = "counting"

    def update(self, sums, lr):
        note("strategy")
        return super().update(sums, lr)


class Letters(sources.Source):
    name = "letters"

    def matches(self, config):
        return (config.folder / "letters.txt").exists()

    def read(self, config):
        pairs = np.array([line.split() for line in open(config.folder / "letters.txt")], object)
        rows = np.arange(len(pairs))
        columns = {"user_id": RawColumn(rows, pairs[:, 0]), "item_id": RawColumn(rows, pairs[:, 1])}
        return Raw(RawTable("letters", dict.fromkeys(columns, "token"), columns))


class Followed:
    def begin(self, config, folder): pass

    def epoch(self, line): note("tracker")

    def end(self, result): pass


@row_optimizer("sign_rows", {})
def sign_rows(o, now, values, state, grads):
    note("row optimizer")
    values.sub_(now.size * grads.sign())


@dense_optimizer("sign_dense", kept=("average",))
def sign_dense(parameters, grads, state, lr, weight_decay):
    note("dense optimizer")
    for parameter, grad, average in zip(parameters, grads, state["average"]):
        average.lerp_(grad, 0.1)
        parameter.sub_(lr * average.sign())


dialect.register("ours", Ours)
metrics.register("HalfRecall", Recall)
sources.register(Letters())
strategy.register_strategy("counting", lambda section, world, timeout: Counting(world))
'''
SMALL = [
    "--model=BPR",
    "--data.name=synthetic",
    "--data.synthetic.users=60",
    "--data.synthetic.items=40",
    "--data.synthetic.interactions=1000",
    "--model.embedding_size=8",
    "--train.batch_size=64",
    "--eval.topk=[5]",
    "--run.progress=false",
    "--run.trackers=[]",
]


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    (tmp_path / "ours.py").write_text(PLUGIN)
    return tmp_path / "ours.py"


def train(folder: Path, name: str, *words: str) -> dict[str, Any]:
    """`shoal train`, in a process that has never heard of the plugin; what the run found."""
    command = [sys.executable, "-m", "shoal", "train", *SMALL, *words, f"--run.output={name}"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / name / "result.json").read_text())


def test_a_plugin_adds_eight_things_to_one_run(plugin: Path) -> None:
    folder = plugin.parent
    draw = random.Random(1)
    pairs = sorted({(user, int(40 * draw.random() ** 2)) for user in range(60) for _ in range(15)})
    (folder / "letters.txt").write_text("".join(f"u{user} i{item}\n" for user, item in pairs))
    command = [
        "train",
        "--run.plugins=ours.py",
        "--model=ours.py:Mine",
        "--data.path=.",
        "--data.format=letters",
        "--n_epochs=2",
        "--train.batch_size=64",
        "--train.optimizer.lr=0.01",
        "--train.optimizer.name=sign_dense",
        "--train.optimizer.rows.name=sign_rows",
        "--strategy.name=counting",
        "--eval.topk=[5]",
        "--eval.metrics=[Recall, halfrecall]",
        "--eval.valid_metric=HalfRecall@5",
        "--run.trackers=[ours.py:Followed]",
        "--run.progress=false",
        "--run.output=run",
    ]
    finish(*command, cwd=folder)
    test = json.loads((folder / "run" / "result.json").read_text())["test"]
    assert set(test) == {"recall@5", "halfrecall@5"}
    assert test["recall@5"] > 0.0
    assert test["halfrecall@5"] == pytest.approx(test["recall@5"] / 2)
    used = (folder / "used.txt").read_text().splitlines()
    assert set(used) == {"model", "strategy", "tracker", "row optimizer", "dense optimizer"}
    assert used.count("tracker") == 2  # an epoch each
    assert used.count("strategy") == used.count("dense optimizer") > 2
    config = (folder / "run" / "config.yaml").read_text()
    assert "epochs: 2" in config and "format: letters" in config and str(plugin) in config


def test_a_command_is_added_by_its_line(tmp_path: Path) -> None:
    """The line of main.py, for a function of a file of its own."""
    program = (
        "import typer\n"
        "from shoal.cli import main\n"
        "def count(words: list[str]) -> None:\n"
        "    typer.echo(f'{len(words)} words')\n"
        "main.app.command('count')(count)\n"
        "main.app(['count', 'a', 'b'])\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "2 words\n"), done.stderr


def test_a_plot_is_added_by_its_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds_by_epoch(record: RunRecord) -> Html:
        points = [(line.epoch, line.seconds[0] or 0.0) for line in record.epochs]
        return section("Pace", "", curve(points, "seconds", None))

    shoal.run("BPR", config_dict={**KEYS, "run.output": str(tmp_path / "run")})
    before = shoal.report(tmp_path / "run").read_text()
    monkeypatch.setattr(run_page, "SECTIONS", [*run_page.SECTIONS, seconds_by_epoch])
    page = shoal.report(tmp_path / "run").read_text()
    assert "Pace" in page and page.count("<svg") == before.count("<svg") + 1


CONTRIBUTING = Path(__file__).parents[1] / "CONTRIBUTING.md"
THINGS = ["model", "metric", "row optimizer", "dense optimizer", "strategy", "source"]
THINGS += ["public data set", "dialect", "command", "tracker", "plot"]


def rows_of_contributing() -> dict[str, list[str]]:
    """Thing -> its cells in the table "To add a thing"."""
    text = CONTRIBUTING.read_text().partition("## To add a thing")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return {row[0].strip(): row[1:] for row in rows[2:]}


def test_contributing_says_how_each_thing_is_added() -> None:
    assert list(rows_of_contributing()) == THINGS


@pytest.mark.parametrize("thing", THINGS)
def test_files_and_names_of_contributing_are_there(thing: str) -> None:
    """`PATH` is there, and `NAME` behind it, as in `shoal/__init__.py`: `DIALECTS`, is in it."""
    for cell in rows_of_contributing()[thing]:
        file = None
        for word in re.findall(r"`([^`]+)`", cell):
            if "/" in word:
                path = CONTRIBUTING.parent / word
                assert path.exists(), word
                file = path if path.is_file() else None
            elif file is not None:
                assert re.search(rf"\b{re.escape(word.strip('@'))}\b", file.read_text()), word


@pytest.mark.slow
def test_a_metric_from_outside_does_not_depend_on_the_number_of_processes(plugin: Path) -> None:
    words = ["--run.plugins=ours.py", "--n_epochs=1", "--eval.metrics=[HalfRecall]"]
    words.append("--eval.valid_metric=HalfRecall@5")
    one = train(plugin.parent, "one", *words)
    two = train(plugin.parent, "two", *words, "--nproc=2")
    assert two["test"] == pytest.approx(one["test"], abs=1e-9)


def test_a_run_folder_runs_no_plugin_without_trust(plugin: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran.txt"
    plugin.write_text(f"open({str(mark)!r}, 'w').close()\n")
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(
        f"model: BPR\ndata.name: synthetic\nrun:\n  plugins: [{plugin}]\n"
    )
    with pytest.raises(ConfigError, match=r"run.plugins is .*ours.py, which would be run.*--trust"):
        resolve([run / "config.yaml"], folder=run)
    assert not mark.exists()
    resolve([run / "config.yaml"], folder=run, trust=True)
    assert mark.exists()


def test_a_plugin_that_fails_is_named_with_its_line(plugin: Path) -> None:
    plugin.write_text("x = 1\nraise KeyError('lost')\n")
    with pytest.raises(ConfigError, match=r"ours.py cannot be loaded: line 2: KeyError: 'lost'"):
        resolve([], [f"--run.plugins=[{plugin}]"])
    with pytest.raises(ConfigError, match=r"cannot read .*gone.py: No such file"):
        resolve([], ["--run.plugins=gone.py"])


def test_an_own_metric_that_is_not_registered_is_unknown() -> None:
    with pytest.raises(ConfigError, match="there is no metric HalfRecall"):
        resolve([], ["--eval.metrics=[HalfRecall]", "--data.name=synthetic"])


OWN = """
from shoal.training.metrics import Metric, PerUser


class HalfHit(PerUser):
    def value(self, ranking):
        return (ranking.hits_at > 0) / 2


class Users(Metric):
    needs = "ranked"

    def measure(self, block):
        return {}

    def compute(self, state):
        return state["users"]


class Recall(PerUser):
    pass


class NoMetric:
    pass
"""


@pytest.fixture
def own_metrics(tmp_path: Path) -> Path:
    (tmp_path / "hits.py").write_text(OWN)
    return tmp_path / "hits.py"


KEYS = {
    "data.name": "synthetic",
    "data.synthetic": {"users": 60, "items": 40, "interactions": 1000},
    "train.epochs": 1,
    "eval.topk": [5],
    "run.progress": False,
    "run.trackers": [],
}


def test_own_metrics_from_a_file(own_metrics: Path) -> None:
    run = own_metrics.parent / "run"
    names = ["Hit", f"{own_metrics}:HalfHit", f"{own_metrics}:Users"]
    values = {"eval.metrics": names, "eval.valid_metric": "halfhit@5", "run.output": str(run)}
    found = shoal.run("BPR", config_dict={**KEYS, **values})["test"]
    assert found == {"hit@5": found["hit@5"], "halfhit@5": found["hit@5"] / 2, "users": 60.0}
    assert found["hit@5"] > 0
    with pytest.raises(ConfigError, match=r"eval.metrics is .*hits.py:HalfHit', which would be r"):
        shoal.evaluate(run)
    own_metrics.write_text(OWN.replace("/ 2", "/ 99"))  # the run's folder has its own copy
    assert shoal.evaluate(run, trust=True)["test"] == found
    values = {"eval.metrics": ["Recall"], "eval.valid_metric": "Recall@5"}  # none of the run's
    assert set(shoal.evaluate(run, values=values)["test"]) == {"recall@5"}


def test_an_own_metric_from_python(tmp_path: Path) -> None:
    class Places(metrics.PerUser):
        def value(self, ranking: Any) -> Any:
            return ranking.length_at

    values = {**KEYS, "eval.metrics": ["Recall", Places], "eval.valid_metric": "Places@5"}
    found = shoal.run("BPR", config_dict={**values, "run.output": str(tmp_path / "run")})
    assert found["test"]["places@5"] == 5.0
    with pytest.raises(ValueError, match="must find Places by themselves"):
        shoal.run("BPR", config_dict={**values, "run.output": "two", "launch.nproc": 2})


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("hits.py:Recall", "Recall is a metric that is there already"),
        ("hits.py:HalfHits", "has no metric 'HalfHits'.*it has HalfHit.*did you mean HalfHit"),
        ("hits.py:NoMetric", "has no metric 'NoMetric'"),
        ("gone.py:Hits", "cannot read .*gone.py"),
    ],
)
def test_an_own_metric_that_cannot_be_loaded(name: str, told: str, own_metrics: Path) -> None:
    place, _, title = name.partition(":")
    with pytest.raises(ConfigError, match=f"eval.metrics: .*{told}"):
        given = f"--eval.metrics=[{own_metrics.parent / place}:{title}]"
        resolve([], [given, f"--eval.valid_metric={title}@10", "--data.name=synthetic"])


def test_an_own_metric_that_computes_something_else_is_told(tmp_path: Path) -> None:
    class Flat(metrics.PerUser):
        def value(self, ranking: Any) -> Any:
            return ranking.hits_at[:, 0]

    class Narrow(metrics.Metric):
        needs = "ranked"

        def measure(self, block: Any) -> Any:
            return {"narrow": block.hits.sum().float()}

    class Many(Narrow):
        def measure(self, block: Any) -> Any:
            return {"many": block.hits.sum(dim=0)}

        def compute(self, state: Any) -> Any:
            return state["many"]

    for metric, told in (
        (Flat, r"metric Flat: value gives a tensor of shape \[60\], not \[60, 1\]"),
        (Narrow, "narrow: a state is float64 or int64, and measure gives float32; add .double()"),
        (Many, "metric Many: compute gives 5 values, and there are 1: many"),
    ):
        name = metric.__name__ + "@5" * metric.has_topk
        values = {**KEYS, "eval.metrics": [metric], "eval.valid_metric": name}
        with pytest.raises(ValueError, match=told):
            shoal.run("BPR", config_dict={**values, "run.output": str(tmp_path / name)})
