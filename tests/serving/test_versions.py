"""Several versions of a model in one service: who is answered by which, a shadow, and changes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="shoal serve needs the extra `serve`")
pytest.importorskip("httptools", reason="shoal serve needs the extra `serve`")

from captured_warnings import listening
from exported import exported
from served import PATIENCE, Served
from test_serving import Running

from shoal.config.errors import ConfigError
from shoal.serving.artifact import files
from shoal.serving.service.api import Limits
from shoal.serving.service.server import HttpServer
from shoal.serving.versions import shadow as shadows
from shoal.serving.versions.app import VersionsApi
from shoal.serving.versions.file import choose, read_versions
from shoal.serving.versions.live_versions import LiveVersions
from shoal.serving.versions.shadow import Shadow, ShadowCounts

KEYS = [f"u{number}" for number in range(4000)]


def write(file: Path, shadow: str | None = None, **shares: float) -> Path:
    """The file of versions, as an editor writes it: whole."""
    lines = [f"  - {{artifact: {name}, share: {share}}}" for name, share in shares.items()]
    lines += [] if shadow is None else [f"shadow: {shadow}"]
    hidden = file.with_name(".edited")
    hidden.write_text("\n".join(["versions:", *lines, ""]))
    os.replace(hidden, file)
    return file


def alone(folder: Path, tmp_path: Path, shadow: str) -> Path:
    """The file of monday and a shadow."""
    name = str(folder / "monday")
    return write(tmp_path / "versions.yaml", shadow=str(folder / shadow), **{name: 1})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """monday and tuesday differ in their answers; wednesday is as monday."""
    folder = tmp_path_factory.mktemp("versions")
    for day, model in {"monday": "SASRec", "tuesday": "BPR", "wednesday": "SASRec"}.items():
        shutil.copytree(exported()[model], folder / day)
        (folder / day / "README.md").write_text(day)
        files.write_manifest(folder / day)
    return folder


class RunningVersions(Running):
    """A service of versions in a thread."""

    def __init__(self, file: Path, **limits: Any):
        patient = Limits(answer_seconds=PATIENCE, **limits)
        self.start(HttpServer.of(VersionsApi(LiveVersions(file), patient)))

    def recommend(self, **question: Any) -> dict[str, Any]:
        status, answer = self.call("POST", "/v1/recommend", question)
        assert status == 200, answer
        return answer

    def figures(self) -> dict[str, float]:
        lines = self.call("GET", "/metrics")[1].splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
        return {name.removeprefix("shoal_"): float(value) for name, value in pairs}


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[RunningVersions]:
    file = write(folder / "halves.yaml", shadow="wednesday", monday=0.5, tuesday=0.5)
    with RunningVersions(file) as found:
        yield found


# ---- who is answered by which ------------------------------------------------------------------


@pytest.mark.parametrize(
    "shares", [{"a": 0.9, "b": 0.1}, {"a": 0.5, "b": 0.3, "c": 0.2}, {"a": 1.0, "b": 0.0}]
)
def test_shares_are_those_of_the_file(shares: dict[str, float]) -> None:
    counts = Counter(choose(shares, key) for key in KEYS)
    for name, share in shares.items():
        assert counts[name] / len(KEYS) == pytest.approx(share, abs=0.03)


def test_a_share_that_grows_moves_as_few_as_can_be() -> None:
    before = {"a": 0.5, "b": 0.3, "c": 0.2}
    after = {"a": 0.5 * 0.875, "b": 0.3 * 0.875, "c": 0.3}  # the others keep their proportion
    moved = [key for key in KEYS if choose(before, key) != choose(after, key)]
    assert {choose(after, key) for key in moved} == {"c"}
    assert len(moved) / len(KEYS) == pytest.approx(0.1, abs=0.02)


def test_versions_do_not_depend_on_the_process() -> None:
    """Python's own hash would: these are frozen, since users must stay where they are."""
    shares = {"exported/monday": 0.9, "exported/tuesday": 0.1}
    chosen = [key for key in KEYS[:40] if choose(shares, key) == "exported/tuesday"]
    assert chosen == ["u26", "u38"]


