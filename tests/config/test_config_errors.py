"""Every kind of error of a config: its place, what is allowed, and what was meant."""

from pathlib import Path
from typing import Any

import pytest
from config_models import errors, file_errors, models, resolve, write

from shoal.config import ConfigError, dump, load
from shoal.config.key_applicability import READERS, refuse_unread
from shoal.config.keys import KEYS

__all__ = ["write"]  # used by being there


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"train: {epochs: 5\nx: 1\n", "recipe.yaml:2: not valid YAML"),
        (b"train:\n\tepochs: 5\n", "recipe.yaml:2: not valid YAML"),
        (b"- a\n", "recipe.yaml:1: a config is a mapping"),
        (b"hello\n", "recipe.yaml:1: a config is a mapping"),
        (b"a: 1\n---\nb: 2\n", "recipe.yaml:2: not valid YAML"),
        (b"a: \xff\n", "recipe.yaml: not UTF-8 text (byte 3)"),
        (b"a: \x01\n", "recipe.yaml: not valid YAML"),
        (
            b"run:\n  seed: 1\n\n  seed: 2\n",
            "recipe.yaml:4: key seed appears twice, first in line 2",
        ),
        (b"1: a\n", "recipe.yaml:1: a key must be text, given '1'"),
        (b"yes: a\n", "recipe.yaml:1: a key must be text"),
        (b"[a]: b\n", "recipe.yaml:1: a key must be text"),
        (b"x: !!python/object/apply:os.getcwd []\n", "recipe.yaml:1: tag !!python/object/apply"),
        (b"x: !!int abc\n", "recipe.yaml:1: 'abc' is no int"),
        (b"x: &a [*a]\n", "recipe.yaml: nested too deep, or an alias (*) contains itself"),
        (b"a: &a {b: 1}\n<<: *a\n", "recipe.yaml:2: merge keys (<<) are not supported"),
        (b"x: " + b"[" * 600, "recipe.yaml: nested too deep"),
    ],
)
def test_unreadable_files(write, text: bytes, expected: str) -> None:
    (error,) = file_errors(write(text))
    assert error.startswith(expected)


def test_missing_files(write, tmp_path: Path) -> None:
    assert file_errors("a.yaml", "b.yaml") == [
        "a.yaml: no such config file",
        "b.yaml: no such config file",
    ]
    assert file_errors(str(tmp_path))[0].startswith(f"{tmp_path}: cannot be read: ")
    path = Path(write(b"train: {}\n"))
    (error,) = file_errors(str(path.with_name("recepi.yaml")))
    assert error.endswith(f"no such config file; did you mean {path.name}?")
    (error,) = file_errors(write(b"train:\n\tepochs: 5\n"))
    assert error.endswith("indent with spaces, YAML knows no tabs")


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("train.epoch", "did you mean train.epochs?"),
        ("train.seed", "did you mean run.seed?"),
        ("trian.epochs", "did you mean train.epochs?"),
        ("trian", "did you mean train?"),
        ("rows.admision.threshold", "did you mean rows.admission.threshold?"),
        ("rows.threshold", "did you mean rows.admission.threshold?"),
        ("epoch", "did you mean epochs (RecBole's spelling of train.epochs)?"),
        ("Train.Epochs", "did you mean train.epochs?"),
        ("model.embeding_size", "did you mean model.embedding_size?"),
        ("embeding_size", "did you mean model.embedding_size?"),
        ("model.options", "keys of model are: name, embedding_size"),
        ("strategy.zzz", "keys of strategy are: name"),
        (
            "zzz.yyy",
            "the sections are: model, data, train, eval, rows, start, checkpoint, strategy, "
            "launch, run",
        ),
        ("data.files.inter.x", "data.files holds one value: a mapping of texts to texts"),
        ("batch_size", "did you mean train.batch_size?"),
        ("server_nun", "did you mean --server_num, an option of `shoal launch`?"),
        ("workers_num", "did you mean --worker_num, an option of `shoal launch`?"),
        ("worker_num", "did you mean --worker_num, an option of `shoal launch`?"),
        ("workrs", "did you mean --workers, an option of `shoal launch`?"),
        ("server", "did you mean --servers, an option of `shoal launch`?"),
        ("rol", "did you mean --role, an option of `shoal launch`?"),
        ("indx", "did you mean --index, an option of `shoal launch`?"),
        ("resum", "did you mean --resume, an option of `shoal train` and `shoal launch`?"),
        ("nprc", "did you mean nproc (RecBole's spelling of launch.nproc)?"),
        ("launch.server", "did you mean launch.servers?"),
        ("runer.epochs", "did you mean runner.epochs?"),
        (
            "n_layers",
            "neither a key of Shoal nor one of another tool (tdfo, PaddleRec, TorchRec, R",
        ),
    ],
)
def test_unknown_keys(write, key: str, expected: str) -> None:
    (error,) = file_errors(write(f"\n{key}: 5\n"))
    assert error.startswith(f"recipe.yaml:2: unknown key {key}") and expected in error


