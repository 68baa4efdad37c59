"""`shoal new model NAME`: a documented starting point for a model of one's own, and its test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

MODEL = '''"""NAME: one sentence on what it is, and the paper it comes from.

shoal train --model=FILE.py:NAME --train.epochs=5
shoal train --model=FILE.py:NAME --train.epochs=5 --nproc=2 --strategy=sharded
shoal models FILE.py:NAME

What a model must know: it says which tables it has, and how a loss and scores are made of their
rows. Where the rows live, and on how many processes it is trained, is decided from outside; so it
never names a rank, a device or a weight. docs/own_models.md says more.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from shoal.models.base import Batch, Embeddings, Facts, Output, Retrieval, Table
from shoal.models.nn.losses import bpr_loss


class NAME(Retrieval):
    """A vector per user, a vector per item, and their dot product.

    Retrieval is a model whose score is <encode_query(user), encode_item(item)>. Others: Model
    writes `score` itself, ClickModel writes `logits`; `kind = "sequential"` is given histories.
    """

    @dataclass
    class Options(Retrieval.Options):
        """Options are keys of a config, model.KEY; types and defaults are checked."""

        embedding_size: int = 64

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        # A table is what rows are, never where: a name, a width, and how many there are.
        users = Table("user", options.embedding_size, facts.num_users)
        items = Table("item", options.embedding_size, facts.num_items)
        # Which field of a batch reads which table. Other layers are plain torch.nn.
        self.embed = Embeddings(
            {facts.user_field: users, facts.item_field: items, "neg_item": items}
        )

    def forward(self, batch: Batch) -> Output:
        """The loss, *summed* over the samples, and the number of its terms."""
        rows = self.embed(batch)  # field -> its ids' shape + [dim]
        queries, items = rows[self.facts.user_field], rows[self.facts.item_field]  # [b, d]
        negatives = rows["neg_item"]  # [b, k, d]; train.negatives.num says k
        # Samples of the whole global batch: self.gather_global(items).
        loss = bpr_loss(queries, items, negatives)
        return Output(loss, negatives.shape[0] * negatives.shape[1])

    def encode_query(self, batch: Batch) -> Tensor:
        """[b, d], for ranking."""
        return self.embed.field(self.facts.user_field, batch)

    def encode_item(self, ids: Tensor) -> Tensor:
        """ids of any shape -> that shape + [d], for ranking."""
        return self.embed.rows(self.facts.item_field, ids)
'''

TEST = '''"""NAME learns what is planted in generated data, and is the same when opened again."""

from __future__ import annotations

from pathlib import Path

import shoal

MODEL = f"{Path(__file__).with_name('FILE.py')}:NAME"


def test_it_learns(tmp_path: Path) -> None:
    result = shoal.run(
        model=MODEL,
        dataset="planted",
        config_dict={
            "data.planted.users": 200,
            "data.planted.items": 100,
            "data.planted.interactions": 6000,
            "train.epochs": 8,
            "train.batch_size": 512,
            "train.optimizer.lr": 0.01,
            "run.output": str(tmp_path / "run"),
        },
    )
    by_chance = 10 / 100
    assert result["test"]["recall@10"] > 1.5 * by_chance
    # Code that a run folder names is run only with trust.
    again = shoal.evaluate(result["folder"], trust=True)
    assert again["test"] == result["test"]
'''


def snake(name: str) -> str:
    """TwoTower -> two_tower"""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def write_model(name: str, folder: Path) -> tuple[Path, Path]:
    """Write NAME's file and its test."""
    if not name.isidentifier() or not name[0].isupper():
        raise ValueError(f"{name!r} is no name for a class; write it as in TwoTower")
    stem = snake(name)
    files = folder / f"{stem}.py", folder / f"test_{stem}.py"
    for file in files:
        if file.exists():
            raise ValueError(f"{file} is there already; choose another name, or move it away")
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in zip(files, (MODEL, TEST)):
        file.write_text(text.replace("FILE", stem).replace("NAME", name))
    return files


def model(
    name: Annotated[str, typer.Argument(help="The class's name, as in TwoTower.")],
    to: Annotated[str, typer.Option(help="Folder for the two files.")] = ".",
) -> None:
    """Write a documented starting point for a model of your own, and its test."""
    file, test = write_model(name, Path(to))
    typer.echo(f"{file}: train it with `shoal train --model={file}:{name}`")
    typer.echo(f"{test}: run it with `python -m pytest {test}`")
