"""An option of a class: its type, its default and where that is from, and its declaration."""

from __future__ import annotations

import keyword
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.config.yaml_io import read_file

MISSING = object()
# Keys of a run, which no option of a model stands for.
KEYS_OF_RUNS = {
    "train_batch_size": "train.batch_size",
    "eval_batch_size": "eval.batch_size",
    "epochs": "train.epochs",
    "learning_rate": "train.optimizer.lr",
    "weight_decay": "train.optimizer",
    "seed": "run.seed",
    "dataset": "data.name",
    "data_path": "data.path",
    "topk": "eval.topk",
}
# The values that RecBole's own property files have most often.
USUAL = {
    "embedding_size": 64,
    "hidden_size": 64,
    "inner_size": 256,
    "n_layers": 2,
    "num_layers": 1,
    "n_heads": 2,
    "dropout": 0.1,
    "dropout_prob": 0.3,
    "hidden_dropout_prob": 0.5,
    "attn_dropout_prob": 0.5,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
    "loss_type": "CE",
    "mlp_hidden_size": [64, 64],
    "reg_weight": 1e-5,
    "require_pow": False,
}
Values = dict[str, tuple[Any, str]]  # key -> its value, and the file that has it


@dataclass
class OptionKey:
    """A key of a config that becomes an option."""

    name: str
    line: int
    in_code: Any = MISSING  # the default that the code has beside it
    type_in_code: str = ""  # of int(config["x"])
    default: Any = field(default=MISSING, init=False)
    origin: str = field(default="", init=False)

    def find_default(self, values: Values) -> None:
        """Take the default of a property file, of the code, or the usual one."""
        if self.name in values:
            self.default, self.origin = values[self.name]
        elif self.in_code is not MISSING:
            self.default, self.origin = self.in_code, "the class"
        elif self.name in USUAL:
            self.default, self.origin = USUAL[self.name], "guess"

    @property
    def look(self) -> str:
        """What a person must look at; empty: nothing."""
        if self.name in KEYS_OF_RUNS:
            return (
                f"a key of the run ({KEYS_OF_RUNS[self.name]}), which a model is not given; "
                "give the option the same value, or do without"
            )
        if self.default is MISSING:
            return "it has no default: give it one, or train with " + f"--model.{self.name}=…"
        if self.origin == "guess":
            return "its default is a guess by its name"
        return "" if _type(self.default) else "its type is unknown"

    @property
    def declaration(self) -> str:
        """Its line in the class Options."""
        # Of what is not known, a value keeps the type that it is given with.
        kind = self.type_in_code or _type(self.default) or "bool | int | float | str"
        if self.default is MISSING:
            return f"{self.name}: {kind}"
        if isinstance(self.default, list | dict):
            return f"{self.name}: {kind} = field(default_factory=lambda: {self.default!r})"
        shown = f'"{self.default}"' if self._is_plain_text else repr(self.default)
        return f"{self.name}: {kind} = {shown}"

    @property
    def _is_plain_text(self) -> bool:
        """Whether the default is a text that needs no escapes."""
        return isinstance(self.default, str) and not set(self.default) & set("\\\"'\n\r\t")


def is_option(name: str) -> bool:
    """Whether a key can be the name of an option."""
    return name.isidentifier() and not keyword.iskeyword(name) and name not in ("name", "DEFAULTS")


def read_values(files: list[Path]) -> Values:
    """The values of property files; a later one wins."""
    values: Values = {}
    for file in files:
        content, _ = read_file(file)
        values |= {key: (value, file.name) for key, value in content.items()}
    return values


def files_beside(path: Path, name: str) -> list[Path]:
    """Property files of a class that lie beside its own file, or where RecBole has them."""
    folders = [path.parent, path.parent / "properties" / "model"]
    if len(path.resolve().parents) > 2:
        folders.append(path.resolve().parents[2] / "properties" / "model")
    files = (folder / f"{stem}.yaml" for folder in folders for stem in (name, name.lower()))
    return next(([file] for file in files if file.is_file()), [])


def _type(value: Any) -> str:
    """The annotation for a value; empty where there is none."""
    if value is None:
        return "int | float | str | None"
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind.__name__
    if isinstance(value, list):
        kinds = {_type(entry) for entry in value}
        if kinds == {"int", "float"}:
            kinds = {"float"}
        return f"list[{kinds.pop()}]" if len(kinds) == 1 else "list[float]" if not kinds else ""
    return ""
