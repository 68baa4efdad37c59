"""`shoal import recbole`: what becomes of a class, and that what becomes of it trains."""

import ast
import inspect
import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from recbole_classes import CLICKS, GRAPH, POINTWISE, SEQUENCE, SIDE_LOSS
from small import DATA, first_batches
from typer.testing import CliRunner

import shoal
import shoal.compat.recbole as runtime
from shoal.cli.main import app
from shoal.compat.recbole import BPRLoss, EmbLoss, RegLoss, TableEmbedding
from shoal.compat.recbole.interaction import TrainingData
from shoal.compat.recbole_import.dataset import OF_DATASET
from shoal.compat.recbole_import.translation import translate
from shoal.distributed.world import World
from shoal.models.base import Facts, Init
from shoal.models.own import find_own
from shoal.runs.build import build
from shoal.runs.run import resolve

SMALL: dict[str, Any] = {"run.progress": False, "run.trackers": [], "run.log_level": "warning"}
LEARN: dict[str, Any] = {
    **SMALL,
    "data.name": "synthetic",
    "data.synthetic.users": 200,
    "data.synthetic.items": 100,
    "data.synthetic.interactions": 6000,
    "data.max_len": 12,
    "train.optimizer.lr": 0.01,
    "train.batch_size": 512,
}
WIDTH = {"model.embedding_size": 16}
ATTENTION = {
    "model.hidden_size": 16,
    "model.n_layers": 1,
    "model.hidden_dropout_prob": 0.2,
    "train.batch_size": 256,
    "eval.repeatable": False,
}
# class -> its text, the options that a person gives, epochs
CLASSES: dict[str, tuple[str, dict[str, Any], int]] = {
    "PopularMF": (SIDE_LOSS, {**WIDTH, "model.side_weight": 0.1}, 14),
    "SmoothGraph": (GRAPH, WIDTH, 8),
    "GatedAttention": (SEQUENCE, ATTENTION, 10),
    "PairScorer": (POINTWISE, {**WIDTH, "train.negatives.num": 2}, 12),
}
STEPS = 6


def moved(name: str, folder: Path, text: str | None = None) -> str:
    """The name of a class once it was translated."""
    (folder / "theirs.py").write_text(CLASSES[name][0] if text is None else text)
    file = folder / "moved.py"
    file.write_text(translate(f"{folder / 'theirs.py'}:{name}").text)
    return f"{file}:{name}"


# ---- the table, and the file --------------------------------------------------------------------


