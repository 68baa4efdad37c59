"""Recorded steps: what they are fed with, and on a GPU that they do what unrecorded ones do."""

from collections.abc import Iterator
from queue import Queue
from threading import Thread

import pytest
import torch

from shoal.config.schema import OptimizerSection, StrategySection
from shoal.data.batch import Batch, Jagged
from shoal.data.features import Feature
from shoal.distributed.world import World
from shoal.embedding.rows.store import EVERY
from shoal.models.base import ClickModel, Facts
from shoal.models.clicks.dcnv2 import DCNV2
from shoal.models.clicks.dlrm import DLRM
from shoal.models.clicks.history.din import DIN
from shoal.models.general.bpr import BPR
from shoal.models.general.lightgcn import LightGCN
from shoal.models.general.ngcf import NGCF
from shoal.models.general.sgl import SGL
from shoal.models.general.simgcl import SimGCL
from shoal.models.nn.dropout import begin_step, end_steps
from shoal.models.sequential.bert4rec import BERT4Rec
from shoal.models.sequential.hstu import HSTU
from shoal.models.sequential.sasrec import SASRec
from shoal.models.sequential.tiger import TIGER
from shoal.training.checkpoint.snapshot import restore_into
from shoal.training.checkpoint.snapshot import take_snapshot as snapshot_of
from shoal.training.strategies import make_strategy
from shoal.training.strategies.base import Single
from shoal.training.strategies.graphed import (
    Graphed,
    ListRoom,
    ask,
    count_tokens,
    has_lists,
    pad,
    padded_length,
)

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
LENGTH, ITEMS = 5, 40


def masked_batch(size: int, seed: int, share: float = 0.4) -> Batch:
    torch.manual_seed(seed)
    ids = torch.randint(1, ITEMS, (size, LENGTH))
    hidden = torch.rand(size, LENGTH) < share
    places = hidden.view(-1).nonzero().view(-1)
    offsets = torch.nn.functional.pad(hidden.sum(1).cumsum(0), (1, 0))
    target = torch.where(hidden, ids, 0)
    history = torch.where(hidden, ITEMS, ids)
    return Batch(size, {"history": history, "target": target, "masked": Jagged(places, offsets)})


def make_model(dropout: float = 0.0) -> BERT4Rec:
    torch.manual_seed(3)
    options = BERT4Rec.Options(
        hidden_size=16, hidden_dropout_prob=dropout, attn_dropout_prob=dropout
    )
    return BERT4Rec(options, Facts(num_items=ITEMS, max_len=LENGTH))


def test_lengths_that_lists_are_padded_to():
    assert [padded_length(n) for n in (0, 1, 32, 33, 256, 257, 1700, 6000)] == [
        32, 32, 32, 64, 256, 384, 1792, 6144,
    ]  # fmt: skip


def test_pads_name_a_place_without_a_target():
    batch = masked_batch(20, seed=1)
    padded = pad(batch)
    before, after = batch.ids["masked"], padded.ids["masked"]
    count = len(before.values)
    assert len(after.values) == padded_length(count) > count
    assert torch.equal(after.values[:count], before.values)
    assert torch.equal(after.offsets, before.offsets)
    assert (padded.tensor("target").view(-1)[after.values[count:]] == 0).all()


def test_nothing_is_padded_where_every_place_is_asked_for():
    batch = masked_batch(3, seed=1, share=2.0)
    assert len(pad(batch).ids["masked"].values) == 3 * LENGTH


def test_padded_batches_have_the_same_loss_and_gradients():
    results = []
    for batch in (masked_batch(20, seed=1), pad(masked_batch(20, seed=1))):
        model, strategy = make_model(), Single()
        strategy.setup(model, OptimizerSection(name="adam", lr=0.01), seed=1)
        losses = [strategy.train_step(batch) for _ in range(3)]
        results.append([torch.stack(losses), *model.parameters(), strategy.stores["output"].values])
    for padded, plain in zip(*reversed(results)):
        torch.testing.assert_close(padded, plain, rtol=1e-5, atol=1e-6)


