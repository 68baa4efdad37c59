"""The models, by name. A new model is one file here and its name below.

A class elsewhere is named FILE.py:Class or package.module:Class (own.py).
"""

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.config.errors import did_you_mean
from shoal.config.keys import MISSING, allowed, options_of
from shoal.models.base import Model
from shoal.models.options import meanings
from shoal.models.own import find_own, full_name, is_own

# Of each folder the models; a module is the name in lower case. A run imports its own only.
_FOLDERS = {
    "general": """
        Pop BPR NeuMF LightGCN LightFM EASE ItemKNN UserKNN SLIM IALS MultiVAE RecVAE ENMF
        SimpleX NGCF SGL SimGCL XSimGCL DirectAU SLIMElastic ADMMSLIM AsymKNN NCEPLRec
        MultiDAE CDAE MacridVAE DMF FISM NAIS
        LINE ConvNCF NNCF GCMC SpectralCF DGCF NCL LightGCNpp UltraGCN GFCF
        DiffRec LDiffRec RaCT
    """,
    "sequential": """
        SASRec BERT4Rec GRU4Rec HSTU NARM STAMP Caser NextItNet FPMC SRGNN CORE LightSANs
        FMLP TiSASRec MIND ComiRec CL4SRec TIGER SASRecF FDSA S3Rec TransRec HGN FOSSIL SHAN
        NPE HRM RepeatNet GCSAN SINE FEARec GRU4RecCPR SASRecCPR GRU4RecF
        GRU4RecKG KSR
    """,
    "retrieval": "DSSM YoutubeDNN Word2Vec",
    "knowledge": "CKE CFKG KGCN KGAT RippleNet KGIN MKR KTUP KGNNLS MCCLK",
    "clicks": """
        LR FM DNN WideDeep DeepFM DCNV2 DLRM FFM FwFM NFM AFM PNN DCN xDeepFM AutoInt
        FiBiNET MaskNet FinalMLP GDCN Wukong FNN EulerNet FiGNN KD_DAGFM FinalNet RankMixer
        LightGBM XGBoost
    """,
    "clicks.history": "DIN DIEN BST DSIN HSTURanker",
    "clicks.labels": "SharedBottom MMoE PLE ESMM AITM",
}
MODELS: dict[str, str] = {
    name: f"shoal.models.{folder}.{name.lower()}"
    for folder, names in _FOLDERS.items()
    for name in names.split()
}

_GROUPS = {
    "general": "who took what",
    "sequential": "what comes next, from the order of what people took",
    "retrieval": "vectors of people and items, or of items alone",
    "knowledge": "what is known of items, as a graph",
    "clicks": "whether somebody clicks, from features and a label",
    "clicks.history": "the same, with what they did before",
    "clicks.labels": "the same, with several labels",
}
_AUTHORS = re.compile(r", (?=[A-Z][\w-]+(?: et al\.| and [A-Z]\w+,|, ))")  # behind a title


def overview() -> Iterator[str]:
    """All models by what they learn from, line by line, each with the title of its paper."""
    widest = max(map(len, MODELS))
    for number, (folder, heading) in enumerate(_GROUPS.items()):
        yield from ("",) * (number > 0)
        yield f"{heading}:"
        for name in _FOLDERS[folder].split():
            file = Path(__file__).parent.joinpath(*folder.split("."), f"{name.lower()}.py")
            about = ast.get_docstring(ast.parse(file.read_bytes())) or ""  # imports nothing
            about = about.partition("\n\n")[0].replace("\n", " ").partition(": ")[2]
            yield f"  {name:{widest}}  {_AUTHORS.split(about)[0].removesuffix('.')}"
    yield from ("", "shoal models NAME describes one of them")


def find(name: str) -> type[Model]:
    """The class of a model; upper and lower case do not matter.

    A name with a colon is of a user's class, which is found by running its file.
    """
    if is_own(name):
        return find_own(full_name(name))
    canonical_names = {one.lower(): one for one in MODELS}
    if name.lower() not in canonical_names:
        raise ValueError(
            f"no model is named {name!r}; `shoal models` lists them, and FILE.py:Class or "
            f"package.module:Class names one of your own{did_you_mean(name, MODELS)}"
        )
    canonical = canonical_names[name.lower()]
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
    meaning = meanings(model.Options)
    for number, (key, option) in enumerate(options_of(model.Options).items()):
        if number == 0:
            yield from ("", "options:")
        shown = "must be given" if option.default is MISSING else f"default {option.default!r}"
        yield f"  {key}: {allowed(option.kind)}, {shown}"
        if text := meaning[key.removeprefix("model.")]:
            yield f"      {text}"
    for number, (key, value) in enumerate(getattr(model.Options, "DEFAULTS", {}).items()):
        if number == 0:
            yield from ("", "other defaults of a run:")
        yield f"  {key}: {value!r}"
