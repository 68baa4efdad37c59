"""Paddle 2.6.2 at the shape of ps_dnn.py: local, and async with one worker and one server.

    PYTHON benchmarks/ps_dnn_peer.py SECONDS [local async geo]

Run by ps_dnn.py in Paddle's own environment (paddlepaddle==2.6.2, protobuf==4.25.8, numpy<2).
Parsed arrays are fed, one thread. Prints one line of JSON: samples per second.
"""

import json
import os
import socket
import subprocess
import sys
import time

SLOTS, DENSE, DIM, LAYERS, BATCH, IDS = 26, 13, 9, (400, 400, 400), 512, 1_000_000


def build(paddle, with_servers):
    """Inputs and loss of the model, in the program that is current."""
    slots = [paddle.static.data(f"s{k}", [None, 1], "int64") for k in range(SLOTS)]
    dense = paddle.static.data("dense", [None, DENSE], "float32")
    label = paddle.static.data("label", [None, 1], "int64")
    rows = []
    for one in slots:
        begin = paddle.nn.initializer.Uniform(-1e-4, 1e-4)
        start = paddle.ParamAttr(name="rows", initializer=begin)
        if with_servers:
            row = paddle.static.nn.sparse_embedding(one, size=[IDS, DIM], param_attr=start)
        else:
            row = paddle.static.nn.embedding(one, size=[IDS, DIM], is_sparse=True, param_attr=start)
        rows.append(paddle.reshape(row, [-1, DIM]))
    x = paddle.concat([*rows, dense], axis=1)
    for width in LAYERS:
        x = paddle.static.nn.fc(x, width, activation="relu")
    x = paddle.static.nn.fc(x, 2)
    loss = paddle.mean(paddle.nn.functional.cross_entropy(x, label))
    return loss


def make_feeds(np, count=24):
    random = np.random.default_rng(100)
    feeds = []
    for _ in range(count):
        ids = (IDS ** random.random((BATCH, SLOTS))).astype("int64") * 2654435761 % IDS
        feed = {f"s{k}": np.ascontiguousarray(ids[:, k : k + 1]) for k in range(SLOTS)}
        feed["dense"] = random.random((BATCH, DENSE), dtype="float32")
        feed["label"] = ((ids[:, :1] * 7 + ids[:, 1:2]) % 4 == 0).astype("int64")
        feeds.append(feed)
    return feeds


def rate(exe, program, feeds, seconds):
    for k in range(6):
        exe.run(program, feed=feeds[k])
    begun, steps = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        exe.run(program, feed=feeds[steps % len(feeds)])
        steps += 1
    return steps * BATCH / (time.perf_counter() - begun)


def local(seconds):
    import numpy as np
    import paddle

    paddle.enable_static()
    loss = build(paddle, False)
    paddle.optimizer.Adam(1e-3, lazy_mode=True).minimize(loss)
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    return rate(exe, paddle.static.default_main_program(), make_feeds(np), seconds)


def role(seconds, mode):
    """A server or a worker, as the environment says."""
    import numpy as np
    import paddle
    import paddle.distributed.fleet as fleet

    paddle.enable_static()
    fleet.init(is_collective=False)
    loss = build(paddle, True)
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    if mode == "geo":
        strategy.a_sync_configs = {"k_steps": 100}
    optimizer = fleet.distributed_optimizer(paddle.optimizer.Adam(1e-3, lazy_mode=True), strategy)
    optimizer.minimize(loss)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    found = rate(exe, paddle.static.default_main_program(), make_feeds(np), seconds)
    print(json.dumps({"rate": found}), flush=True)
    os._exit(0)  # stopping in order takes long and may crash


def served(seconds, mode):
    """Start one server and one worker; the worker's rate."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {
        **os.environ,
        "PADDLE_PSERVERS_IP_PORT_LIST": f"127.0.0.1:{port}",
        "PADDLE_TRAINERS_NUM": "1",
        "PADDLE_TRAINER_ENDPOINTS": f"127.0.0.1:{port + 1}",
        "OMP_NUM_THREADS": "1",
        "CPU_NUM": "1",
    }
    command = [sys.executable, __file__, str(seconds), "role", mode]
    server = subprocess.Popen(
        command,
        env={**common, "TRAINING_ROLE": "PSERVER", "POD_IP": "127.0.0.1", "PADDLE_PORT": str(port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        worker = subprocess.run(
            command,
            env={
                **common,
                "TRAINING_ROLE": "TRAINER",
                "PADDLE_TRAINER_ID": "0",
                "POD_IP": "127.0.0.1",
                "PADDLE_PORT": str(port + 1),
            },
            capture_output=True,
            text=True,
            timeout=300,
        )
    finally:
        server.kill()
        server.wait()
    lines = [line for line in worker.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(worker.stdout[-500:] + worker.stderr[-2000:])
    return json.loads(lines[-1])["rate"]


def main():
    seconds, *what = float(sys.argv[1]), *sys.argv[2:]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if what[:1] == ["role"]:
        role(seconds, what[1])
        return
    found = {}
    for name in what or ["local", "async"]:
        if name == "local":
            if what == ["local"]:
                found[name] = local(seconds)
            else:  # in a process of its own: a program is global
                done = subprocess.run(
                    [sys.executable, __file__, str(seconds), "local"],
                    capture_output=True,
                    text=True,
                    timeout=300,
                )
                found[name] = json.loads(done.stdout.splitlines()[-1])["local"]
        else:
            found[name] = served(seconds, name)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