def test_the_table_says_what_becomes_of_each_line(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(SIDE_LOSS)
    lines = translate(str(tmp_path / "theirs.py")).lines
    found = {(line.number, line.what): (line.becomes, line.look) for line in lines}
    assert found == {
        (6, "import GeneralRecommender"): ("from shoal.compat.recbole", ""),
        (7, "import xavier_normal_initialization"): ("from shoal.compat.recbole", ""),
        (8, "import BPRLoss, EmbLoss"): ("from shoal.compat.recbole", ""),
        (9, "import InputType"): ("from shoal.compat.recbole", ""),
        (12, "class PopularMF(GeneralRecommender)"): ("Shoal's GeneralRecommender", ""),
        (15, "input_type = InputType.PAIRWISE"): ("a batch has user, item, negative item", ""),
        (17, "__init__(config, dataset)"): ("__init__(options, facts)", ""),
        (21, 'config["embedding_size"]'): (
            "options.embedding_size",
            "its default is a guess by its name",
        ),
        (22, 'config["side_weight"]'): (
            "options.side_weight",
            "it has no default: give it one, or train with --model.side_weight=…",
        ),
        (23, 'config["reg_weight"]'): ("options.reg_weight", "its default is a guess by its name"),
        (24, "self.device"): ("where the model is, wherever it goes", ""),
        (26, "nn.Embedding(self.n_users, self.embedding_size)"): (
            'a table named "user_embedding"',
            "",
        ),
        (27, "nn.Embedding(self.n_items, self.embedding_size)"): (
            'a table named "item_embedding"',
            "",
        ),
        (28, "nn.Dropout"): ("Dropout: the same masks on any number of processes", ""),
        (32, "forward"): ("compute: forward is the training step", ""),
        (35, "calculate_loss"): ("the training loss: its mean × samples", ""),
        (45, "predict"): ("not called", ""),
        (49, "full_sort_predict"): ("score: of the items asked for", ""),
    }


def test_comments_and_what_is_not_recboles_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(SIDE_LOSS.replace("\n", "\r\n"))
    text = translate(str(tmp_path / "theirs.py")).text
    assert "        # the width of vectors\n" in text
    assert "self.compute(user, pos)  # both at once\n" in text
    assert "recbole." not in text.replace("shoal.compat.recbole", "")
    assert text.endswith(SIDE_LOSS[SIDE_LOSS.index("    def full_sort_predict") :])


def test_a_property_file_beside_the_class_has_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(SIDE_LOSS)
    (tmp_path / "PopularMF.yaml").write_text(
        "embedding_size: 24\nside_weight: 1e-3\nreg_weight: 0\n"
    )
    translation = translate(str(tmp_path / "theirs.py"))
    assert translation.looks == 0
    for declaration in ("embedding_size: int = 24", "side_weight: float = 0.001"):
        assert f"        {declaration}\n" in translation.text
    other = tmp_path / "other.yaml"
    other.write_text("side_weight: [1, 2.5]\n")
    text = translate(str(tmp_path / "theirs.py"), [other]).text
    assert "side_weight: list[float] = field(default_factory=lambda: [1, 2.5])" in text
    assert "from dataclasses import field\n" in text


def test_defaults_in_the_code_are_taken(tmp_path: Path) -> None:
    name = moved("SmoothGraph", tmp_path)
    options = find_own(name).Options
    assert (options().n_layers, options()["n_layers"], "n_layers" in options()) == (2, 2, True)
    assert "without" not in options()
    theirs = (tmp_path / "theirs.py").read_text().replace("config[", "config.final_config_dict[")
    (tmp_path / "dict.py").write_text(theirs)
    assert "n_layers: int = 2" in translate(str(tmp_path / "dict.py")).text


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("interaction[self.USER_ID]\n", 'interaction["rating"]\n', "no field 'rating'"),
        ("BPRLoss, EmbLoss", "BPRLoss, EmbMarginLoss as EmbLoss", "EmbMarginLoss of recbole"),
        ("self.apply(", "torch.manual_seed(dataset.inter_sum)\n        self.apply(", "inter_sum"),
        ("import torch\n", "import torch\nfrom .graphs import A\n", "imports nothing beside it"),
        ("import torch\n", "import torch\nimport no_such_package\n", "is not installed here"),
        ("nn.Dropout(0.2)", "nn.BatchNorm1d(self.embedding_size)", "samples of one process"),
        (", require_pow=True", "", "require_pow=True does not"),
        ("neg_e = ", "noise = torch.rand(3)\n        neg_e = ", "draws other numbers"),
        ("neg_e = ", "noise = torch.zeros(3).normal_()\n        neg_e = ", "draws other numbers"),
        ('config["reg_weight"]', 'config["train_batch_size"]', "train.batch_size"),
        ('config["reg_weight"]', 'config["a-b"]', "cannot have this name"),
        ('config["reg_weight"]', 'config["reg_" + "weight"]', "which option it reads"),
        ('config["reg_weight"]', "config.model_name", "which option it reads"),
        ("InputType.PAIRWISE", "InputType.LISTWISE", "batches are pairs"),
    ],
)
def test_what_is_not_understood_asks_a_person(old: str, new: str, why: str, tmp_path: Path) -> None:
    assert old in SIDE_LOSS
    (tmp_path / "theirs.py").write_text(SIDE_LOSS.replace(old, new))
    translation = translate(str(tmp_path / "theirs.py"))
    assert [line for line in translation.lines if why in line.look]
    comments = [
        line.strip() for line in translation.text.splitlines() if line.strip().startswith("# ")
    ]
    assert why in " ".join(line.removeprefix("# ") for line in comments)
    ast.parse(translation.text)


