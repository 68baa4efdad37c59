"""A pipeline of real artifacts: what it retrieves, how it ranks, what rules and fallbacks do."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from shop_pipeline import ITEMS, category, likes, pipeline, shop

import shoal
from shoal.serving.pipeline.evaluation import evaluate, read_test
from shoal.serving.pipeline.pipeline import Pipeline
from shoal.serving.pipeline.question import PipelineQuestion
from shoal.serving.pipeline.trial import try_stages

BPR = "retrieve: [{artifact: SHOP/BPR, number: 30}]\n"
THREE = """\
items: SHOP/items.csv
retrieve:
  - {artifact: SHOP/BPR, number: 20}
  - {artifact: SHOP/SASRec, number: 20}
  - {artifact: SHOP/Pop, by: popularity, number: 20, quota: 3}
"""
RANK = "rank: {artifact: SHOP/FM}\n"
WHOLE = f"""\
{THREE}{RANK}rules:
  - seen
  - allowed: {{attribute: in_stock, values: [yes]}}
  - boost: {{attribute: price, weight: 0.0001}}
  - at_most: {{number: 4, attribute: category}}
  - diversity: {{attribute: category, weight: 0.2}}
fallback: {{artifact: SHOP/Pop, by: popularity, number: 20}}
""".replace("[yes]", '["yes"]')
PHONE = {"device": "phone"}


def test_one_source_answers_as_its_artifact(tmp_path: Path) -> None:
    opened, artifact = pipeline(tmp_path, BPR + "rules: [seen]\n"), shoal.load(shop() / "BPR")
    answer = opened.recommend("u7", number=5)
    expected = artifact.recommend("u7", topk=5, seen=False)
    assert [one.item for one in answer] == [item for item, _ in expected]
    assert [one.score for one in answer] == pytest.approx([score for _, score in expected])
    assert all(one.sources == ("BPR",) and not one.moved for one in answer)
    assert all(one.propensity is None for one in answer)


def test_without_seen_what_was_taken_comes_again(tmp_path: Path) -> None:
    answer = pipeline(tmp_path, BPR).recommend("u7", number=20)
    expected = shoal.load(shop() / "BPR").recommend("u7", topk=20, seen=True)
    assert [one.item for one in answer] == [item for item, _ in expected]


def test_the_union_has_quotas_and_says_where_items_came_from(tmp_path: Path) -> None:
    opened = pipeline(tmp_path, THREE)
    answer = opened.recommend("u3", number=40)
    sources = {name: {one.item for one in answer if name in one.sources} for name in opened.sources}
    own = {item for item, _ in shoal.load(shop() / "BPR").recommend("u3", topk=20, seen=True)}
    assert sources["BPR"] == own
    added = [one for one in answer if one.sources == ("Pop popularity",)]
    assert len(added) <= 3 and len({one.item for one in answer}) == len(answer)
    both = [one for one in answer if {"BPR", "SASRec"} <= {*one.sources}]
    assert both and answer[0].score == max(one.score or 0 for one in answer)
    # The best of a source alone has 1 / 61; more sources add up.
    assert all(one.score is not None and one.score <= 3 / 61 + 1e-9 for one in answer)


def test_a_batch_answers_as_each_question_alone(tmp_path: Path) -> None:
    opened = pipeline(tmp_path, WHOLE)
    questions = [
        PipelineQuestion("u1", number=7, context=PHONE),
        PipelineQuestion("nobody", history=["i1", "i5"], number=5, context={"device": None}),
        PipelineQuestion(history=["i2"], number=3, context=PHONE, exclude=["i6"]),
        PipelineQuestion("u2", history=["i2", "i3"], context={"device": "desk"}),
        PipelineQuestion("stranger", context=PHONE),
    ]
    together = opened.answer(questions)
    for question, answer in zip(questions, together):
        (alone,) = opened.answer([question])
        assert [one.item for one in alone] == [one.item for one in answer]
        assert [one.score for one in alone] == pytest.approx([one.score for one in answer])
        assert alone.unknown == answer.unknown and len(answer) == question.number
    assert together[1].unknown == () and together[4].unknown == ("BPR", "SASRec")
    assert "i6" not in [one.item for one in together[2]]


def test_the_ranker_orders_by_the_chance_of_a_click(tmp_path: Path) -> None:
    opened = pipeline(tmp_path, THREE + RANK)
    answer = opened.recommend("u5", number=12, context=PHONE)
    rows = [{"user": "u5", "item": one.item, **PHONE} for one in answer]
    chances = shoal.load(shop() / "FM").predict(rows)
    assert [one.score for one in answer] == pytest.approx(chances.tolist())
    assert (np.diff(chances) <= 0).all()
    assert all(category(one.item) in likes("u5") for one in answer[:6])
    before = [one.item for one in pipeline(tmp_path, THREE).recommend("u5", number=40)]
    for place, one in enumerate(answer):
        assert before.index(one.item) - place == one.moved.get("rank", 0)


def test_rules_of_items_reach_retrieval(tmp_path: Path) -> None:
    text = THREE.replace("number: 20", "number: 5") + "rules:\n  - seen\n"
    text += '  - allowed: {attribute: in_stock, values: ["no"]}\n'
    answer = pipeline(tmp_path, text).recommend("u9", number=8)
    taken = {item for item, _ in shoal.load(shop() / "BPR").recommend("u9", topk=40, seen=False)}
    # Eight items are not in stock; without what was taken all that are left come.
    left = {f"i{k}" for k in range(0, ITEMS, 5)} & taken
    assert {one.item for one in answer} == left and len(left) > 4


def test_all_but_the_excluded_items_come(tmp_path: Path) -> None:
    text = BPR.replace("30", "38") + "rules:\n  - exclude: {items: [i0, i7]}\n"
    answer = pipeline(tmp_path, text).recommend("u9", number=38)
    assert {one.item for one in answer} == {f"i{k}" for k in range(ITEMS)} - {"i0", "i7"}
    fewer = pipeline(tmp_path, text).recommend("u9", number=40, exclude=["i1"])
    assert len(fewer) == 37 and "i1" not in [one.item for one in fewer]


def test_seen_of_the_last_days(tmp_path: Path) -> None:
    opened = pipeline(tmp_path, BPR.replace("30", "40") + "rules:\n  - seen: {days: 2}\n")
    day = 86_400
    question = {"history": ["i1", "i2", "i3"], "times": [0, 9 * day, 9.5 * day], "time": 10 * day}
    answer = opened.recommend("nobody", **question)  # type: ignore[arg-type]
    assert "i1" in [one.item for one in answer] and not answer.unknown
    sequence = pipeline(
        tmp_path,
        "retrieve: [{artifact: SHOP/SASRec, number: 40}]\nrules:\n  - seen: {days: 2}\n",
    )
    items = {one.item for one in sequence.recommend(number=40, **question)}  # type: ignore[arg-type]
    assert "i1" in items and not {"i2", "i3"} & items


def test_like_the_last_item(tmp_path: Path) -> None:
    text = "retrieve: [{artifact: SHOP/BPR, by: last_item, number: 6}]\n"
    answer = pipeline(tmp_path, text).recommend(history=["i1", "i8"], number=6)
    expected = shoal.load(shop() / "BPR").similar_items("i8", 6)
    assert [one.item for one in answer] == [item for item, _ in expected]
    assert [one.score for one in answer] == pytest.approx([score for _, score in expected])


def test_pins_and_exploration_are_reported(tmp_path: Path) -> None:
    text = BPR + "rules:\n  - explore: {share: 0.5}\n  - pinned: {items: [i39], place: 2}\n"
    answer = pipeline(tmp_path, text).recommend("u4", number=10)
    assert answer[1].item == "i39" and answer[1].moved["pinned"] > 0
    chances = [one.propensity for one in answer if one.item != "i39"]
    assert all(chance is not None and 0 < chance < 1 for chance in chances)
    again = [one.item for one in pipeline(tmp_path, text).recommend("u4", number=10)]
    other = [one.item for one in pipeline(tmp_path, text, seed=4).recommend("u4", number=10)]
    assert again == [one.item for one in answer] != other


def test_the_fallback_answers_whom_nobody_knows(tmp_path: Path) -> None:
    nobody = PipelineQuestion("stranger", number=4)
    assert pipeline(tmp_path, BPR).answer([nobody])[0] == []
    opened = pipeline(
        tmp_path, BPR + "fallback: {artifact: SHOP/Pop, by: popularity, number: 40}\n"
    )
    (answer,) = opened.answer([nobody])
    popular = shoal.load(shop() / "Pop").recommender.popular(4)[0]
    names = shoal.load(shop() / "Pop").items.values[popular].tolist()
    assert [one.item for one in answer] == names and answer.fallbacks == ("retrieve",)
    assert answer.unknown == ("BPR",) and opened.fallbacks == {"retrieve": 1}
    assert all(one.score is None and not one.sources for one in answer)
    (longer,) = opened.answer([PipelineQuestion("u3", number=35)])
    assert len(longer) == 35 and longer[30].score is None and longer[29].sources == ("BPR",)


def test_a_stage_that_fails_falls_back_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no memory")

    opened = pipeline(tmp_path, WHOLE)
    whole = opened.recommend("u1", context=PHONE)
    assert opened.ranker is not None
    monkeypatch.setattr(opened.ranker, "scores", fail)
    monkeypatch.setattr(opened.sources["BPR"], "retrieve", fail)
    with caplog.at_level("WARNING", logger="shoal"):
        answers = [opened.recommend("u1", context=PHONE) for _ in range(2)]
    assert all(len(one) == len(whole) and one.fallbacks == ("BPR", "rank") for one in answers)
    assert opened.fallbacks == {"BPR": 2, "rank": 2}
    assert caplog.text.count("BPR failed: no memory; the fallback answers") == 1
    without = pipeline(tmp_path, THREE + RANK)
    monkeypatch.setattr(without.sources["BPR"], "retrieve", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        without.recommend("u1", context=PHONE)


@pytest.mark.parametrize(
    ("question", "error"),
    [
        ({}, "give a user, a history, or both"),
        ({"user": "u1", "number": 0}, "from 1 to 1,000"),
        ({"user": "u1", "number": 1001}, "from 1 to 1,000"),
        ({"user": "u1", "number": 2.5}, "whole number"),
        ({"history": "i1,i2"}, "give a list of items"),
        ({"history": ["i1"] * 10_001}, "at most 10,000"),
        ({"history": ["i1"], "times": [1, 2, 3]}, "there are 3 times for 1 items"),
        ({"user": "u1", "context": {}}, "reads 'device', which the context does not have"),
        ({"user": "u1", "context": {"devcie": "x"}}, "reads 'device'.*did you mean devcie"),
        ({"user": "u1", "context": {**PHONE, "hour": 3}}, "reads no 'hour'; a context may have"),
    ],
)
def test_questions_that_are_refused(tmp_path: Path, question: dict, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        pipeline(tmp_path, WHOLE).answer([PipelineQuestion(**question)])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("retrieve: [{artifact: SHOP/none, number: 5}]\n", r":1: retrieve\[0\].artifact: .*none"),
        ("retrieve: [{artifact: 's3://a/b', number: 5}]\n", "is a URL; a pipeline reads folders"),
        ("retrieve: [{artifact: SHOP/FM, number: 5}]\n", "predicts clicks of samples, not items"),
        (BPR + "rank: {artifact: SHOP/BPR}\n", ":2: rank.artifact: BPR ranks items"),
        (BPR + "rank: {artifact: SHOP/FM, label: sold}\n", "predicts no 'sold'; it predicts click"),
        (BPR + "items: none.csv\n", ":2: items: there is no file"),
        (BPR + "items: other.csv\n", ":2: items: other.csv .* and BPR disagree on items"),
        (BPR + "items: twice.csv\n", ":2: items: .*'item' of the rows 1 and 2 is 'i1'"),
        (
            BPR + "rules:\n  - at_most: {number: 1, attribute: category}\n",
            r":3: rules\[0\].at_most: reads 'category', and the file names no `items:`",
        ),
        (
            BPR + "items: SHOP/items.csv\nrules:\n  - at_most: {number: 1, attribute: categry}\n",
            r":4: rules\[0\].at_most: .*has no attribute 'categry'.*did you mean category",
        ),
    ],
)
def test_what_cannot_be_opened_is_named(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "other.csv").write_text("item,category\n" + "".join(f"x{k},a\n" for k in range(9)))
    (tmp_path / "twice.csv").write_text("item,category\ni1,a\ni1,b\n")
    with pytest.raises(ValueError, match=f"(?s){error}"):
        pipeline(tmp_path, text)


def test_a_damaged_artifact_is_refused(tmp_path: Path) -> None:
    shutil.copytree(shop() / "BPR", tmp_path / "damaged")
    file = next((tmp_path / "damaged").glob("rows-*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    (tmp_path / "pipeline.yaml").write_text("retrieve: [{artifact: damaged, number: 5}]\n")
    with pytest.raises(ValueError, match=r"(?s):1: retrieve\[0\].artifact: .*damaged"):
        Pipeline(tmp_path / "pipeline.yaml")


def test_every_stage_is_evaluated(tmp_path: Path) -> None:
    opened = pipeline(tmp_path, WHOLE)
    questions = read_test(opened, shop() / "later.csv")
    assert len(questions) == 48 and questions[0].question.context == {"device": "phone"}
    assert questions[0].num_relevant == 3
    stages = {one.stage: one.metrics for one in evaluate(opened, questions, topk=5)}
    assert list(stages) == [
        *("retrieve BPR", "retrieve SASRec", "retrieve Pop popularity", "retrieve"),
        *("seen", "allowed", "rank", "boost", "at_most", "diversity"),
    ]
    # The union has what each source has, and the model of clicks knows who likes what.
    parts = [stages[f"retrieve {name}"]["recall@100"] for name in ("BPR", "SASRec")]
    assert stages["retrieve"]["recall@100"] >= max(parts)
    assert stages["rank"]["recall@5"] > stages["allowed"]["recall@5"]
    assert 0 < stages["rank"]["coverage@5"] <= 1
    # The last stage is what the pipeline answers.
    recall = 0.0
    answers = opened.answer([replace(test.question, number=5) for test in questions])
    for test, answer in zip(questions, answers):
        right = opened.items.ids.values[test.items].tolist()
        recall += len({one.item for one in answer} & {*right}) / test.num_relevant
    assert recall / len(questions) == pytest.approx(stages["diversity"]["recall@5"])


def test_data_of_the_artifacts_is_no_test(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened = pipeline(tmp_path, BPR)
    artifact = shoal.load(shop() / "BPR")
    items = artifact.items.words[artifact.history_of(1).items]
    user = artifact.users.words[1]
    lines = [f"{user},{item}" for item in items]
    (tmp_path / "old.csv").write_text("\n".join(["user,item", *lines]) + "\n")
    with caplog.at_level("WARNING", logger="shoal"):
        evaluate(opened, read_test(opened, tmp_path / "old.csv"))
    assert "100 % of the tested items are in the data of an artifact" in caplog.text
    with pytest.raises(ValueError, match=r"no column 'item'; it has user, itm.*mean itm"):
        (tmp_path / "odd.csv").write_text("user,itm\nu1,i1\n")
        read_test(opened, tmp_path / "odd.csv")


def test_a_trial_names_every_stage(tmp_path: Path) -> None:
    costs = try_stages(pipeline(tmp_path, WHOLE))
    assert [one.stage for one in costs] == [
        *("retrieve BPR", "retrieve SASRec", "retrieve Pop popularity", "union"),
        *("seen", "allowed", "rank", "boost", "at_most", "diversity"),
    ]
    assert all(one.milliseconds is None or one.milliseconds > 0 for one in costs)
    assert costs[0].items == 20 and costs[2].what == "Pop by popularity, 20 items, quota 3"
    assert costs[-2].what == "number 4, attribute category" and costs[-2].items <= 16
