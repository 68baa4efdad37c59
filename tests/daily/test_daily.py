"""Going on from a run with new data: known ids keep their rows, new ones begin, nothing is lost."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import pkgutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import check_here
from small import NO_DROPOUT
from typer.testing import CliRunner

import shoal
from shoal.cli import main as cli
from shoal.cli.new import write_model
from shoal.config.schema import Config
from shoal.daily.follow import TrainedFiles, is_whole, seconds_of
from shoal.data.dataset import SPLITS
from shoal.data.loading.load import load_dataset
from shoal.data.prepared.folder import PrepareJob
from shoal.data.prepared.preparation import prepare
from shoal.distributed.world import World
from shoal.recommender.catalogue import RunCatalogue
from shoal.recommender.recommender import RankingQuestion, Recommender
from shoal.runs.build import build
from shoal.runs.decay import ages_after
from shoal.runs.parts import Parts
from shoal.runs.run import resolve
from shoal.runs.trained_run import Trained
from shoal.runs.vocabulary_growth import FILE, TAKEN, grow, read_vocabularies
from shoal.runs.warm_start import begin
from shoal.serving.artifact import export

QUIET = {"run.progress": False, "run.trackers": [], "run.log_level": "warning"}


def write_day(root: Path, name: str, users: range, items: range, seed: int) -> Path:
    """Interactions in an order of their own, so that ids are numbered otherwise every day."""
    random = np.random.default_rng(seed)
    pairs = [(u, i) for u in users for i in random.permutation(list(items))[:8]]
    lines = ["user_id:token\titem_id:token\ttimestamp:float"]
    for when, k in enumerate(random.permutation(len(pairs))):
        lines.append(f"u{pairs[k][0]}\ti{pairs[k][1]}\t{when}")
    (root / name).mkdir()
    (root / name / f"{name}.inter").write_text("\n".join(lines) + "\n")
    return root / name


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("days")
    write_day(root, "day-1", range(30), range(25), 1)
    write_day(root, "day-2", range(10, 40), range(5, 32), 2)
    return root


def values_of(model: str, root: Path, day: str, **more: Any) -> dict[str, Any]:
    values = {"model": model, **NO_DROPOUT[model], **QUIET, "data.path": str(root)}
    values |= {"data.name": day, "data.max_len": 6, "train.batch_size": 32, "train.epochs": 1}
    if model == "BERT4Rec":
        values["model.window_stride"] = 3
    return values | {key.replace("__", "."): value for key, value in more.items()}


def parts_of(values: dict[str, Any]) -> tuple[Config, Parts]:
    config = resolve(values=values).config
    return config, build(config, World())


def rows_by_word(parts: Parts, table: str) -> dict[str, tuple[np.ndarray, ...]]:
    """Word -> its row and the optimizer's state of it."""
    dataset, found = parts.dataset, {}
    field = dataset.user_field if "user" in table else dataset.item_field  # type: ignore[union-attr]
    words = [*dataset.vocab[field], "[MASK]"]  # type: ignore[union-attr]
    for chunk in parts.strategy.stores[table].export():
        for k, id_ in enumerate(chunk.ids.tolist()):
            state = [chunk.state[name][k].numpy() for name in sorted(chunk.state)]
            found[words[id_]] = (chunk.values[k].numpy(), *state)
    return found


