"""What models make of vectors: items that nobody took are found by them, others as before."""

from pathlib import Path
from typing import Any

import feature_data
import numpy as np
import pytest
import torch
import vector_shop
from small import FIXTURES, VECTORS, first_batches, small_config
from torch import Tensor

from shoal.data.batch import Batch, Jagged
from shoal.distributed.world import World
from shoal.embedding.vectors import ProjectedVectors
from shoal.runs.build import build
from shoal.runs.parts import Parts
from shoal.runs.run import resolve
from shoal.training.checkpoint.writing import Checkpoints, restore_into

MODELS: dict[str, tuple[dict[str, Any], int]] = {  # keys, and epochs
    "BPR": (
        {
            "model.embedding_size": 16,
            "train.batch_size": 512,
            "train.optimizer.lr": 0.02,
            "train.negatives": {"num": 1, "distribution": "popularity", "alpha": 0.01},
        },
        12,
    ),
    "SASRec": (
        {
            "model.hidden_size": 16,
            "model.inner_size": 32,
            "model.n_layers": 1,
            "model.hidden_dropout_prob": 0.1,
            "model.attn_dropout_prob": 0.1,
            "train.batch_size": 50,
            "train.optimizer.lr": 0.01,
        },
        15,
    ),
}


def learned(model: str, keys: dict[str, Any], epochs: int) -> Parts:
    parts = build(resolve(values={"model": model, **keys}).config, World())
    parts.model.train()
    for epoch in range(epochs):
        for batch in parts.reader.batches(epoch):
            parts.strategy.train_step(batch)
    parts.strategy.synchronize()
    return parts


@pytest.mark.parametrize("model", MODELS)
def test_items_that_nobody_took_are_found_by_their_vectors(model: str, tmp_path: Path) -> None:
    """The test has new items alone; by chance a list of 20 of some 130 has 15 % of them."""
    keys, epochs = MODELS[model]
    keys = vector_shop.write(tmp_path) | keys
    found = {}
    for rows in ("add", "none", "without"):
        given = vector_shop.with_vectors(tmp_path) | {"data.item_vectors.rows": rows}
        parts = learned(model, keys | given if rows != "without" else keys, epochs)
        found[rows] = parts.evaluator.evaluate(parts.model, "test")["recall@20"]
    assert min(found["add"], found["none"]) > 0.4, found
    assert found["without"] < 0.2, found


# ---- what is computed ---------------------------------------------------------------------------


def parts_of(model: str = "SASRec", **keys: Any) -> Parts:
    """Few interactions: some items have none in training."""
    few = {"data__synthetic__interactions": 700}
    return build(small_config(model, **{**VECTORS, **few, **keys}), World())


def expected_vectors(parts: Parts) -> Tensor:
    """The fixture's vectors by the data's numbers, standardised, as NumPy computes it."""
    words = (FIXTURES / "item_vectors.txt").read_text().split()
    values = np.load(FIXTURES / "item_vectors.npy").astype(np.float64)
    alike = (values - values.mean(0)) / values.std(0)
    place = {word: k for k, word in enumerate(words) if values[k].any()}
    vocabulary = parts.dataset.vocab["item_id"]
    rows = [alike[place[word]] if word in place else np.zeros(6) for word in vocabulary]
    return torch.tensor(np.array(rows), dtype=torch.float32)


def test_an_item_is_its_row_and_its_projected_vector() -> None:
    parts = parts_of()
    embed: Any = parts.model.embed
    read: ProjectedVectors = embed.vectors_of("item")
    ids = torch.arange(parts.dataset.num_items)
    projected = expected_vectors(parts) @ read.weight.T
    with embed.without_vectors():
        own = embed.rows("target", ids)
    assert read.trained[1:].any() and not read.trained[1:].all()
    both = own * read.trained.unsqueeze(1) + projected
    torch.testing.assert_close(embed.rows("target", ids), both)
    torch.testing.assert_close(embed.whole("target"), both)
    assert embed.rows("target", torch.tensor([[0]])).abs().sum() == 0
    # As large as a row begins, whatever the numbers of vectors are.
    assert float(projected.detach()[read.trained].std()) == pytest.approx(0.02, rel=0.3)
    batch = Batch(2, {"history": Jagged(torch.tensor([3, 9, 4]), torch.tensor([0, 2, 3]))})
    pooled = embed.pooled("history", batch, "mean")
    torch.testing.assert_close(pooled, torch.stack([both[[3, 9]].mean(0), both[4]]))
    parts = parts_of(data__item_vectors__rows="none")
    alone: Any = parts.model.embed
    expected = expected_vectors(parts) @ alone.vectors_of("item").weight.T
    torch.testing.assert_close(alone.whole("target"), expected)
    assert not parts.strategy.tables


