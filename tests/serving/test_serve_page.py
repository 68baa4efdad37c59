"""The page of `shoal serve` in a real browser: examples, titles, pictures, similar items, why."""

import base64
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

pytest.importorskip("starlette", reason="shoal serve needs the extra `serve`")
pytest.importorskip("httptools", reason="shoal serve needs the extra `serve`")

from browser import Browser, needs_browser
from exported import check_here, exported
from served import Served
from test_serving import Running

import shoal
from shoal.serving.artifact import export

SECRET = "a token of some length"
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'


def dot(shade: int) -> str:
    """A small picture as an address that holds it."""
    rows = b"".join(b"\0" + bytes([shade, 90, 255 - shade] * 30) for _ in range(40))
    head = struct.pack(">IIBBBBB", 30, 40, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    made = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + made).decode()


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Films with titles and posters; three of them were written by somebody hostile."""
    folder = tmp_path_factory.mktemp("page")
    rows = [(f"u{n % 30}", (n * 7 + n // 30) % 20 + 1, n) for n in range(600)]
    frame = pl.DataFrame(rows, schema=["uid", "iid", "ts"], orient="row")
    posters = [dot(k * 12) for k in range(1, 21)]
    posters[0], posters[1] = "javascript:document.title=3", "https://pictures.example/2.png"
    posters[2] = "//pictures.example/3.png"
    titles = [f"The {k}. film of a summer by the sea" for k in range(1, 21)]
    titles[0] = HOSTILE
    items = pl.DataFrame({"iid": list(range(1, 21)), "title": titles, "poster_url": posters})
    small = {"model.hidden_size": 16, "model.inner_size": 16, "data.max_len": 8, "epochs": 2}
    small["eval.repeatable"] = True  # everybody has seen every film
    quiet = {"run.output": str(folder / "run"), "run.progress": False}
    shoal.fit("SASRec", frame, user="uid", item="iid", time="ts", items=items, **small, **quiet)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "check_apart", check_here)
        shoal.export(folder / "run", folder / "films")
    return folder / "films"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


def is_narrow_enough(browser: Browser) -> bool:
    return browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


def press(browser: Browser, text: str) -> None:
    """The first button of the list with this text."""
    every = "[...document.querySelectorAll('#list button')]"
    browser.evaluate(f"{every}.find(one => one.innerText === '{text}').click()")


@needs_browser
def test_somebody_clicks_through_it(artifact: Path, browser: Browser, tmp_path: Path) -> None:
    with Served(artifact, tmp_path) as served:
        browser.errors.clear()
        browser.open(f"http://127.0.0.1:{served.port}/")
        browser.wait_for("!!document.querySelector('.chips button')")
        assert browser.text("h1") == "SASRec" and "artifact films" in browser.text()
        browser.click(".chips button")  # the first example is a user
        browser.wait_for("document.querySelectorAll('#list > .row').length === 10")
        assert browser.text("#heading") == "For user u0"
        assert "film of a summer" in browser.text("#list")
        pictures = browser.evaluate(
            "Promise.all([...document.querySelectorAll('#list img')].map(one => one.decode()))"
            ".then(all => all.length)"
        )
        assert pictures >= 7  # those that the artifact itself holds are shown
        browser.screenshot(tmp_path / "list.png")
        press(browser, "why")
        browser.wait_for("!!document.querySelector('#list .share')")
        numbers = browser.evaluate(
            "[...document.querySelectorAll('#list .share .number')].map(one => +one.innerText)"
        )
        score = browser.evaluate("+document.querySelector('#list .acts .number').innerText")
        assert sum(numbers) == pytest.approx(score, abs=0.002) and len(numbers) > 2
        assert "rest: an empty history" in browser.text("#list .more")
        browser.screenshot(tmp_path / "why.png")
        press(browser, "similar")
        browser.wait_for("document.querySelectorAll('#list .more .row').length === 5")
        press(browser, "add to history")
        browser.wait_for("document.querySelector('#heading').innerText === 'For this history'")
        browser.resize(390, 800)
        browser.dark()
        assert is_narrow_enough(browser)
        browser.screenshot(tmp_path / "phone.png")
        browser.dark(False)
        browser.resize(1200, 900)
        assert not browser.errors, browser.requests[-9:]
        assert not browser.left_the_machine


@needs_browser
def test_hostile_titles_and_pictures_are_harmless(artifact: Path, browser: Browser) -> None:
    with Running(artifact) as served:
        browser.errors.clear()
        browser.open(f"http://127.0.0.1:{served.port}/?user=u3")
        browser.wait_for("!!document.querySelector('#list .row')")
        browser.evaluate("document.querySelector('#topk').value = 20")
        browser.click("#ask button")
        browser.wait_for("document.querySelectorAll('#list > .row').length > 15")
        assert HOSTILE in browser.text("#list")  # as text
        assert browser.evaluate("document.title") == "SASRec"
        links = browser.evaluate(
            "[...document.querySelectorAll('#list a')].map(one => [one.href, one.rel])"
        )
        told = "noopener noreferrer"
        expected = [
            ["https://pictures.example/2.png", told],
            ["http://pictures.example/3.png", told],
        ]
        assert sorted(links) == sorted(expected)
        sources = browser.evaluate("[...document.images].map(one => one.src)")
        assert sources and all(one.startswith("data:image/png") for one in sources)
        browser.open(f"http://127.0.0.1:{served.port}/?user=" + "%3Cb%3Enobody")
        browser.wait_for("!!document.querySelector('#list .row')")
        assert "not known: <b>nobody; these are the most popular items" in browser.text("#note")
        assert not browser.evaluate(
            "[...document.querySelectorAll('#list button')].some(b => b.innerText === 'why')"
        )
        assert not browser.errors, browser.requests[-9:]
        assert not browser.left_the_machine


@needs_browser
def test_with_a_token(artifact: Path, browser: Browser) -> None:
    """A browser asks for a password, and sends it with all that the page asks."""
    with Running(artifact, token=SECRET) as served:
        browser.open(f"http://anybody:{SECRET.replace(' ', '%20')}@127.0.0.1:{served.port}/")
        browser.wait_for("!!document.querySelector('.chips button')")
        browser.click(".chips button")
        browser.wait_for("!!document.querySelector('#list .row')")


@pytest.mark.slow
@needs_browser
def test_samples_of_a_click_model(browser: Browser) -> None:
    with Running(exported()["DNN"]) as served:
        browser.errors.clear()
        browser.open(f"http://127.0.0.1:{served.port}/")
        browser.wait_for("document.querySelector('#sample').value")
        browser.click("#click button")
        browser.wait_for("!!document.querySelector('#list .share')")
        assert browser.text("#heading").startswith("A click: ")
        assert browser.evaluate("document.querySelector('#ask').offsetParent === null")
        browser.evaluate("document.querySelector('#sample').value = '{'")
        browser.click("#click button")
        browser.wait_for("document.querySelector('#error').innerText.includes('JSON')")
        assert not browser.errors, browser.requests[-9:]


def test_explanations_over_http(artifact: Path) -> None:
    with Running(artifact) as served:
        model = served.service.model
        item, score = model.recommend("u3", topk=1)[0]
        status, found = served.call("POST", "/v1/explain", {"user": "u3", "item": item})
        assert status == 200 and found["score"] == pytest.approx(score, abs=1e-4)
        total = sum(one["share"] for one in found["shares"]) + found["rest"]
        assert total == pytest.approx(score, abs=1e-4) and found["artifact"] == "films"
        assert {one["item"] for one in found["shares"]} <= set(range(1, 21))
        assert all(one["title"] for one in found["shares"])
        history = {"history": ["4", "5"], "item": "6"}
        assert len(served.call("POST", "/v1/explain", history)[1]["shares"]) == 2
        wrong = [
            ({"user": "nobody", "item": item}, 404),
            ({"user": "u3", "item": "nothing"}, 404),
            ({"user": "u3"}, 422),
            ({"item": item}, 422),
            ({"user": "u3", "item": item, "sample": {}}, 422),
            ({"sample": {"uid": 1}}, 422),
            ({"user": "u3", "item": item, "history": ["4"]}, 422),
        ]
        for body, expected in wrong:
            status, answer = served.call("POST", "/v1/explain", body)
            assert status == expected, (body, answer)
            assert "u3" not in answer["error"] and "films" not in answer["error"]
        status, plain = served.call("POST", "/v1/recommend", {"user": "u3", "topk": 1})
        assert plain["items"][0].keys() == {"item", "score"}
        asked = {"user": "u3", "topk": 1, "captions": True}
        assert "title" in served.call("POST", "/v1/recommend", asked)[1]["items"][0]
        status, told = served.call("GET", "/v1/examples")
        assert told["asks"] == ["recommend", "similar", "explain"] and len(told["users"]) == 5
        assert set(told["users"]) <= {f"u{k}" for k in range(30)}


def test_examples_need_the_token(artifact: Path) -> None:
    with Running(artifact, token=SECRET) as served:
        for path in ("/", "/v1/examples", "/docs", "/openapi.json"):
            assert served.call("GET", path) == (401, served.call("GET", "/metrics")[1])
        assert served.call("POST", "/v1/explain", {"user": "u3", "item": "4"})[0] == 401


def test_an_explanation_has_bounds() -> None:
    with Running(exported()["DNN"]) as served:
        slots = served.service.model.signature["layout"]["slots"]
        status, found = served.call("POST", "/v1/explain", {"sample": dict.fromkeys(slots, 3)})
        assert status == 200 and {one["feature"] for one in found["shares"]} >= set(slots)
        sample = {slots[0]: list(range(1000)), slots[1]: 3}
        status, found = served.call("POST", "/v1/explain", {"sample": sample})
        assert status == 422 and "more than 1000 values" in found["error"]
        assert served.call("POST", "/v1/explain", {"user": "1", "item": "2"})[0] == 422
        assert served.call("GET", "/v1/examples")[1]["sample"].keys() >= set(slots)