def test_place_of_a_nested_key(write) -> None:
    assert file_errors(write("train:\n  optimizer:\n    lr: 1\n    momentum: 2\n")) == [
        "recipe.yaml:4: unknown key train.optimizer.momentum; keys of train.optimizer are: "
        "name, lr, weight_decay, schedule, warmup_steps, decay_epochs, gamma, rows, tables"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train.epochs: '5'", "'5' (text); allowed: a whole number ≥ 0; leave out the quotes"),
        ("train.epochs: 5.5", "5.5 (number); allowed: a whole number ≥ 0"),
        ("train.epochs: 1e2", "100.0 (number); allowed: a whole number ≥ 0; write 100"),
        ("train.epochs: -1", "-1 (whole number); allowed: a whole number ≥ 0"),
        ("train.epochs: true", "true (true or false); allowed: a whole number ≥ 0"),
        ("train.epochs:", "null; allowed: a whole number ≥ 0"),
        ("train.epochs: 010", "'010' (text); allowed: a whole number ≥ 0"),
        ("train.optimizer.lr: 0", "0 (whole number); allowed: a number > 0"),
        ("train.optimizer.lr: .inf", ".inf (number); allowed: a finite number"),
        ("train.optimizer.lr: .nan", ".nan (number); allowed: a number > 0"),
        ("train.shuffle: 1", "1 (whole number); allowed: true or false"),
        ("train.shuffle: 'true'", "'true' (text); allowed: true or false; leave out the quotes"),
        ("train.clip_grad_norm: x", "x (text); allowed: a number > 0 or null"),
        ("launch.port: 70000", "70000 (whole number); allowed: a whole number ≥ 0 and ≤ 65535"),
        (
            "data.name: 5",
            "5 (whole number); allowed: text or null; put it in quotes if text",
        ),
        ("data.name: no", "false (true or false); allowed: text or null; put it in quotes"),
        ("data.split.ratio: [1]", "[1] (list); allowed: a 3-element list of numbers"),
        ("data.load: [a]", "[a] (list); allowed: a mapping of texts to lists of texts or null"),
        ("data.normalize: some", "some (text); allowed: a list of texts or all"),
        ("eval.mode: 3", "3 (whole number); allowed: text or a mapping of valid or test to texts"),
        ("data.filter.duplicates: frst", "one of first, last or null; did you mean first?"),
        ("train.precision: bf16", "allowed: one of float32, bfloat16; did you mean bfloat16?"),
        ("strategy.tables: row", "a mapping of texts to mappings of place, by, rank"),
        (
            "train.optimizer.name: adm",
            "adm (text); allowed: one of adam, adamw, sgd, adagrad, rmsprop, sparse_adam; did you "
            "mean adam?",
        ),
    ],
)
def test_wrong_values(write, text: str, expected: str) -> None:
    key = text.partition(":")[0]
    (error,) = file_errors(write(f"{text}\n"))
    assert error.startswith(f"recipe.yaml:1: {key}: given ") and expected in error