def list_batch(seed: int, size: int = 32, fixed: bool = False) -> Batch:
    """Two features with lists of ids, one of them weighted, one with single ids."""
    generator = torch.Generator().manual_seed(seed)
    most = (
        torch.full((2, size), 3) if fixed else torch.randint(0, 7, (2, size), generator=generator)
    )
    lists = []
    for lengths in most:
        offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        values = torch.randint(1, 60, (int(offsets[-1]),), generator=generator)
        lists.append(Jagged(values, offsets))
    weights = torch.rand(len(lists[1].values), generator=generator)
    ids = {"a": lists[0], "b": Jagged(lists[1].values, lists[1].offsets, weights)}
    ids["c"] = torch.randint(0, 60, (size,), generator=generator)
    labels = (torch.rand(size, generator=generator) < 0.4).float()
    return Batch(size, ids, {"d": torch.rand(size, generator=generator)}, labels)


def list_model(kind: type[ClickModel] = DCNV2) -> ClickModel:
    features = (
        Feature("a", "ids", rows=60, pooling="mean"),
        Feature("b", "ids", rows=60),
        Feature("c", "id", rows=60),
        Feature("d", "number"),
    )
    torch.manual_seed(3)
    facts = Facts(num_slots=3, num_dense=1, features=features, per_feature=True)
    return kind(kind.Options(dim=4), facts)


def test_lists_have_room_for_what_was_seen():
    strategy = Single()
    strategy.setup(list_model(), OptimizerSection(name="adam"), seed=1)
    room = ListRoom(strategy.embeddings)
    first = list_batch(1)
    assert room.fit(first) is first and not room.fits(first)  # nobody has read it yet
    strategy.train_step(first)
    assert room.fits(first)
    for seed in range(2, 30):
        batch = list_batch(seed)
        padded = room.fit(batch)
        assert room.fits(padded) and room.fit(padded) is padded
        for name in ("a", "b"):
            before, after = batch.ids[name], padded.ids[name]
            count = len(before.values)
            assert torch.equal(after.values[:count], before.values)
            assert (after.values[count:] == 0).all()
            assert torch.equal(after.offsets[:-1], before.offsets[:-1])
            assert int(after.offsets[-1]) == len(after.values)
        assert (padded.ids["b"].weights[len(batch.ids["b"].values) :] == 0).all()
    shapes = {(len(b.ids["a"].values), len(b.ids["b"].values))
              for b in (room.fit(list_batch(seed)) for seed in range(30))}  # fmt: skip
    assert len(shapes) == 1  # all have come once, and have the same room
    other = room.fit(list_batch(1, size=7))
    assert room.fits(other) and len(other.ids["a"].values) < next(iter(shapes))[0]


def test_pads_of_lists_change_nothing():
    results = []
    for padded in (False, True):
        strategy = Single()
        strategy.setup(list_model(), OptimizerSection(name="adam", lr=0.01), seed=1)
        room = ListRoom(strategy.embeddings)
        losses = []
        for step in range(8):
            batch = list_batch(step)
            losses.append(strategy.train_step(room.fit(batch) if padded else batch))
        rows = [store.pull(EVERY) for store in strategy.stores.values()]
        results.append([torch.stack(losses), *strategy.model.parameters(), *rows])
    for plain, other in zip(*results):
        assert torch.equal(plain, other)


def test_lists_that_are_read_id_by_id_have_no_room():
    features = (
        Feature("a", "sequence", side="user", rows=60, length=4, table="c"),
        Feature("b", "ids", rows=60),
        Feature("c", "id", side="item", rows=60),
        Feature("d", "number"),
    )
    strategy = Single()
    facts = Facts(num_slots=3, num_dense=1, features=features, per_feature=True)
    strategy.setup(DIN(DIN.Options(dim=4), facts), OptimizerSection(name="adam"), seed=1)
    room = ListRoom(strategy.embeddings)
    batch = list_batch(1)
    strategy.train_step(room.fit(batch))
    assert not room.fits(room.fit(batch))
    assert room.fit(list_batch(2)).ids["a"] is not None
    before = list_batch(2)
    assert room.fit(before).ids["a"] is before.ids["a"]


