"""The file of a pipeline: what is wrong with it is named, with its line and its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.config.errors import ConfigError
from shoal.serving.pipeline.file import read_pipeline
from shoal.serving.pipeline.filters import SeenItems

WHOLE = """\
items: items.csv
retrieve:
  - artifact: exported/bpr
    number: 300
  - {artifact: exported/bpr, by: last_item, number: 50, quota: 20}
  - {artifact: exported/pop, by: popularity, number: 50, name: popular}
rank: {artifact: exported/fm}
rules:
  - seen
  - allowed: {attribute: in_stock, values: [true]}
  - boost: {attribute: genre, values: [noir], weight: 0.1}
  - boost: {attribute: margin, weight: 0.5}
  - at_most: {number: 2, attribute: genre}
fallback: {artifact: exported/pop, by: popularity, number: 100}
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "pipeline.yaml"
    file.write_text(text)
    return file


def test_all_of_a_file(tmp_path: Path) -> None:
    file = read_pipeline(write(tmp_path, WHOLE))
    assert list(file.retrieve) == ["bpr", "bpr last_item", "popular"]
    assert file.retrieve["bpr last_item"].quota == 20 and file.retrieve["bpr"].quota is None
    assert list(file.rules) == ["seen", "allowed", "boost", "boost 2", "at_most"]
    assert file.rules["seen"] == SeenItems()
    assert file.items == tmp_path / "items.csv"
    assert file.rank is not None and file.rank.artifact == "exported/fm"
    assert file.fallback is not None and file.fallback.number == 100


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("rank:", "ranc:", r":7: ranc: unknown key; the keys here are: .*did you mean rank\?"),
        ("quota:", "quotta:", r":5: retrieve\[1\].quotta: unknown key.*did you mean quota\?"),
        ("number: 300", "number: many", r":4: retrieve\[0\].number: .*integer \(given 'many'\)"),
        ("number: 300", "number: 0", r":4: retrieve\[0\].number: .*greater than or equal to 1"),
        ("number: 300", "number: 20_000", r":4: retrieve\[0\].number: .*less than or equal"),
        ("    number: 300\n", "", r":3: retrieve\[0\].number: Field required"),
        ("by: last_item", "by: last", r":5: retrieve\[1\].by: .*'model', 'popularity' or"),
        (", name: popular", "", None),
        ("- seen", "- sean", r":9: rules\[0\]: there is no rule 'sean'.*did you mean seen\?"),
        ("weight: 0.1", "weigth: 0.1", r":11: rules\[2\].boost.weigth: unknown key.*weight\?"),
        ("- seen", "- seen: {days: -1}", r":9: rules\[0\].seen.days: .*greater than 0"),
        ("- seen", "- seen: 5", r":9: rules\[0\].seen: must have keys: days"),
        ("- seen", "- 5", r":9: rules\[0\]: must be one rule"),
        ("- seen", "- {seen: {}, boost: {}}", r":9: rules\[0\]: must be one rule"),
        ("[noir]", "[]", r":11: rules\[2\].boost.values: .*at least 1"),
        ("[noir]", "[[noir]]", r":11: rules\[2\].boost.values\[0\]: "),
        ("items: items.csv", "items: [a, b]", r":1: items: must be the name of a file"),
        (
            "name: popular",
            "name: rank",
            r":6: retrieve\[2\]: 'rank' is what another stage",
        ),
        ("rank: {artifact: exported/fm}", "rank: exported/fm", r":7: rank: must have keys: art"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, error: str | None) -> None:
    assert old in WHOLE
    file = write(tmp_path, WHOLE.replace(old, new))
    if error is None:
        assert "pop popularity" in read_pipeline(file).retrieve
        return
    with pytest.raises(ConfigError, match=f"(?s)pipeline.yaml{error}"):
        read_pipeline(file)


def test_filters_come_first(tmp_path: Path) -> None:
    rules = "rules:\n  - at_most: {number: 2, attribute: genre}\n  - exclude: {items: [a]}\n"
    text = f"retrieve: [{{artifact: a, number: 5}}]\n{rules}"
    with pytest.raises(ConfigError, match=r":4: rules\[1\].exclude: .*put it before at_most"):
        read_pipeline(write(tmp_path, text))


def test_two_sources_of_one_name(tmp_path: Path) -> None:
    source = "{artifact: exported/bpr, number: 5}"
    text = f"retrieve: [{source}, {source}]\n"
    with pytest.raises(ConfigError, match="another source has the name 'bpr'"):
        read_pipeline(write(tmp_path, text))


def test_a_pipeline_needs_a_source(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="retrieve: is missing"):
        read_pipeline(write(tmp_path, "rules: [seen]\n"))
    with pytest.raises(ConfigError, match="no such config file"):
        read_pipeline(tmp_path / "other.yaml")


def test_all_errors_are_named_at_once(tmp_path: Path) -> None:
    text = WHOLE.replace("quota: 20", "quota: x").replace("- seen", "- sean")
    with pytest.raises(ConfigError) as caught:
        read_pipeline(write(tmp_path, text))
    assert len(caught.value.errors) == 2
