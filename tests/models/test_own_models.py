"""Models of one's own: how they are found, what is refused, what a run folder keeps."""

import hashlib
import json
import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from small import DATA

import shoal
from shoal.cli.new import snake, write_model
from shoal.models import describe, find
from shoal.models.general.bpr import BPR
from shoal.runs.run import resolve

SMALL = {**DATA, "train.epochs": 1, "model.embedding_size": 8}


class Mine(BPR):
    """A class in Python."""

    @dataclass
    class Options(BPR.Options):
        temperature: float = 0.5
        widths: tuple[int, ...] = (4, 2)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_model("MyModel", tmp_path)[0]


def test_the_template_trains_and_recommends(file: Path, tmp_path: Path) -> None:
    name = f"{file}:MyModel"
    result = shoal.run(name, config_dict={**SMALL, "run.output": str(tmp_path / "run")})
    assert result["model"] == "MyModel"
    kept = tmp_path / "run" / "model" / file.name
    assert kept.read_bytes() == file.read_bytes()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert kept.with_name(file.name + ".sha256").read_text() == f"{digest}  {file.name}\n"
    file.unlink()  # the run folder is enough
    again = shoal.evaluate(tmp_path / "run", trust=True)
    assert again["test"] == pytest.approx(result["test"], abs=1e-8)
    assert len(shoal.recommend(tmp_path / "run", "1", 3, trust=True)) == 3
    kept.write_text(kept.read_text() + "# changed\n")
    with pytest.raises(ValueError, match="not the text that the run was trained with"):
        shoal.evaluate(tmp_path / "run", trust=True)


def test_the_test_of_the_template_passes(tmp_path: Path) -> None:
    test = runpy.run_path(str(write_model("TwoTower", tmp_path / "new")[1]))
    test["test_it_learns"](tmp_path)
    with pytest.raises(ValueError, match="there already"):
        write_model("TwoTower", tmp_path / "new")


def test_options_are_checked_as_those_of_other_models(file: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.embedding_size: given .*whole number"):
        resolve(values={"model": f"{file}:MyModel", "model.embedding_size": "wide"})
    with pytest.raises(ValueError, match="did you mean"):
        resolve(values={"model": f"{file}:MyModel", "model.embeding_size": 3})
    described = "\n".join(describe(f"{file}:MyModel"))
    assert "model.embedding_size: a whole number, default 64" in described


def test_a_module_goes_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "shops").mkdir()
    (tmp_path / "shops" / "towers.py").write_text(
        "from shoal.models.general.bpr import BPR\n\n\nclass Shop(BPR):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    config = resolve(values={"model": "shops.towers:Shop"}).config
    assert (config.model.name, config.model.title) == ("shops.towers:Shop", "Shop")


def test_a_class_is_taken_as_it_is(tmp_path: Path) -> None:
    output = tmp_path / "run"
    result = shoal.run(Mine, config_dict={**SMALL, "run.output": str(output)})
    assert result["model"] == "Mine"
    assert (output / "model" / Path(__file__).name).is_file()
    # It is in hand: nothing has to be run, so nobody is asked for trust.
    assert len(shoal.recommend(output, "1", 3)) == 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1\n", "has no model 'MyModel'.*it has none"),
        ("import nothing_of_this_name\n", "line 1: ModuleNotFoundError"),
        ("def f(:\n", "SyntaxError"),
        ("import shoal\nshoal.run('BPR')\n", 'if __name__ == "__main__"'),
        (
            "from shoal.models.general.bpr import BPR\nclass MyModle(BPR):\n    pass\n",
            "mean MyModle",
        ),
    ],
)
def test_errors_of_own_models_name_what_is_wrong(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=told):
        find(f"{path}:MyModel")


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        find(f"{tmp_path}/none.py:MyModel")
    with pytest.raises(ValueError, match="names one of your own"):
        find("my_models.py")


def test_a_class_within_a_function_cannot_be_launched() -> None:
    class Local(BPR):
        pass

    with pytest.raises(ValueError, match="within a function"):
        shoal.run(Local, nproc=2, config_dict=SMALL)


def test_names_of_files() -> None:
    assert [snake(name) for name in ("TwoTower", "BPR2", "GRU4Rec")] == [
        *("two_tower", "bpr2", "gru4rec")
    ]


SCRIPT = """
import json
import sys
from dataclasses import dataclass

import shoal
from shoal.models.general.bpr import BPR


class Mine(BPR):
    @dataclass
    class Options(BPR.Options):
        embedding_size: int = 8


if __name__ == "__main__":
    found = shoal.run(Mine, nproc=int(sys.argv[1]), config_dict=json.loads(sys.argv[2]))
    print("TEST", json.dumps(found["test"]))
"""


@pytest.mark.slow
def test_ranks_find_a_class_of_the_script_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    found = []
    for nproc in ("1", "2"):
        values = {**DATA, "train.epochs": 2, "run.output": str(tmp_path / nproc)}
        line = [sys.executable, str(tmp_path / "script.py"), nproc, json.dumps(values)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.rpartition("TEST")[2]))
    assert found[0] == pytest.approx(found[1], abs=1e-8)
