"""HSTURanker: its formula, what a candidate sees, and that nothing is known before it happened."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from exported import export_here, trained
from synthetic_actions import acts_config, write_actions
from torch import Tensor
from zoo_clicks import batch_of, facts_of, make_model

from shoal.config.schema import OptimizerSection
from shoal.data.batch import Batch, Jagged
from shoal.distributed.world import World
from shoal.models.clicks.history.hsturanker import HSTURanker
from shoal.runs.build import build
from shoal.runs.parts import Parts
from shoal.runs.run import resolve
from shoal.training.strategies.base import Single

FORMS = ["HSTURanker", "HSTURanker interleaved"]


def made(name: str) -> tuple[HSTURanker, Batch]:
    """A model with rows, biases that matter, and some samples."""
    model = make_model(name)
    assert isinstance(model, HSTURanker)
    strategy = Single()
    strategy.setup(model, OptimizerSection(name="sgd", lr=0.1), seed=1)
    with torch.no_grad():
        for parameter in model.layers.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)
    return model.eval(), batch_of(name, 1)


@pytest.mark.parametrize("name", FORMS)
def test_hsturanker_equals_its_formula(name: str) -> None:
    """Written out sample by sample, place by place."""
    model, batch = made(name)
    rows = {
        field: model.embed.whole(field)
        for field in ("user_id", "item_id", "seen_click", "seen_purchase")
    }
    with torch.no_grad():
        x = rows["item_id"][batch.tensor("item_id")].unsqueeze(1)
        found = model.states(batch, x)[:, 0]
    lists = {name: batch.ids[name] for name in ("seen", "seen_click", "seen_purchase", "seen_time")}
    for sample in range(8):
        one = {
            name: jagged.lists(sample, sample + 1).values.tolist()
            for name, jagged in lists.items()
            if isinstance(jagged, Jagged)
        }
        age = batch.dense["age"][sample].view(1)
        places = [
            model.contexts[0](rows["user_id"][batch.tensor("user_id")[sample]]),
            model.contexts[1](age),
        ]
        times = one["seen_time"][-model.length - 1 :]
        when = [times[0]] * 2
        events = zip(*(one[name] for name in ("seen", "seen_click", "seen_purchase")))
        for (item, click, bought), time in zip(list(events)[-model.length :], times):
            acted = rows["seen_click"][click] + rows["seen_purchase"][bought]
            vector = rows["item_id"][item]
            pair = [vector + acted] if name == "HSTURanker" else [vector, acted]
            places += pair
            when += [time] * len(pair)
        vectors = torch.stack([*places, rows["item_id"][batch.tensor("item_id")[sample]]])
        with torch.no_grad():
            for layer in model.layers:
                vectors = _written_out(layer, vectors, [*when, times[-1]])
        torch.testing.assert_close(found[sample], vectors[-1], rtol=1e-4, atol=1e-5)


def _written_out(layer: torch.nn.Module, x: Tensor, when: list[int]) -> Tensor:
    """One layer of one sequence: [l, 4], with 2 heads."""
    u, v, q, k = F.silu(F.layer_norm(x, [4], eps=1e-6) @ layer.project).split(4, 1)
    rows = []
    for i in range(len(x)):
        mixed = torch.zeros(2, 2)
        for j in range(i + 1):
            bucket = int(math.log(max(1, when[i] - when[j])) / 0.301)
            bias = layer.position_bias[i - j] + layer.time_bias[bucket]
            weights = (q[i] * k[j]).view(2, 2).sum(1) + bias
            mixed = mixed + F.silu(weights).unsqueeze(1) / layer.max_len * v[j].view(2, 2)
        gated = F.layer_norm(mixed.flatten(), [4], eps=1e-6) * u[i]
        rows.append(x[i] + layer.out(gated))
    return torch.stack(rows)


@pytest.mark.parametrize("name", FORMS)
def test_candidates_do_not_see_each_other(name: str) -> None:
    """Together, one at a time and in other company: the same states."""
    model, batch = made(name)
    batch = batch.rows(0, 6)
    torch.manual_seed(3)
    x = torch.randn(6, 5, 4)
    with torch.no_grad():
        together = model.states(batch, x)
        alone = torch.cat([model.states(batch, x[:, k : k + 1]) for k in range(5)], 1)
        others = x.clone()
        others[:, 2] = torch.randn(6, 4)
        changed = model.states(batch, others)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)
    same = [0, 1, 3, 4]
    assert torch.equal(together[:, same], changed[:, same])  # to the last bit
    assert not torch.isclose(together[:, 2], changed[:, 2]).all(1).any()


def test_a_history_without_actions_is_read() -> None:
    """A column of lists in the data: items alone, one place each."""
    facts = facts_of("DIN")
    model = make_model("HSTURanker", facts)
    assert isinstance(model, HSTURanker)
    assert model.each == 1 and model.time is None and model.layers[0].time_bias is None


def test_what_cannot_be_is_refused() -> None:
    facts = facts_of("HSTURanker")
    seen = next(one for one in facts.features if one.name == "seen")
    two = replace(facts, features=(*facts.features, replace(seen, name="more")))
    with pytest.raises(
        ValueError, match=r"one history, and data.features has seen, more; keep one"
    ):
        make_model("HSTURanker", two)
    wide = tuple(replace(f, dim=7) if f.table == "item_id" else f for f in facts.features)
    with pytest.raises(ValueError, match=r"set model.hidden_size=7"):
        make_model("HSTURanker", replace(facts, features=wide))


# --- of interactions


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("acts")
    write_actions(place, users=20, events=9)
    return place


def parts_of(folder: Path, **more: object) -> Parts:
    given = acts_config(folder, data__max_len=4, model__hidden_size=8, model__layers=[6], **more)
    return build(resolve(values=given).config, World(torch.device("cpu")))


def turned(folder: Path, to: Path, row: int) -> Path:
    """The same data with both labels of one row turned over."""
    lines = (folder / "acts" / "acts.inter").read_text().splitlines()
    *rest, click, like = lines[row + 1].split("\t")
    lines[row + 1] = "\t".join([*rest, str(1 - int(click)), str(1 - int(like))])
    (to / "acts").mkdir(parents=True)
    (to / "acts" / "acts.inter").write_text("\n".join(lines))
    return to


def test_labels_are_read_only_after_they_happened(folder: Path, tmp_path: Path) -> None:
    """Logits of a user's rows: an action changes those of the next four rows, no others."""
    row = 3  # the fourth of the first user, who has 9
    found = []
    for place in (folder, turned(folder, tmp_path, row)):
        parts = parts_of(place)
        parts.reader.shuffle = False
        parts.model.eval()
        with torch.no_grad():
            found.append(parts.model.logits(next(iter(parts.reader.batches(0))).rows(0, 12)))
    differs = (found[0] != found[1]).any(1).tolist()
    assert differs == [row < number <= row + 4 for number in range(12)]


