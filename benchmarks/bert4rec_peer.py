"""One rank of the peer in bert4rec_cpu.py: the example's model, trained as the example trains it.

    RANK=0 WORLD_SIZE=1 ... python benchmarks/bert4rec_peer.py '{"mode": "dmp", "batch": 8, ...}'

`ddp` is plain PyTorch: an embedding, pre-norm blocks and a linear output layer at every position,
cross entropy that ignores position 0, DistributedDataParallel, Adam. `dmp` takes the embedding from
TorchRec and wraps the model in its DistributedModelParallel. On CPUs TorchRec refuses Adam for
sharded rows, so they learn by Adagrad there; all else learns by Adam. Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn


class Model(nn.Module):
    """Ids [b, l] -> logits [b, l, vocabulary]."""

    def __init__(
        self, items: nn.Module, vocabulary: int, length: int, dim: int, heads: int, layers: int
    ):
        super().__init__()
        self.items = items
        self.positions = nn.Parameter(torch.randn(length, dim))
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(0.1)
        layer = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, 0.1, "relu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(dim, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.norm(self.items(ids) + self.positions))
        return self.out(self.blocks(x, src_key_padding_mask=ids == 0))


def sharded_items(vocabulary: int, dim: int) -> nn.Module:
    """TorchRec's embedding behind the same call."""
    from torchrec.modules.embedding_configs import EmbeddingConfig
    from torchrec.modules.embedding_modules import EmbeddingCollection
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    class Items(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = EmbeddingConfig(
                name="item_rows",
                embedding_dim=dim,
                num_embeddings=vocabulary,
                feature_names=["item"],
            )
            self.collection = EmbeddingCollection(tables=[config], device=torch.device("cpu"))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            lengths = torch.full((ids.shape[0],), ids.shape[1], dtype=torch.int32)
            jagged = KeyedJaggedTensor.from_lengths_sync(["item"], ids.reshape(-1), lengths)
            return self.collection(jagged)["item"].values().view(*ids.shape, dim)

    return Items()


def wrap_dmp(model: nn.Module, lr: float) -> tuple[nn.Module, list]:
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel

    fused = {"optimizer": EmbOptimType.EXACT_ADAGRAD, "learning_rate": lr}
    wrapped = DistributedModelParallel(
        module=model, device=torch.device("cpu"), sharders=[EmbeddingCollectionSharder(fused)]
    )
    dense = [p for name, p in wrapped.named_parameters() if "collection" not in name]
    return wrapped, dense


def main() -> None:
    given = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    shape = (given["vocabulary"], given["length"], given["dim"], given["heads"], given["layers"])
    vocabulary, dim = given["vocabulary"], given["dim"]
    if given["mode"] == "dmp":
        model, dense = wrap_dmp(Model(sharded_items(vocabulary, dim), *shape), 1e-3)
    else:
        model = nn.parallel.DistributedDataParallel(Model(nn.Embedding(vocabulary, dim), *shape))
        dense = list(model.parameters())
    optimizer = torch.optim.Adam(dense, lr=1e-3)
    loss_of = nn.CrossEntropyLoss(ignore_index=0)
    torch.manual_seed(dist.get_rank() + 2)
    seconds, losses = [], []
    for _ in range(given["warm_up"] + given["steps"]):
        items = torch.randint(1, vocabulary - 1, (given["batch"], given["length"]))
        hidden = torch.rand(items.shape) < given["mask"]
        begun = time.perf_counter()
        optimizer.zero_grad()
        logits = model(items.masked_fill(hidden, vocabulary - 1))
        loss = loss_of(logits.view(-1, vocabulary), items.masked_fill(~hidden, 0).view(-1))
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begun)
        losses.append(loss.item())
    dist.barrier()
    if dist.get_rank() == 0:
        print(json.dumps({"seconds": seconds[given["warm_up"] :], "loss": losses[-1]}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
