"""SASRec: what it may look at, its two losses, its blocks, and an order it must learn."""

import pytest
import torch
import torch.nn.functional as F
from memory_models import build, stores, training_batch
from torch import Tensor, nn

from shoal.data.batch import Batch
from shoal.models.base import Model
from shoal.models.nn.transformer import Transformer


def states(model: Model, history: list[list[int]]) -> Tensor:
    return model.encode(model.embed.rows("history", torch.tensor(history)))


def test_sasrec_never_looks_ahead():
    model = build("SASRec").eval()
    one, two = states(model, [[1, 2, 3, 4, 5]]), states(model, [[1, 2, 3, 8, 5]])
    torch.testing.assert_close(one[:, :3], two[:, :3])
    assert (one[:, 3:] - two[:, 3:]).abs().amax(-1).min() > 1e-4  # but it does look back


def test_sasrec_query_is_the_state_at_the_last_item_whatever_the_padding():
    model = build("SASRec").eval()
    full = states(model, [[4, 2, 7]])[0, -1]
    for pads in range(4):
        batch = Batch(1, {"history": torch.tensor([[4, 2, 7] + [0] * pads])})
        torch.testing.assert_close(model.encode_query(batch)[0], full)
    empty = model.encode_query(Batch(1, {"history": torch.zeros(1, 4, dtype=torch.int64)}))
    assert empty.isfinite().all()


def test_sasrec_cross_entropy_trains_every_real_position_over_the_catalogue():
    model = build("SASRec")
    batch = training_batch(model)
    weight = stores(model)["item"].weight
    expected, count = 0.0, 0
    for history, target in zip(batch.ids["history"], batch.ids["target"]):
        length = int((target > 0).sum())
        for position in range(length):  # each prefix by itself: what one pass must equal
            with torch.no_grad():
                state = states(model, [history[: position + 1].tolist()])[0, -1]
            logits = (weight[1:] @ state).double()
            expected += float(logits.exp().sum().log() - logits[target[position] - 1])
            count += 1
    output = model(batch)
    assert output.count == count == 37
    assert output.loss.item() == pytest.approx(expected, rel=1e-5)


def test_sasrec_block_is_the_pre_norm_block_of_the_paper():
    torch.manual_seed(3)
    more = {"activation": "relu", "norm_eps": 1e-5, "init_std": 0.4, "causal": True}
    ours = Transformer(1, 2, 8, 12, **more).double()
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    theirs = nn.TransformerEncoderLayer(
        8, 2, 12, dropout=0.0, activation="relu", batch_first=True, norm_first=True
    ).double()
    attend, feed = ours.blocks
    theirs.self_attn.in_proj_weight.data = attend.layer.query_key_value.weight.data
    theirs.self_attn.in_proj_bias.data = attend.layer.query_key_value.bias.data
    theirs.self_attn.out_proj.load_state_dict(attend.layer.out.state_dict())
    theirs.linear1.load_state_dict(feed.layer[0].state_dict())
    theirs.linear2.load_state_dict(feed.layer[2].state_dict())
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    expected = F.layer_norm(theirs(x, src_mask=mask), [8])
    torch.testing.assert_close(ours(x), expected)


def test_sasrec_dropout_is_on_in_training_only():
    model = build("SASRec", hidden_dropout_prob=0.5, attn_dropout_prob=0.5)
    assert not torch.equal(states(model, [[1, 2, 3]]), states(model, [[1, 2, 3]]))
    model.eval()
    assert torch.equal(states(model, [[1, 2, 3]]), states(model, [[1, 2, 3]]))


def test_sasrec_refuses_what_cannot_be():
    with pytest.raises(ValueError, match=r"16 does not divide into 3 heads.*hidden_size"):
        build("SASRec", n_heads=3)
    model = build("SASRec").eval()
    with pytest.raises(ValueError, match=r"7 items .* 6 positions .* data\.max_len"):
        states(model, [[1, 2, 3, 4, 5, 6, 7]])