def test_options_that_are_offered_exist() -> None:
    import inspect

    from shoal.cli.training import launch, train
    from shoal.config.reading import COMMANDS

    assert set(COMMANDS) <= set(inspect.signature(launch).parameters)
    assert "resume" in COMMANDS and "resume" in inspect.signature(train).parameters


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "strategy.tables: {user: {place: row}, item: {place: colum}}",
            "strategy.tables.item.place: given colum (text); allowed: one of auto, row, table, "
            "column, replicate; did you mean column?",
        ),
        (
            "strategy.tables: {item: {plce: row}}",
            "unknown key strategy.tables.item.plce; allowed: place, by, rank; did you mean place?",
        ),
        (
            "strategy.tables: {item: {by: hsh}}",
            "strategy.tables.item.by: given hsh (text); allowed: one of hash, range; did you mean "
            "hash?",
        ),
        (
            "strategy.tables: {item: row}",
            "strategy.tables.item: given row (text); allowed: a mapping of place, by, rank",
        ),
        (
            "rows.tables: {item: {order: lrv}}",
            "rows.tables.item.order: given lrv (text); allowed: one of lfu, lru; did you mean lru?",
        ),
        (
            "eval.mode: {vlid: full, test: full}",
            "unknown key eval.mode.vlid; allowed: valid, test; did you mean valid?",
        ),
        (
            "data.filter.values: {rating: 3}",
            "data.filter.values.rating: given 3 (whole number); allowed: text; put it in quotes if "
            "text is meant",
        ),
    ],
)
def test_a_wrong_entry_of_a_mapping_is_named(write, text: str, expected: str) -> None:
    assert file_errors(write(f"{text}\n")) == [f"recipe.yaml:1: {expected}"]


def test_wrong_sections_and_objects(write) -> None:
    assert file_errors(write("train: 5\n")) == [
        "recipe.yaml:1: train: given 5 (whole number); it is a section of epochs, batch_size, "
        "batch_tokens, shuffle, positives, negatives, optimizer, clip_grad_norm, eval_every, "
        "patience, print_every, precision, accumulate, compile, ema, recompute, bucket, balance"
    ]
    assert (
        "given an object of Python type object; allowed: text"
        in errors(**{"data.name": object()})[0]
    )
    assert "it is a section of name, its options" in errors(model=5)[0]
    long = errors(**{"train.epochs": "x" * 500})[0]
    assert len(long) < 200 and "..." in long


def test_errors_of_models() -> None:
    assert errors("--model=BRP", "--any_option=1", "--train.epoch=1") == [
        "command line --model=BRP: there is no model BRP; models are: BPR, Deep, Needy",
        "command line --train.epoch=1: unknown key train.epoch; did you mean train.epochs?",
    ]
    for word in ("--model=5", "--model.name=5"):
        assert errors(word)[0].startswith(f"command line {word}: there is no model 5")
    assert "model.name: given 5 (whole number)" in errors(model={"name": 5})[0]
    assert errors(model={"name": "Deep", "layers": 0, "loss": "ce"}) == [
        "python: model.layers: given 0 (whole number); allowed: a whole number ≥ 1",
        "python: model.loss: given ce (text); allowed: one of CE, BPR; did you mean CE?",
    ]
    assert errors(model="Deep", layers=13) == ["options of Deep: layers: 13 brings bad luck"]
    assert errors(model="Needy") == ["model.path must be given: Needy has no default for it"]
    assert resolve(model="Needy", path="x").config.model.options == {"path": "x"}


def test_options_of_the_model_that_was_replaced(write) -> None:
    path = write("model: {name: BPR, embedding_size: 8}\n")
    with pytest.raises(ConfigError) as caught:
        load([path], ["--model=Deep"], models=models)
    assert "recipe.yaml:1: unknown key model.embedding_size" in str(caught.value)
    assert "layers" in str(caught.value)


def test_set_twice_in_one_file(write) -> None:
    assert file_errors(write("epochs: 1\ntrain:\n  epochs: 2\n")) == [
        "recipe.yaml:3: train.epochs is set twice, first at recipe.yaml:1 (RecBole key epochs); "
        "keep one of them"
    ]
    (error,) = file_errors(write("train.negatives: null\ntrain: {negatives: {num: 2}}\n"))
    assert "train.negatives is set twice" in error


def test_all_errors_at_once(write) -> None:
    path = write("train: {epoch: 5, batch_size: 0}\nsave_dataset: True\neval.topk: [0]\n")
    found = file_errors(path)
    assert [text.split(":")[1] for text in found] == ["1", "1", "2", "3"]
    with pytest.raises(ConfigError, match=r"^4 errors in the config:\n  recipe.yaml:1: unknown"):
        load([path], models=models)