def test_a_class_made_of_another_of_its_file_is_moved_with_it(tmp_path: Path) -> None:
    text = SIDE_LOSS + (
        "\n\nclass Louder(PopularMF):\n"
        "    def __init__(self, config, dataset):\n"
        "        super().__init__(config, dataset)\n"
        '        self.loudness = config["loudness"] if "loudness" in config else 2.0\n\n'
        "    def calculate_loss(self, interaction):\n"
        "        loss, *others = super().calculate_loss(interaction)\n"
        "        return self.loudness * loss\n"
    )
    model = find_own(moved("Louder", tmp_path, text))
    assert model.Options(side_weight=1.0).loudness == 2.0  # type: ignore[call-arg]
    only = tmp_path / "only"
    only.mkdir()
    # The other class is left out where its base is what is wanted.
    assert "class Louder" not in Path(moved("PopularMF", only, text).partition(":")[0]).read_text()


def test_a_base_without_methods_is_moved_too(tmp_path: Path) -> None:
    head, line, rest = SIDE_LOSS.partition("class PopularMF(GeneralRecommender):\n")
    bare = "class Pairs(GeneralRecommender):\n    input_type = InputType.PAIRWISE\n\n\n"
    own = tmp_path / "popularmf.py"
    own.write_text(head + bare + "class PopularMF(Pairs):\n" + rest)
    assert line
    text = translate(str(own)).text
    tree = ast.parse(text)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    inner = [node.name for node in classes["PopularMF"].body if isinstance(node, ast.ClassDef)]
    assert inner == ["Options"]


def test_classes_beside_the_model(tmp_path: Path) -> None:
    """One made of a loss that is here stays; one made of RecBole's trainer cannot."""
    text = SIDE_LOSS.replace(
        "\n\nclass PopularMF",
        "\nfrom recbole.trainer import Trainer\n\n\nclass Louder(BPRLoss):\n    pass\n\n\n"
        "class Slow(Trainer):\n    def fit(self, config):\n        return config['device']\n\n\n"
        "class PopularMF",
    )
    text = text.replace("(self.n_users, self.embedding_size)", "(self.n_users, 8, device=device)")
    text = text.replace("user_e * neg_e", "user_e.cuda() * neg_e")
    (tmp_path / "theirs.py").write_text(text)
    translation = translate(str(tmp_path / "theirs.py"))
    assert "user_e.to(self.device) * neg_e" in translation.text
    assert 'TableEmbedding("user_embedding", self.n_users, 8)\n' in translation.text
    assert "class Louder(BPRLoss)" in translation.text and "class Slow" not in translation.text
    reasons = [line.look for line in translation.lines if line.what == "class Slow"]
    assert reasons == ["made of recbole.Trainer"]
    (tmp_path / "moved.py").write_text(translation.text)
    assert find_own(f"{tmp_path / 'moved.py'}:PopularMF").__name__ == "PopularMF"