@pytest.mark.parametrize(
    "keys",
    [{}, {"model__cosine": True}, {"model": "BERT4Rec", "model__random_ratio": 0.0}],
    ids=["SASRec", "cosine", "BERT4Rec"],
)
def test_nothing_is_learned_against_items_without_training(keys: dict[str, Any]) -> None:
    """Vectors of such items are no candidates: any numbers in their place give the same steps."""
    found = []
    for factor in (1.0, 50.0):
        parts = parts_of(**keys)
        model: Any = parts.model
        field = "output" if "output" in model.embed.fields else "target"
        read = model.embed.vectors_of(model.embed.fields[field].name)
        untrained = (~read.trained).nonzero().squeeze(1)[1:]
        assert len(untrained) > 3
        read.stored.scale[untrained] *= factor
        parts.model.train()
        batches = first_batches(parts.reader, World(), 5)
        found.append([float(parts.strategy.train_step(batch)) for batch in batches])
    assert found[0] == found[1] and len(set(found[0])) == 5


def test_a_run_continues_from_its_checkpoint(tmp_path: Path) -> None:
    """And with another file of `standard` numbers what was learned is shifted as it was."""
    for rows in ("add", "none"):
        whole, checkpoints = (
            parts_of(data__item_vectors__rows=rows),
            Checkpoints(tmp_path / rows, World()),
        )
        whole.model.train()
        losses = []
        for step, batch in enumerate(first_batches(whole.reader, World(), 8)):
            if step == 4:
                checkpoints.save(whole.strategy, {"step": 4})
                checkpoints.wait()
            losses.append(float(whole.strategy.train_step(batch)))
        again = parts_of(data__item_vectors__rows=rows)
        read: Any = next(m for m in again.model.modules() if isinstance(m, ProjectedVectors))
        read.mean += 7.0
        read.trained[1:] = False  # a run that goes on with other data knows what was learned
        restore_into(again.strategy, checkpoints.load_step(4))
        again.model.train()
        batches = first_batches(again.reader, World(), 8, start=4)
        assert [float(again.strategy.train_step(b)) for _, b in zip(range(4), batches)] == losses[
            4:
        ]
    assert whole.fingerprint["item_vectors"] == again.fingerprint["item_vectors"]
    other = parts_of(data__item_vectors__normalise="unit").fingerprint
    assert whole.fingerprint["item_vectors"] != other["item_vectors"]


# ---- who reads them -----------------------------------------------------------------------------


def test_click_models_read_them_where_the_item_is_a_feature(tmp_path: Path) -> None:
    """In the feature that is the item, and in histories that share its table."""
    words = [f"i{k}" for k in range(feature_data.ITEMS)]
    np.savez(tmp_path / "v.npz", ids=words, vectors=np.random.default_rng(1).random((30, 4)))
    features = {
        "user_id": {"kind": "id"},
        "item_id": {"kind": "id"},
        "liked": {"kind": "sequence", "table": "item_id", "length": 3},
    }
    keys = {"data__item_vectors__file": str(tmp_path / "v.npz"), "data__features": features}
    folder = feature_data.write(tmp_path)
    parts = build(feature_data.config(folder, "DNN", **keys), World())
    (read,) = [one for one in parts.model.modules() if isinstance(one, ProjectedVectors)]
    batch = next(iter(parts.reader.batches(0)))
    model: Any = parts.model
    model.eval()
    before = model.logits(batch)
    with torch.no_grad():
        read.weight += 1.0
    changed = model.embed.pooled("liked", batch, "sum"), model.logits(batch)
    assert not torch.equal(before, changed[1])
    liked = batch.ids["liked"]
    vectors = read(liked.values, model.embed.rows("item_id", liked.values) * 0)
    with model.embed.without_vectors():
        rows = model.embed.rows("item_id", liked.values)
    expected = [
        (rows[a:b] * read.trained[liked.values[a:b]].unsqueeze(1) + vectors[a:b]).sum(0)
        for a, b in zip(liked.offsets, liked.offsets[1:])
    ]
    torch.testing.assert_close(changed[0], torch.stack(expected))


def test_a_model_without_rows_of_items_names_those_that_can() -> None:
    with pytest.raises(ValueError, match=r"item_vectors: Pop has no table .* choose SASRec, HSTU"):
        parts_of("Pop")
    keys = {"data.user_vectors.file": VECTORS["data__item_vectors__file"]}
    given = {key.replace(".", "__"): value for key, value in keys.items()}
    with pytest.raises(ValueError, match=r"user_vectors: SASRec has no table .* choose BPR"):
        build(small_config("SASRec", **given), World())
    users = build(small_config("BPR", **given), World()).model
    read: Any = [one for one in users.modules() if isinstance(one, ProjectedVectors)]
    assert len(read) == 1 and len(read[0].trained) == 132
    log = {"data.name": "synthetic", "data.item_vectors.file": "v.npy", "run.progress": False}
    with pytest.raises(ValueError, match="a click log has slots, not users and items"):
        build(resolve(values={"model": "LR", **log}).config, World())
