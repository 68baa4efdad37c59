"""Workers that do not fit, that are lost, and that find no server."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from ps_cluster import (
    SECONDS,
    Bare,
    first_dense,
    get_dense,
    grads,
    joined,
    make_spec,
    pull,
    push,
    server_process,
    serving,
    set_dense,
)

from shoal.distributed.world import PeerLost
from shoal.ps.server.server import Server
from shoal.ps.wire import Kind, MessageHeader
from shoal.ps.worker.client import Client, ServerError

IDS = [3, 5, 900]


# ---- workers that do not fit --------------------------------------------------------------------


def test_another_model_is_refused() -> None:
    spec = make_spec(workers=2)
    with serving() as running, joined(running.addresses, spec) as first:
        for other in (make_spec(workers=2, seed=2), make_spec("adam", workers=2)):
            client = Client(running.addresses, 1)
            with pytest.raises(ServerError, match="worker 1 describes another model or run"):
                client.hello(other)
            client.close()
        with joined(running.addresses, spec, 1):
            pull(first, 0, IDS)


def test_a_number_taken_twice_is_refused() -> None:
    spec = make_spec(workers=2)
    with serving() as running, joined(running.addresses, spec) as first:
        twin = Client(running.addresses, 0)
        name = socket.gethostname()
        with pytest.raises(ServerError, match=f"there is a worker 0 already, on host {name}"):
            twin.hello(spec)
        twin.close()
        third = Client(running.addresses, 2)
        with pytest.raises(ServerError, match="worker 2 of 2"):
            third.hello(spec)
        third.close()
        pull(first, 0, IDS)


def test_servers_in_another_order_are_refused() -> None:
    with serving(2) as running:
        client = Client(running.addresses[::-1], 0)
        with pytest.raises(ServerError, match="takes it for server 0 of 2: give every host the"):
            client.hello(make_spec(servers=2))
        client.close()
        client = Client(running.addresses[1:], 0)
        with pytest.raises(ServerError, match=r"this is server 1, and worker 0 .* server 0 of 1"):
            client.hello(make_spec(servers=1))
        client.close()


def test_requests_that_are_refused() -> None:
    spec = make_spec()
    with serving() as running, joined(running.addresses, spec, dense=False) as client:
        with pytest.raises(ServerError, match="nobody has set the dense parameters yet"):
            client.dense()
        with pytest.raises(ServerError, match="gradients of dense parameters that nobody has set"):
            push(client, {}, dense=first_dense(spec)).wait()
        client.pushes = 0
        for ids in ([-1], [1000], [3, 1 << 40]):
            with pytest.raises(ServerError, match="table 'user' has rows 0 to 999; ids"):
                pull(client, 0, ids)
            with pytest.raises(ServerError, match="table 'user' has rows 0 to 999; ids"):
                push(client, {0: (ids, grads(1, len(ids)))}).wait()
            client.pushes = 0
        for lr in (-0.1, float("inf"), float("nan")):
            with pytest.raises(ServerError, match="a learning rate of"):
                push(client, {}, lr).wait()
            client.pushes = 0
        with pytest.raises(ServerError, match="a frame of 0 bytes; expected 15 values"):
            client.set_dense([torch.empty(0)], {})
        assert client.stats()[0]["tables"]["user"]["rows"] == 0
        push(client, {0: ([3], grads(1, 1))}).wait()
        assert client.stats()[0]["tables"]["user"]["rows"] == 1


@pytest.mark.parametrize(
    "state, message",
    [
        ({"x.exp_avg": torch.zeros(4)}, "names no state of a dense parameter"),
        ({"².exp_avg": torch.zeros(4)}, "names no state of a dense parameter"),
        ({"9.exp_avg": torch.zeros(4)}, "names no state of a dense parameter"),
        ({"1.sum": torch.zeros(4)}, "adam keeps"),
        ({"1.exp_avg": torch.zeros(4)}, "adam keeps"),
        (
            {"1.exp_avg": torch.zeros(1), "1.exp_avg_sq": torch.zeros(4), "1.step": torch.ones(())},
            r"'exp_avg' is torch.float32 \[1\]; it must be torch.float32 \[4\]",
        ),
        (
            {"1.exp_avg": torch.zeros(4), "1.exp_avg_sq": torch.zeros(4), "1.step": torch.ones(2)},
            "'step'",
        ),
    ],
)
def test_optimizer_state_of_a_wrong_shape_is_refused(state: dict, message: str) -> None:
    """Refused before anything is touched, and the next step goes on as if it had not come."""
    spec = make_spec("adam")
    with serving() as running, joined(running.addresses, spec) as client:
        dense = get_dense(client)
        with pytest.raises(ServerError, match=message):
            set_dense(client, [torch.zeros(shape) for shape in spec.dense], state)
        assert all(torch.equal(a, b) for a, b in zip(dense, get_dense(client)))
        push(client, {}, dense=dense).wait()


# ---- workers that are lost ----------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sync", pytest.param("geo", marks=pytest.mark.slow)])
def test_a_silent_worker_is_reported_lost(mode: str) -> None:
    """Even where the others leave the server no rest."""
    spec = make_spec(workers=2, mode=mode)
    with serving(timeout=1.5) as running, joined(running.addresses, spec) as one:
        with joined(running.addresses, spec, 1):
            pass  # it is gone without a goodbye
        begun = time.monotonic()
        with pytest.raises(PeerLost, match=r"server 0 at .*: worker 1 on host .* has been silent"):
            while time.monotonic() < begun + SECONDS:
                push(one, {0: ([3], grads(1, 1))}).wait()
        with pytest.raises(PeerLost, match="worker 1"):
            pull(one, 0, [3])
        one.bye()
        assert running.join() == [1]


@pytest.mark.slow
def test_a_computing_worker_is_not_reported_lost() -> None:
    with serving(timeout=1.5) as running, joined(running.addresses, make_spec()) as client:
        time.sleep(2.5)  # its second thread tells that it lives
        pull(client, 0, IDS)


def test_running_servers_wait_for_a_worker_that_waits_for_another(quick: None) -> None:
    """Those that are up hear of it meanwhile."""
    spec = make_spec(servers=2)
    with serving(1, timeout=1.0) as running, socket.create_server(("127.0.0.1", 0)) as place:
        late = f"127.0.0.1:{place.getsockname()[1]}"
        place.close()
        client = Client([running.addresses[0], late], 0)
        with ThreadPoolExecutor(1) as pool:
            greeting = pool.submit(client.hello, spec, SECONDS)
            time.sleep(2.0)
            server = Server(late, 1)
            thread = threading.Thread(target=server.serve)
            thread.start()
            greeting.result(SECONDS)
        assert running.servers[0].failure is None
        pull(client, 0, IDS)
        client.bye()
        client.close()
        thread.join(SECONDS)


def test_a_worker_that_ends_early_ends_the_sync_run() -> None:
    """sync: nobody waits for gradients that can never come."""
    spec = make_spec(workers=2)
    with (
        serving() as running,
        joined(running.addresses, spec) as one,
        joined(running.addresses, spec, 1) as two,
    ):
        pushing = push(one, {0: ([3], grads(1, 1))})
        pull(one, 0, [3])
        two.bye()
        with pytest.raises(PeerLost, match="worker 1 is done, and others wait"):
            pushing.wait()


def test_a_lost_server_is_reported_by_name(tmp_path: Path) -> None:
    with (
        server_process(tmp_path) as (process, address),
        joined([address], make_spec(), timeout=1.5) as client,
    ):
        pull(client, 0, IDS)
        process.kill()
        with pytest.raises(PeerLost, match=rf"server 0 at {address} has not answered for"):
            pull(client, 0, IDS)


@pytest.mark.slow
def test_a_lost_server_is_reported_while_a_worker_waits(quick: None, tmp_path: Path) -> None:
    """A worker may wait for other workers: its second thread finds out, and tells."""
    with (
        server_process(tmp_path) as (process, address),
        joined([address], make_spec(), timeout=1.0) as client,
    ):
        told, came = [], threading.Event()
        client.on_lost = lambda text: (told.append(text), came.set())  # type: ignore[assignment]
        assert not came.wait(2.5) and client.failure == ""
        process.kill()
        assert came.wait(SECONDS)
        assert told == [client.failure] and f"server 0 at {address} has not answered" in told[0]


def test_a_missing_server_is_reported_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as place:
        address = f"127.0.0.1:{place.getsockname()[1]}"
    client = Client([address], 0)
    with pytest.raises(PeerLost, match="Start the servers, check their addresses and keys"):
        client.hello(make_spec(), 1.0)
    client.close()


def test_an_address_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"server 3 cannot listen on 127.0.0.1:{port}: Add"):
            Server(f"127.0.0.1:{port}", 3)


def test_a_wrong_hello_is_refused() -> None:
    with serving() as running:
        bare = Bare(running.addresses[0])
        good = {**make_spec().model_dump(mode="json"), "server": 0}
        for values in ({}, {**good, "tables": 5}, {**good, "dense": [[1 << 34]]}):
            kind, (text,) = bare.ask(
                MessageHeader(Kind.HELLO, 0, session=5), json.dumps(values).encode()
            )
            assert kind == Kind.ERROR and json.loads(text)["message"]
            assert running.servers[0].steps is None
        kind, _ = bare.ask(MessageHeader(Kind.PULL, 0, session=5))
        assert kind == Kind.ERROR
        assert (
            bare.ask(MessageHeader(Kind.HELLO, 0, session=5), json.dumps(good).encode())[0]
            == Kind.OK
        )
        bare.close()