def test_names_that_a_file_can_import_are_there() -> None:
    for name in runtime.NAMES:
        assert getattr(runtime, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'CNNLayers'"):
        _ = runtime.CNNLayers
    assert {name for name in dir(TrainingData(Facts())) if name[0] != "_"} >= OF_DATASET


# ---- what is refused, and what is never run -----------------------------------------------------


def test_the_file_is_never_run(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    effect = f"open({str(witness)!r}, 'w').close()\n"
    text = f"import theirs_too\n{effect}for _ in range(3):\n    {effect}{SIDE_LOSS}"
    (tmp_path / "theirs_too.py").write_text(effect)
    (tmp_path / "theirs.py").write_text(f"{text}\n\nif __name__ == '__main__':\n    {effect}")
    translation = translate(str(tmp_path / "theirs.py"))
    assert not witness.exists() and "theirs_too" not in sys.modules
    for line in translation.text.splitlines():
        assert str(witness) not in line or line.startswith("#"), line
    assert (
        sum(
            "left out: it would" in line.becomes or "would run" in line.becomes
            for line in translation.lines
        )
        == 3
    )


DEEP = {
    "brackets": "x = " + "(" * 5000 + ")" * 5000,
    "signs": "x = " + "-" * 100_000 + "1",
    "attributes": "x = a" + ".a" * 100_000,
    "sums": "x = 1" + " + 1" * 100_000,
    "blocks": "".join(" " * depth + "if x:\n" for depth in range(200)) + " " * 200 + "y = 1",
}


@pytest.mark.parametrize("kind", DEEP)
def test_a_file_nested_without_end_is_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(f"{DEEP[kind]}\n")
    with pytest.raises(ValueError, match=r"theirs\.py.*(nested|indentation|no model class)"):
        translate(str(tmp_path / "theirs.py"))


BASE = "GeneralRecommender"


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("class A(:\n", "theirs.py", r"theirs\.py, line 1: "),
        ("x = '\0'\n", "theirs.py", "null"),
        ("x = 1\n", "theirs.py", "has no model class; classes made of GeneralRecommender"),
        (SIDE_LOSS, "theirs.py:PopulerMF", "did you mean PopularMF"),
        (SIDE_LOSS + GRAPH, "theirs.py", "several models: PopularMF, SmoothGraph; name one as"),
        (SIDE_LOSS.replace(BASE, "KnowledgeRecommender"), "theirs.py", "knowledge graphs"),
        (SIDE_LOSS.replace(BASE, "LightGCN"), "theirs.py", "made of LightGCN, which is neither"),
        (SIDE_LOSS.replace("calculate_loss", "loss_of"), "theirs.py", "no calculate_loss"),
        (SIDE_LOSS.replace("predict(", "rank("), "theirs.py", "neither predict nor"),
        (SIDE_LOSS + "\n\nclass PopularMFTrainer:\n    pass\n", "theirs.py", "its own trainer"),
        (SIDE_LOSS.replace("config, dataset):", "config):"), "theirs.py", "other arguments"),
        (
            SIDE_LOSS.replace("input_type = InputType.PAIRWISE", "type = ModelType.TRADITIONAL"),
            "theirs.py",
            "ModelType.TRADITIONAL",
        ),
        (SIDE_LOSS, "theirs.txt", "no Python file"),
        ("x" * (1 << 20) + "y", "theirs.py", "at most"),
    ],
)
def test_what_cannot_be_moved_is_refused(
    text: str, place: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "theirs.py").write_text(text)
    with pytest.raises(ValueError, match=message):
        translate(str(tmp_path / place))


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_bytes(b"# \xe9t\xe9\n")
    with pytest.raises(ValueError, match="not in UTF-8"):
        translate(str(tmp_path / "theirs.py"))