def test_slots_of_one_table_fit_where_all_have_one_size():
    """Their id 0 is learned: it pads nothing."""
    strategy = Single()
    model = DCNV2(DCNV2.Options(dim=4), Facts(num_slots=2, rows=60))
    strategy.setup(model, OptimizerSection(name="adam"), seed=1)
    room = ListRoom(strategy.embeddings)

    def batch(lengths: list[int]) -> Batch:
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        return Batch(2, {"slots": Jagged(torch.ones(sum(lengths)).long(), offsets)},
                     {}, torch.tensor([0.0, 1.0]))  # fmt: skip

    strategy.train_step(room.fit(batch([1, 2, 1, 2])))
    assert room.fits(room.fit(batch([1, 2, 1, 2])))
    assert not room.fits(room.fit(batch([1, 2, 1, 1])))


def test_on_a_cpu_steps_are_not_recorded():
    strategy = make_strategy(StrategySection(name="single", graph=True), World())
    assert type(strategy) is Single


@pytest.mark.parametrize(("clip", "reason"), [(None, "'item' is not such a one"), (1.0, "clip")])
def test_steps_that_cannot_be_recorded_are_refused_or_run_unrecorded(clip, reason):
    with pytest.raises(ValueError, match=rf"{reason}.*strategy\.graph=false"):
        Graphed(World()).setup(make_model(), OptimizerSection(), 1, clip)
    strategy = Graphed(World(), auto=True)
    strategy.setup(make_model(), OptimizerSection(), 1, clip)
    assert strategy.recorder is None


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (SASRec, {"attn_dropout_prob": 0.0}),
        (SASRec, {"attn_dropout_prob": 0.0, "label_smoothing": 0.1}),
        (HSTU, {"linear_dropout_prob": 0.0, "cosine": True}),
    ],
)
def test_a_padded_batch_computes_all_targets(kind, options):
    """A recorded step knows the places on the host, and pads them."""
    target = torch.tensor([[3, 4, 0], [2, 0, 0]])
    batch = Batch(2, {"history": torch.tensor([[1, 3, 0], [5, 0, 0]]), "target": target})
    batch.ids["history_time"] = torch.tensor([[10, 20, 90, 90], [5, 9, 9, 9]])
    losses = []
    for one in (batch, pad(ask(batch))):
        strategy = Single()
        torch.manual_seed(1)
        model = kind(
            kind.Options(hidden_dropout_prob=0.0, **options), Facts(num_items=ITEMS, max_len=3)
        )
        strategy.setup(model, OptimizerSection(name="adam", lr=0.01), seed=1)
        losses.append([float(strategy.train_step(one)) for _ in range(3)])
        assert strategy.model.cuda_graph_safe
    assert len(pad(ask(batch)).ids["masked"].values) == 6  # no more than there are places
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_model_declares_whether_its_steps_can_be_recorded():
    """Descendants that do more in a step declare it themselves: nobody compares types."""
    assert BPR.cuda_graph_safe and LightGCN.cuda_graph_safe and ClickModel.cuda_graph_safe
    assert not (SGL.cuda_graph_safe or SimGCL.cuda_graph_safe or NGCF.cuda_graph_safe)

    class Own(BPR):
        pass

    assert Own.cuda_graph_safe and "cuda_graph_safe" not in vars(Own)  # graph: auto asks for it


def learned(model):
    """Parameters that have a gradient. A bias of all keys shifts all scores of a query alike, so
    its gradient is rounding alone, of which Adam makes steps."""
    for name, parameter in model.named_parameters():
        if name.endswith("query_key_value.bias"):
            query, _, value = parameter.chunk(3)
            yield from (query, value)
        elif name.endswith(".key_value.bias"):  # likewise, of keys of a memory
            yield parameter.chunk(2)[1]
        else:
            yield parameter


