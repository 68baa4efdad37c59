"""The models, by name. A new model is one file here and one line in MODELS."""

from __future__ import annotations

import importlib
from typing import Any

from shoal.config.errors import did_you_mean
from shoal.models.base import Model

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
    "ENMF": "shoal.models.general.enmf",
    "SimpleX": "shoal.models.general.simplex",
    "NGCF": "shoal.models.general.ngcf",
    "SGL": "shoal.models.general.sgl",
    "SimGCL": "shoal.models.general.simgcl",
    "XSimGCL": "shoal.models.general.xsimgcl",
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
    "LR": "shoal.models.lr",
    "FM": "shoal.models.fm",
    "DNN": "shoal.models.dnn",
    "WideDeep": "shoal.models.widedeep",
    "DeepFM": "shoal.models.deepfm",
    "DCNV2": "shoal.models.dcnv2",
    "DLRM": "shoal.models.dlrm",
}


def find(name: str) -> type[Model]:
    """The class of a model; upper and lower case do not matter."""
    known = {one.lower(): one for one in MODELS}
    if name.lower() not in known:
        raise ValueError(
            f"no model is named {name!r}; there are {', '.join(MODELS)}{did_you_mean(name, MODELS)}"
        )
    canonical = known[name.lower()]
    return getattr(importlib.import_module(MODELS[canonical]), canonical)


def lookup(name: str) -> tuple[str, type[Any]]:
    """A model's right spelling and its Options dataclass (what loading a config needs)."""
    model = find(name)
    return model.__name__, model.Options