def test_a_user_a_session_and_a_key_stay_at_one_version(running: RunningVersions) -> None:
    versions = running.service.model
    names = set()
    for user in range(1, 25):
        expected = versions.choose(str(user))
        names.add(expected.folder.name)
        answer = running.recommend(user=str(user))
        assert answer["artifact"] == expected.folder.name
        assert [one["item"] for one in answer["items"]] == [
            item for item, _ in expected.recommend(str(user))
        ]
        assert running.recommend(user=user, key="one session")["artifact"] == (
            versions.choose("one session").folder.name
        )
    assert names == {"monday", "tuesday"}
    first = running.recommend(history=["5"])["artifact"]
    assert running.recommend(history=["5", "9", "11"])["artifact"] == first


def test_each_of_several_users_has_the_own_version(running: RunningVersions) -> None:
    users = [str(user) for user in range(1, 25)]
    answer = running.recommend(users=users, topk=3)
    assert "artifact" not in answer and [one["user"] for one in answer["users"]] == users
    for entry in answer["users"]:
        alone = running.recommend(user=entry["user"], topk=3)
        assert entry["artifact"] == alone["artifact"]
        assert [one["item"] for one in entry["items"]] == [one["item"] for one in alone["items"]]
    alone = running.recommend(users=users[:1])
    assert alone["artifact"] == alone["users"][0]["artifact"]


def test_other_routes_have_versions_too(running: RunningVersions) -> None:
    ready = running.call("GET", "/ready")[1]
    assert ready["versions"][1] == {"artifact": "tuesday", "model": "BPR", "share": 0.5}
    assert ready["shadow"] == "wednesday"
    assert running.call("GET", "/v1/examples")[1]["artifact"] in ("monday", "tuesday")
    assert running.call("GET", "/")[0] == 200
    assert "artifact" in running.call("POST", "/v1/similar", {"item": "5"})[1]
    score = {"user": "5", "items": ["9"]}
    assert (
        running.call("POST", "/v1/score", score)[1]["artifact"]
        == (running.recommend(user="5")["artifact"])
    )
    nobody = {"user": "nobody", "items": ["9"]}
    assert running.call("POST", "/v1/score", nobody)[0] == 404
    figures = running.figures()
    name = running.service.model.choose("nobody").folder.name
    assert figures[f'version_requests_total{{artifact="{name}",status="404"}}'] == 1
    for name in ("monday", "tuesday"):
        asked = figures[f'version_requests_total{{artifact="{name}",status="200"}}']
        assert asked == figures[f'version_seconds_count{{artifact="{name}"}}'] > 0
        assert figures[f'version_share{{artifact="{name}"}}'] == 0.5
    assert len([name for name in figures if name.startswith("artifact_info")]) == 2


# ---- the shadow --------------------------------------------------------------------------------


def test_a_shadow_is_compared_and_answers_nobody(folder: Path, tmp_path: Path) -> None:
    file = alone(folder, tmp_path, shadow="wednesday")
    with RunningVersions(file) as found:
        for user in range(1, 9):
            assert found.recommend(user=user)["artifact"] == "monday"
        found.recommend(users=["1", "2"])
        found.call("POST", "/v1/similar", {"item": "5"})
        found.call("POST", "/v1/score", {"user": "5", "items": ["9"]})
        word = '{artifact="wednesday"}'
        while (figures := found.figures())[f"shadow_requests_total{word}"] < 11:
            pass
        assert figures[f"shadow_lists_total{word}"] == 11 == figures[f"shadow_overlap_total{word}"]
        assert figures[f"shadow_equal_lists_total{word}"] == 11
        assert figures[f"shadow_failed_total{word}"] == figures[f"shadow_dropped_total{word}"] == 0
        # Another one takes its place; its counts are its own.
        process = found.service.model.shadow._process
        alone(folder, tmp_path, shadow="tuesday")
        assert found.service.refresh() and process.poll() is not None
        found.recommend(user="3")
        word = '{artifact="tuesday"}'
        while (figures := found.figures())[f"shadow_lists_total{word}"] < 1:
            pass
        assert figures[f"shadow_equal_lists_total{word}"] == 0
        assert figures[f"shadow_overlap_total{word}"] < 1