@needs_gpu
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_recorded_steps_equal_unrecorded_ones(dropout):
    device = torch.device("cuda")
    results = []
    for make in (lambda: Graphed(World(device)), lambda: Single(World(device), fused=False)):
        strategy, losses = make(), []
        strategy.setup(make_model(dropout), OptimizerSection(name="adam", lr=0.01), seed=1)
        for step in range(12):
            batch = strategy.receive(masked_batch(20 if step % 3 else 7, seed=step % 4))
            torch.cuda.manual_seed(step)
            losses.append(strategy.train_step(batch, lr=0.01 / (1 + step // 6)))
        rows = [store.pull(EVERY) for store in strategy.stores.values()]
        results.append([torch.stack(losses), *learned(strategy.model), *rows])
        assert all(store.step == 12 for store in strategy.stores.values())
    for recorded, plain in zip(*results):
        torch.testing.assert_close(recorded, plain, rtol=2e-4, atol=2e-5)


def click_batch(seed: int) -> Batch:
    torch.manual_seed(seed)
    ids, dense = torch.randint(0, 60, (32, 4)), torch.randn(32, 3)
    return Batch(32, {"slots": ids}, {"dense": dense}, (torch.rand(32) < 0.4).float())


def pair_batch(seed: int) -> Batch:
    torch.manual_seed(seed)
    ids = {"user_id": (32,), "item_id": (32,), "neg_item": (32, 1)}
    return Batch(32, {name: torch.randint(1, 20, shape) for name, shape in ids.items()})


def next_batch(seed: int) -> Batch:
    torch.manual_seed(seed)
    whole = torch.randint(1, ITEMS, (9, LENGTH + 1))
    whole[torch.arange(LENGTH + 1) > torch.randint(2, LENGTH + 1, (9, 1))] = 0
    times = torch.randint(0, 10**6, whole.shape).cumsum(1)
    ids = {"history": whole[:, :-1].contiguous(), "target": whole[:, 1:].contiguous()}
    return Batch(9, {**ids, "history_time": times})


def prefix_batch(seed: int) -> Batch:
    torch.manual_seed(seed)
    history = torch.randint(1, ITEMS, (9, LENGTH))
    history[torch.arange(LENGTH) >= torch.randint(1, LENGTH + 1, (9, 1))] = 0
    return Batch(9, {"history": history, "target": torch.randint(1, ITEMS, (9,))})


def make_tiger() -> TIGER:
    codes = torch.stack([torch.arange(ITEMS) // 8, torch.arange(ITEMS) % 8], 1)
    options = TIGER.Options(hidden_size=16, inner_size=32)
    return TIGER(options, Facts(num_items=ITEMS, max_len=LENGTH, codes=codes))


def pair_facts() -> Facts:
    pairs = torch.randint(1, 20, (2, 60), generator=torch.Generator().manual_seed(1))
    return Facts(num_users=20, num_items=20, train_users=pairs[0], train_items=pairs[1])


STEADY = {
    "DLRM": (lambda: DLRM(DLRM.Options(), Facts(num_slots=4, num_dense=3, rows=60)), click_batch),
    "DCNV2": (lambda: DCNV2(DCNV2.Options(), Facts(num_slots=4, rows=60)), click_batch),
    "BPR": (lambda: BPR(BPR.Options(), pair_facts()), pair_batch),
    "LightGCN": (lambda: LightGCN(LightGCN.Options(), pair_facts()), pair_batch),
    "SASRec": (
        lambda: SASRec(SASRec.Options(hidden_size=16), Facts(num_items=ITEMS, max_len=LENGTH)),
        next_batch,
    ),
    "HSTU": (
        lambda: HSTU(
            HSTU.Options(hidden_size=50, n_heads=2, cosine=True),
            Facts(num_items=ITEMS, max_len=LENGTH),
        ),
        next_batch,
    ),
    "TIGER": (make_tiger, prefix_batch),
}


@needs_gpu
@pytest.mark.parametrize("optimizer", ["adagrad", "sgd", "rmsprop", "adam"])
@pytest.mark.parametrize("name", list(STEADY))
def test_models_whose_steps_are_recorded_by_default(name, optimizer):
    """Each recorded step does what an unrecorded one does that begins with the same weights.

    Over several steps rounding may grow without bound, also between two runs that are not recorded:
    RMSprop's first steps are ten times the rate whatever the gradient, so a gradient of nothing but
    rounding, or a ReLU that rounding switches, moves a weight as far as any other.
    """
    make, batch_of = STEADY[name]
    device = torch.device("cuda")
    recorded, plain = Graphed(World(device), auto=True), Single(World(device))
    for strategy in (recorded, plain):
        torch.manual_seed(3)
        strategy.setup(make(), OptimizerSection(name=optimizer, lr=0.01), seed=1)
    for step in range(9):
        restore_into(plain, snapshot_of(recorded, {}))
        results = []
        for strategy in (recorded, plain):
            begin_step(5, step, device)
            batch = strategy.receive(batch_of(step % 4))
            loss = strategy.train_step(batch, lr=0.01 / (1 + step // 4))
            rows = [store.pull(EVERY) for store in strategy.stores.values()]
            results.append([loss, *learned(strategy.model), *rows])
        for of_recorded, of_plain in zip(*results, strict=True):
            torch.testing.assert_close(of_recorded, of_plain, rtol=1e-3, atol=1e-4)
    end_steps()
    assert recorded.recorder._recorded


@needs_gpu
@pytest.mark.parametrize("optimizer", ["adagrad", "sgd", "adam"])
@pytest.mark.parametrize("fixed", [False, True])
def test_steps_with_lists_are_recorded(optimizer, fixed):
    device, results = torch.device("cuda"), []
    for strategy in (Graphed(World(device), auto=True), Single(World(device))):
        strategy.setup(list_model(), OptimizerSection(name=optimizer, lr=0.01), seed=1)
        losses = []
        for step in range(24):
            begin_step(5, step, device)
            batch = strategy.receive(list_batch(step % 6, 32 if step % 3 else 20, fixed))
            losses.append(strategy.train_step(batch, lr=0.01 / (1 + step // 12)))
        end_steps()
        rows = [store.pull(EVERY) for store in strategy.stores.values()]
        results.append([torch.stack(losses), *learned(strategy.model), *rows])
        if isinstance(strategy, Graphed):
            assert len(strategy.recorder._recorded) >= 2 and has_lists(batch)
    for recorded, plain in zip(*results):
        torch.testing.assert_close(recorded, plain, rtol=1e-3, atol=5e-4)


def made_ahead(make, steps: int) -> Iterator[Batch]:
    """Batches that a thread makes while others are trained on, as a reader does on a GPU."""
    queue: Queue = Queue(4)
    Thread(target=lambda: [queue.put(make(step)) for step in range(steps)], daemon=True).start()
    for _ in range(steps):
        yield queue.get()


def long_batch(seed: int, items: int = 3000, length: int = 50) -> Batch:
    """Histories of any length, of three sizes of batches: steps of many shapes."""
    generator = torch.Generator().manual_seed(seed)
    size = (64, 100, 37)[seed % 3]
    whole = torch.randint(1, items, (size, length + 1), generator=generator)
    ends = torch.randint(2, 4 + seed % length, (size, 1), generator=generator)
    whole[torch.arange(length + 1) > ends] = 0
    ids = {"history": whole[:, :-1].contiguous(), "target": whole[:, 1:].contiguous()}
    return Batch(size, {name: one.pin_memory() for name, one in ids.items()})


@needs_gpu
@pytest.mark.parametrize("model", ["SASRec", "DLRM"])
def test_many_steps_of_many_shapes_whose_batches_come_from_a_thread(model):
    """Nothing of a batch is overwritten, by whichever step of whichever shape."""
    device, steps, curves = torch.device("cuda"), 150, []

    def make(step: int) -> Batch:
        if model == "SASRec":
            return long_batch(step)
        generator = torch.Generator().manual_seed(step)
        size = (4096, 3000, 128)[step % 3]
        ids = torch.randint(0, 20_000, (size, 8), generator=generator)
        labels = (ids.sum(1) % 2).float()
        return Batch(size, {"slots": ids}, {"dense": torch.ones(size, 3)}, labels)

    for strategy in (Graphed(World(device), auto=True), Single(World(device))):
        torch.manual_seed(3)
        chosen = (
            SASRec(SASRec.Options(hidden_size=32), Facts(num_items=3000, max_len=50))
            if model == "SASRec"
            else DLRM(DLRM.Options(), Facts(num_slots=8, num_dense=3, rows=20_000))
        )
        strategy.setup(chosen, OptimizerSection(name="adam", lr=1e-3), seed=1)
        losses = []
        for step, batch in enumerate(made_ahead(make, steps)):
            begin_step(5, step, device)
            losses.append(strategy.train_step(strategy.receive(batch)))
        end_steps()
        for store in strategy.stores.values():
            list(store.export())  # which refuses ids that no batch has
        curves.append(torch.stack(losses).cpu())
        if isinstance(strategy, Graphed):
            assert len(strategy.recorder._recorded) >= 3
    assert curves[0].isfinite().all()
    torch.testing.assert_close(*curves, rtol=2e-3, atol=2e-3)


def short_histories(seed: int, name: str = "SASRec") -> Batch:
    """Of 2048 histories with room for 20 items, 1 to 6 in each."""
    draw = torch.Generator().manual_seed(seed)
    real = torch.arange(20) < torch.randint(1, 7, (2048, 1), generator=draw)
    history, target = torch.randint(1, ITEMS, (2, 2048, 20), generator=draw) * real
    if name == "SASRec":
        return Batch(2048, {"history": history, "target": target})
    hidden = (torch.rand(2048, 20, generator=draw) < 0.4) & real
    target = history * hidden
    offsets = torch.nn.functional.pad(hidden.sum(1).cumsum(0), (1, 0))
    places = Jagged(hidden.view(-1).nonzero().view(-1), offsets)
    history = history.masked_fill(hidden, ITEMS)
    return Batch(2048, {"history": history, "target": target, "masked": places})


def test_places_of_items_are_counted_where_many_have_none():
    batch = ask(short_histories(1))
    tokens, real = count_tokens(batch).flat_ids("tokens"), batch.tensor("history").view(-1) > 0
    assert len(tokens) == 7680 > int(real.sum())  # one of a few numbers
    assert torch.equal(tokens[: int(real.sum())], real.nonzero().view(-1))
    assert (tokens[int(real.sum()) :] == 2048 * 20 - 1).all()
    full = Batch(200, {name: torch.ones(200, 200).long() for name in ("history", "target")})
    assert "tokens" not in count_tokens(ask(full)).ids


@needs_gpu
@pytest.mark.parametrize("name", ["SASRec", "BERT4Rec"])
def test_recorded_steps_leave_out_pads(name):
    """The losses are those of computing all places."""
    losses = []
    for kind in (Single, Graphed):
        torch.manual_seed(1)
        model = {"SASRec": SASRec, "BERT4Rec": BERT4Rec}[name]
        how = {"hidden_size": 32, "hidden_dropout_prob": 0.2, "attn_dropout_prob": 0.2}
        facts = Facts(num_items=ITEMS, max_len=20, train_items=torch.arange(1, ITEMS))
        strategy = kind(World(torch.device("cuda")))
        strategy.setup(model(model.Options(**how), facts), OptimizerSection(lr=0.01), seed=1)
        strategy.model.train()
        received = [strategy.receive(short_histories(k % 4, name)) for k in range(12)]
        assert all(("tokens" in one.ids) == (kind is Graphed) for one in received)
        made = []
        for step, batch in enumerate(received):
            begin_step(1, step, torch.device("cuda"))
            made.append(strategy.train_step(batch).clone())
        losses.append(torch.stack(made).cpu())
    torch.testing.assert_close(*losses, rtol=2e-4, atol=1e-4)
