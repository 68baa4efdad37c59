"""Dialects: a new one is registered, from anywhere; the loader knows none of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from config_models import errors, models, resolve

import shoal
from shoal.compat.dialects.paddlerec import PaddleRec
from shoal.compat.dialects.recbole import RecBole
from shoal.compat.dialects.tdfo import Tdfo
from shoal.compat.dialects.torchrec import TorchRec
from shoal.config import dialect, load
from shoal.config.dialect import Dialect, Row, read_as, refused, same
from shoal.config.keys import KEYS, SECTIONS
from shoal.config.sources import Layer

ROWS = {
    row.key: row
    for row in (
        same("trainer.n_epochs", "train.epochs"),
        read_as("trainer.lr_exponent", "train.optimizer.lr", lambda value: 10.0**value, "10^x"),
        refused("trainer.magic", "there is none"),
    )
}


class Tables(Dialect):
    """A tool whose files have tables, as TOML has: [trainer] with keys below it."""

    tool = "Tables"
    sections = ("trainer",)
    note = "a config of Tables"

    def defaults(self) -> dict[str, Any]:
        spoken = any("trainer" in source.values for source in self.sources)
        return {"run.seed": 5} if spoken else {}

    def knows(self, key: str, source: Layer) -> bool:
        return key == "trainer"

    def leaves(self, key: str, value: Any, source: Layer) -> Any:
        for name, said in value.items():
            yield f"{key}.{name}", said, (key, name)

    def row(self, name: str) -> Row:
        if name not in ROWS:
            raise ValueError(f"Tables has no key {name}")
        return ROWS[name]

    def words(self) -> dict[str, str]:
        return self.shown(ROWS.values())


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "registered", {**dialect.registered})
    dialect.register("tables", Tables)


@pytest.mark.usefixtures("tables")
def test_a_registered_dialect_is_used() -> None:
    given = {"trainer": {"n_epochs": 7, "lr_exponent": -2}}
    resolved = load([], ["--seq_separator=|"], given, models=models)
    assert resolved.config.train.epochs == 7 and resolved.config.train.optimizer.lr == 0.01
    assert resolved.config.run.seed == 5 and resolved.notes == ["a config of Tables"]
    assert resolved.origins["train.epochs"] == "python (Tables key trainer.n_epochs)"
    assert resolved.origins["run.seed"] == "default of Tables"
    assert resolve("--epochs=3").config.run.seed == 2020  # nobody speaks it


@pytest.mark.usefixtures("tables")
def test_errors_and_hints_of_a_registered_dialect() -> None:
    assert errors(trainer={"magic": 1, "n_epochs": 2, "colour": 3}) == [
        "python: Tables key trainer.magic: is refused: there is none",
        "python: Tables has no key trainer.colour",
    ]
    (error,) = errors(trainr={"n_epochs": 2})
    assert error.endswith("did you mean trainer, a section of Tables's?")
    (error,) = errors(**{"trainr.n_epochs": 2})
    assert "did you mean trainer.n_epochs (Tables's spelling of train.epochs)?" in error


def test_the_first_dialect_that_knows_a_key_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "registered", {**dialect.registered})

    class Hurried(Dialect):
        tool = "Hurried"

        def knows(self, key: str, source: Layer) -> bool:
            return key == "epochs"  # RecBole's, too

        def row(self, name: str) -> Row:
            return read_as(name, "train.epochs", lambda value: value // 2, "half as many")

    dialect.register("hurried", Hurried)
    dialect.register("hurried", Hurried)
    assert [*dialect.registered.values()].count(Hurried) == 1
    assert resolve("--epochs=6").config.train.epochs == 3


def test_the_core_names_no_dialect() -> None:
    """What is below compat/ neither imports it nor has a path to it in a string."""
    package = Path(shoal.__file__).parent
    above = {package / "compat", package / "cli"}
    for path in package.rglob("*.py"):
        if path.parent != package and not above & {*path.parents}:
            assert "shoal.compat" not in path.read_text(), path


@pytest.mark.parametrize(
    ("known", "head"),
    [(RecBole, "RecBole key"), (PaddleRec, "PaddleRec key"), (TorchRec, "flag"), (Tdfo, "key")],
)
def test_tables_of_keys(known: type[Dialect], head: str) -> None:
    page = Path(__file__).parents[2] / "docs" / "from" / "every_key.md"
    assert known.table_text(head).strip() in page.read_text()
    keys = [row.key for row in known.table]
    assert len(set(keys)) == len(keys)
    for row in known.table:
        for target in row.targets:
            assert target in KEYS or target in SECTIONS or target.startswith("model."), row.key
        kind, _, reason = row.rule.partition(": ")
        if kind == "refused" or (kind.startswith("only `") and row.read.__name__ == "read"):
            with pytest.raises(ValueError, match="is refused") as caught:
                row.translate("another value")
            assert reason in str(caught.value)
