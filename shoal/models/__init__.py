"""The models, by name. A new model is one file here and one line in MODELS.

One that stands elsewhere goes by FILE.py:Class or package.module:Class (own.py).
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
import typing
from collections.abc import Iterator
from typing import Any

from shoal.config.errors import did_you_mean
from shoal.models.base import Model
from shoal.models.options import meanings
from shoal.models.own import find_own, full_name, is_own

# name -> module; imported on first use, so that a run pays for one model only
MODELS: dict[str, str] = {
    "Pop": "shoal.models.general.pop",
    "BPR": "shoal.models.general.bpr",
    "NeuMF": "shoal.models.general.neumf",
    "LightGCN": "shoal.models.general.lightgcn",
    "LightFM": "shoal.models.general.lightfm",
    "EASE": "shoal.models.general.ease",
    "ItemKNN": "shoal.models.general.itemknn",
    "UserKNN": "shoal.models.general.userknn",
    "SLIM": "shoal.models.general.slim",
    "IALS": "shoal.models.general.ials",
    "MultiVAE": "shoal.models.general.multivae",
    "RecVAE": "shoal.models.general.recvae",
    "ENMF": "shoal.models.general.enmf",
    "SimpleX": "shoal.models.general.simplex",
    "NGCF": "shoal.models.general.ngcf",
    "SGL": "shoal.models.general.sgl",
    "SimGCL": "shoal.models.general.simgcl",
    "XSimGCL": "shoal.models.general.xsimgcl",
    "DirectAU": "shoal.models.general.directau",
    "SASRec": "shoal.models.sequential.sasrec",
    "BERT4Rec": "shoal.models.sequential.bert4rec",
    "GRU4Rec": "shoal.models.sequential.gru4rec",
    "HSTU": "shoal.models.sequential.hstu",
    "NARM": "shoal.models.sequential.narm",
    "STAMP": "shoal.models.sequential.stamp",
    "Caser": "shoal.models.sequential.caser",
    "NextItNet": "shoal.models.sequential.nextitnet",
    "FPMC": "shoal.models.sequential.fpmc",
    "SRGNN": "shoal.models.sequential.srgnn",
    "CORE": "shoal.models.sequential.core",
    "LightSANs": "shoal.models.sequential.lightsans",
    "FMLP": "shoal.models.sequential.fmlp",
    "TiSASRec": "shoal.models.sequential.tisasrec",
    "MIND": "shoal.models.sequential.mind",
    "ComiRec": "shoal.models.sequential.comirec",
    "CL4SRec": "shoal.models.sequential.cl4srec",
    "TIGER": "shoal.models.sequential.tiger",
    "SASRecF": "shoal.models.sequential.sasrecf",
    "FDSA": "shoal.models.sequential.fdsa",
    "S3Rec": "shoal.models.sequential.s3rec",
    "DSSM": "shoal.models.retrieval.dssm",
    "YoutubeDNN": "shoal.models.retrieval.youtubednn",
    "Word2Vec": "shoal.models.retrieval.word2vec",
    "CKE": "shoal.models.knowledge.cke",
    "CFKG": "shoal.models.knowledge.cfkg",
    "KGCN": "shoal.models.knowledge.kgcn",
    "KGAT": "shoal.models.knowledge.kgat",
    "RippleNet": "shoal.models.knowledge.ripplenet",
    "KGIN": "shoal.models.knowledge.kgin",
    "MKR": "shoal.models.knowledge.mkr",
    "LR": "shoal.models.clicks.lr",
    "FM": "shoal.models.clicks.fm",
    "DNN": "shoal.models.clicks.dnn",
    "WideDeep": "shoal.models.clicks.widedeep",
    "DeepFM": "shoal.models.clicks.deepfm",
    "DCNV2": "shoal.models.clicks.dcnv2",
    "DLRM": "shoal.models.clicks.dlrm",
    "FFM": "shoal.models.clicks.ffm",
    "FwFM": "shoal.models.clicks.fwfm",
    "NFM": "shoal.models.clicks.nfm",
    "AFM": "shoal.models.clicks.afm",
    "PNN": "shoal.models.clicks.pnn",
    "DCN": "shoal.models.clicks.dcn",
    "xDeepFM": "shoal.models.clicks.xdeepfm",
    "AutoInt": "shoal.models.clicks.autoint",
    "FiBiNET": "shoal.models.clicks.fibinet",
    "MaskNet": "shoal.models.clicks.masknet",
    "FinalMLP": "shoal.models.clicks.finalmlp",
    "GDCN": "shoal.models.clicks.gdcn",
    "Wukong": "shoal.models.clicks.wukong",
    "DIN": "shoal.models.clicks.history.din",
    "DIEN": "shoal.models.clicks.history.dien",
    "BST": "shoal.models.clicks.history.bst",
    "DSIN": "shoal.models.clicks.history.dsin",
    "SharedBottom": "shoal.models.clicks.labels.sharedbottom",
    "MMoE": "shoal.models.clicks.labels.mmoe",
    "PLE": "shoal.models.clicks.labels.ple",
    "ESMM": "shoal.models.clicks.labels.esmm",
    "AITM": "shoal.models.clicks.labels.aitm",
}


def find(name: str) -> type[Model]:
    """The class of a model; upper and lower case do not matter.

    A name with a colon is of a class of one's own, and running its file is how it is found.
    """
    if is_own(name):
        return find_own(full_name(name))
    known = {one.lower(): one for one in MODELS}
    if name.lower() not in known:
        raise ValueError(
            f"no model is named {name!r}; `shoal models` lists them, and FILE.py:Class or "
            f"package.module:Class names one of your own{did_you_mean(name, MODELS)}"
        )
    canonical = known[name.lower()]
    return getattr(importlib.import_module(MODELS[canonical]), canonical)


def lookup(name: str) -> tuple[str, type[Any]]:
    """A model's right spelling and its Options dataclass (what loading a config needs)."""
    model = find(name)
    return full_name(name) if is_own(name) else model.__name__, model.Options


def describe(name: str) -> Iterator[str]:
    """What a model is, line by line: its docs, what it learns from, its options and defaults."""
    model = find(name)
    yield f"{model.__name__} ({model.kind})"
    for text in (sys.modules[model.__module__].__doc__, model.__doc__):
        if text:
            yield ""
            yield from inspect.cleandoc(text).splitlines()
    hints = typing.get_type_hints(model.Options, include_extras=True)
    meaning = meanings(model.Options)
    for number, field in enumerate(dataclasses.fields(model.Options)):
        if number == 0:
            yield from ("", "options:")
        default: Any = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        shown = "must be given" if default is dataclasses.MISSING else f"default {default!r}"
        kind = hints[field.name]
        kind = kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
        yield f"  model.{field.name}: {kind}, {shown}"
        if meaning[field.name]:
            yield f"      {meaning[field.name]}"
    for number, (key, value) in enumerate(getattr(model.Options, "DEFAULTS", {}).items()):
        if number == 0:
            yield from ("", "other defaults of a run:")
        yield f"  {key}: {value!r}"