def test_a_shadow_that_lags_costs_nobody_an_answer(
    running: RunningVersions, monkeypatch: pytest.MonkeyPatch
) -> None:
    shadow = running.service.model.shadow
    dropped = shadow.counts.dropped
    monkeypatch.setattr(shadow._waiting, "maxsize", 4)
    os.kill(shadow._process.pid, signal.SIGSTOP)
    try:
        for user in range(1, 12):
            running.recommend(user=user)
        assert shadow.counts.dropped > dropped
    finally:
        os.kill(shadow._process.pid, signal.SIGCONT)


@pytest.mark.slow
def test_a_shadow_that_dies_costs_nobody_an_answer(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadows, "PAUSE", 0.0)
    file = alone(folder, tmp_path, shadow="wednesday")
    with RunningVersions(file) as found:
        shadow = found.service.model.shadow
        counts = shadow.counts
        os.kill(shadow._process.pid, signal.SIGKILL)
        while counts.requests == 0:  # another process took its place
            found.recommend(user="1")
        assert counts.ends == 1 and counts.equal_lists == counts.lists == counts.requests


def test_a_shadow_that_cannot_be_opened_is_an_error(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "monday", tmp_path / "bad")
    (tmp_path / "bad" / "dense.safetensors").write_bytes(b"other")
    shadow = Shadow(tmp_path / "bad", "", ShadowCounts(), 1)
    with pytest.raises(files.ArtifactError, match=r"bad is not whole: dense\.safetensors"):
        shadow.start()
    shadow.close()
    file = alone(folder, tmp_path, shadow=str(exported()["DNN"]))
    with pytest.raises(ValueError, match="asked different questions"):
        LiveVersions(file)


# ---- the file ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "versions: must be a list of 1 to 16 versions"),
        ("versions: []", "versions: must be a list of 1 to 16"),
        ("versions: 3\nshadow: monday", ":1: versions: must be a list"),
        ("verions:\n  - {artifact: monday, share: 1}", "did you mean versions?"),
        ("versions:\n  - {artifact: monday, shares: 1}", "did you mean share?"),
        ("versions:\n  - {artifact: monday, share: 0.9}", "shares must sum to 1, these sum to 0.9"),
        ("versions:\n  - {artifact: monday, share: -1}", "[0].share: must be a number from 0 to 1"),
        ("versions:\n  - {artifact: monday, share: true}", "from 0 to 1, given True"),
        ("versions:\n  - {artifact: monday, share: .nan}", "from 0 to 1, given nan"),
        ("versions:\n  - {artifact: monday}", ":2: versions[0].share: must be a number"),
        ("versions:\n  - monday", "must have the keys artifact and share"),
        ("versions:\n  - {artifact: 3, share: 1}", "must be the folder of an artifact"),
        ("versions:\n  - {artifact: s3://b/monday, share: 1}", "is a URL; copy the artifact here"),
        (
            "versions:\n  - {artifact: monday, share: 0.5}\n  - {artifact: monday, share: 0.5}",
            ":3: versions[1].artifact: monday is another version already",
        ),
        ("versions:\n  - {artifact: monday, share: 1}\nshadow: 3", "shadow: must be the folder of"),
        ("versions: !!python/object/apply:os.system [true]", "tag"),
        ("retrieve: []", "is the file of a pipeline; `shoal pipeline serve"),
        ("versions: " + "[" * 3000, "nested too deep"),
        ("a: " + "x" * (1 << 20), "bytes"),
    ],
)
def test_a_wrong_file_is_one_clear_error(tmp_path: Path, text: str, error: str) -> None:
    file = tmp_path / "versions.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_versions(file)
    assert error in str(raised.value) and str(file) in str(raised.value)


