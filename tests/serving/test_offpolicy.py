"""Off-policy estimates: on logs whose truth is known, it lies within the intervals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from request_logs import chance, drawn_log
from scipy.stats import t
from shop_pipeline import USERS, pipeline

from shoal.serving.pipeline.offpolicy import EstimateReport, estimate
from shoal.serving.pipeline.pipeline import Pipeline
from shoal.serving.pipeline.placed_items import is_exact, placed_items
from shoal.serving.pipeline.question import PipelineQuestion

SOURCE = "items: SHOP/items.csv\nretrieve: [{artifact: SHOP/BPR, number: 10}]\n"
LOGGED = SOURCE + "rules:\n  - explore: {share: 0.6}\n"
# The same candidates in another order, without and with chance.
FIXED = SOURCE + "rules:\n  - boost: {attribute: price, weight: 0.03}\n"
EXPLORING = FIXED + "  - explore: {share: 0.2}\n"
NUMBER = 4


def opened(folder: Path, name: str, text: str, seed: int = 3) -> Pipeline:
    (folder / name).mkdir(exist_ok=True)
    return pipeline(folder / name, text, seed)


def true_value(shown_by: Pipeline) -> float:
    """The value per request of a pipeline whose chances are exact, over users of equal share."""
    total = 0.0
    words = shown_by.items.ids.values
    users = [f"u{n}" for n in range(USERS)]
    questions = [PipelineQuestion(user, number=NUMBER) for user in users]
    for user, placed in zip(users, placed_items(shown_by, questions, num_draws=1)):
        for item, chances in zip(words[placed.items], placed.chances):
            total += sum(p * chance(user, item, place) for place, p in enumerate(chances))
    return total / USERS


def logs_that_agree(folder: Path, text: str, count: int, size: int) -> dict[str, int]:
    """In how many of `count` logs the truth lies within the interval, by estimator."""
    logging_one, new = opened(folder, "logged", LOGGED), opened(folder, "new", text)
    truth = true_value(new)
    within = {"ips": 0, "snips": 0, "dr": 0}
    for seed in range(count):
        random = np.random.default_rng(seed)
        users = [f"u{n}" for n in random.integers(USERS, size=size)]
        requests, labels = drawn_log(logging_one, users, NUMBER, random)
        for result in estimate(new, requests, labels).estimates:
            within[result.name] += result.low <= truth <= result.high
    return within


def test_the_truth_is_within_the_intervals(tmp_path: Path) -> None:
    within = logs_that_agree(tmp_path, FIXED, count=6, size=150)
    assert min(within.values()) >= 4, within


@pytest.mark.slow
@pytest.mark.parametrize("text", [FIXED, EXPLORING])
def test_the_truth_is_within_95_percent_intervals(tmp_path: Path, text: str) -> None:
    within = logs_that_agree(tmp_path, text, count=100, size=1000)
    assert min(within.values()) >= 93, within


def test_the_log_of_the_pipeline_itself_is_its_mean(tmp_path: Path) -> None:
    logging_one = opened(tmp_path, "logged", LOGGED)
    random = np.random.default_rng(5)
    users = [f"u{n % USERS}" for n in range(96)]
    report = estimate(logging_one, *drawn_log(logging_one, users, NUMBER, random))
    ips, snips, dr = report.estimates
    assert ips.value == pytest.approx(report.logged.value) == pytest.approx(snips.value)
    assert abs(dr.value - ips.value) < ips.high - ips.low
    assert report.effective == pytest.approx(96) and report.covered == pytest.approx(1)
    assert report.is_exact and report.places == NUMBER and not report.clipped


def test_ips_of_two_requests_by_hand(tmp_path: Path) -> None:
    """Of one place; the fixed pipeline shows the first item of its list."""
    new = opened(tmp_path, "new", FIXED)
    (best,) = new.recommend("u1", number=1)
    requests, _ = drawn_log(new, ["u1", "u1", "u1", "u1"], 1, np.random.default_rng(1))
    shown = [best.item, best.item, "i0" if best.item != "i0" else "i1", best.item]
    requests = [
        replace(one, items=[item], place_propensity=np.array([p]), propensity=np.array([p]))
        for one, item, p in zip(requests, shown, (0.5, 0.25, 0.5, 0.25))
    ]
    labels = [np.array([label]) for label in (1.0, 3.0, 5.0, 0.0)]
    ips, snips, _ = estimate(new, requests, labels).estimates
    assert ips.value == pytest.approx((2 * 1 + 4 * 3 + 0 + 0) / 4)
    assert snips.value == pytest.approx((2 * 1 + 4 * 3) / 10)
    # The effective sample is (2 + 4 + 4)² / (4 + 16 + 16) requests.
    reach = t.ppf(0.975, 100 / 36 - 1) * np.std([2, 12, 0, 0], ddof=1) / 2
    assert ips.high - ips.value == pytest.approx(reach)
    clipped = estimate(new, requests, labels, clip=3)
    assert clipped.estimates[0].value == pytest.approx((2 * 1 + 3 * 3) / 4)
    assert clipped.clipped == pytest.approx(2 / 3) and "clipped to 3" in clipped.warnings[-1]


def test_chances_by_draws_agree_with_exact_ones(tmp_path: Path) -> None:
    question = PipelineQuestion("u2", number=3)
    exact = opened(tmp_path, "exact", EXPLORING)
    # A rule behind it that changes nothing: chances are drawn then.
    pinned = EXPLORING + "  - at_most: {number: 40, attribute: category}\n"
    drawn = opened(tmp_path, "drawn", pinned)
    assert is_exact(exact, 3) and not is_exact(drawn, 3)
    (first,), (second,) = (placed_items(one, [question], 1500) for one in (exact, drawn))
    assert first.chances.sum(axis=0) == pytest.approx(1)
    assert second.of(first.items) == pytest.approx(first.chances, abs=0.05)
    assert first.of(np.array([0])).tolist() == [[0.0, 0.0, 0.0]]


def test_thompson_is_exact_at_the_first_place(tmp_path: Path) -> None:
    text = SOURCE + "rules:\n  - explore: {method: thompson, spread: 1.5}\n"
    sampling = opened(tmp_path, "thompson", text)
    assert is_exact(sampling, 1) and not is_exact(sampling, 2)
    (first,) = placed_items(sampling, [PipelineQuestion("u2", number=1)], 1)
    (drawn,) = placed_items(sampling, [PipelineQuestion("u2", number=2)], 800)
    assert drawn.of(first.items)[:, 0] == pytest.approx(first.chances[:, 0], abs=0.06)
    answer = sampling.recommend("u2", number=3)
    of_item = dict(zip(sampling.items.ids.values[first.items], first.chances[:, 0]))
    assert answer[0].propensity == answer[0].place_propensity == of_item[answer[0].item]
    assert answer[1].propensity and answer[1].place_propensity is None
    # Only the first place has a known chance, so it alone can be estimated.
    log = drawn_log(sampling, [f"u{n}" for n in range(40)], 2, np.random.default_rng(2))
    with pytest.raises(ValueError, match="fewer than 2 at all 2 places: --places 1 counts"):
        estimate(sampling, *log)
    assert estimate(sampling, *log, num_places=1).supported == 40


def test_what_a_log_cannot_say_is_said(tmp_path: Path) -> None:
    plain, new = opened(tmp_path, "plain", SOURCE), opened(tmp_path, "new", FIXED)
    users = [f"u{n % USERS}" for n in range(60)]
    log = drawn_log(plain, users, 2, np.random.default_rng(3))
    with pytest.raises(ValueError, match=r"nothing was drawn at random.*Let the pipeline explore"):
        estimate(new, *log)
    with pytest.raises(ValueError, match="the log holds no requests"):
        estimate(new, [], [])
    # A log of other items: it cannot show what the new pipeline shows.
    other = SOURCE.replace("number: 10", "number: 3") + "rules:\n  - explore: {share: 0.5}\n"
    log = drawn_log(opened(tmp_path, "other", other), users, 2, np.random.default_rng(4))
    report: EstimateReport = estimate(new, *log)
    assert report.covered < 0.9 and "could have shown only about" in report.warnings[0]
    assert "not to be trusted" in report.warnings[1] and report.effective < 60