@pytest.mark.parametrize("model", ["BPR", pytest.param("BERT4Rec", marks=pytest.mark.slow)])
def test_known_ids_keep_rows_and_state(model: str, root: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    shoal.run(config_dict=values_of(model, root, "day-1", run__output=str(first)))
    old = Trained(first)
    more = {"start__run": str(first), "start__words": str(first)}
    config, parts = parts_of(values_of(model, root, "day-2", **more))
    fresh = {name: rows_by_word(parts, name) for name in parts.strategy.stores}
    begin(config.start, config.model, parts.strategy, parts.dataset, World())
    for name in parts.strategy.stores:
        before, now = rows_by_word(old.parts, name), rows_by_word(parts, name)
        assert before.keys() - now.keys() == set() and now.keys() - before.keys()
        for word, row in now.items():
            expected = before.get(word) or fresh[name][word]
            for one, other in zip(row, expected, strict=True):
                np.testing.assert_array_equal(one, other)
    for one, other in zip(old.model.parameters(), parts.model.parameters()):
        assert torch.equal(one, other)
    assert parts.strategy.rows.steps == old.parts.strategy.rows.steps


def test_a_second_day_from_the_command_line(root: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    values = values_of("BPR", root, "day-1", run__output=str(first), train__epochs=3)
    shoal.run(config_dict=values)
    words = ["train", "--from", str(first), "--data", str(root / "day-2"), "--output", str(second)]
    done = CliRunner().invoke(cli.app, [*words, "--train.epochs=2"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "going on from" in (second / "train.log").read_text()  # the first was quiet
    trained = Trained(second)
    known, grown = read_vocabularies(first / FILE), read_vocabularies(second / FILE)
    for field in ("user_id", "item_id"):
        assert grown[field][: len(known[field])] == known[field]
        assert trained.parts.dataset.vocab[field].tolist() == grown[field]  # type: ignore[union-attr]
    assert trained.evaluate()["test"] == pytest.approx(
        json.loads((second / "result.json").read_text())["test"]
    )
    assert len(trained.recommend("u39", 5)) == 5  # new today
    assert len(trained.recommend("u3", 5)) == 5  # not seen today


def taken_on(root: Path, *days: str) -> dict[str, set[str]]:
    """User -> the items of these days' files."""
    found: dict[str, set[str]] = {}
    for day in days:
        for line in (root / day / f"{day}.inter").read_text().splitlines()[1:]:
            user, item, _ = line.split("\t")
            found.setdefault(user, set()).add(item)
    return found


def test_what_was_taken_on_earlier_days_is_not_recommended(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "check_apart", check_here)
    write_day(root, "day-3", range(35, 42), range(10, 20), 3)
    runs = [tmp_path / str(day) for day in (1, 2, 3)]
    shoal.run(config_dict=values_of("BPR", root, "day-1", run__output=str(runs[0])))
    for day, (last, output) in zip((2, 3), itertools.pairwise(runs)):
        words = ["--from", str(last), "--data", str(root / f"day-{day}"), "--output", str(output)]
        done = CliRunner().invoke(cli.app, ["train", *words], catch_exceptions=False)
        assert done.exit_code == 0
    shoal.export(runs[2], tmp_path / "exported")
    artifact = shoal.load(tmp_path / "exported")
    taken = taken_on(root, "day-1", "day-2", "day-3")
    trained, every = Trained(runs[2]), {f"i{k}" for k in range(32)}
    for user in ("u3", "u12", "u37", "u41"):  # of Monday alone, of two days, of today alone
        for ask in (trained.recommend, artifact.recommend):
            assert {item for item, _ in ask(user, topk=40)} == every - taken[user]


def test_a_run_that_does_not_say_who_took_what_is_a_warning(root: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    shoal.run(config_dict=values_of("BPR", root, "day-1", run__output=str(first)))
    (first / TAKEN).unlink()
    words = ["--from", str(first), "--data", str(root / "day-2"), "--output", str(second)]
    CliRunner().invoke(cli.app, ["train", *words], catch_exceptions=False)
    assert "does not say who took what" in (second / "train.log").read_text()


def test_vectors_to_begin_with(root: Path, tmp_path: Path) -> None:
    vectors = np.arange(3 * 16, dtype=np.float32).reshape(3, 16)
    np.save(tmp_path / "items.npy", vectors)
    (tmp_path / "items.txt").write_text("i3\nunknown\ni7\n")
    more = {"start__pretrained": {"item": str(tmp_path / "items.npy")}}
    config, parts = parts_of(values_of("BPR", root, "day-1", **more))
    before = rows_by_word(parts, "item")
    begin(config.start, config.model, parts.strategy, parts.dataset, World())
    now = rows_by_word(parts, "item")
    np.testing.assert_array_equal(now["i3"][0], vectors[0])
    np.testing.assert_array_equal(now["i7"][0], vectors[2])
    np.testing.assert_array_equal(now["i4"][0], before["i4"][0])
    (tmp_path / "items.txt").unlink()
    with pytest.raises(ValueError, match=r"has 3 rows and table 'item' 26"):
        begin(config.start, config.model, parts.strategy, parts.dataset, World())


def test_known_words_keep_their_numbers(root: Path) -> None:
    dataset = parts_of(values_of("BPR", root, "day-1"))[1].dataset
    assert not isinstance(dataset, dict)
    known = {"item_id": ["[PAD]", "i99", "i3"]}
    grown = grow(dataset, known)  # type: ignore[arg-type]
    assert grown.vocab["item_id"][:3].tolist() == known["item_id"]
    before = dataset.vocab["item_id"][dataset.inter["item_id"]]  # type: ignore[union-attr,index]
    assert (grown.vocab["item_id"][grown.inter["item_id"]] == before).all()  # type: ignore[index]
    assert grown.vocab["user_id"].tolist() == dataset.vocab["user_id"].tolist()  # type: ignore[union-attr]


def test_features_of_known_items_go_on(root: Path, tmp_path: Path) -> None:
    for day, seed in (("first", 1), ("again", 2), ("more", 3)):
        write_day(tmp_path, day, range(30), range(25 + (day == "more")), seed)
        order = np.random.default_rng(seed).permutation(25 + (day == "more"))
        lines = ["item_id:token\tgenre:token_seq", *(f"i{k}\tg{k % 3} h{k % 2}" for k in order)]
        (tmp_path / day / f"{day}.item").write_text("\n".join(lines) + "\n")
    run = tmp_path / "run"
    values = {"model": "LightFM", **QUIET, "data.path": str(tmp_path), "train.epochs": 1}
    shoal.run(config_dict={**values, "data.name": "first", "run.output": str(run)})
    values |= {"start.run": str(run), "start.vocabulary": str(run)}
    config, parts = parts_of({**values, "data.name": "again"})
    begin(config.start, config.model, parts.strategy, parts.dataset, World())
    ranks = Recommender(RunCatalogue(parts.model.eval(), parts.evaluator))  # type: ignore[arg-type]
    items = [f"i{k}" for k in range(25)]
    for user in ("u3", "u20"):
        before = Trained(run).recommender.score(RankingQuestion(user), items)
        np.testing.assert_allclose(ranks.score(RankingQuestion(user), items), before, rtol=1e-5)
    with pytest.raises(ValueError, match=r"LightFM reads features.*1 of item_id are new.*'i25'"):
        parts_of({**values, "data.name": "more"})
    with pytest.raises(ValueError, match="TIGER makes codes of items from its data"):
        parts_of({**values, "data.name": "again", "model": "TIGER"})


def test_prepared_data_is_numbered_by_known_words(root: Path, tmp_path: Path) -> None:
    config = resolve(values=values_of("BPR", root, "day-1")).config
    prepare(PrepareJob([str(root / "day-1" / "day-1.inter")], tmp_path / "prepared", config.data))
    values = {**values_of("BPR", root, "day-1"), "data.path": str(tmp_path / "prepared")}
    dataset = load_dataset(resolve(values=values).config.data, 0)
    grown = grow(dataset, {"item_id": ["[PAD]", "i99", "i3"]})
    assert dataset.kept
    for phase in SPLITS:
        before = dataset.vocab["item_id"][dataset.item_ids(phase)]
        assert (grown.vocab["item_id"][grown.item_ids(phase)] == before).all()


@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
def test_frozen_vectors_stay(optimizer: str, root: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    np.save(tmp_path / "items.npy", random.standard_normal((26, 16)).astype(np.float32))
    given = {"item": {"file": str(tmp_path / "items.npy"), "frozen": True}}
    more = {"start__pretrained": given, "train__optimizer__name": optimizer}
    config, parts = parts_of(values_of("BPR", root, "day-1", **more))
    begin(config.start, config.model, parts.strategy, parts.dataset, World())
    before = {name: rows_by_word(parts, name) for name in parts.strategy.stores}
    for batch in parts.reader.batches(0):
        parts.strategy.train_step(batch)
    for name, rows in before.items():
        moved = [
            not np.array_equal(row[0], rows_by_word(parts, name)[word][0])
            for word, row in rows.items()
        ]
        assert any(moved) == (name == "user")


def test_vectors_do_not_undo_what_was_learned(root: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    np.save(tmp_path / "items.npy", np.ones((2, 16), np.float32))
    (tmp_path / "items.txt").write_text("i7\ni30\n")  # known on day 1, and new on day 2
    more = {"start__pretrained": {"item": str(tmp_path / "items.npy")}}
    shoal.run(config_dict=values_of("BPR", root, "day-1", run__output=str(first), **more))
    learned = rows_by_word(Trained(first).parts, "item")["i7"][0]
    assert not np.array_equal(learned, np.ones(16))
    more |= {"start__run": str(first), "start__words": str(first)}
    config, parts = parts_of(values_of("BPR", root, "day-2", **more))
    begin(config.start, config.model, parts.strategy, parts.dataset, World())
    now = rows_by_word(parts, "item")
    np.testing.assert_array_equal(now["i7"][0], learned)
    np.testing.assert_array_equal(now["i30"][0], np.ones(16))


def test_rows_that_nobody_names_shrink(root: Path, tmp_path: Path) -> None:
    decay = {"start__value_decay__after": 2, "start__value_decay__factor": 0.25}
    folders = [tmp_path / f"run-{day}" for day in range(3)]
    for number, (folder, day) in enumerate(zip(folders, ["day-1", "day-2", "day-2"])):
        start = {"start__run": str(folders[number - 1]), "start__words": str(folders[number - 1])}
        more = {"run__output": str(folder), **decay, **(start if number else {})}
        shoal.run(config_dict=values_of("BPR", root, day, train__eval_every=0, **more))
    runs = [rows_by_word(Trained(folder).parts, "user") for folder in folders]
    for word in (f"u{n}" for n in range(10)):  # in day 1 alone
        np.testing.assert_array_equal(runs[1][word][0], runs[0][word][0])
        np.testing.assert_array_equal(runs[2][word][0], runs[0][word][0] * np.float32(0.25))
    ages = ages_after(folders[2], Trained(folders[2]).parts.dataset)
    assert ages["user_id"].max() == 3 and (ages["user_id"] == 0).sum() == 31


# ---- following a folder -------------------------------------------------------------------------


def write_clicks(path: Path, seed: int, samples: int = 400) -> None:
    """Lines of slots, in a file that comes whole."""
    random = np.random.default_rng(seed)
    lines = []
    for _ in range(samples):
        a, b = random.integers(1, 30, 2)
        lines.append(f"click:{int((a + b) % 3 == 0)} 1:{a} 2:{b}")
    path.with_suffix(".tmp").write_text("\n".join(lines) + "\n")
    path.with_suffix(".tmp").rename(path)


def clicks_run(root: Path) -> Path:
    write_clicks(root / "first.txt", 0)
    values = {
        **QUIET,
        "model": "LR",
        "data.format": "slots",
        "data.clicks.train": str(root / "first.txt"),
        "data.clicks.valid": str(root / "first.txt"),
        "data.clicks.slots": ["1", "2"],
        "data.clicks.dense": [],
        "train.batch_size": 16,
        "train.epochs": 1,
        "train.optimizer.lr": 0.05,
        "checkpoint.every_steps": 3,
        "run.output": str(root / "first"),
    }
    shoal.run(config_dict=values)
    return root / "first"


def followed(root: Path, name: str, *more: str) -> list[str]:
    words = ["train", "--follow", str(root / "in"), "--from", str(root / "first"), "--once"]
    return [*words, "--output", str(root / name), *more]


def last_rows(folder: Path) -> dict[int, tuple[float, ...]]:
    """Rows of the last run of a folder that followed."""
    run = folder / TrainedFiles(folder).entries[-1].run
    found = {}
    for name, store in Trained(run).parts.strategy.stores.items():
        for chunk in store.export():
            for id_, row in zip(chunk.ids.tolist(), chunk.values.tolist()):
                found[name, id_] = tuple(row)
    return found  # type: ignore[return-value]


def test_files_are_followed_each_once(tmp_path: Path) -> None:
    clicks_run(tmp_path)
    (tmp_path / "in").mkdir()
    write_clicks(tmp_path / "in" / "b.txt", 2)
    write_clicks(tmp_path / "in" / "a.txt", 1)
    for name in (".c.txt", "d.tmp", "e.part"):
        (tmp_path / "in" / name).write_text("not yet\n")
    invoke = CliRunner().invoke
    done = invoke(cli.app, followed(tmp_path, "out"), catch_exceptions=False)
    assert done.exit_code == 0 and "trained on 2 files" in done.output
    entries = TrainedFiles(tmp_path / "out").entries
    assert [(one.name, one.run, one.done) for one in entries] == [
        ("a.txt", "000001", True),
        ("b.txt", "000002", True),
    ]
    assert all(one.before["auc"] > 0 for one in entries)  # tested before it was learned from
    write_clicks(tmp_path / "in" / "0.txt", 3)
    done = invoke(cli.app, followed(tmp_path, "out"), catch_exceptions=False)
    assert "trained on 1 files" in done.output
    assert not (tmp_path / "out" / "000001").exists()  # older than what the last went on from
    assert not is_whole(tmp_path / "in" / "d.tmp") and seconds_of("10m") == 600.0
    with pytest.raises(ValueError, match="30s, 10m or 2h"):
        seconds_of("ten")


def test_interactions_are_followed(root: Path, tmp_path: Path) -> None:
    shoal.run(config_dict=values_of("BPR", root, "day-1", run__output=str(tmp_path / "first")))
    (tmp_path / "in").mkdir()
    text = (root / "day-2" / "day-2.inter").read_text()
    (tmp_path / "in" / "day-2.inter").write_text(text)
    done = CliRunner().invoke(cli.app, followed(tmp_path, "out"), catch_exceptions=False)
    assert done.exit_code == 0
    (entry,) = TrainedFiles(tmp_path / "out").entries
    assert entry.done and entry.before["mrr@10"] > 0
    assert len(Trained(tmp_path / "out" / entry.run).recommend("u39", 5)) == 5


def test_a_model_of_ones_own_goes_on(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the text of its file, wherever that is: the run's copy, or one of another name."""
    monkeypatch.setattr(export, "check_apart", check_here)  # to start a process takes seconds
    file = write_model("Mine", tmp_path / "one")[0]
    values = {**values_of("BPR", root, "day-1"), "model": f"{file}:Mine", "run.threads": 1}
    values |= {"model.embedding_size": 8, "run.output": str(tmp_path / "first")}
    shoal.run(config_dict=values)

    def invoke(*words: str) -> Any:
        return CliRunner().invoke(cli.app, [*words, "--trust"], catch_exceptions=False)

    def second_day(name: str, *words: str) -> Any:
        day = ["--data", str(root / "day-2"), "--output", str(tmp_path / name)]
        return invoke("train", "--from", str(tmp_path / "first"), *day, *words)

    assert second_day("second").exit_code == 0
    other = file.rename(tmp_path / "other.py")
    assert second_day("third", f"--model={other}:Mine").exit_code == 0
    other.write_text(other.read_text() + "# changed\n")
    copy = tmp_path / "first" / "model" / file.name
    with pytest.raises(ValueError, match=rf"SHA-256 .*, and .*other.py:Mine .*--model={copy}:Mine"):
        second_day("fourth", f"--model={other}:Mine")
    (tmp_path / "in").mkdir()
    for name in ("day-1", "day-2"):
        text = (root / name / f"{name}.inter").read_text()
        (tmp_path / "in" / f"{name}.inter").write_text(text)
    words = followed(tmp_path, "out", "--export", str(tmp_path / "exported"), "--every", "0s")
    assert "trained on 2 files" in invoke(*words).output
    artifact = shoal.load(tmp_path / "exported" / "000002")
    assert (artifact.model, artifact.signature["base"]["name"]) == ("Mine", "000001")


# ---- a kill at any moment -----------------------------------------------------------------------

SAVE, LEDGER = (
    "shoal.training.checkpoint.writing:Checkpoints.save",
    "shoal.daily.follow:TrainedFiles.save",
)
COMMIT = "shoal.serving.artifact.files:commit"
BEFORE, AFTER = "before", "after"
BLOWS = [  # one after another, on the same command: what is called, which time, when, the signal
    (LEDGER, 1, BEFORE, signal.SIGKILL),  # nothing is noted yet
    (LEDGER, 1, AFTER, signal.SIGKILL),  # a file is noted, and its run has not begun
    (SAVE, 1, BEFORE, signal.SIGKILL),  # the run has begun, and has no checkpoint
    (SAVE, 4, AFTER, signal.SIGKILL),  # in the midst of the first file
    (LEDGER, 1, BEFORE, signal.SIGKILL),  # the file is done, and that is not noted
    (COMMIT, 1, BEFORE, signal.SIGKILL),  # exported, but for its name
    (SAVE, 2, BEFORE, signal.SIGTERM),  # in the midst of the second file
    (COMMIT, 1, AFTER, signal.SIGKILL),  # exported, and that is not noted
    (SAVE, 6, AFTER, signal.SIGKILL),  # in the midst of the third
    (None, 0, AFTER, 0),  # and nobody hits it any more
]


def command_that_is_hit(words: list[str], what: str | None, time: int, when: str, by: int) -> None:
    """A process of its own: `shoal` with these words, which is sent a signal at one moment."""
    if what is not None:
        place, _, name = what.rpartition("." if "." in what.partition(":")[2] else ":")
        owner = pkgutil.resolve_name(place)
        whole, calls = getattr(owner, name), itertools.count(1)

        def hit(*given: Any, **more: Any) -> Any:
            now = next(calls) == time
            if now and when == BEFORE:
                os.kill(os.getpid(), by)
            answer = whole(*given, **more)
            if now and when == AFTER:
                os.kill(os.getpid(), by)
            return answer

        setattr(owner, name, hit)
    export.check_apart = check_here  # type: ignore[assignment]  # to start a process takes seconds
    sys.argv = ["shoal", *words]
    cli.main()


@pytest.mark.slow
def test_a_kill_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    clicks_run(tmp_path)
    (tmp_path / "in").mkdir()
    for number in range(4):
        write_clicks(tmp_path / "in" / f"{number}.txt", number + 1)
    CliRunner().invoke(cli.app, followed(tmp_path, "whole"), catch_exceptions=False)
    words = followed(tmp_path, "out", "--export", str(tmp_path / "exported"), "--every", "1h")
    processes = multiprocessing.get_context("forkserver")  # which imports torch once for all
    processes.set_forkserver_preload(["shoal.cli.main", "shoal.daily.follow", "exported"])
    for blow in BLOWS:
        process = processes.Process(target=command_that_is_hit, args=(words, *blow))
        process.start()
        process.join()
        assert process.exitcode == (-signal.SIGKILL if blow[3] == signal.SIGKILL else 0), blow
    entries, whole = (
        TrainedFiles(tmp_path / "out").entries,
        TrainedFiles(tmp_path / "whole").entries,
    )
    assert [(one.done, one.before) for one in entries] == [(True, one.before) for one in whole]
    assert last_rows(tmp_path / "out") == last_rows(tmp_path / "whole")
    assert [one.export for one in entries][-2:] == ["000003", "000004"]
    last = shoal.load(tmp_path / "exported" / "000004")
    assert last.signature["base"] is not None
    assert not list((tmp_path / "exported").glob(".*"))  # nothing half written is left behind
