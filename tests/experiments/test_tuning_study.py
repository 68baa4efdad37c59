"""Studies: what is proposed and stopped is a pure function of what came before."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from shoal.experiments.tuning.space import Parameter
from shoal.experiments.tuning.study import Study

SPACE = [
    Parameter("train.optimizer.lr", (), 1e-4, 1e-1, None, True),
    Parameter("model.embedding_size", (16, 32, 64)),
    Parameter("model.layers", ([8], [8, 8])),
]
FIRST = {"train.optimizer.lr": 0.05, "model.embedding_size": 16, "model.layers": [4]}
EPOCHS = 14


def curve_of(values: dict[str, Any]) -> list[float]:
    """Made up: it rises to a height that the values decide, and then falls a little."""
    height = 1.0 - abs(math.log10(values["train.optimizer.lr"]) + 2.5) / 4
    height += 0.001 * values["model.embedding_size"] + 0.01 * len(values["model.layers"])
    top = 4
    return [
        height * (1 - 0.6 ** min(epoch, top)) - 0.001 * max(0, epoch - top)
        for epoch in range(1, EPOCHS + 1)
    ]


@pytest.mark.parametrize(
    "pace, stops_after",
    [
        (0.02, None),  # slow and steady: it would be beyond the best in twenty evaluations
        (0.001, 6),  # at this pace it would not
    ],
)
def test_a_trial_continues_while_its_pace_would_reach_the_best(
    tmp_path: Path, pace: float, stops_after: int | None
) -> None:
    """A small rate learns slowly, and often best."""
    study = opened(tmp_path, "random", "pace")
    study.conclude(study.propose({}), {"best_valid": {"mrr@10": 0.4}}, "")
    number = study.propose({})
    folder = study.path(number)
    folder.mkdir(parents=True)
    stopped = None
    with open(folder / "metrics.jsonl", "a") as file:
        for epoch in range(12):
            line = {"epoch": epoch, "valid": {"mrr@10": 0.01 + pace * epoch}}
            file.write(json.dumps(line) + "\n")
            file.flush()
            if stopped is None and study.is_hopeless(number):
                stopped = epoch + 1
    assert stopped == stops_after


def test_a_trial_that_levels_off_below_the_best_stops(tmp_path: Path) -> None:
    study = opened(tmp_path, "random", "pace")
    study.conclude(study.propose({}), {"best_valid": {"mrr@10": 0.4}}, "")
    number = study.propose({})
    folder = study.path(number)
    folder.mkdir(parents=True)
    curve = [0.02 * min(epoch, 6) for epoch in range(12)]  # level from 0.12, at evaluation 7
    lines = [{"epoch": epoch, "valid": {"mrr@10": v}} for epoch, v in enumerate(curve)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    trial = study.conclude(number, {"best_valid": {"mrr@10": max(curve)}}, "")
    # of the last five gains three are left: 0.12 + 20 * 0.06 / 5 < 0.4, four would be enough
    assert trial.state == TrialState.PRUNED and trial.user_attrs["evaluations"] == 9


def write(study: Study, number: int, epochs: int = EPOCHS) -> dict[str, Any]:
    """What a run leaves; its result where it came to its end."""
    folder = study.path(number)
    folder.mkdir(parents=True, exist_ok=True)
    curve = curve_of(study.values(study.trials[number]))
    lines = [{"epoch": k, "valid": {"mrr@10": value}} for k, value in enumerate(curve[:epochs])]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text + '{"epoch": 99, "val')  # torn
    return {"best_valid": {"mrr@10": max(curve)}} if epochs == EPOCHS else {}


def opened(folder: Path, sampler: str, prune: str) -> Study:
    return Study(folder, "mrr@10", 7, sampler, prune, SPACE)


def facts(study: Study) -> list[Any]:
    return [(one.number, one.params, one.state, one.value) for one in study.trials]


@pytest.mark.parametrize("sampler, prune", [("tpe", "pace"), ("random", "halving")])
def test_a_reopened_study_proposes_what_it_would_have_proposed(
    tmp_path: Path, sampler: str, prune: str
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir(), parts.mkdir()
    number_of_trials = 15  # TPE draws at random before it has ten
    study = opened(whole, sampler, prune)
    for _ in range(number_of_trials):
        number = study.propose(FIRST)
        study.conclude(number, write(study, number), "")
    again = opened(parts, sampler, prune)
    for count in range(number_of_trials):
        number = again.propose(FIRST)
        if count in (0, 12):  # killed in the midst of a trial, which had trained a while
            write(again, number, 3)
            again.is_hopeless(number)
            again = opened(parts, sampler, prune)
            assert again.unfinished == [number]
        if count == 7:  # killed between a trial's end and its record
            write(again, number)
            again = opened(parts, sampler, prune)
        again.conclude(number, write(again, number), "")
        if count == 13:
            again = opened(parts, sampler, prune)
    assert facts(again) == facts(study)
    assert again.best.number == study.best.number  # type: ignore[union-attr]
    assert again.importance() == study.importance()
    assert (len(study.ranking) >= 10) == bool(study.importance())
    assert facts(opened(parts, sampler, prune)) == facts(study)
    # The very first is the config as it is, where the space has its values.
    assert study.values(study.trials[0])["train.optimizer.lr"] == 0.05
    assert study.values(study.trials[0])["model.layers"] in ([8], [8, 8])
    states = {one.state for one in study.trials}
    assert states == {TrialState.COMPLETE, TrialState.PRUNED}


def test_a_hopeless_trial_stops_at_the_same_epoch_however_late_that_is_noticed(
    tmp_path: Path,
) -> None:
    found = []
    for name in ("early", "late"):
        (tmp_path / name).mkdir()
        study = opened(tmp_path / name, "random", "pace")
        for _ in range(12):
            number = study.propose({})
            if name == "early":
                for epochs in range(1, EPOCHS):
                    write(study, number, epochs)
                    if study.is_hopeless(number):
                        break
                else:
                    epochs = EPOCHS
                result = write(study, number, epochs)  # it was stopped there
            else:
                result = write(study, number)  # it had trained to its end meanwhile
            study.conclude(number, result, "")
        found.append(facts(study))
        for one in study.trials:
            if one.state == TrialState.PRUNED:
                last = one.user_attrs["evaluations"] - 1
                assert one.value == curve_of(study.values(one))[last] and last < EPOCHS - 1
    assert found[0] == found[1]
    assert TrialState.PRUNED in [state for _, _, state, _ in found[0]]


def test_a_trial_without_a_result_failed(tmp_path: Path) -> None:
    study = opened(tmp_path, "tpe", "pace")
    trial = study.conclude(study.propose({}), {}, "the loss became NaN")
    assert trial.state == TrialState.FAIL and trial.user_attrs["problem"] == "the loss became NaN"
    assert study.best is None and study.unfinished == [] and study.importance() == {}
    nan = study.conclude(study.propose({}), {"best_valid": {"mrr@10": math.nan}}, "not a number")
    assert nan.state == TrialState.FAIL


def test_a_grid_goes_through_its_points_in_order(tmp_path: Path) -> None:
    space = [Parameter("model.layers", ([8], [8, 8])), Parameter("model.n", (), 1, 3)]
    study = Study(tmp_path, "logloss", 7, "grid", None, space)
    points = []
    for _ in study.grid or []:
        number = study.propose({"model.n": 2})
        points.append(study.values(study.trials[number]))
        study.conclude(number, {"best_valid": {"logloss": float(number + 1)}}, "")
    assert points == study.grid and len(points) == 6
    assert study.best.number == 0  # type: ignore[union-attr]  # less is better


def test_a_reopened_study_keeps_its_sampler_and_its_number_of_trials(tmp_path: Path) -> None:
    opened(tmp_path, "random", "none")
    study = Study(tmp_path, "mrr@10", 7, None, None, SPACE)
    assert study.sampler == "random"
    with pytest.raises(ValueError, match="was begun with sampler random"):
        opened(tmp_path, "tpe", "none")
    assert [study.decide_num_trials(number) for number in (4, None, 6)] == [4, 4, 6]
    assert opened(tmp_path, "random", "none").decide_num_trials(None) == 6


def test_no_combination_is_tried_twice(tmp_path: Path) -> None:
    space = [Parameter("model.layers", ([8], [8, 8])), Parameter("model.n", (), 1, 6)]
    study = Study(tmp_path, "mrr@10", 7, "tpe", None, space)
    assert study.count == 12
    tried = []
    for _ in range(12):
        number = study.propose({})
        tried.append(study.values(study.trials[number]))
        study.conclude(number, {"best_valid": {"mrr@10": 0.5}}, "")
    assert sum(one not in tried[:k] for k, one in enumerate(tried)) >= 11
    (tmp_path / "range").mkdir()
    assert Study(tmp_path / "range", "mrr@10", 7, None, None, SPACE[:1]).count == math.inf
