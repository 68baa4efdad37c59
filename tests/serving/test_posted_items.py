"""`POST /items`: new items in a running service, at once, whoever is asked, and after a restart."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="shoal serve needs the extra `serve`")
pytest.importorskip("httptools", reason="shoal serve needs the extra `serve`")

import torch
from exported import export_here, exported, rewrite, trained
from served import Served
from small import VECTORS, small_config
from small_artifact import write_vectors
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.serving.artifact import files
from shoal.serving.artifact.artifact import Artifact
from shoal.serving.artifact.new_items import NewItems, with_items
from shoal.serving.artifact.write_new_items import write_with_items
from shoal.serving.bulk import Approximate
from shoal.serving.http.listening import listen
from shoal.serving.items import folder
from shoal.serving.items.folder import ItemsFolder
from shoal.serving.items.live_items import LiveItems
from shoal.serving.service.api import Limits
from shoal.serving.service.server import HttpServer
from shoal.serving.service.service import Service

TOKEN = "a token for new items"
WIDTH = 6


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SASRec that was trained with vectors, and whose items have titles."""
    folder = tmp_path_factory.mktemp("shop") / "monday"
    artifact = export_here(trained(small_config("SASRec", **VECTORS), steps=30), folder)
    titles = ["", *(f"title of {word}" for word in artifact.items.words[1:])]
    files.write_words(folder, "title", titles)
    files.write_manifest(folder)
    return folder


def variant(shop: Path, folder: Path, text: str = "another day") -> Path:
    """An artifact like the shop's, which differs in one file."""
    shutil.copytree(shop, folder)
    (folder / "README.md").write_text(text)
    files.write_manifest(folder)
    return folder