def test_docs_show_a_real_message(write) -> None:
    path = write(
        "# a\n# recipe\n# with\n# three\n# mistakes\ntrain:\n  epoch: 5\n\n  batch_size: 4k\n"
    )
    with pytest.raises(ConfigError) as caught:
        load([path], ["--learner=adm"], models=models)
    page = (Path(__file__).parents[2] / "docs" / "reference" / "config.md").read_text()
    assert f"```\n{caught.value}\n```" in page


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"data.split.ratio": [0, 0, 0]},
            "split.ratio: given [0, 0, 0] (list); the parts must not",
        ),
        ({"data.split.ratio": [2, -1, 1]}, "allowed: a 3-element list of numbers ≥ 0"),
        ({"data.presplit": ["a"]}, "given [a] (list); allowed: a 2- to 3-element list of texts"),
        ({"data.threshold": {"a": 1, "b": 2}}, "allowed: a 1-element mapping of texts to numbers"),
        ({"data.filter.values": {"rating": "3"}}, "filter.values.rating: given '3' (text); '3' is"),
        ({"data.filter.user_inter_num": "[5,"}, "given '[5,' (text); '[5,' is not an interval"),
        ({"data.filter.item_inter_num": "[5,1]"}, "its low end is above its high end"),
        ({"data.separator": "::"}, "data.separator: given '::' (text); allowed: one character"),
        ({"data.seq_separator": ""}, "given '' (text); allowed: text that is not empty"),
        (
            {"data.escape": '"'},
            "python: data.escape: given '\"', which data.quote or data.separator",
        ),
        ({"train.negatives.dynamic": True}, "candidates is 0; dynamic negatives choose among at l"),
        ({"rows.tiers.host": 5}, "python: rows.tiers.host: is given without rows.tiers.ssd"),
        (
            {"eval.mode": "uni"},
            "uni (text); allowed: full, labeled, uniN or popN (uni100); did you",
        ),
        ({"eval.mode": "uni"}, "did you mean uni100?"),
        ({"eval.mode": "ful"}, "uniN or popN (uni100); did you mean full?"),
        ({"eval.mode": "unni10"}, "uniN or popN (uni100); did you mean uni10?"),
        (
            {"eval.mode": "uni0"},
            "eval.mode: given uni0 (text); allowed: full, labeled, uniN or pop",
        ),
        ({"eval.mode": {"valid": "Labeled", "test": "full"}}, "eval.mode.valid: given Labeled (te"),
        ({"eval.mode": {"valid": "full"}}, "name a mode for valid and for test, or one for both"),
        ({"eval.mode": {}}, "name a mode for valid and for test, or one for both"),
        ({"eval.metrics": []}, "eval.metrics: given [] (list); allowed: a non-empty list of texts"),
        (
            {"eval.topk": [10, 0]},
            "eval.topk: given [10, 0] (list); allowed: a list of whole numbers",
        ),
        ({"eval.metrics": ["MRR", "NDGC"]}, "no metric NDGC; did you mean NDCG?"),
        ({"eval.metrics": ["MRR", "Zzz"]}, "no metric Zzz; metrics are: Recall, MRR, NDCG"),
        ({"eval.metrics": ["MRR", "AUC"]}, "AUC compare scores with labels"),
        (
            {"eval.topk": [5], "eval.valid_metric": "MRR@10"},
            "MRR@10 is not computed (did you mean MRR@5?)",
        ),
        ({"eval.metrics": ["NDCG", "GAUC"]}, "eval.metrics and eval.topk give: NDCG@10, GAUC"),
        ({"eval.valid_metric": "MAP"}, "MAP@10 is not computed"),
        ({"launch": {"nproc": 4, "world_size": 6, "group_offset": 4}}, "it must be at least 8"),
        ({"launch": {"nproc": 2, "group_offset": 1}}, "ranks 1 to 2"),
        ({"launch.world_size": 0}, "allowed: -1 (nproc) or a whole number ≥ 1"),
        ({"launch": {"nproc": 2, "world_size": 4}}, "launch.port: must be named"),
        (
            {"strategy": "single", "nproc": 2},
            "python: strategy.name: strategy single cannot run on 2 processes; use ddp or sharded",
        ),
        (
            {"strategy": "single", "launch": {"world_size": 3, "port": 5678}},
            "strategy single cannot run on 3 processes",
        ),
    ],
)
def test_checks_of_values_together(values: dict[str, Any], expected: str) -> None:
    (error,) = errors(**values)
    assert expected in error


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("place", "row"),
        ("row_by", "range"),
        ("tables", {"item": {"place": "row"}}),
        ("replicate_below", "1MiB"),
        ("memory", "2GiB"),
    ],
)
def test_keys_of_sharded_under_other_strategies(key: str, value: Any, write) -> None:
    assert resolve(**{"strategy.name": "sharded", f"strategy.{key}": value}).notes == []
    for name in ("auto", "single", "ddp", "ps"):
        resolved = resolve(**{"strategy.name": name, f"strategy.{key}": value})
        assert resolved.notes == [
            f"strategy.{key} has no effect under strategy {name}; it is read under "
            "strategy.name=sharded"
        ]
        # The ranks read the config as it was dumped; they must say the same, so it is said once.
        again = load([write(dump(resolved.config))], models=models)
        assert again.notes == resolved.notes


