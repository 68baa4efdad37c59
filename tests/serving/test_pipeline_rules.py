"""Each rule of a pipeline, on lists whose right answer is known by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from shoal.data.ids import Ids
from shoal.serving.pipeline.candidates import Candidates
from shoal.serving.pipeline.file import RULES
from shoal.serving.pipeline.items import PipelineItems, read_items
from shoal.serving.pipeline.rule import ItemFilter, ListRule, RuleRequest

DAY = 86_400.0
NOW = 100 * DAY
TABLE = pl.DataFrame(
    {
        "id": ["a", "b", "c", "d", "e"],
        "genre": ["war", "war", "war", "noir", None],
        "tags": [["x", "y"], ["x"], ["y"], [], ["x", "y"]],
        "price": ["1", "2", "3", "4", None],
        "margin": [1.0, 0.0, None, 2.0, 0.5],
        "since": ["1970-04-11", "1970-04-01", "1970-01-01", None, "1970-04-11"],
        "in_stock": [True, False, True, True, None],
    }
)
VECTORS = np.array([[0, 0], [1, 0], [1, 0], [0, 1], [0.6, 0.8], [0, 0]], np.float32)
ITEMS = PipelineItems(Ids(["[PAD]", *"abcde"]), TABLE, vectors={"bpr": VECTORS})


def rule(kind: str, **arguments: Any) -> Any:
    found = RULES[kind].model_validate(arguments)
    found.check(ITEMS)
    return found


def request(number: int = 10, **facts: Any) -> RuleRequest:
    nothing = np.zeros(0, np.int64)
    facts = {"taken": nothing, "taken_times": np.zeros(0), "allowed": None, **facts}
    facts = {"banned": nothing, "random": np.random.default_rng(1), **facts}
    return RuleRequest(number=number, time=NOW, **facts)


def candidates(names: str, *scores: float) -> Candidates:
    """These items with these scores; by default 1, 0.9, 0.8, ..."""
    values = np.array(scores or [1 - 0.1 * place for place in range(len(names))])
    found = np.ones((len(names), 1), bool)
    return Candidates.of(ITEMS.ids.find(names), values, found, num_stages=1)


def names_of(list_of_items: Candidates) -> str:
    return "".join(ITEMS.ids.values[list_of_items.items])


def applied(list_rule: ListRule, given: Candidates, number: int = 10, **facts: Any) -> str:
    return names_of(list_rule.apply(given, request(number, **facts), ITEMS))


def allowed(item_filter: ItemFilter) -> str:
    mask = item_filter.allowed(ITEMS)
    assert mask is not None and not mask[0]
    return "".join(ITEMS.ids.values[mask])


def test_only_and_exclude() -> None:
    assert allowed(rule("only", items=["b", "d", "d"])) == "bd"
    excluded = rule("exclude", items=["b"]).allowed(ITEMS)
    assert "".join(ITEMS.ids.values[1:][excluded[1:]]) == "acde"


def test_items_that_are_not_known_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="shoal"):
        rule("exclude", items=["b", "nothing"])
    assert "1 of 2 items of a rule are not known, such as 'nothing'" in caplog.text
    with pytest.raises(ValueError, match="no stage and no row of items knows 'nothing'"):
        rule("pinned", items=["nothing"])


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"attribute": "genre", "values": ["noir"]}, "d"),
        ({"attribute": "genre", "values": ["noir", "war"]}, "abcd"),
        ({"attribute": "tags", "values": ["y"]}, "ace"),
        ({"attribute": "in_stock", "values": [True]}, "acd"),
        ({"attribute": "price", "values": [2]}, "b"),
    ],
)
def test_allowed(arguments: dict[str, Any], names: str) -> None:
    assert allowed(rule("allowed", **arguments)) == names


def test_seen() -> None:
    facts = {
        "taken": ITEMS.ids.find("abc"),
        "taken_times": np.array([NOW - 1 * DAY, NOW - 40 * DAY, np.nan]),
    }
    assert rule("seen").banned(request(**facts)).tolist() == [1, 2, 3]
    assert rule("seen", days=30).banned(request(**facts)).tolist() == [1, 3]
    assert rule("seen", days=50).banned(request(**facts)).tolist() == [1, 2, 3]


def test_boost() -> None:
    by_value = rule("boost", attribute="genre", values=["noir"], weight=0.25)
    boosted = by_value.apply(candidates("abcde"), request(), ITEMS)
    assert names_of(boosted) == "adbce"
    assert boosted.scores.tolist() == pytest.approx([1.0, 0.95, 0.9, 0.8, 0.6])
    by_number = rule("boost", attribute="margin", weight=0.25)
    # a 1.25, b 0.9, c 0.8 (not known), d 1.2, e 0.725
    after = by_number.apply(candidates("abcde"), request(), ITEMS)
    assert names_of(after) == "adbce"
    assert after.scores.tolist() == pytest.approx([1.25, 1.2, 0.9, 0.8, 0.725])
    assert applied(rule("boost", attribute="price", weight=-1), candidates("abcd")) == "abcd"


def test_freshness() -> None:
    # Of the 100th day since 1970: a and e are of today, b ten days old, c a hundred; d not known.
    fresh = rule("freshness", attribute="since", half_life=10, weight=1)
    after = fresh.apply(candidates("abcde", 0, 0.8, 0.9, 0, 0), request(), ITEMS)
    assert names_of(after) == "baecd"
    assert after.scores.tolist() == pytest.approx([1.3, 1.0, 1.0, 0.9 + 2**-10, 0.0])


def test_at_most() -> None:
    one_of_each = rule("at_most", number=1, attribute="genre")
    assert applied(one_of_each, candidates("abcde")) == "ade"  # e has no genre
    assert applied(rule("at_most", number=2, attribute="genre"), candidates("abcde")) == "abde"
    # Of a list each value counts: a takes x and y, so b, c and e have no place.
    assert applied(rule("at_most", number=1, attribute="tags"), candidates("abcde")) == "ad"


def test_pinned() -> None:
    assert applied(rule("pinned", items=["d"]), candidates("abcd")) == "dabc"
    assert applied(rule("pinned", items=["d", "a"], place=2), candidates("abcd")) == "bdac"
    assert applied(rule("pinned", items=["e"], place=9), candidates("ab")) == "abe"
    added = rule("pinned", items=["e"]).apply(candidates("ab"), request(), ITEMS)
    assert np.isnan(added.scores[0]) and not added.sources[0].any()
    banned = {"banned": ITEMS.ids.find("e")}
    assert applied(rule("pinned", items=["e", "c"]), candidates("ab"), **banned) == "cab"
    mask = {"allowed": np.array([False, True, True, False, True, True])}
    assert applied(rule("pinned", items=["e", "c"]), candidates("ab"), **mask) == "eab"


def test_diversity_by_an_attribute() -> None:
    """Relevance of a to e: 1, 0.75, 0.5, 0.25, 0; a, b and c are of one genre."""
    given = candidates("abcde")
    assert applied(rule("diversity", attribute="genre", weight=0), given) == "abcde"
    # With 0.5: b is worth 0.375 - 0.5, d 0.125, e 0.
    assert applied(rule("diversity", attribute="genre", weight=0.5), given) == "adebc"
    assert applied(rule("diversity", attribute="genre", weight=0.5), given, number=2) == "adbce"
    # By tags a and e are equal, b and c have half in common with a, d is like nothing: with 0.6 b
    # is worth 0.3 - 0.3 behind a, d 0.1.
    assert applied(rule("diversity", attribute="tags", weight=0.6), given) == "adbce"


def test_diversity_by_vectors() -> None:
    # b is as a; c is across; d between: 0.6 to a, 0.8 to c.
    given = candidates("abcd", 1.0, 0.9, 0.5, 0.6)
    assert applied(rule("diversity", vectors="bpr", weight=0.5), given, number=2) == "acbd"
    assert applied(rule("diversity", vectors="bpr", weight=0.1), given, number=2) == "abcd"
    with pytest.raises(ValueError, match="no source 'pop' has item vectors; there are bpr"):
        rule("diversity", vectors="pop", weight=0.1)


def test_explore_states_the_chance_of_each_item() -> None:
    """Of 4 items with share 0.4 the first stays with 0.6 + 0.4 / 4."""
    explore = rule("explore", share=0.4)
    random = np.random.default_rng(7)
    counts: dict[str, int] = {}
    chances: dict[str, float] = {}
    for _ in range(4000):
        after = explore.apply(candidates("abcd"), request(number=2, random=random), ITEMS)
        assert sorted(names_of(after)) == [*"abcd"] and np.isnan(after.propensity[2:]).all()
        pair = names_of(after)[:2]
        counts[pair] = counts.get(pair, 0) + 1
        chances[pair] = float(after.propensity[0] * after.propensity[1])
    assert chances["ab"] == pytest.approx(0.7 * (0.6 + 0.4 / 3))
    assert chances["ca"] == pytest.approx(0.1 * (0.6 + 0.4 / 3))
    assert chances["dc"] == pytest.approx(0.1 * 0.4 / 3)
    assert sum(chances.values()) == pytest.approx(1)
    for pair, chance in chances.items():
        assert counts[pair] / 4000 == pytest.approx(chance, abs=0.03)


def test_moves_are_counted_in_places() -> None:
    before = candidates("abcd")
    after = rule("pinned", items=["e", "c"], place=2).apply(before, request(), ITEMS)
    assert names_of(after) == "aecbd"
    assert after.moved_from(before, 0).moves[:, 0].tolist() == [0, 3, 0, -2, -1]


@pytest.mark.parametrize(
    ("kind", "arguments", "text"),
    [
        ("allowed", {"attribute": "gnre", "values": ["war"]}, "has no attribute 'gnre'.*genre"),
        ("allowed", {"attribute": "genre", "values": ["wr"]}, "no item has genre 'wr'.*war"),
        ("boost", {"attribute": "genre", "weight": 1}, "holds 'war', which is no number"),
        (
            "freshness",
            {"attribute": "genre", "half_life": 1, "weight": 1},
            "'war', which is no date",
        ),
        ("at_most", {"attribute": "kind", "number": 1}, "has no attribute 'kind'"),
        ("diversity", {"attribute": "kind", "weight": 1}, "has no attribute 'kind'"),
        ("diversity", {"weight": 1}, "give attribute or vectors, one of them"),
        ("explore", {"share": 0}, "greater than 0"),
        ("explore", {}, "method epsilon needs share, and no spread"),
        ("explore", {"method": "thompson", "share": 0.1}, "method thompson needs spread, and no"),
        ("diversity", {"attribute": "genre", "weight": 1, "method": "ddp"}, "'mmr' or 'dpp'"),
        ("at_most", {"attribute": "genre", "number": 0}, "greater than or equal to 1"),
        ("boost", {"attribute": "genre", "weight": "1"}, "should be a valid number"),
    ],
)
def test_what_a_rule_cannot_read_is_an_error(
    kind: str, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        rule(kind, **arguments)


def test_cells_of_a_csv_are_read_as_those_of_data(tmp_path: Path) -> None:
    """NULL is no category; prices and dates as people write them; a file that is not UTF-8."""
    text = (
        "id;genre;price;since\na;Märchen;1.234,50 €;02.02.2024\nb;NULL;9,99 €;31.01.2024\n"
        "c;n/a;NULL;-\n"
    )
    (tmp_path / "items.csv").write_bytes(text.encode("cp1252"))
    items = PipelineItems(Ids(["[PAD]", *"abc"]), read_items(tmp_path / "items.csv"))
    assert items.groups("genre").words == ["Märchen"]
    assert items.numbers("price").tolist()[1:3] == [1234.5, 9.99] and np.isnan(
        items.numbers("price")[3]
    )
    assert items.times("since").tolist()[1:3] == [1706832000.0, 1706659200.0]
    (tmp_path / "odd.csv").write_text("id,weight\na,1\nb,inf\n")
    odd = PipelineItems(Ids(["[PAD]", *"ab"]), read_items(tmp_path / "odd.csv"))
    with pytest.raises(ValueError, match="holds 'inf', which is no number"):
        odd.numbers("weight")


def test_without_a_table_attributes_are_an_error() -> None:
    empty = PipelineItems(Ids(["[PAD]", "a"]))
    with pytest.raises(ValueError, match="names no `items:`"):
        RULES["at_most"].model_validate({"number": 1, "attribute": "genre"}).check(empty)


@pytest.mark.parametrize("kind", RULES)
def test_an_empty_list_stays_empty(kind: str) -> None:
    arguments: dict[str, dict[str, Any]] = {
        "boost": {"attribute": "margin", "weight": 1},
        "freshness": {"attribute": "since", "half_life": 1, "weight": 1},
        "at_most": {"attribute": "genre", "number": 1},
        "diversity": {"attribute": "genre", "weight": 1},
        "explore": {"share": 0.5},
    }
    if kind in arguments:
        assert applied(rule(kind, **arguments[kind]), candidates("")) == ""
    if kind == "explore":
        assert applied(rule(kind, method="thompson", spread=1.0), candidates("")) == ""


def test_thompson_states_the_chance_of_each_item() -> None:
    """Two scores a deviation apart: the better is first with Φ(1 / √2)."""
    thompson = rule("explore", method="thompson", spread=1.0)
    random = np.random.default_rng(7)
    better = 0.7602499389
    counts = {"abc": 0, "bac": 0}
    for _ in range(600):
        given = candidates("abc", 2.0, 1.0, float("nan"))
        after = thompson.apply(given, request(number=3, random=random), ITEMS)
        counts[names_of(after)] += 1
        first = better if names_of(after)[0] == "a" else 1 - better
        assert after.propensity[:2].tolist() == pytest.approx([first, 1.0])
        assert after.place_propensity[0] == pytest.approx(first)
        assert np.isnan(after.propensity[2]) and np.isnan(after.place_propensity[1:]).all()
    assert counts["abc"] / 600 == pytest.approx(better, abs=0.05)


def test_the_chance_of_a_place_is_that_of_all_lists() -> None:
    """Against every list that four candidates can be shown in, with its chance."""
    share, expected = 0.4, np.zeros((4, 3))
    for order in permutations(range(4), 3):
        left, chance = list(range(4)), 1.0
        for rank in order:
            chance *= share / len(left) + (1 - share) * (rank == left[0])
            left.remove(rank)
        expected[list(order), range(3)] += chance
    explore = rule("explore", share=share)
    assert explore.place_chances(candidates("abcd"), 3) == pytest.approx(expected)
    after = explore.apply(candidates("abcd"), request(number=3), ITEMS)
    ranks = ["abcd".index(name) for name in names_of(after)[:3]]
    assert after.place_propensity[:3] == pytest.approx(expected[ranks, range(3)])
    # Explored again, or moved by a rule behind it, an item has a place by other chances.
    again = explore.apply(after, request(number=3), ITEMS)
    assert np.isnan(again.place_propensity).all() and not np.isnan(again.propensity[:3]).any()


def test_diversity_by_a_determinantal_point_process() -> None:
    """Each place takes the item with the most relevance and log determinant, as counted whole."""
    random = np.random.default_rng(3)
    names, weight = "abcde", 0.6
    vectors = random.normal(size=(6, 3)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    items = replace(ITEMS, vectors={"bpr": vectors})
    scores = random.random(5)
    dpp = rule("diversity", vectors="bpr", weight=weight, method="dpp")
    shown = names_of(dpp.apply(candidates(names, *scores), request(4), items))
    alike = 0.99 * vectors[1:] @ vectors[1:].T.astype(np.float64) + 0.01 * np.eye(5)
    relevance = (scores - scores.min()) / np.ptp(scores)

    def worth(chosen: list[int]) -> float:
        determinant = np.linalg.slogdet(alike[np.ix_(chosen, chosen)])[1]
        return float((1 - weight) * relevance[chosen].sum() + weight * determinant)

    chosen: list[int] = []
    for _ in range(4):
        left = [n for n in range(5) if n not in chosen]
        chosen.append(max(left, key=lambda n: worth([*chosen, n])))
    assert shown[:4] == "".join(names[n] for n in chosen) and sorted(shown) == [*names]
    by_tags = rule("diversity", attribute="tags", weight=0.9, method="dpp")
    assert applied(by_tags, candidates("abcde"))[:2] == "ad"  # d has nothing in common with a
