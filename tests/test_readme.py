"""The README's Python runs as it stands, on a file as its command takes one."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli.main import app

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def ratings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{n % 60},{n * 7 % 50 + n % 3},{n % 5 + 1},{n}" for n in range(900)]
    Path("ratings.csv").write_text("\n".join(["userId,movieId,rating,timestamp", *rows]) + "\n")


def test_the_lines_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    exec(code, {})
    metric, ranking = capsys.readouterr().out.splitlines()[-2:]
    assert 0 <= float(metric) <= 1
    assert ranking.count("(") >= 5, ranking


def test_the_command() -> None:
    assert "\nshoal quickstart ratings.csv --run " in (ROOT / "README.md").read_text()
    ran = CliRunner().invoke(app, ["quickstart", "ratings.csv", "--run"])
    assert ran.exit_code == 0 and "shoal serve ratings-recommend-model" in ran.output


def test_the_picture_is_of_a_run() -> None:
    """Else: python docs/pictures/make.py"""
    picture = (ROOT / "docs" / "pictures" / "quickstart.svg").read_text()
    assert "docs/pictures/quickstart.svg" in (ROOT / "README.md").read_text()
    for word in ("quickstart", "ml-100k", "ndcg@10", "recall@10", "title", "score"):
        assert word in picture, word
