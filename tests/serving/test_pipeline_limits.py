"""Stages with a limit of time: late ones fall back, and cannot pile up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from shop_pipeline import pipeline

from shoal.config.errors import ConfigError
from shoal.serving.pipeline.file import read_pipeline
from shoal.serving.pipeline.pipeline import Pipeline
from shoal.serving.pipeline.stages import CandidateSource, ClickRanker
from shoal.serving.pipeline.time_limit import LateStage, TimeLimit

# A limit that is met on the busiest machine, and one that nothing meets.
TEXT = """\
retrieve:
  - {artifact: SHOP/BPR, number: 20, within: SLOW}
  - {artifact: SHOP/Pop, by: popularity, number: 20, within: 600000}
rank: {artifact: SHOP/FM, within: RANK}
fallback: {artifact: SHOP/Pop, by: popularity, number: 20}
"""
PHONE = {"device": "phone"}


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """BPR and the ranker wait until the end of the test; the list says who began."""
    end, begun = threading.Event(), list[str]()
    retrieve, scores = CandidateSource.retrieve, ClickRanker.scores

    def late_retrieve(source: CandidateSource, *arguments: Any, **named: Any) -> Any:
        if source.name == "BPR":
            begun.append(source.name)
            end.wait(60)
        return retrieve(source, *arguments, **named)

    def late_scores(ranker: ClickRanker, *arguments: Any) -> Any:
        begun.append("rank")
        end.wait(60)
        return scores(ranker, *arguments)

    monkeypatch.setattr(CandidateSource, "retrieve", late_retrieve)
    monkeypatch.setattr(ClickRanker, "scores", late_scores)
    yield begun
    end.set()


def test_late_stages_fall_back_and_are_counted(
    tmp_path: Path, wait: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    opened = pipeline(tmp_path, TEXT.replace("SLOW", "1").replace("RANK", "1"))
    with caplog.at_level("WARNING", logger="shoal"):
        for _ in range(3):
            answer = opened.recommend("u7", number=5, context=PHONE)
            assert answer.fallbacks == ("BPR", "rank") and len(answer) == 5
            assert all(shown.sources == ("Pop popularity",) for shown in answer)
            assert not any(shown.moved for shown in answer)
    assert opened.fallbacks == {"BPR": 3, "rank": 3}
    assert caplog.text.count("BPR failed: it was not done within 1 ms; the fallback answers") == 1


def test_stages_in_time_answer_as_without_a_limit(tmp_path: Path) -> None:
    limited = TEXT.replace("SLOW", "600000").replace("RANK", "600000")
    free = TEXT.replace(", within: SLOW", "").replace(", within: RANK", "")
    answers = [
        pipeline(tmp_path, text).recommend("u7", number=9, context=PHONE)
        for text in (limited, free)
    ]
    assert answers[0] == answers[1] and not answers[0].fallbacks


def test_where_nobody_waits_stages_take_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = ClickRanker.scores

    def slow(ranker: ClickRanker, *arguments: Any) -> Any:
        time.sleep(0.1)
        return scores(ranker, *arguments)

    monkeypatch.setattr(ClickRanker, "scores", slow)
    limited = pipeline(tmp_path, TEXT.replace("SLOW", "600000").replace("RANK", "1"))
    assert limited.recommend("u7", context=PHONE).fallbacks == ("rank",)
    patient = Pipeline(limited.file.path, limits=False)
    assert patient.recommend("u7", context=PHONE).fallbacks == ()


def test_when_all_threads_are_late_calls_fail_at_once() -> None:
    limit, end = TimeLimit(seconds=0.01, threads=2), threading.Event()
    begun: list[int] = []
    threads = threading.active_count()

    def late(number: int) -> None:
        begun.append(number)
        end.wait(60)

    for number in range(2):
        with pytest.raises(LateStage, match="not done within 10 ms"):
            limit.call(lambda number=number: late(number))
    for _ in range(50):
        with pytest.raises(LateStage, match="its 2 threads are busy with calls that are late"):
            limit.call(lambda: late(9))
    assert 9 not in begun and threading.active_count() <= threads + 2
    end.set()
    patient = TimeLimit(seconds=60.0, threads=1)
    assert [patient.call(lambda k=k: k) for k in range(20)] == list(range(20))
    with pytest.raises(KeyError, match="of the work"):
        patient.call(lambda: {}["of the work"])
    with pytest.raises(TimeoutError, match="its own"):
        patient.call(lambda: (_ for _ in ()).throw(TimeoutError("its own")))


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("fallback:", "#", r"yaml:2: retrieve\[0\].within: within needs a fallback"),
        ("fallback:", "#", r"yaml:4: rank.within: within needs a fallback"),
        ("RANK", "0", r"rank.within: Input should be greater than 0"),
        ("RANK", "soon", r"rank.within: Input should be a valid number"),
        ("popularity, number: 20}\n", "popularity, number: 20, within: 5}\n", "nothing answers"),
    ],
)
def test_limits_that_cannot_be(tmp_path: Path, old: str, new: str, error: str) -> None:
    text = TEXT.replace("SLOW", "5").replace(old, new).replace("RANK", "5")
    (tmp_path / "pipeline.yaml").write_text(text)
    with pytest.raises(ConfigError, match=error):
        read_pipeline(tmp_path / "pipeline.yaml")