@pytest.mark.parametrize(
    ("strategy", "values", "expected"),
    [
        ("ddp", {"strategy.graph": True}, "read under strategy.name=single: choose that, or set "),
        ("auto", {"strategy.graph": True, "nproc": 2}, "or set strategy.graph=auto"),
        ("ddp", {"strategy.backend": "torchrec"}, "are no backend any more: leave the key out"),
        ("sharded", {"strategy.backend": "torchrec"}, "are no backend any more: leave the key out"),
        ("ddp", {"strategy.ps.keys": "folder"}, "name=ps: choose that, or set strategy.ps.keys=n"),
        ("auto", {"launch.servers": 2}, "given 2, which has no effect under strategy auto"),
    ],
)
def test_what_a_user_would_count_on_is_refused(
    strategy: str, values: dict[str, Any], expected: str
) -> None:
    (error,) = errors(**{"strategy.name": strategy, **values})
    assert error.startswith(f"python: {next(iter(values))}: given ") and expected in error


def test_the_former_backend_key_is_read_where_it_says_what_holds_anyway() -> None:
    (note,) = resolve(**{"strategy.name": "sharded", "strategy.backend": "native"}).notes
    assert note.endswith("strategy.backend: write nothing, it is always native")


def test_keys_that_a_strategy_reads() -> None:
    for name in ("auto", "single"):
        assert resolve(**{"strategy.name": name, "strategy.graph": True}).notes == []
    servers = {"strategy.name": "ps", "strategy.ps.mode": "async", "strategy.ps.staleness": 3}
    assert resolve(**servers, **{"launch.servers": 1}).notes == []
    (note,) = resolve(**{**servers, "strategy.ps.mode": "sync"}).notes
    assert note == (
        "strategy.ps.staleness has no effect under strategy ps; it is read under strategy.name=ps "
        "with strategy.ps.mode=async"
    )


def test_every_key_of_strategies_has_its_readers() -> None:
    keys = {key for key in KEYS if key.startswith("strategy.")} - {"strategy.name"}
    assert keys == {key for key in READERS if key.startswith("strategy.")}
    assert set(READERS) <= set(KEYS)


def test_graphs_are_refused_where_there_is_no_gpu() -> None:
    graph = resolve(**{"strategy.graph": True}).config
    refuse_unread(graph, 1, "cuda")
    with pytest.raises(ValueError, match=r"this process computes on cpu: set strategy.graph=false"):
        refuse_unread(graph, 1, "cpu")
    with pytest.raises(ValueError, match=r"strategy.graph: given true, which has no effect"):
        refuse_unread(graph, 2, "cuda")  # another launcher started two: auto is ddp
    refuse_unread(resolve().config, 2, "cpu")


def test_one_process_may_be_single() -> None:
    assert resolve(strategy="single").config.strategy.name == "single"
    assert resolve(strategy="auto", nproc=2).config.strategy.name == "auto"


def test_names_in_any_case() -> None:
    config = resolve(
        **{
            "eval.metrics": ["RECALL", "itemcoverage", "logloss", "gauc"],
            "eval.mode": "labeled",
            "eval.valid_metric": "LOGLOSS",
        }
    ).config
    assert config.eval.metrics == ["Recall", "ItemCoverage", "LogLoss", "GAUC"]
    assert config.eval.valid_metric == "LogLoss"


@pytest.mark.parametrize("digits", [20, 400, 4000])
def test_a_number_of_too_many_digits(digits: int) -> None:
    """Also one that is too large for a float, which a message must not try to print."""
    with pytest.raises(ConfigError, match="bits; allowed: 64 bits"):
        load([], [f"--train.epochs=1{'0' * digits}"], models=models)