def test_ranking_a_catalogue_reads_each_history_once(folder: Path) -> None:
    """`score` of users and items is what samples of single candidates have."""
    parts = parts_of(folder)
    model, table = parts.model.eval(), parts.model.facts.table
    assert isinstance(model, HSTURanker) and table is not None
    users = torch.tensor([2, 5, 7])
    items = torch.tensor([[1, 2, 3, 4], [9, 8, 7, 6], [3, 3, 1, 20]])
    with torch.no_grad():
        scores = model.score(Batch(3, {"user_id": users}), items)
        pairs = users.repeat_interleave(4).numpy(), items.flatten().numpy()
        alone = model.logits(Batch(12, *table.join(None, *pairs)))[:, 0]
    torch.testing.assert_close(scores.flatten(), alone, rtol=1e-5, atol=1e-6)
    assert len(np.unique(scores.numpy())) > 8


@pytest.mark.slow
def test_rows_with_their_own_history(folder: Path, tmp_path: Path) -> None:
    """Of a run and of its artifact: as the data has it, or as a row says; labels are no matter."""
    given = acts_config(folder, data__max_len=4, model__hidden_size=8, model__layers=[6])
    config = resolve(values=given).config
    parts = trained(config)
    artifact = export_here(parts, tmp_path / "artifact")
    lines = (folder / "acts" / "acts.inter").read_text().splitlines()[1:]
    done = [line.split("\t") for line in lines if line.startswith("u3\t")]
    own = {
        "history": [line[1] for line in done],
        "history_time": [int(line[2]) for line in done],
        "history_click": [int(line[3]) for line in done],
        "history_like": [int(line[4]) for line in done],
    }
    asked = [{"user_id": "u3", "item_id": f"i{k}"} for k in range(5)]
    ours = parts.encoder(config.data)
    for encoder in (ours, artifact.encoder):

        def of(rows: list[dict[str, object]], encoder: Any = encoder) -> np.ndarray:
            batch = encoder.batch(encoder.frame(rows))
            return artifact.predict({**batch.ids, **batch.dense})

        known = of(asked)
        assert known.shape == (5, 2) and len(np.unique(known)) == 10
        labelled = [{**one, "click": 1.0, "like": 0.0} for one in asked]
        assert np.array_equal(of(labelled), known)
        stranger = [{**one, **own, "user_id": "nobody"} for one in asked]
        np.testing.assert_allclose(of(stranger), known, rtol=1e-6)
        # One row says, the other does not; then one more event, asked an hour later.
        assert np.array_equal(of([asked[0], stranger[1]]), of([stranger[0], asked[1]]))
        more = {name: [*values, 1] for name, values in own.items()}
        more["history"][-1], last = "i7", own["history_time"][-1]
        more["history_time"][-1:] = [last + 60, last + 3660]
        grown = of([{**asked[0], **more}])
        assert np.isfinite(grown).all() and (grown != known[:1]).all()
        with pytest.raises(ValueError, match=r"'history_click' has 1 values, and 'history' 9"):
            of([{**stranger[0], "history_click": [1]}])
        with pytest.raises(ValueError, match=r"no column 'history_like'"):
            of([{name: one for name, one in stranger[0].items() if name != "history_like"}])
