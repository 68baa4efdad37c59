"""A server: gradients applied once and together, and waits that end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from captured_warnings import listening
from ps_cluster import (
    SECONDS,
    Bare,
    Proxy,
    applied,
    first_dense,
    get_dense,
    grads,
    joined,
    make_spec,
    pull,
    push,
    serving,
    share_of,
)

from shoal.distributed.world import PeerLost
from shoal.ps.server.server import Server
from shoal.ps.wire import (
    BFLOAT16,
    COMPRESSED,
    Kind,
    MessageHeader,
    numbers_frame,
    parts_frame,
    send_ids,
    send_rows,
)
from shoal.ps.worker.client import Client, ServerError

IDS = [3, 5, 900]


# ---- a step -------------------------------------------------------------------------------------


@pytest.mark.parametrize("servers", [1, 3])
def test_a_step_of_two_workers(servers: int) -> None:
    """Gradients of all are summed and divided by the terms of all; dense parameters too."""
    spec = make_spec(workers=2, servers=servers)
    with serving(servers) as running, joined(running.addresses, spec) as one:
        with joined(running.addresses, spec, 1) as two:
            before, word = pull(one, 0, IDS), pull(one, 1, [-7, 0, 1 << 60])
            assert word[1].eq(0).all() and not word[0].eq(0).any()
            dense = first_dense(spec)
            more = [torch.ones_like(value) for value in dense]
            first = push(one, {0: (IDS, grads(1)), 1: ([-7], grads(3, 1, 3))}, 0.5, 6.0, 3.0, dense)
            rows = pull(two, 0, IDS)  # nothing is applied yet
            assert torch.equal(rows, before)
            second = push(two, {0: ([5], grads(2, 1))}, 0.5, 2.0, 1.0, more)
            for found in (first.wait(), second.wait()):
                assert found[:2] == (8.0, 4.0)
                assert sum(len(values) for values in found[2]) == 15
            total = grads(1)
            total[1] += grads(2, 1)[0]
            torch.testing.assert_close(pull(two, 0, IDS), before - 0.5 * total / 4)
            taught = word[:1] - 0.5 * grads(3, 1, 3) / 4
            torch.testing.assert_close(pull(one, 1, [-7]), taught)
            expected = [value - 0.5 * (value + 1) / 4 for value in dense]
            for here, there in zip(get_dense(two), expected):
                torch.testing.assert_close(here, there)
            one.bye()
            two.bye()
        assert running.join() == [0] * servers


def test_sums_are_in_the_order_of_ranks() -> None:
    """Whoever comes first: the same bits."""
    scales = (1e8, 1.0, 1e4)
    spec = make_spec(workers=3)

    def train(order: tuple[int, ...]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        with (
            serving() as running,
            joined(running.addresses, spec) as zero,
            joined(running.addresses, spec, 1) as one,
            joined(running.addresses, spec, 2) as two,
        ):
            clients, under_way = (zero, one, two), []
            for step in range(3):
                for rank in order:
                    seed = 10 * step + rank
                    some = [scales[rank] * grads(seed, *s) for s in ((3, 2), (1, 4), (1, 5))]
                    dense = [s.view(shape) for s, shape in zip(some, spec.dense)]
                    rows = {0: (IDS, scales[rank] * grads(seed))}
                    under_way.append(push(clients[rank], rows, dense=dense))
                while under_way:
                    under_way.pop().wait()
            return pull(zero, 0, IDS), get_dense(zero)

    rows, dense = train((0, 1, 2))
    for order in ((2, 0, 1), (1, 2, 0)):
        others, other_dense = train(order)
        assert torch.equal(rows, others)
        assert all(torch.equal(a, b) for a, b in zip(dense, other_dense))
    # In another order these very numbers have another sum.
    parts = [scales[rank] * grads(rank) for rank in range(3)]
    assert not torch.equal(parts[0] + parts[1] + parts[2], parts[2] + parts[1] + parts[0])


# ---- exactly once -------------------------------------------------------------------------------


def bare_push(
    client: Client, step: int, sequence: int, seed: int = 0
) -> tuple[MessageHeader, list]:
    """A push of row 3 of table 0, as the client would send it."""
    header = MessageHeader(Kind.PUSH, client.worker, 0, sequence, step, client.session)
    frames = [
        numbers_frame(1.0, 0.5, 1.0),
        parts_frame([(0, 1)]),
        bytes(send_ids([torch.tensor([3])], 0)),
        bytes(send_rows([grads(seed, 1)], 0)),
        b"",
    ]
    return header, frames


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_repeated_push_is_applied_once(mode: str) -> None:
    with serving() as running, joined(running.addresses, make_spec(mode=mode)) as client:
        before, bare = pull(client, 0, [3]), Bare(running.addresses[0])
        first, second = bare_push(client, 0, 50, seed=1), bare_push(client, 1, 51, seed=2)
        answers = [bare.ask(first[0], *first[1]) for _ in range(3)]  # sent thrice
        assert answers[0] == answers[1] == answers[2] == (Kind.OK, [numbers_frame(0.5, 1.0)])
        torch.testing.assert_close(pull(client, 0, [3]), before - grads(1, 1))
        bare.ask(second[0], *second[1])
        after = pull(client, 0, [3])
        torch.testing.assert_close(after, before - grads(1, 1) - grads(2, 1))
        assert bare.ask(first[0], *first[1])[0] == Kind.OK  # late
        changed = bare_push(client, 1, 77, seed=3)  # the same step, whatever it holds
        assert bare.ask(changed[0], *changed[1])[0] == Kind.OK
        assert torch.equal(pull(client, 0, [3]), after)
        bare.close()


def test_pushes_out_of_order() -> None:
    with serving() as running, joined(running.addresses, make_spec(mode="async")) as client:
        before, bare = pull(client, 0, [3]), Bare(running.addresses[0])
        pushes = [bare_push(client, step, 50 + step, seed=step) for step in range(3)]
        for step in (2, 1):  # ignored: the one before has not come
            bare.send(pushes[step][0], *pushes[step][1])
        assert bare.receive(0.3) is None
        assert torch.equal(pull(client, 0, [3]), before)
        for step in range(3):
            assert bare.ask(pushes[step][0], *pushes[step][1])[0] == Kind.OK
        expected = before - sum(grads(step, 1) for step in range(3))
        torch.testing.assert_close(pull(client, 0, [3]), expected)
        bare.close()


@pytest.mark.parametrize("flags", [0, BFLOAT16, COMPRESSED, BFLOAT16 | COMPRESSED])
def test_an_empty_push_is_counted(flags: int) -> None:
    """Of a worker whose slice of a batch is empty: however rows travel."""
    spec = make_spec()
    with serving() as running, joined(running.addresses, spec) as client:
        client.flags = flags
        before = get_dense(client)
        push(client, {}, lr=1.0, dense=[torch.ones(shape) for shape in spec.dense]).wait()
        torch.testing.assert_close(get_dense(client), [one - 1 for one in before])


def test_dense_parameters_are_set_once() -> None:
    """An order that comes again late, when others went on, is not carried out again."""
    spec = make_spec()
    with serving() as running, joined(running.addresses, spec) as client:
        bare = Bare(running.addresses[0])
        header = MessageHeader(Kind.SET_DENSE, 0, 0, 99, -1, client.session)
        values = bytes(send_rows([torch.zeros(15)], 0))
        assert bare.ask(header, values, b"")[0] == Kind.OK
        push(client, {}, dense=[torch.ones(shape) for shape in spec.dense]).wait()
        taught = get_dense(client)
        assert bare.ask(header, values, b"")[0] == Kind.OK
        assert all(torch.equal(a, b) for a, b in zip(taught, get_dense(client)))
        assert not taught[0].eq(0).any()
        bare.close()


@pytest.fixture
def proxied() -> Iterator[tuple[Server, Proxy]]:
    with serving() as running:
        proxy = Proxy(running.addresses[0])
        yield running.servers[0], proxy
        proxy.close()


def test_a_lost_answer_is_sent_again(quick: None, proxied: tuple[Server, Proxy]) -> None:
    server, proxy = proxied
    spec = make_spec("adagrad")
    with joined([proxy.address], spec) as client:
        dense = get_dense(client)
        for step in range(3):
            before = pull(client, 0, [3])
            proxy.loses_answers, _ = True, proxy.lost.clear()
            pushing = push(client, {0: ([3], grads(step, 1))}, 0.1, 2.0, 1.0, dense)
            assert proxy.lost.wait(SECONDS)
            deadline = time.monotonic() + SECONDS
            while applied(server) < step + 1 and time.monotonic() < deadline:
                time.sleep(0.01)
            proxy.cut()
            proxy.loses_answers = False
            loss, count, values = pushing.wait()
            assert (loss, count) == (2.0, 1.0) and len(values) == 1
            assert applied(server) == step + 1  # once
            assert not torch.equal(pull(client, 0, [3]), before)
        total = sum(grads(step, 1) ** 2 for step in range(3))
        # Adagrad divides by the root of the sum of squares: of three steps, not of more.
        torch.testing.assert_close(
            pull(client, 0, [3]), before - 0.1 * grads(2, 1) / (total.sqrt() + 1e-10)
        )


def test_a_lost_answer_to_goodbye_is_no_failure(quick: None, proxied: tuple[Server, Proxy]) -> None:
    """The server has ended by then: that is said, and is no failure."""
    _, proxy = proxied
    with joined([proxy.address], make_spec()) as client, listening() as heard:
        proxy.loses_answers = True
        client.bye()
    assert [line for line in heard if "server 0 at" in line and "complete" in line]


def test_a_goodbye_after_a_failure(quick: None, proxied: tuple[Server, Proxy]) -> None:
    _, proxy = proxied
    with joined([proxy.address], make_spec()) as client:
        proxy.loses_answers = True
        client.failure = "worker 1 on host far died"  # as a heartbeat heard
        with pytest.raises(PeerLost, match="worker 1 on host far"):
            client.bye()


def test_rows_arrive_over_a_connection_that_is_cut(
    quick: None, proxied: tuple[Server, Proxy]
) -> None:
    server, proxy = proxied
    with joined([proxy.address], make_spec()) as client:
        expected = pull(client, 0, IDS)
        for _ in range(3):
            proxy.cut()
            assert torch.equal(pull(client, 0, IDS), expected)
            push(client, {0: (IDS, grads(1))}, lr=0.0).wait()
        assert applied(server) == 3


@pytest.mark.slow
def test_a_server_waits_for_a_worker_that_reads_its_data(quick: None) -> None:
    """Longer than a server waits for a word of anybody."""
    with serving(patience=3.0) as running:
        early = Client(running.addresses, 0)
        early.start_heartbeat()
        time.sleep(4.0)
        with joined(running.addresses, make_spec()) as client:
            early.close()
            assert pull(client, 0, IDS).shape == (3, 4) and running.servers[0].failure is None


# ---- waiting ------------------------------------------------------------------------------------


def test_a_worker_too_far_ahead_waits() -> None:
    spec = make_spec(workers=2, mode="async", staleness=2)
    with serving() as running, joined(running.addresses, spec) as fast:
        with joined(running.addresses, spec, 1) as slow, ThreadPoolExecutor(1) as pool:
            for _ in range(3):
                push(fast, {0: ([3], grads(1, 1))}).wait()  # applied at once
            assert fast.pushes == 3
            held = pool.submit(pull, fast, 0, [3], 3)
            time.sleep(0.4)
            assert not held.done()
            push(slow, {0: ([5], grads(2, 1))}).wait()
            now = pull(slow, 0, [3])
            assert torch.equal(held.result(SECONDS), now)  # 3 steps to 1: no more than 2 ahead
            push(fast, {0: ([3], grads(1, 1))}).wait()
            held = pool.submit(pull, fast, 0, [3], 4)
            time.sleep(0.4)
            assert not held.done()
            slow.bye()  # whoever is done keeps nobody waiting
            assert not torch.equal(held.result(SECONDS), now)
            fast.bye()
        assert running.join() == [0]


def test_a_sync_pull_waits_for_the_step_before() -> None:
    """sync: the rows of step 1 are those after both workers' gradients of step 0."""
    spec = make_spec(workers=2)
    with (
        serving() as running,
        joined(running.addresses, spec) as one,
        joined(running.addresses, spec, 1) as two,
    ):
        before = pull(one, 0, [3], 0)
        pushing = push(one, {0: ([3], grads(1, 1))}, 1.0)
        share, _ = share_of(one, 0, torch.tensor([3]))
        pulling = one.start_pull([share], 1)
        push(two, {0: ([3], grads(2, 1))}, 1.0).wait()
        pushing.wait()
        (rows,) = pulling.wait()
        torch.testing.assert_close(rows, before - (grads(1, 1) + grads(2, 1)) / 2)
        with pytest.raises(ServerError, match="far ahead of all others"):
            pull(one, 0, [3], 1_000_000)
