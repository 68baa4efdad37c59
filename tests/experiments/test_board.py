"""The board: what it answers, what it never reads, whom it stops; its page in a real browser."""

import functools
import hashlib
import http.client
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, needs_browser
from commands import shoal
from other_user import NO_IDS, needs_root
from served import PATIENCE
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.experiments.board.app import Board
from shoal.experiments.board.run_index import FoundRun, Root
from shoal.experiments.board.run_table import SCRIPT
from shoal.experiments.board.server import run_board
from shoal.experiments.board.stopping import stop_run
from shoal.experiments.report import report
from shoal.serving.http.listening import BoundedServer, listen

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
SMALL = (
    "--model=BPR",
    "--dataset=synthetic",
    "--data.synthetic.users=90",
    "--data.synthetic.items=60",
    "--data.synthetic.interactions=2000",
    "--run.trackers=[]",
    "--run.threads=1",
)
ENDLESS = (
    "--train.epochs=100000",
    "--train.patience=100000",
    "--checkpoint.every_epochs=100000",
    "--run.log_level=warning",
)


def make_run(folder: Path, epochs: int = 3, **more: Any) -> Path:
    """A finished run, as its files are."""
    folder.mkdir(parents=True)
    config = {
        "model": {"name": "BPR", "embedding_size": 64},
        "data": {"name": "synthetic"},
        "train": {"epochs": epochs},
        "eval": {"valid_metric": "NDCG@10"},
        **more,
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    lines = [
        {"epoch": k, "loss": 1 / (k + 1), "valid": {"ndcg@10": k / 10, "hit@10": 0.5}}
        for k in range(epochs)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    result = {"dataset": "synthetic", "best_valid": {"ndcg@10": 0.25}, "test": {"ndcg@10": 0.125}}
    (folder / "result.json").write_text(json.dumps(result))
    return folder


class Running:
    """A board in this process."""

    def __init__(self, root: Path, token: str | None = None, may_stop: bool = False):
        board = Board(Root(root), token, True, may_stop)
        self.server = BoundedServer.around(board.app(), board)
        listener = listen("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listener]})
        listens = threading.Event()
        self.server.announce = listens.set
        self.thread.start()
        assert listens.wait(PATIENCE)

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join()

    def call(self, path: str, body: str | None = None, **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        method = "GET" if body is None else "POST"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        is_json = answer.headers.get("content-type") == "application/json"
        return answer.status, json.loads(text) if is_json else text

    def runs(self) -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in self.call("/runs")[1]["runs"]}

    def stop(self, key: str) -> tuple[int, Any]:
        return self.call("/stop", json.dumps({"run": key}), content_type="application/json")


@contextmanager
def running(root: Path, **how: Any) -> Iterator[Running]:
    board = Running(root, **how)
    try:
        yield board
    finally:
        board.close()


# ---- what it answers ---------------------------------------------------------------------------


def test_runs_at_any_depth_and_what_is_said_of_each(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "one")
    make_run(tmp_path / "runs" / "study" / "trials" / "0001", epochs=2)
    make_run(tmp_path / "runs" / "one" / "checkpoints" / "no-run")
    (tmp_path / "runs" / "study" / "config.yaml").write_text("{}")
    (tmp_path / "runs" / "study" / "space.yaml").write_text("{}")  # a search: no run itself
    failed = make_run(tmp_path / "runs" / "failed")
    (failed / "result.json").unlink()
    (failed / "failure.json").write_text('{"state": "failed", "reason": "no disk"}')
    with running(tmp_path / "runs") as board:
        found = board.runs()
        assert set(found) == {"one", "study/trials/0001", "failed"}
        one = found["one"]
        assert one["state"] == "finished" and one["metric"] == "ndcg@10" and one["model"] == "BPR"
        assert (one["best_valid"], one["test"], one["epochs"]) == (0.25, 0.125, 3)
        assert (found["failed"]["state"], found["failed"]["reason"]) == ("failed", "no disk")
        assert found["failed"]["best_valid"] == 0.2  # of its epochs so far
        (told,) = board.call(f"/details?run={one['key']}")[1]["runs"]
        assert told["curves"]["ndcg@10"] == [[0, 0.0], [1, 0.1], [2, 0.2]]
        assert told["config"]["model.embedding_size"] == "64"


def test_figures_of_damaged_files_are_left_out(tmp_path: Path) -> None:
    deep = "[" * 100_000
    for name, (file, text) in {
        "yaml": ("config.yaml", "model: [unclosed"),
        "list": ("config.yaml", "- 1\n"),
        "deep": ("result.json", deep),
        "types": ("result.json", '{"test": 3, "best_valid": [], "dataset": {"a": 1}}'),
        "huge": ("result.json", '{"test": {"ndcg@10": 1e999}, "best_valid": {"ndcg@10": NaN}}'),
        "torn": ("metrics.jsonl", '{"epoch": 0, "loss": 1.0}\n{"epoch": 1, "lo'),
        "metrics": ("metrics.jsonl", '{"epoch": "x", "valid": 3}\n5\n' + deep),
        HOSTILE.replace("/", ""): ("config.yaml", f"model: {{name: {json.dumps(HOSTILE)}}}"),
    }.items():
        (make_run(tmp_path / name) / file).write_text(text)
    os.rename(make_run(tmp_path / "odd"), os.fsencode(tmp_path) + b"/odd-\xff\xfe")
    (make_run(tmp_path / "bytes") / "config.yaml").write_bytes(b"\xff\xfe\x00")
    with running(tmp_path) as board:
        found = board.runs()
        assert len(found) == 10 and found["huge"]["test"] is None and found["types"]["test"] is None
        assert found[HOSTILE]["model"] == HOSTILE and "odd-\ufffd\ufffd" in found
        for one in found.values():
            status, told = board.call(f"/details?run={one['key']}")
            assert status == 200 and told["runs"][0]["key"] == one["key"]


def test_long_curves_are_thinned_and_keep_their_last_point(tmp_path: Path) -> None:
    make_run(tmp_path / "long", epochs=2_345)
    with running(tmp_path) as board:
        key = board.runs()["long"]["key"]
        points = board.call(f"/details?run={key}")[1]["runs"][0]["curves"]["loss"]
        assert len(points) <= 500 and points[-1][0] == 2_344


# ---- what it never reads -----------------------------------------------------------------------


def test_no_file_outside_the_root_is_read(tmp_path: Path) -> None:
    secret = make_run(tmp_path / "outside" / "secret", model={"name": "SECRET"})
    root = tmp_path / "runs"
    linked = make_run(root / "linked")
    (linked / "config.yaml").unlink()
    (linked / "config.yaml").symlink_to(secret / "config.yaml")
    (linked / "result.json").unlink()
    (linked / "result.json").symlink_to(secret / "result.json")
    (root / "folder").symlink_to(secret)
    pipe = make_run(root / "pipe")
    (pipe / "result.json").unlink()
    os.mkfifo(pipe / "result.json")  # reading it would never end
    with running(root) as board:
        assert set(board.runs()) == {"linked", "pipe"}
        text = json.dumps(board.call("/runs")) + json.dumps(
            board.call(f"/details?run={board.runs()['linked']['key']}")
        )
        assert "SECRET" not in text and board.runs()["linked"]["test"] is None
        for name in ("../outside/secret", "%2e%2e%2foutside%2fsecret", str(secret), "folder", ""):
            assert board.call(f"/details?run={name}")[0] == 404
            assert board.call(f"/report?run={name}")[0] == 404
        for path in ("/../outside/secret/config.yaml", "/linked/config.yaml", "/%2e%2e/x"):
            assert board.call(path)[0] == 404
    swapped = FoundRun(("..", "outside", "secret"))
    assert Root(root).read(FoundRun(("folder",)), "config.yaml", bytes) is None
    assert swapped.key not in Root(root).runs()


def test_a_report_of_chosen_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `report` is not installed")
    make_run(tmp_path / "one")
    make_run(tmp_path / HOSTILE)
    secret = make_run(tmp_path / "outside" / "secret", model={"name": "SECRET"})
    (secret / "result.json").write_text('{"dataset": "SECRET", "best_valid": {}, "test": {}}')
    linked = make_run(tmp_path / "linked")
    for name in ("config.yaml", "result.json", "metrics.jsonl"):
        (linked / name).unlink()
        (linked / name).symlink_to(secret / name)
    (linked / "evaluation").symlink_to(secret)
    with running(tmp_path) as board:
        keys = {name: one["key"] for name, one in board.runs().items()}
        status, text = board.call(f"/report?run={keys['one']}&run={keys[HOSTILE]}")
        assert status == 200 and text.startswith("<!doctype html>")
        assert "<img" not in text and "&lt;img src=x" in text
        status, text = board.call(f"/report?run={keys['linked']}")
        assert status == 200 and "SECRET" not in text and "is a link" in text
    assert not list(tmp_path.rglob("report.html"))


def test_the_policy_of_every_answer_allows_no_inline_script(tmp_path: Path) -> None:
    """By its digest the board's own script runs on its page, and no script on other answers."""
    make_run(tmp_path / "one")
    own = b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    with running(tmp_path) as board:
        for path in ("/", "/runs", "/details?run=none"):
            connection = http.client.HTTPConnection("127.0.0.1", board.port, timeout=PATIENCE)
            connection.request("GET", path)
            policy = connection.getresponse().headers["content-security-policy"]
            connection.close()
            rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
            assert rules["default-src"] == rules["frame-ancestors"] == "'none'"
            assert rules["script-src"].startswith("'sha256-") and " " not in rules["script-src"]
            assert (own in rules["script-src"]) == (path == "/")


@needs_browser
def test_the_page_works_under_its_policy_and_other_scripts_do_not(tmp_path: Path) -> None:
    make_run(tmp_path / "one")
    with running(tmp_path) as board, Browser() as browser:
        browser.open(board.url)
        browser.wait_for("document.querySelectorAll('#runs tbody tr').length === 1")
        assert browser.errors == []
        script = "Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'})"
        browser.evaluate(f"void document.body.append({script})")
        assert browser.evaluate("window.ran === undefined")


def test_a_report_reads_the_folder_that_was_opened(tmp_path: Path) -> None:
    """Another folder that is put in its place while the report is made is not read."""
    pytest.importorskip("matplotlib", reason="the extra `report` is not installed")
    secret = make_run(tmp_path / "outside" / "secret", model={"name": "SECRET"})
    run = make_run(tmp_path / "runs" / "one")
    root = Root(tmp_path / "runs")
    (found,) = root.runs().values()
    with root.opened(found) as folder:
        run.rename(tmp_path / "moved")
        run.symlink_to(secret)
        page = report(folder, output=tmp_path / "report.html").read_text()
    assert "SECRET" not in page and "BPR" in page
    with pytest.raises(OSError, match="is a link"), root.opened(found):
        pass


@pytest.mark.parametrize("wrong", ["1" + "0" * 400, '"x"', "null", "[]", "{}", "-1", "1e400"])
def test_impossible_numbers_are_left_out(tmp_path: Path, wrong: str) -> None:
    pytest.importorskip("matplotlib", reason="the extra `report` is not installed")
    run = make_run(tmp_path / "one")
    line = f'{{"epoch": {wrong}, "loss": {wrong}, "valid": {{"ndcg@10": {wrong}}}}}\n'
    (run / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text() + line)
    parts = "".join(
        f', "{name}": {wrong}' for name in ("seconds", "memory", "tables", "plan", "data", "base")
    )
    (run / "result.json").write_text(
        f'{{"dataset": {wrong}, "best_epoch": {wrong}, "epochs": {wrong}, "best_valid": '
        f'{{"ndcg@10": {wrong}}}, "test": {{"ndcg@10": {wrong}}}{parts}}}'
    )
    (run / "failure.json").write_text(f'{{"state": {wrong}, "reason": {wrong}}}')
    other = make_run(tmp_path / "two")
    (other / "result.json").write_text(wrong)
    with running(tmp_path) as board:
        keys = [one["key"] for one in board.runs().values()]
        query = "&".join(f"run={key}" for key in keys)
        for path in (f"/details?{query}", f"/report?{query}", f"/report?run={keys[0]}"):
            assert board.call(path)[0] == 200
    assert "metrics.jsonl: 1 of its lines cannot be read" in report(run).read_text()
    listed = CliRunner().invoke(app, ["runs", str(tmp_path)])
    assert listed.exit_code == 0, listed.exception


# ---- who may ask -------------------------------------------------------------------------------


def test_requests_without_the_token_are_refused(tmp_path: Path) -> None:
    make_run(tmp_path / "one")
    token = "a-long-random-token"
    with running(tmp_path, token=token) as board:
        assert board.call("/")[0] == board.call("/runs")[0] == 401
        assert board.call("/runs", authorization=f"Bearer {token}")[0] == 200
        basic = b64encode(f"anybody:{token}".encode()).decode()  # as a browser asks its user
        assert board.call("/", authorization=f"Basic {basic}")[0] == 200
        for wrong in (
            "Bearer x",
            f"Basic {b64encode(b'x:y').decode()}",
            "Basic %%",
            "Basic",
            token,
        ):
            assert board.call("/runs", authorization=wrong)[0] == 401
    with running(tmp_path) as board:
        assert board.call("/runs", host="evil.example")[0] == 421
        assert board.call("/details?" + "run=x&" * 9)[0] == 422


def test_another_address_needs_a_token_and_encryption(tmp_path: Path) -> None:
    secured = {"certificate": None, "key": None, "may_stop": False, "announce": None}
    with pytest.raises(ValueError, match="asks them for a token"):
        run_board(str(tmp_path), "0.0.0.0", 0, token=None, plain=True, **secured)
    with pytest.raises(ValueError, match="encryption"):
        run_board(str(tmp_path), "0.0.0.0", 0, token="x" * 20, plain=False, **secured)
    with pytest.raises(ValueError, match="there is no folder"):
        run_board(str(tmp_path / "no"), "127.0.0.1", 0, token=None, plain=False, **secured)


# ---- stopping ----------------------------------------------------------------------------------


def test_only_the_holder_of_the_lock_is_stopped(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one")
    with running(tmp_path) as board:
        assert board.stop(board.runs()["one"]["key"])[0] == 403  # it only shows
    with running(tmp_path, may_stop=True) as board:
        key = board.runs()["one"]["key"]
        body = json.dumps({"run": key})
        assert board.call("/stop", body, content_type="text/plain")[0] == 415  # a form of a site
        assert board.stop("0" * 16)[0] == 404
        status, told = board.stop(key)
        assert (status, told["error"]) == (409, "no process trains there")
    mine = f"process {os.getpid()} on host {os.uname().nodename}\n"
    for text, said in {
        mine: "no process trains there any more",  # this process holds nothing
        "process 999999999 on host " + os.uname().nodename + "\n": "any more",
        f"process {os.getpid()} on host elsewhere\n": "trains on host elsewhere: stop it there",
        "process 1; kill -9\n": "no process trains there",
    }.items():
        (one / ".lock").write_text(text)
        with pytest.raises(ValueError, match=said):
            stop_run(one)


HOLDER = """
import fcntl, os, subprocess, sys
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(file, getattr(fcntl, sys.argv[2]))
options = {"env": {"SHOAL_LAUNCHER": str(os.getpid())}, "pass_fds": [file]}
with subprocess.Popen(["/bin/sleep", "600"], user=int(sys.argv[3]), **options) as sleeping:
    print(sleeping.pid, flush=True)
"""


@contextmanager
def holding(run: Path, lock: str, user: int) -> Iterator[subprocess.Popen[str]]:
    """A launcher whose child, of a user, has the lock of a run; the lock names the child."""
    (run / ".lock").touch()
    words = [sys.executable, "-c", HOLDER, str(run / ".lock"), lock, str(user)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        child = int(launcher.stdout.readline())
        (run / ".lock").write_text(f"process {child} on host {os.uname().nodename}\n")
        try:
            yield launcher
        finally:
            os.kill(child, signal.SIGKILL)
            launcher.kill()


def test_a_process_that_shares_the_lock_does_not_train(tmp_path: Path) -> None:
    """The board itself does so, for a moment, and a folder's author may have named it."""
    run = make_run(tmp_path / "one")
    with holding(run, "LOCK_SH", os.geteuid()) as launcher:
        with pytest.raises(ValueError, match="no process trains there any more"):
            stop_run(run)
        assert launcher.poll() is None
    with holding(run, "LOCK_EX", os.geteuid()) as launcher:
        assert stop_run(run) == launcher.pid
        assert launcher.wait() == -signal.SIGTERM


@needs_root
def test_the_launcher_of_another_user_is_not_stopped(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    with holding(run, "LOCK_EX", NO_IDS) as launcher:
        with pytest.raises(ValueError, match="its launcher is a process of another user"):
            stop_run(run)
        assert launcher.poll() is None


# ---- in a browser ------------------------------------------------------------------------------

ROW = (
    "[...document.querySelectorAll('#runs tbody tr')]"
    ".find(row => row.querySelector('.name').textContent === NAME)"
)
NAMES = "[...document.querySelectorAll('#runs tbody .name')].map(one => one.textContent)"


def row(name: str) -> str:
    return ROW.replace("NAME", json.dumps(name))


STOP_BUTTON = f"{row('one')}?.querySelector('button.stop')"
# How a page may send a POST elsewhere; each resolves when it was answered or refused.
CROSS_SITE = """
(async () => {
  const [url, body] = [TARGET, JSON.stringify({ run: KEY })];
  const json = { "content-type": "application/json" };
  const sent = [
    { headers: json },
    { headers: json, credentials: "include" },
    { headers: json, mode: "no-cors" },
    { headers: { "content-type": "text/plain" } },
    { mode: "no-cors", body: new Blob([body], { type: "application/json" }) },
  ];
  const post = { method: "POST", body };
  for (const how of sent) await fetch(url, { ...post, ...how }).catch(() => null);
  navigator.sendBeacon(url, new Blob([body], { type: "application/json" }));
  navigator.sendBeacon(url, body);
  const frame = document.createElement("iframe");
  frame.name = "answer";
  const form = document.createElement("form");
  Object.assign(form, { method: "POST", action: url, target: "answer", enctype: "text/plain" });
  const field = document.createElement("input");
  [field.name, field.value] = [body.slice(0, -1) + ', "a": "', '"}'];
  form.append(field);
  document.body.append(frame, form);
  const answered = new Promise((done) => { frame.onload = done; });
  form.submit();
  await answered;
  return true;
})()
"""


@needs_browser
def test_a_board_that_only_shows_has_no_button(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    with holding(run, "LOCK_EX", os.geteuid()) as launcher, Browser() as browser:
        with running(tmp_path) as board:
            browser.open(board.url)
            browser.wait_for(f"{row('one')}?.cells[2].textContent === 'running'")
            assert browser.evaluate("document.querySelector('button.stop') === null")
            request = {
                "method": "POST",
                "headers": {"content-type": "application/json"},
                "body": json.dumps({"run": board.runs()["one"]["key"]}),
            }
            status = f"fetch('stop', {json.dumps(request)}).then((answer) => answer.status)"
            assert browser.evaluate(status) == 403
        assert launcher.poll() is None


@needs_browser
def test_a_page_of_another_site_stops_nothing(tmp_path: Path) -> None:
    """It knows the run's key, and tries all ways in which a browser lets it send."""
    run = make_run(tmp_path / "runs" / "one")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("<!doctype html><title>another site</title>")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "site")
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as site,
        holding(run, "LOCK_EX", os.geteuid()) as launcher,
        running(tmp_path / "runs", may_stop=True) as board,
        Browser() as browser,
    ):
        threading.Thread(target=site.serve_forever).start()
        try:
            browser.open(f"http://localhost:{site.server_port}/")
            key, target = board.runs()["one"]["key"], f"{board.url}/stop"
            attack = CROSS_SITE.replace("TARGET", json.dumps(target))
            assert browser.evaluate(attack.replace("KEY", json.dumps(key)))
            assert browser.requests.count(target) >= 7, "not all of it was sent"
            assert launcher.poll() is None
            browser.open(board.url)  # its own page does stop this run
            browser.wait_for(f"{STOP_BUTTON}?.textContent === 'stop'")
            browser.wait_for(f"({STOP_BUTTON}.click(), {STOP_BUTTON}.textContent !== 'stop')")
            browser.evaluate(f"{STOP_BUTTON}.click()")
            assert launcher.wait(PATIENCE) == -signal.SIGTERM
        finally:
            site.shutdown()


@pytest.mark.slow
@needs_browser
def test_the_board_shows_a_run_in_training_and_stops_it(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    make_run(root / "old")
    hostile = make_run(root / HOSTILE, epochs=5, train={"epochs": 5}, constructor=HOSTILE)
    with open(hostile / "metrics.jsonl", "a") as file:  # names that every object of a script has
        file.write('{"epoch": 5, "valid": {"constructor": 1, "__proto__": 2, "toString": 3}}\n')
    trains = shoal("train", *SMALL, *ENDLESS, "--nproc=2", "--output=runs/live", cwd=tmp_path)
    words = ("board", "runs", "--port=0", "--allow-stop", "--announce=url")
    serves = shoal(*words, cwd=tmp_path)
    try:
        serves.until("its address", lambda: (tmp_path / "url").exists())
        kept = root / "live" / "progress.json"
        trains.until("progress", lambda: kept.exists() and json.loads(kept.read_text())["epoch"])
        with Browser() as browser:
            browser.open((tmp_path / "url").read_text())
            epoch = f"Number(({row('live')} || document.body).cells?.[3].textContent.split(' ')[0])"
            before = browser.wait_for(f"{epoch} > 0 && {epoch}")
            browser.wait_for(f"{epoch} > {before}")  # nothing was loaded anew
            assert browser.evaluate("performance.getEntriesByType('navigation').length") == 1
            watch(browser, tmp_path)
            stop = f"{row('live')}.querySelector('button.stop')"
            browser.wait_for(f"({stop}.click(), {stop}.textContent === 'really stop?')")
            browser.evaluate(f"{stop}.click()")
            assert trains.wait() == 143, trains.output
            browser.wait_for(f"{row('live')}.cells[2].textContent.startsWith('stopped')")
            assert browser.errors == [] and browser.left_the_machine == []
            assert browser.evaluate("document.title") == "Runs · runs"
        assert not kept.exists() and (root / "live" / "checkpoints").is_dir()  # it saved, and ended
        serves.process.terminate()
        assert serves.wait() == 0, serves.output
    finally:
        trains.kill()
        serves.kill()


def watch(browser: Browser, scratch: Path) -> None:
    """Filter, sort and compare, and what all of it looks like."""
    browser.evaluate("document.querySelectorAll('#runs thead button')[0].click()")
    assert browser.evaluate(NAMES) == [HOSTILE, "live", "old"]
    browser.evaluate("document.querySelectorAll('#runs thead button')[0].click()")
    assert browser.evaluate(NAMES) == ["old", "live", HOSTILE]
    browser.type("#filter", "finished bpr")
    assert browser.evaluate(NAMES) == ["old", HOSTILE]
    browser.evaluate("document.querySelector('#filter').value = ''")
    browser.wait_for(f"{NAMES}.length === 3")
    browser.evaluate(f"{row('live')}.querySelector('input').click()")
    browser.wait_for("document.querySelectorAll('#processes tbody tr').length === 2")
    assert "rank 1" in browser.text("#processes") and " s ago" in browser.text("#processes")
    points = "document.querySelector('#charts polyline')?.getAttribute('points').split(' ').length"
    first = browser.wait_for(points)
    browser.wait_for(f"{points} > {first}")
    for name in ("old", HOSTILE):
        browser.evaluate(f"{row(name)}.querySelector('input').click()")
    lines = "document.querySelectorAll('#charts polyline').length"
    browser.wait_for(f"{lines} === 4")  # three losses, and the metric that decides the first run
    metric = "document.querySelector('#metric')"
    browser.evaluate(f"({metric}.value = 'ndcg@10', {metric}.onchange())")
    browser.wait_for(f"{lines} === 6")
    for name in ("constructor", "__proto__"):
        browser.evaluate(f"({metric}.value = '{name}', {metric}.onchange())")
        browser.wait_for(f"{lines} === 3")  # of the losses; a single point is no line
    browser.evaluate(f"({metric}.value = 'ndcg@10', {metric}.onchange())")
    browser.wait_for(f"{lines} === 6")
    assert "/report?run=" in browser.evaluate("document.querySelector('#report').href")
    assert browser.text("#chosen-title") == "3 runs compared"
    assert "train.epochs" in browser.text("#differences") and browser.text("#said") == ""
    assert HOSTILE in browser.text("#differences") and HOSTILE in browser.text("#legend")
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    browser.screenshot(scratch / "light.png")
    browser.dark()
    browser.screenshot(scratch / "dark.png")
    browser.resize(390, 800)
    browser.screenshot(scratch / "narrow.png")
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    browser.dark(False)
    browser.resize(1200, 900)
