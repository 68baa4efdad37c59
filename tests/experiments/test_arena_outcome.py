"""What is concluded from runs, on records whose figures are known: nothing is trained here."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats

from shoal.experiments.arena.arena_file import ArenaFile, read_arena
from shoal.experiments.arena.arena_page import arena_page
from shoal.experiments.arena.arena_tables import figures_csv, tables_markdown
from shoal.experiments.arena.cells import Refusal, plan_arena
from shoal.experiments.arena.outcome import Outcome, conclude, run_seconds
from shoal.runs.run_record import EpochLine, RunRecord

DATA = "data: [{name: synthetic, title: one}, {name: synthetic, title: two}]"
BETTER = {"Pop": 0.0, "EASE": 0.1, "BPR": 0.3}


@pytest.fixture
def arena(tmp_path: Path) -> ArenaFile:
    file = tmp_path / "arena.yaml"
    models = ", ".join(BETTER)
    keys = "keys: {data.synthetic: {users: 60, items: 40, interactions: 1200}}"
    file.write_text(f"models: [{models}]\n{DATA}\n{keys}\nseeds: 3\nprice_per_hour: 7.2\n")
    return read_arena(file)


def record(model: str, seed: int, splits: str = "same") -> RunRecord:
    """A run of 50 users whose metric is higher for a better model, and takes ten seconds."""
    draw = np.random.default_rng(seed)
    values = draw.uniform(0, 0.5, 50) + BETTER[model] + 0.01 * (seed - 2021)
    users = pl.DataFrame({"user": [f"u{k}" for k in range(50)], "mrr@10": values})
    test = {"mrr@10": float(values.mean())}
    one = RunRecord(Path(model), model, {"protocol": "newest item"}, users=users)
    one.result = {
        "test": test,
        "best_valid": test,
        "data": {"interactions": "same", "splits": splits},
        "seconds": {"total": 10.0},
        "memory": [{"host_peak": 100_000_000, "gpu_peak": 2_000_000}],
    }
    one.config = {"data.split.by": "ratio" if splits == "other" else "leave_one_out"}
    one.epochs = [EpochLine(1, 0.5, test, (1.0, 1.0), [])]
    return one


def outcomes(arena: ArenaFile, **splits: str) -> list[Outcome]:
    """An outcome of every cell; splits: of a model, where they are other ones."""
    return [
        Outcome(cell, record(cell.model, cell.seed, splits.get(cell.model, "same")))
        for cell in plan_arena(arena).cells
    ]


def test_both_intervals_are_those_of_students_t(arena: ArenaFile) -> None:
    found = conclude(arena, outcomes(arena), [], {}, runs_at_once=1)
    figure = found["data"][0]["metrics"]["mrr@10"]["BPR"]
    records = [record("BPR", seed) for seed in arena.seeds]
    over_seeds = [one.test["mrr@10"] for one in records]
    over_users = np.mean([one.users["mrr@10"].to_numpy() for one in records], axis=0)  # type: ignore[index]
    for name, values in (("over_seeds", over_seeds), ("over_users", over_users)):
        interval = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
        assert figure[name] == pytest.approx([interval.low, interval.high])
    assert figure["mean"] == pytest.approx(np.mean(over_seeds)) and "p" not in figure
    assert found["data"][0]["best"] == "BPR"
    assert found["data"][0]["metrics"]["mrr@10"]["Pop"]["p"] < 0.001


def test_ranks_over_data_sets_and_over_users(arena: ArenaFile) -> None:
    found = conclude(arena, outcomes(arena), [], {}, runs_at_once=1)
    assert found["ranks"]["models"] == ["BPR", "EASE", "Pop"]
    assert found["ranks"]["average"] == [1.0, 2.0, 3.0] and found["ranks"]["blocks"] == 2
    over_users = found["data"][0]["ranks"]
    # Users with the same draw for all models: the better model is better for each of them.
    assert over_users["average"] == [1.0, 2.0, 3.0] and over_users["groups"] == []
    assert over_users["over"] == "users with seed 2020" and over_users["p"] < 1e-9


def test_cost_is_that_of_a_share_of_the_machine(arena: ArenaFile) -> None:
    searched = {("BPR", "one"): 60.0}
    found = conclude(arena, outcomes(arena), [], searched, runs_at_once=2)
    bpr, pop = (found["data"][0]["costs"][name] for name in ("BPR", "Pop"))
    assert pop["cost"] == pytest.approx(3 * 10 / 3600 * 7.2 / 2)
    assert bpr["cost"] == pytest.approx((3 * 10 + 60) / 3600 * 7.2 / 2)
    assert (pop["host_bytes"], pop["gpu_bytes"]) == (100_000_000, 2_000_000)
    page = arena_page(found, arena.text)
    assert "cost of all its runs" in page and "at 7.2 an hour" in page and "search" in page
    free = conclude(_without_price(arena), outcomes(arena), [], {}, runs_at_once=2)
    assert "cost" not in free["data"][0]["costs"]["Pop"]
    assert "cost of" not in arena_page(free, "") and "cost of" not in tables_markdown(free)


def _without_price(arena: ArenaFile) -> ArenaFile:
    arena.path.write_text(arena.text.replace("price_per_hour: 7.2", ""))
    return read_arena(arena.path)


def test_a_resumed_run_counts_the_seconds_before_it_was_killed() -> None:
    one = record("BPR", 2020)
    one.epochs = [EpochLine(epoch, 0.5, {}, (4.0, 1.0), []) for epoch in range(1, 6)]
    one.result["seconds"] = {"total": 7.0, "startup": 2.0, "test": 1.0}
    assert run_seconds(one) == 2 + 1 + 5 * 5
    one.result["seconds"] = {"total": 90.0, "startup": 2.0, "test": 1.0}
    assert run_seconds(one) == 90


def test_other_splits_have_no_test_and_no_ranks(arena: ArenaFile) -> None:
    found = conclude(arena, outcomes(arena, EASE="other"), [], {}, runs_at_once=1)
    row = found["data"][0]
    assert row["no_test"].startswith("data.split.by is leave_one_out in Pop, ratio in EASE")
    assert row["best"] is None and row["ranks"] == {"missing": row["no_test"]}
    assert found["ranks"]["missing"].startswith("one: data.split.by is")
    for text in (arena_page(found, ""), tables_markdown(found)):
        assert "No test, since the runs are not comparable" in text


def test_what_has_no_figures_is_listed_and_left_out_of_ranks(arena: ArenaFile) -> None:
    all_of_them = outcomes(arena)
    lost = [
        Outcome(one.cell, None, "it cannot learn")
        if one.cell.folder_name == "EASE-two-2021"
        else one
        for one in all_of_them
        if (one.cell.model, one.cell.data) != ("Pop", "two")
    ]
    refusal = Refusal("Pop", "two", "it reads clicks\nand more")
    found = conclude(arena, lost, [refusal], {}, runs_at_once=1)
    assert (found["finished_runs"], found["runs"]) == (14, 18)
    assert [(one["state"], one["seed"], one["reason"]) for one in found["problems"]] == [
        ("failed", 2021, "it cannot learn"),
        ("refused", None, "it reads clicks"),
    ]
    assert found["ranks"]["models"] == ["BPR", "EASE"] and found["ranks"]["left_out"] == ["Pop"]
    text = tables_markdown(found)
    assert "EASE (2 of 3 seeds)" in text and "Without Pop: not on all data sets." in text
    assert "Friedman's test needs three models." in text
    assert figures_csv(found).count("it cannot learn") == 1


def test_cells_of_markdown_end_no_table(arena: ArenaFile) -> None:
    found: dict[str, Any] = conclude(arena, outcomes(arena), [], {}, runs_at_once=1)
    found["data"][0]["published"] = [
        {"model": "a | b", "data": "one", "source": "<i>\n*x*", "metrics": {"mrr@10": 0.25}}
    ]
    (line,) = [line for line in tables_markdown(found).splitlines() if "published" in line]
    assert line == "| a \\| b, published: \\<i> \\*x\\* | 0.2500 |"