def test_artifacts_must_be_there_and_alike(folder: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "versions.yaml", nowhere=1)
    with pytest.raises(ValueError, match="nowhere is no artifact; `shoal export RUN"):
        LiveVersions(file)
    shutil.copytree(folder / "monday", tmp_path / "monday")
    write(file, monday=0.5, **{f"{folder}/monday": 0.5})
    with pytest.raises(ValueError, match="are both called monday"):
        LiveVersions(file)
    write(file, monday=0.5, **{str(exported()["DNN"]): 0.5})
    with pytest.raises(ValueError, match="asked different questions"):
        LiveVersions(file)
    with pytest.raises(ValueError, match=r"gone\.yaml: no such config file"):
        LiveVersions(tmp_path / "gone.yaml")


def test_a_changed_share_loads_nothing_again(folder: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "versions.yaml", **{f"{folder}/monday": 0.9, f"{folder}/tuesday": 0.1})
    service = LiveVersions(file)
    before = service.model
    assert not service.refresh()
    write(file, **{f"{folder}/monday": 0.8, f"{folder}/tuesday": 0.2})
    assert service.refresh()
    for name, artifact in service.model.artifacts.items():
        assert artifact is before.artifacts[name]
    with listening() as said:
        for bad in ({f"{folder}/monday": 0.7}, {f"{folder}/nowhere": 1}):
            write(file, **bad)
            assert not service.refresh() and not service.refresh()
    assert service.failures == len(said) == 2 and "sum to 0.7" in said[0]
    assert service.model.shares() == {"monday": 0.8, "tuesday": 0.2}


def test_rolling_back_under_load_loses_no_request(folder: Path, tmp_path: Path) -> None:
    """The file is edited while clients ask: every answer is that of one version, and right."""
    both = {f"{folder}/monday": 0.5, f"{folder}/tuesday": 0.5}
    file = write(tmp_path / "versions.yaml", **both)
    expected: dict[str, dict[int, list[Any]]] = {}
    answers: list[tuple[int, int, Any]] = []
    done = threading.Event()

    def ask(client: int) -> None:
        while not done.is_set():
            user = 1 + (client * 7 + len(answers)) % 20
            body = {"user": str(user), "topk": 5}
            answers.append((user, *served.call("/v1/recommend", body)))

    with Served(file, tmp_path, "--seconds=240") as served:
        clients = [threading.Thread(target=ask, args=(client,)) for client in range(4)]
        for client in clients:
            client.start()
        try:
            for shares in ({f"{folder}/monday": 1.0}, both, {f"{folder}/tuesday": 1.0}):
                reloads = served.figure("reloads_total")
                write(file, **shares)
                served.until(lambda n=reloads: served.figure("reloads_total") > n)
            failures = served.figure("reload_failures_total")
            write(file, **{f"{folder}/nowhere": 1})
            served.until(lambda: served.figure("reload_failures_total") > failures)
            last = len(answers)
            served.until(lambda: len(answers) > last + 20)
        finally:
            done.set()
            for client in clients:
                client.join()
        assert "nowhere is no artifact" in served.log.read_text()
        names = {one["artifact"] for one in served.call("/ready")[1]["versions"]}
    models = LiveVersions(write(tmp_path / "all.yaml", **both)).model.artifacts.values()
    for model in models:
        expected[model.folder.name] = {
            user: [item for item, _ in model.recommend(str(user), topk=5)] for user in range(1, 21)
        }
    assert (
        names == {"tuesday"}
        and {answer["artifact"] for _, _, answer in answers[last + 8 :]} == names
    )
    for user, status, answer in answers:
        assert status == 200, json.dumps(answer)
        assert [one["item"] for one in answer["items"]] == expected[answer["artifact"]][user]
