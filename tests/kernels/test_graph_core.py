"""Graphs by the native core, against plain torch: odd sizes, any number of layers and threads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from shoal.kernels import machine, pairs
from shoal.kernels.core import load_core
from shoal.kernels.graph import spread_graph
from shoal.models.nn import graph as graphs
from shoal.models.nn import losses
from shoal.models.nn.graph import Graph

# Without a compiler at installation there is no core, and torch makes all of this.
on_core = pytest.mark.skipif(load_core() is None, reason="the native core is not built")


def some_graph(users: int, items: int, edges: int) -> Graph:
    torch.manual_seed(users)
    taken = torch.randint(1, users, (edges,)), torch.randint(1, items, (edges,))
    return Graph(*taken, users, items)


def matrix(graph: Graph) -> Tensor:
    made = torch.zeros(graph.nodes, graph.nodes, dtype=torch.float64)
    made[graph.ends, graph.neighbours] = graph.weights.double()
    return made


@on_core
@pytest.mark.parametrize("dim", [1, 7, 16, 33, 64])
@pytest.mark.parametrize("layers", [0, 1, 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_layers_of_a_graph_are_products(dim: int, layers: int, threads: int) -> None:
    graph = some_graph(19, 31, 200)
    if not machine.has_neon():  # elsewhere torch's products are used, and tested with models
        pytest.skip("products with graphs are torch's on this machine")
    x, product = torch.randn(graph.nodes, dim), matrix(graph)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        power = spread_graph(x, graph.as_edges(), layers, 0.5)
        added = spread_graph(x, graph.as_edges(), layers, 2.0, added=x)
    finally:
        torch.set_num_threads(before)
    terms = [x.double()]
    for _ in range(layers):
        terms.append(product @ terms[-1])
    torch.testing.assert_close(power, (0.5 * terms[-1]).float(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(added, (2.0 * sum(terms)).float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_the_mean_of_layers_and_its_gradient_are_torchs(layers: int, monkeypatch) -> None:
    graph, found = some_graph(23, 17, 150), []
    start, weight = torch.randn(2, graph.nodes, 12).unbind()
    for takes in (graphs.takes_graph, lambda x: False):
        monkeypatch.setattr(graphs, "takes_graph", takes)
        x = start.clone().requires_grad_()
        made = graph.mean(x, layers)
        (graph(made) * weight).sum().backward()
        found.append((made.detach(), x.grad))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dim", [1, 5, 16, 70])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_loss_of_places_is_that_of_their_rows(dim: int, threads: int, monkeypatch) -> None:
    torch.manual_seed(dim)
    rows, places = torch.randn(37, dim), torch.randint(0, 37, (3, 4099))
    before, found = torch.get_num_threads(), []
    torch.set_num_threads(threads)
    try:
        for takes in (pairs.takes_placed, lambda *_: False):
            monkeypatch.setattr(pairs, "takes_placed", takes)
            own = rows.clone().requires_grad_()
            loss = losses.placed_bpr_loss(own, places)
            (loss * 0.25).backward()
            found.append((loss.detach(), own.grad))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(*found, rtol=2e-5, atol=2e-4)


@on_core
def test_places_lie_within_their_rows() -> None:
    with pytest.raises(ValueError, match="places"):
        pairs.placed_pair_loss(torch.ones(4, 2), torch.full((3, 5), 4))
    with pytest.raises(ValueError, match="slopes"):
        places = torch.zeros(3, 5, dtype=torch.int64)
        pairs.placed_pair_gradients(torch.ones(4, 2), places, torch.ones(4), 1.0)