# ---- the command --------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("theirs.py").write_text(SIDE_LOSS)
    words = ["import", "recbole", "theirs.py"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert "3 places need a person: search popular_mf_shoal.py for LOOK" in done.output
    assert "shoal train --model=popular_mf_shoal.py:PopularMF" in done.output
    assert "look here: its default is a guess" in done.output
    assert Path("popular_mf_shoal.py").read_text() == translate("theirs.py").text
    with pytest.raises(ValueError, match="there already"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    Path("popular_mf_shoal.py").write_text("")
    CliRunner().invoke(app, [*words, "--force"], catch_exceptions=False)
    assert Path("popular_mf_shoal.py").read_text()
    Path("values.yaml").write_text("embedding_size: 8\nside_weight: 0.5\nreg_weight: 0.0\n")
    words += ["--to", "other.py", "--config", "values.yaml"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert (
        "a person" not in done.output and "side_weight: float = 0.5" in Path("other.py").read_text()
    )


# ---- what runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_trains(name: str, tmp_path: Path) -> None:
    _, options, epochs = CLASSES[name]
    values = {**LEARN, **options, "train.epochs": epochs, "run.output": str(tmp_path / "run")}
    result = shoal.run(moved(name, tmp_path), config_dict=values)
    assert result["test"]["recall@10"] > 1.5 * 10 / 100  # by chance it is a tenth
    assert result["test"]["ndcg@10"] > 1.1 * result["base"]["ndcg@10"]  # of popular items
    again = shoal.evaluate(tmp_path / "run", trust=True)
    assert again["test"] == pytest.approx(result["test"], abs=1e-6)
    assert len(shoal.recommend(tmp_path / "run", "1", 3, trust=True)) == 3


def test_a_click_model_trains(tmp_path: Path) -> None:
    values = {
        **SMALL,
        "data.name": "synthetic_clicks",
        "data.clicks.synthetic.samples": 6000,
        "model.embedding_size": 6,
        "train.epochs": 3,
        "run.output": str(tmp_path / "run"),
    }
    result = shoal.run(moved("ShallowDeep", tmp_path, CLICKS), config_dict=values)
    assert result["test"]["auc"] > 0.6


def curve(world: World, model: str, strategy: str, options: dict[str, Any]) -> list[float]:
    """Losses of the first steps, with dropout, of batches that two ranks share unevenly."""
    given: dict[str, Any] = {**DATA, **options, "train.batch_size": 61, "train.optimizer.lr": 0.05}
    given |= {"model": model, "strategy.name": strategy}
    if strategy == "sharded":
        given["strategy.place"] = "row"
    parts = build(resolve(values=given).config, world)
    parts.model.train()
    losses = []
    for batch in first_batches(parts.reader, world, STEPS):
        losses.append(float(parts.strategy.train_step(batch)))
    parts.strategy.close()
    return losses


def curves(world: World, models: dict[str, str], strategy: str) -> dict[str, list[float]]:
    return {name: curve(world, models[name], strategy, CLASSES[name][1]) for name in models}


def test_losses_are_the_same_on_two_processes(tmp_path: Path) -> None:
    models = {}
    for name in CLASSES:
        (tmp_path / name).mkdir()
        models[name] = moved(name, tmp_path / name)
    alone = curves(World(), models, "single")
    assert all(len(set(losses)) == STEPS for losses in alone.values())
    for strategy in ("sharded", "ddp"):
        for one in run_ranks(curves, 2, tmp_path / strategy, models, strategy):
            for name, losses in one.items():
                assert losses == pytest.approx(alone[name], rel=1e-4), (name, strategy)


def test_a_slice_without_samples_adds_nothing(tmp_path: Path) -> None:
    for name, (_, options, _) in CLASSES.items():
        (tmp_path / name).mkdir()
        values = {**DATA, "model": moved(name, tmp_path / name), **options}
        parts = build(resolve(values=values).config, World())
        parts.model.train()
        batch = next(parts.reader.batches(0, 0, 1))
        output = parts.strategy.forward(batch.rows(0, 0))
        output.loss.backward()
        assert (float(output.loss.detach()), output.count) == (0.0, 0)
        parts.model.eval()
        with torch.inference_mode():
            nobody, items = batch.rows(0, 0), torch.arange(5)
            assert parts.model.score(nobody, items).shape == (0, 5)
            assert parts.model.score(nobody, torch.zeros(0, 5).long()).shape == (0, 5)
            rows = parts.model.score(batch.rows(0, 3), items)
            lists = parts.model.score(batch.rows(0, 3), items.expand(3, -1))
        torch.testing.assert_close(rows, lists)


def test_scores_kept_for_requests_are_dropped_when_training_goes_on(tmp_path: Path) -> None:
    values = {**DATA, "model": moved("SmoothGraph", tmp_path), **CLASSES["SmoothGraph"][1]}
    parts = build(resolve(values=values).config, World())
    batch, items = next(parts.reader.batches(0, 0, 1)), torch.arange(9)
    parts.model.eval()
    before = parts.model.score(batch, items)
    parts.model.train()
    parts.strategy.train_step(batch)
    parts.model.eval()
    assert not torch.equal(parts.model.score(batch, items), before)


# ---- the page -----------------------------------------------------------------------------------

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "from" / "recbole.md").read_text()


def test_the_page_shows_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    blocks = re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", PAGE, re.M | re.S)
    (file, code), *_ = blocks
    Path(file).write_text(code)
    printed = re.findall(r"^```console\n\$ (shoal import .*?)\n(.*?)^```", PAGE, re.M | re.S)
    ((command, shown),) = printed
    done = CliRunner().invoke(app, command.split()[1:], catch_exceptions=False)
    output = "\n".join(line.rstrip() for line in done.output.splitlines())
    assert output.strip("\n") == shown.rstrip("\n")


def test_the_page_uses_a_trained_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counterparts of load_data_and_model and of full_sort_topk, as they stand."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    folder = Path("dataset") / "ml-100k"
    folder.mkdir(parents=True)
    heads = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    pairs = [
        (user, (7 * user + step * step) % 60) for user in range(190, 240) for step in range(20)
    ]
    names_of_users, names_of_items = {197: 22}, {0: 242, 1: 302}
    lines = [
        f"{names_of_users.get(user, user)}\t{names_of_items.get(item, item)}\t4\t{number}\n"
        for number, (user, item) in enumerate(dict.fromkeys(pairs))
    ]
    (folder / "ml-100k.inter").write_text(heads + "".join(lines))
    (block,) = re.findall(r"^```python\n(import shoal\n.*?)^```", PAGE, re.M | re.S)
    names: dict[str, Any] = {}
    exec(block, names)
    assert [len(ranking) for ranking in names["best"].values()] == [10, 10]
    assert names["model"].recommend("196", topk=10)[0][0] == names["best"]["196"][0][0]
    assert len(names["model"].score("196", ["242", "302"])) == 2


# ---- parts --------------------------------------------------------------------------------------


def test_initial_values_of_tables_are_recorded() -> None:
    table = TableEmbedding("item", 10, 6, padding_idx=0)
    assert table.table.init == Init("normal", 1.0)
    torch.nn.init.xavier_normal_(table.weight)
    assert table.table.init.kind == "normal"
    assert table.table.init.scale == pytest.approx((2 / 16) ** 0.5)
    torch.nn.init.xavier_uniform_(table.weight.data)
    assert table.table.init.scale == pytest.approx((6 / 16) ** 0.5)
    table.weight.data[0] = 0
    table.weight.data[0, :].fill_(0)
    torch.nn.init.constant_(table.weight, 0.5)
    assert table.table.init == Init("constant", 0.5)
    for wrong, message in (
        (lambda: table.weight.normal_(1.0, 0.1), "around 1.0; around 0"),
        (lambda: table.weight.uniform_(0, 1), r"in \[0, 1\]"),
        (lambda: table.weight[3].zero_(), "row 3"),
        (lambda: setattr(table.weight, "requires_grad", False), "set requires_grad"),
    ):
        with pytest.raises(ValueError, match=f"table 'item'.*{message}"):
            wrong()
    with pytest.raises(AttributeError, match="no rows while the model is built"):
        table.weight.copy_(torch.zeros(10, 6))


def test_losses_are_those_of_recbole() -> None:
    good, bad = torch.tensor([2.0, 0.5]), torch.tensor([1.0, 1.5])
    expected = -torch.log(torch.sigmoid(good - bad)).mean()
    torch.testing.assert_close(BPRLoss()(good, bad), expected)
    vectors = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    torch.testing.assert_close(EmbLoss()(vectors, vectors), torch.tensor(5.0))
    torch.testing.assert_close(EmbLoss()(vectors, require_pow=True), torch.tensor(6.25))
    torch.testing.assert_close(RegLoss()([vectors, vectors]), torch.tensor(10.0))


def test_training_data_answers_as_recboles() -> None:
    users, items = torch.tensor([2, 1, 2]), torch.tensor([1, 3, 2])
    data = TrainingData(Facts(3, 4, train_users=users, train_items=items))
    assert (data.num("user_id"), data.num("item_id"), data.inter_num) == (3, 4, 3)
    ids, values, lengths = data.history_item_matrix()
    assert ids.tolist() == [[0, 0], [3, 0], [1, 2]]
    assert values.tolist() == [[0, 0], [1, 0], [1, 1]] and lengths.tolist() == [0, 1, 2]
    assert data.history_user_matrix()[0].tolist() == [[0], [2], [2], [1]]
    assert data.inter_matrix("csr").format == "csr"
    with pytest.raises(ValueError, match="no values of interactions"):
        data.inter_matrix(value_field="rating")
    with pytest.raises(ValueError, match="ContextRecommender"):
        data.num("age")


def test_the_runtime_is_not_imported_to_translate() -> None:
    """The command is quick: it needs no torch."""
    import shoal.compat.recbole_import as package

    folder = Path(inspect.getfile(package)).parent
    for file in folder.glob("*.py"):
        assert "import torch" not in file.read_text(), file
