"""A pipeline as one folder: it answers alike elsewhere, and is refused where it was changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shop_pipeline import pipeline, shop
from typer.testing import CliRunner

import shoal
from shoal.cli.main import app
from shoal.serving.artifact import files
from shoal.serving.pipeline.export import export_pipeline
from shoal.serving.pipeline.pipeline import Pipeline
from shoal.training.run_folder import start_logging

TEXT = """\
# A comment that no folder needs.
items: SHOP/items.csv
retrieve:
  - {artifact: SHOP/BPR, number: 20}
  - {artifact: OTHER/BPR, number: 20, by: last_item, quota: 5}
rank: {artifact: SHOP/FM, within: 600000}
rules:
  - seen
  - allowed: {attribute: in_stock, values: ["yes"]}
  - boost: {attribute: price, weight: 1e-4}
fallback: {artifact: SHOP/Pop, by: popularity, number: 40}
"""
PHONE = {"device": "phone"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline of two folders of artifacts, in which one name stands for two artifacts."""
    folder = tmp_path_factory.mktemp("export")
    shutil.copytree(shop() / "SASRec", folder / "other" / "BPR")
    file = folder / "pipeline.yaml"
    file.write_text(TEXT.replace("SHOP", str(shop())).replace("OTHER", str(folder / "other")))
    words = ["pipeline", "export", str(file), "--output", str(folder / "shop")]
    result = CliRunner().invoke(app, words)
    start_logging("info")
    assert result.exit_code == 0 and f"pipeline: {folder / 'shop'}" in result.output
    return folder / "shop"


def test_it_answers_alike_wherever_it_is(exported: Path, tmp_path: Path) -> None:
    here = Pipeline(exported.parent / "pipeline.yaml")
    shutil.copytree(exported, tmp_path / "moved")
    there = Pipeline(tmp_path / "moved")
    assert list(there.sources) == list(here.sources) == ["BPR", "BPR last_item"]
    for user in ("u7", "stranger"):
        answers = [one.recommend(user, number=9, context=PHONE) for one in (here, there)]
        assert answers[0] == answers[1] and answers[0].fallbacks == answers[1].fallbacks
    names = {path.relative_to(exported).as_posix() for path in exported.rglob("*/signature.json")}
    places = ("artifacts/BPR", "artifacts-2/BPR", "artifacts/FM", "artifacts/Pop")
    assert names == {f"{place}/signature.json" for place in places}
    text = (exported / "pipeline.yaml").read_text()
    assert (
        str(shop()) not in text and "within: 600000" in text and "items: table-1-items.csv" in text
    )


def test_it_is_not_written_over_anything(exported: Path) -> None:
    with pytest.raises(ValueError, match="is there already; name a folder that is not"):
        export_pipeline(exported.parent / "pipeline.yaml", exported)


def test_one_is_not_the_other(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a pipeline; `shoal pipeline serve "):
        shoal.load(exported)
    with pytest.raises(ValueError, match="is an artifact of one model; `shoal serve`"):
        Pipeline(shop() / "BPR")
    with pytest.raises(ValueError, match="holds no exported pipeline; name the pipeline's file"):
        Pipeline(tmp_path)


def sign(folder: Path, **facts: Any) -> None:
    """What a folder's author can do: a manifest whose checksum is right."""
    manifest = json.loads((folder / files.MANIFEST).read_text())
    kept = {key: manifest[key] for key in ("kind", "artifacts")}
    files.write_manifest(folder, **{**kept, **facts})


def rewrite(folder: Path, old: str, new: str) -> None:
    text = (folder / "pipeline.yaml").read_text()
    assert old in text
    (folder / "pipeline.yaml").write_text(text.replace(old, new))
    sign(folder)


def link_artifact(folder: Path) -> None:
    shutil.rmtree(folder / "artifacts" / "FM")
    (folder / "artifacts" / "FM").symlink_to(shop() / "FM")


def link_group(folder: Path) -> None:
    (folder / "artifacts").rename(folder.parent / "outside")
    (folder / "artifacts").symlink_to(folder.parent / "outside")


def link_table(folder: Path) -> None:
    (folder / "table-1-items.csv").unlink()
    (folder / "table-1-items.csv").symlink_to(shop() / "items.csv")


def other_artifact(folder: Path) -> None:
    shutil.rmtree(folder / "artifacts-2" / "BPR")
    shutil.copytree(folder / "artifacts" / "BPR", folder / "artifacts-2" / "BPR")


def change(name: str) -> Callable[[Path], None]:
    def append(folder: Path) -> None:
        with open(folder / name, "ab") as file:
            file.write(b" ")

    return append


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (change("pipeline.yaml"), "is not whole: pipeline.yaml is not of its"),
        (change("table-1-items.csv"), "is not whole: table-1-items.csv is not of its"),
        (change("artifacts/BPR/signature.json"), "is not whole: signature.json"),
        (change("artifacts/BPR/manifest.json"), None),
        (link_artifact, "FM is no folder in it"),
        (link_group, "artifacts is no folder in it"),
        (link_table, "is a link, not a file"),
        (other_artifact, "artifacts-2/BPR is another artifact"),
        (lambda folder: rewrite(folder, "artifacts/FM", "../shop/artifacts/FM"), "does not hold"),
        (lambda folder: rewrite(folder, "artifacts/FM", str(shop() / "FM")), "does not hold"),
        (lambda folder: rewrite(folder, "table-1-items.csv", "/etc/passwd"), "does not hold"),
        (lambda folder: rewrite(folder, "table-1-items.csv", "../items.csv"), "does not hold"),
        (lambda folder: sign(folder, artifacts={"../BPR": "0"}), "no artifact of its own"),
        (lambda folder: sign(folder, artifacts=["artifacts/BPR"]), "is damaged"),
        (lambda folder: sign(folder, kind="module"), "is an artifact of one model"),
    ],
)
def test_what_was_changed_is_refused(
    exported: Path, tmp_path: Path, spoil: Callable[[Path], None], error: str | None
) -> None:
    folder = tmp_path / "shop"
    shutil.copytree(exported, folder)
    spoil(folder)
    if error is None:  # a space behind JSON changes nothing
        Pipeline(folder)
        return
    with pytest.raises(ValueError, match=error):
        Pipeline(folder)


def test_a_delta_brings_what_it_builds_upon(tmp_path: Path) -> None:
    base, delta = tmp_path / "days" / "base", tmp_path / "days" / "delta"
    shutil.copytree(shop() / "BPR", base)
    shutil.copytree(shop() / "BPR", delta)
    signature = json.loads((delta / files.SIGNATURE).read_text())
    signature["base"] = {"name": "base", "sha256": files.read_manifest(base)["sha256"]}
    (delta / files.SIGNATURE).write_text(json.dumps(signature))
    files.write_manifest(delta)
    opened = pipeline(tmp_path, f"retrieve: [{{artifact: {delta}, number: 20}}]\n")
    folder = export_pipeline(tmp_path / "pipeline.yaml", tmp_path / "shop")
    shutil.rmtree(tmp_path / "days")
    assert Pipeline(folder).recommend("u7") == opened.recommend("u7")
    assert sorted(os.listdir(folder / "artifacts")) == ["base", "delta"]
    shutil.rmtree(folder / "artifacts" / "base")
    with pytest.raises(ValueError, match="base is no folder in it"):
        Pipeline(folder)