class Shop(Served):
    """A running `shoal serve` that takes new items."""

    def __init__(self, artifact: Path, scratch: Path, *words: str, **environment: str):
        scratch.mkdir(exist_ok=True)
        (scratch / "url").unlink(missing_ok=True)
        words = (f"--items={scratch / 'added'}", *words)
        super().__init__(artifact, scratch, *words, SHOAL_ITEMS_TOKEN=TOKEN, **environment)

    def post(self, body: Any, token: str | None = TOKEN) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=240)
        headers = {"content-type": "application/json"}
        headers |= {} if token is None else {"authorization": f"Bearer {token}"}
        data = body if isinstance(body, bytes) else json.dumps(body)
        connection.request("POST", "/items", data, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, json.loads(text)

    def add(self, *ids: str, **facts: Any) -> tuple[int, Any]:
        return self.post({"items": [item(word, **facts) for word in ids]})

    def knows(self, word: str) -> bool:
        return self.call("/v1/similar", {"item": word})[0] == 200

    def listed(self, **question: Any) -> list[Any]:
        question = {"user": "5", "topk": 1000, "seen": True, **question}
        return [one["item"] for one in self.call("/v1/recommend", question)[1]["items"]]


class Near(Shop):
    """The same in a thread of this process, which starts at once; without a folder where `items`
    is None."""

    def __init__(self, artifact: Path, items: Path | None):
        self.server = HttpServer.for_artifact(artifact, Limits(), TOKEN, items=items)
        listener = listen("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        self.thread = threading.Thread(target=self.server.run, args=([listener],))
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join()
        self.server.api.close()

    def knows(self, word: str) -> bool:
        return len(self.server.api.service.model.items.find([word]).nonzero()[0]) == 1


def item(word: str, **facts: Any) -> dict[str, Any]:
    seed = int.from_bytes(word.encode(), "big") % (1 << 32)
    vector = np.random.default_rng(seed).normal(size=WIDTH)
    return {"item": word, "vector": vector.tolist(), **facts}


@pytest.fixture(scope="module")
def served(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with Shop(shop, tmp_path_factory.mktemp("served")) as found:
        yield found


def test_a_posted_item_is_answered_like_any_other(served: Shop) -> None:
    before = served.listed()
    status, answer = served.add("new-1", title="a new one")
    assert (status, answer) == (200, {"added": 1, "items": len(before) + 1, "artifact": "monday"})
    assert sorted(served.listed()) == sorted([*before, "new-1"])
    asked = {"history": ["new-1", "7"], "topk": 5}
    assert served.call("/v1/recommend", asked)[1]["unknown"] == []
    assert served.call("/v1/score", {"user": "5", "items": ["new-1"]})[0] == 200
    (alike,) = served.call("/v1/similar", {"item": "new-1", "topk": 1})[1]["items"]
    back = served.call("/v1/similar", {"item": alike["item"], "topk": 1000})[1]["items"]
    assert next(one["score"] for one in back if one["item"] == "new-1") == pytest.approx(
        alike["score"], abs=1e-5
    )
    shown = served.call("/v1/recommend", {"user": "5", "only": ["new-1"], "captions": True})[1]
    assert shown["items"][0]["title"] == "a new one"
    assert served.call("/v1/explain", {"user": "5", "item": "new-1"})[0] == 200
    assert served.listed(user="nobody")[-1] == "new-1"  # by popularity: nobody has taken it
    assert served.call("/ready")[1]["added_items"] == 1
    assert served.figure("items_posted_total") == 1
    assert 'shoal_added_items{artifact="monday"} 1.0' in served.call("/metrics")[1]
    assert "/items" in served.call("/openapi.json")[1]["paths"]


def test_its_answers_are_those_of_add_items(served: Shop, shop: Path, tmp_path: Path) -> None:
    """One mechanism: the artifact in memory and the one that is written have the same rows."""
    new = [item("new-8"), item("new-9")]
    assert served.post({"items": new})[0] == 200
    added = ItemsFolder(served.log.parent / "added")
    added.read()
    words = ["artifact", "add-items", str(shop), str(added.path), "--to", str(tmp_path / "more")]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0 and f"{len(added.posted) + 1} items added" in done.output
    whole, grown = Artifact(tmp_path / "more"), LiveItems(added).brought_up(Artifact(shop))
    assert whole.items.words.tolist() == grown.items.words.tolist()
    torch.testing.assert_close(whole.item_vectors, grown.item_vectors)
    for name, table in whole.tables.items():
        ids = torch.arange(table.size)
        torch.testing.assert_close(table.rows(ids), grown.tables[name].rows(ids))
    assert [word for word, _ in whole.recommend("5", topk=1000, seen=True)] == served.listed()
    best = grown.recommend(history=["new-8"], topk=5)
    assert [word for word, _ in whole.recommend(history=["new-8"], topk=5)] == [w for w, _ in best]


BAD = [
    (b"no JSON", 422, "this is no JSON"),
    ([], 422, "send a JSON object"),
    ({}, 422, "items: Field required"),
    ({"items": []}, 422, "items: List should have at least 1 item"),
    ({"items": [item("x")], "more": 1}, 422, "unknown key 'more'"),
    ({"items": [{**item("x"), "colour": "red"}]}, 422, "items.0.colour"),
    ({"items": [{**item("x"), "picture": "x.png"}]}, 422, "unknown attribute 'picture'"),
    ({"items": [{"item": "x"}]}, 422, "items.0.vector: Field required"),
    ({"items": [{**item("x"), "vector": []}]}, 422, "items.0.vector: List should have at least"),
    ({"items": [{**item("x"), "vector": [1.0] * 5}]}, 422, "vectors of 5 numbers, and SASRec"),
    ({"items": [item("x"), {**item("y"), "vector": [1.0]}]}, 422, "'y' has 1 numbers and that of"),
    ({"items": [{**item("x"), "vector": [0.0] * 6}]}, 422, "'x' is of zeros"),
    ({"items": [{**item("x"), "vector": ["1"] * 6}]}, 422, "items.0.vector.0: Input should be a"),
    ({"items": [{**item("x"), "vector": [True] * 6}]}, 422, "items.0.vector.0: Input should be a"),
    (b'{"items": [{"item": "x", "vector": [NaN,1,1,1,1,1]}]}', 422, "vector.0: Input should be a"),
    (b'{"items": [{"item": "x", "vector": [1e999,1,1,1,1,1]}]}', 422, "vector.0: Input should be"),
    ({"items": [{**item("x"), "vector": [1e39] * 6}]}, 422, "'x' has numbers that are NaN"),
    ({"items": [{**item("x"), "vector": [3e38] * 6}]}, 422, "too large for SASRec"),
    ({"items": [{**item("x"), "item": ""}]}, 422, "items.0.item: String should have at least 1"),
    ({"items": [{**item("x"), "item": "x" * 513}]}, 422, "items.0.item: String should have at mo"),
    ({"items": [{**item("x"), "item": "[PAD]"}]}, 422, "'[PAD]' stands for padding"),
    (b'{"items": [{"item": "\\ud800", "vector": [1,1,1,1,1,1]}]}', 422, "this is no JSON"),
    ({"items": [item("7")]}, 409, "1 of its items are there already, such as '7'"),
    ({"items": [item("7.0")]}, 409, "already, such as '7.0'"),
    ({"items": [item("x"), item("x")]}, 422, "'x' and 'x' are one item"),
    ({"items": [item("8888"), item("8888.0")]}, 422, "'8888' and '8888.0' are one item"),
    ({"items": [item(f"x{k}") for k in range(1001)]}, 422, "items: List should have at most 1000"),
]


@pytest.mark.parametrize(("body", "status", "why"), BAD)
def test_a_bad_body_is_one_clear_answer(served: Shop, body: Any, status: int, why: str) -> None:
    before, ready = served.listed(), served.call("/ready")[1]
    answer = served.post(body)
    assert answer[0] == status and why in answer[1]["error"], answer
    assert served.listed() == before and served.call("/ready")[1] == ready


def test_a_body_that_is_too_large_is_not_waited_for(served: Shop) -> None:
    head = f"POST /items HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {(1 << 20) + 1}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=240) as link:
        link.sendall(head.encode())
        assert link.recv(1 << 16).startswith(b"HTTP/1.1 413 ")


def test_who_may_post(served: Shop, shop: Path, tmp_path: Path) -> None:
    body = {"items": [item("x")]}
    for token in (None, "another token, as long", TOKEN + "x"):
        status, answer = served.post(body, token)
        assert status == 401 and "give the token of this route (/items)" in answer["error"]
    assert served.call("/items")[0] == 401
    assert not served.knows("x")
    with pytest.raises(AssertionError, match="--items lets others change what is served, so it"):
        Served(shop, tmp_path, f"--items={tmp_path / 'added'}")
    with pytest.raises(AssertionError, match="is an artifact, which stays as it is"):
        Served(shop, tmp_path, f"--items={shop}", SHOAL_ITEMS_TOKEN=TOKEN)


def test_a_service_without_a_folder_says_how(shop: Path) -> None:
    with Near(shop, None) as served:
        status, answer = served.add("x")
        assert status == 403 and "start it with --items FOLDER" in answer["error"]


@pytest.mark.parametrize(
    ("model", "why"),
    [("BPR", "BPR was trained without vectors of items"), ("DNN", "predicts clicks of samples")],
)
def test_a_model_that_takes_none_says_why(model: str, why: str, tmp_path: Path) -> None:
    with Near(exported()[model], tmp_path / "added") as served:
        status, answer = served.add("x")
        assert status == 422 and why in answer["error"]


def test_items_survive_a_kill_and_a_newer_artifact(shop: Path, tmp_path: Path) -> None:
    days = tmp_path / "days"
    variant(shop, days / "day-0")
    with Shop(days, tmp_path / "one") as served:
        assert served.add("new-1", "new-2", title="new")[0] == 200
        served.process.kill()
        served.process.wait()
    with Shop(days, tmp_path / "one") as served:
        assert served.knows("new-1") and served.call("/ready")[1]["added_items"] == 2
        assert served.add("new-1")[0] == 409
        variant(shop, days / ".new", "newer").rename(days / "day-1")
        served.until(lambda: served.call("/ready")[1]["artifact"] == "day-1")
        assert served.knows("new-1") and served.add("new-3")[0] == 200
        # One that was trained with an item has its own row of it; one that reads no vectors has
        # none of them, which is counted and logged.
        shutil.copytree(exported()["SASRec"], days / ".bare")
        (days / ".bare").rename(days / "day-2")
        served.until(lambda: served.call("/ready")[1]["artifact"] == "day-2")
        assert 'shoal_left_out_items{artifact="day-2"} 3.0' in served.call("/metrics")[1]
        assert "3 new items are left out" in served.log.read_text()
        assert not served.knows("new-1")
        shutil.rmtree(days / "day-2")
        variant(shop, days / ".last", "the last").rename(days / "day-3")
        served.until(lambda: served.call("/ready")[1]["artifact"] == "day-3")
        assert served.knows("new-1") and served.knows("new-3")


def test_an_artifact_that_was_trained_with_an_item_keeps_its_row(
    shop: Path, tmp_path: Path
) -> None:
    artifact = Artifact(shop)
    new = NewItems("a test", ["7", "x"], torch.ones(2, WIDTH))
    added = ItemsFolder(tmp_path / "added")
    with added.writing():
        added.write(new)
    grown = LiveItems(added).brought_up(artifact)
    assert grown.num_added == 1 and grown.items.words[-1] == "x"
    assert torch.equal(grown.item_vectors[: len(artifact.items)], artifact.item_vectors)


def test_readers_beside_posts_see_one_state(shop: Path, tmp_path: Path) -> None:
    """Items of one post come together: a list has all of them or none."""
    wrong: list[Any] = []
    done = threading.Event()
    with Shop(shop, tmp_path, "--threads=2") as served:
        before = served.listed()

        def read() -> None:
            known = 0
            while not done.is_set():
                lists = served.call(
                    "/v1/recommend", {"users": ["5", "6"], "topk": 1000, "seen": True}
                )[1]["users"]
                for listed in lists:
                    new = [one["item"] for one in listed["items"] if one["item"][:4] == "new-"]
                    whole = sorted(f"new-{k}-{m}" for k in range(len(new) // 3) for m in range(3))
                    if sorted(new) != whole or len(listed["items"]) != len(before) + len(new):
                        wrong.append(new)
                    if len(new) < known:
                        wrong.append((known, new))
                    known = len(new)

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for k in range(12):
            assert served.add(*(f"new-{k}-{m}" for m in range(3)))[0] == 200
            assert served.listed().count(f"new-{k}-0") == 1
        done.set()
        for reader in readers:
            reader.join()
        assert wrong == []


def test_posts_beside_each_other_are_all_kept(shop: Path, tmp_path: Path) -> None:
    statuses: list[int] = []
    with Shop(shop, tmp_path, "--processes=2") as served:
        posts = [
            threading.Thread(
                target=lambda k=k: statuses.append(served.add(f"new-{k}", "both")[0])  # type: ignore[misc]
            )
            for k in range(6)
        ]
        for one in posts:
            one.start()
        for one in posts:
            one.join()
        assert sorted(statuses) == [200, 409, 409, 409, 409, 409]
        for _ in range(12):  # whichever process is asked, right after the answer
            assert served.knows("both")
        for k in range(4):
            assert served.add(f"later-{k}")[0] == 200
            assert all(served.knows(f"later-{k}") for _ in range(8))
        assert served.call("/ready")[1]["processes"] == {"ready": 2, "of": 2, "alike": True}
        assert served.call("/ready")[1]["added_items"] == 6
        assert served.figure("items_posted_total") == 6
        assert 'shoal_added_items{artifact="monday"} 6.0' in served.call("/metrics")[1]
        pid = served.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(children[0]), 9)
        served.until(lambda: served.figure("processes") == 2)
        assert all(served.knows("both") for _ in range(12))
        assert served.add("after")[0] == 200 and all(served.knows("after") for _ in range(12))


def test_versions_and_their_shadow_have_them(shop: Path, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        variant(shop, tmp_path / name, name)
    shutil.copytree(exported()["BPR"], tmp_path / "bare")
    file = tmp_path / "versions.yaml"
    lines = ["versions:", "  - {artifact: a, share: 0.4}", "  - {artifact: b, share: 0.4}"]
    file.write_text("\n".join([*lines, "  - {artifact: bare, share: 0.2}", "shadow: c"]))
    with Shop(file, tmp_path / "one") as served:
        status, answer = served.add("new-1")
        assert status == 200 and [one["artifact"] for one in answer["versions"]] == [
            "a",
            "b",
            "bare",
        ]
        counts = [one["items"] for one in answer["versions"]]
        assert counts[0] == counts[1] == counts[2] + 1
        metrics = served.call("/metrics")[1]
        assert 'shoal_added_items{artifact="b"} 1.0' in metrics
        assert 'shoal_left_out_items{artifact="bare"} 1.0' in metrics
        known = {
            served.call("/v1/similar", {"item": "new-1", "key": f"k{k}"})[0] for k in range(40)
        }
        assert known == {200, 404}

        def shadow(name: str) -> float:
            line = f'shoal_shadow_{name}_total{{artifact="c"}} '
            text = served.call("/metrics")[1]
            return float(text.partition(line)[2].split()[0])

        served.until(lambda: shadow("requests") > 0 and shadow("lists") > 0)
        equal, lists = shadow("equal_lists"), shadow("lists")
        asked = {"user": "5", "topk": 1000, "seen": True}
        for k in range(20):
            served.call("/v1/recommend", {**asked, "key": f"k{k}"})
        served.until(lambda: shadow("lists") >= lists + 20)
        answered_by_alike = shadow("equal_lists") - equal
        assert answered_by_alike > 0  # with the new item in them
        file.write_text("\n".join([*lines[:2], "  - {artifact: b, share: 0.6}"]))
        served.until(lambda: len(served.call("/ready")[1]["versions"]) == 2)
        assert {
            served.call("/v1/similar", {"item": "new-1", "key": f"k{k}"})[0] for k in range(20)
        } == {200}


def test_kept_histories_go_on(shop: Path, tmp_path: Path) -> None:
    """A history that was kept before is extended by a new item as it is computed anew."""
    artifact = Artifact(shop)
    from shoal.serving.artifact.kept_histories import ALWAYS_EXTENDED

    artifact.keep_histories(1 << 20, ALWAYS_EXTENDED)
    artifact.recommend(history=["7", "8", "9"])
    grown = with_items(artifact, NewItems("a test", ["new"], torch.ones(1, WIDTH)))
    found = grown.recommend(history=["7", "8", "9", "new"], topk=20)
    assert grown.kept_histories is not None and grown.kept_histories.hits == 1
    fresh = with_items(Artifact(shop), NewItems("a test", ["new"], torch.ones(1, WIDTH)))
    expected = fresh.recommend(history=["7", "8", "9", "new"], topk=20)
    assert [word for word, _ in found] == [word for word, _ in expected]


def test_an_index_has_them(shop: Path) -> None:
    """`shoal recommend --approximate` builds its index of what the artifact holds."""
    pytest.importorskip("usearch", reason="an index needs the extra `index`")
    grown = with_items(Artifact(shop), NewItems("a test", ["new"], torch.ones(1, WIDTH)))
    user = grown.users.find(["5"])
    best, _ = Approximate(grown).rank(grown.of_users(user), len(grown.items), (user * 0, user * 0))
    assert len(grown.items) - 1 in best[0]


def test_a_damaged_file_is_an_error_with_a_remedy(shop: Path, tmp_path: Path) -> None:
    added = tmp_path / "added"
    with Near(shop, added) as served:
        assert served.add("new-1")[0] == 200
    (file,) = added.glob("*.safetensors")
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"is damaged: its bytes are not those that its name"):
        Service(shop, items=LiveItems(ItemsFolder(added)))
    file.write_bytes(data)
    assert Service(shop, items=LiveItems(ItemsFolder(added))).model.num_added == 1


def test_a_folder_that_cannot_be_written_adds_nothing(shop: Path, tmp_path: Path) -> None:
    added = tmp_path / "added"
    with Near(shop, added) as served:
        shutil.rmtree(added)
        status, answer = served.add("new-1")
        assert status == 503 and "nothing was added" in answer["error"]
        assert not served.knows("new-1")
        added.mkdir()
        assert served.add("new-1")[0] == 200 and served.knows("new-1")


def test_a_folder_has_a_bound(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "MOST_FILES", 1)
    with Near(shop, tmp_path / "added") as served:
        assert served.add("new-1")[0] == 200
        status, answer = served.add("new-2")
        assert status == 422 and "shoal artifact add-items" in answer["error"]
        assert not served.knows("new-2")


def test_two_services_of_one_folder_have_the_same_items(shop: Path, tmp_path: Path) -> None:
    one, two = (Service(shop, items=LiveItems(ItemsFolder(tmp_path / "added"))) for _ in range(2))
    one.add(NewItems("a test", ["new-1"], torch.ones(1, WIDTH)))
    two.refresh()
    two.add(NewItems("a test", ["new-2"], -torch.ones(1, WIDTH)))
    one.refresh()
    words = [service.model.items.words[-2:].tolist() for service in (one, two)]
    assert words == [["new-1", "new-2"]] * 2


def test_rows_are_stored_as_the_others_are(tmp_path: Path) -> None:
    """Of a table of bytes with a scale for each row: what is read is what `add-items` writes."""
    artifact = Artifact(write_vectors(tmp_path / "small"))
    assert artifact.tables["item"].kind == "int8"
    before = artifact.tables["item"].rows(torch.arange(6))
    grown, values = artifact, torch.tensor([[0.5, -1.0], [3.0, 0.01], [7.0, 7.0]])
    for number in range(3):
        new = NewItems("a test", [f"new-{number}"], values[number : number + 1])
        grown = with_items(grown, new)
    exact = torch.cat([values, values.sum(1, keepdim=True)], 1)
    rows = grown.tables["item"].rows(torch.arange(9))
    assert torch.equal(rows[:6], before)
    torch.testing.assert_close(rows[6:], exact, atol=float(exact.max()) / 127, rtol=0)
    torch.testing.assert_close(grown.item_vectors[6:], exact)
    write_with_items(artifact, NewItems("a test", ["0", "1", "2"], values), tmp_path / "more")
    assert torch.equal(Artifact(tmp_path / "more").tables["item"].rows(torch.arange(9)), rows)


def test_an_id_of_another_type_is_refused(tmp_path: Path) -> None:
    home = write_vectors(tmp_path / "small")
    files.write_words(home, "items", ["[PAD]", "1", "2", "3", "4", "5"])
    rewrite(home, files.SIGNATURE, lambda signature: signature.update(id_types=["str", "int"]))
    artifact = Artifact(home)
    with pytest.raises(ValueError, match="the id 'x' is no int, as those of"):
        with_items(artifact, NewItems("a test", ["x"], torch.ones(1, 2)))
    grown = with_items(artifact, NewItems("a test", ["9"], torch.ones(1, 2)))
    assert grown.items.values[-1] == 9
