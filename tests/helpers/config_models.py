"""Models with options of many kinds, and configs that are made for them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field

from shoal.config import ConfigError, Resolved, load


@dataclass
class BPROptions:
    embedding_size: int = 64


@dataclass
class DeepOptions:
    DEFAULTS: ClassVar[dict[str, Any]] = {
        "data.split.by": "leave_one_out",
        "data.split.order": "time",
        "train.negatives": None,
    }
    layers: Annotated[int, Field(ge=1)] = 2
    dropout: float = 0.5
    loss: Literal["CE", "BPR"] = "CE"
    sizes: list[int] = field(default_factory=lambda: [128, 64])
    steps: tuple[int, ...] = (1, 2)
    tied: bool = True
    note: str | None = None

    def __post_init__(self) -> None:
        if self.layers == 13:
            raise ValueError("layers: 13 brings bad luck")


@dataclass
class NeedyOptions:
    path: str


MODELS: dict[str, type] = {"BPR": BPROptions, "Deep": DeepOptions, "Needy": NeedyOptions}


def models(name: str) -> tuple[str, type]:
    for known, options in MODELS.items():
        if known.lower() == name.lower():
            return known, options
    raise ValueError(f"there is no model {name}; models are: {', '.join(MODELS)}")


def resolve(*overrides: str, **values: Any) -> Resolved:
    return load([], overrides, values, models=models)


def errors(*overrides: str, **values: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load([], overrides, values, models=models)
    return caught.value.errors


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def write(text: str | bytes, name: str = "recipe.yaml") -> str:
        Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return name

    return write


def file_errors(*files: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(files, models=models)
    return caught.value.errors
