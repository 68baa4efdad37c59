"""Which data a config names: every command and every kind of model asks here.

Generated data is used where it is asked for by name (data.name or data.format), never in place of
something that is not found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

from shoal.config.errors import did_you_mean
from shoal.config.schema import CLICK_FORMATS, GENERATED, DataSection
from shoal.config.yaml_io import inline
from shoal.data.bounded_files import plain_name
from shoal.data.loading.published import describe_absent
from shoal.data.prepared import dataset as prepared
from shoal.data.sources import FORMATS, SOURCES
from shoal.data.sources.files import is_remote, local_data
from shoal.data.sources.published import PUBLIC_SETS

FILES = ("train", "valid", "test")  # of data.clicks
# What only the other kind of data reads: a value that a user would count on is refused.
OF_INTERACTIONS = ("fields", "filter", "threshold", "normalize", "load", "unload", "presplit")
OF_CLICKS = ("slots", "dense", "label", "group", "rows", "pipe_command", "custom", "split_files")


class NamedData(NamedTuple):
    """Interactions (synthetic, random, prepared, atomic, tables, movielens), or a click log
    (synthetic_clicks, prepared, log)."""

    kind: Literal["interactions", "clicks"]
    source: str


def named_data(data: DataSection, clicks: bool) -> NamedData:
    """The data that a config names for a click model (`clicks`) or another; else ValueError."""
    data = local_data(data)
    if not reads_log(data, clicks):
        source = interactions_of(data)
        _refuse(data.clicks, OF_CLICKS, "data.clicks.", f"a click log, and {data.title} is none")
        return NamedData("interactions", source)
    if not clicks:
        raise ValueError(
            f"data.{_says_log(data)} names a click log, and this model learns from interactions of "
            "users with items; choose a click model such as LR or DeepFM (`shoal models` lists "
            "them), or name interactions with data.name or data.files"
        )
    if data.files is not None:
        raise ValueError(
            f"data.files and data.{_says_log(data)} both name data; leave out one: tables of "
            "interactions (data.files), or a click log (data.clicks)"
        )
    _refuse(data, OF_INTERACTIONS, "data.", f"interactions, and {data.title} is a click log")
    if data.format == "synthetic_clicks" or not any(getattr(data.clicks, key) for key in FILES):
        if data.format in CLICK_FORMATS and data.format not in GENERATED:
            raise ValueError(
                f"data.format {data.format}: data.clicks.train must name the files to train on"
            )
        return NamedData("clicks", "synthetic_clicks")
    if data.clicks.train is None:
        raise ValueError("data.clicks.train must name the files to train on")
    if prepared.find_log(data.clicks.train, data.path) is not None:
        return NamedData("clicks", "prepared")
    return NamedData("clicks", "log")


def reads_log(data: DataSection, clicks: bool) -> bool:
    """Whether the data is a click log, found or not; else interactions."""
    if data.format in CLICK_FORMATS or any(getattr(data.clicks, key) for key in FILES):
        return True
    if not clicks or data.files is not None or data.format != "auto":
        return False
    return data.name in ("synthetic", "synthetic_clicks") and prepared.find(data) is None


def _says_log(data: DataSection) -> str:
    """The key, and its value, that names a click log."""
    if data.format in CLICK_FORMATS:
        return f"format={data.format}"
    return next(f"clicks.{key}" for key in FILES if getattr(data.clicks, key))


def holds_log(data: DataSection) -> bool:
    """Whether files on the command line are a click log, by the config's format or slots."""
    section = data.clicks
    described = (section.slots, section.dense, section.pipe_command)
    is_log = data.format in CLICK_FORMATS and data.format not in GENERATED
    return is_log or any(one is not None for one in described)


def data_values(
    path: Path, data: DataSection, clicks: bool, log: bool = False, url: str | None = None
) -> dict[str, Any]:
    """Config values that make a file or a folder the data, in place of what `data` names.

    Files of users and items stay, and so do those that a click model is evaluated on. log: it is a
    click log, whatever the config named before. url: of the file that path is a copy of.
    """
    path = path.absolute()
    values: dict[str, Any] = {"data.name": None, "data.format": "auto"}
    if log or reads_log(data, clicks):
        form = "auto" if data.format in GENERATED else data.format
        return values | {"data.clicks.train": url or str(path), "data.format": form}
    if path.is_dir():
        return values | {"data.path": str(path), "data.files": None}
    if plain_name(path).suffix == ".inter":
        if plain_name(path).stem != path.parent.name:
            raise ValueError(
                f"{path}: an atomic file lies in a folder of its name, NAME/NAME.inter; move it "
                f"there, or write the file as csv"
            )
        return values | {"data.path": str(path.parent), "data.files": None}
    sides = {k: v for k, v in (data.files or {}).items() if k not in FILES}
    form = data.format if data.format in FORMATS else "auto"
    return values | {"data.files": {**sides, "inter": url or str(path)}, "data.format": form}


def _refuse(section: Any, keys: tuple[str, ...], prefix: str, why: str) -> None:
    unsaid = type(section)()
    for key in keys:
        if (value := getattr(section, key)) != getattr(unsaid, key):
            shown = inline(value.model_dump() if hasattr(value, "model_dump") else value)
            raise ValueError(
                f"{prefix}{key} is {shown[:80]}, which is for {why}; leave it out, or name the "
                "data that it is for"
            )


def interactions_of(data: DataSection) -> str:
    """The source of interactions: as data.files and data.format say, else what is there."""
    named, data = data.path, local_data(data)
    if data.files is not None or data.format in FORMATS:
        if data.format not in ("auto", *FORMATS):
            raise ValueError(
                f"data.files names tables, and data.format is {data.format}; choose "
                f"{', '.join(FORMATS)}, or leave it out"
            )
        return "tables"
    if data.format != "auto":
        return data.format
    if prepared.find(data) is not None:
        return "prepared"
    if data.name == "synthetic_clicks":
        raise ValueError(
            "data.name synthetic_clicks is a click log, and this model learns from interactions; "
            "use data.name=synthetic"
        )
    for source in SOURCES.values():
        if source.matches(data):
            return source.name
    copied = f" ({data.path} is a copy of what {named} holds)" if is_remote(named) else ""
    raise ValueError(_nothing(data) + copied)


def _nothing(data: DataSection) -> str:
    """The message where no data is found, with what could be meant."""
    root = Path(data.path)
    have = sorted(p.name for p in root.iterdir() if p.name[0] != ".") if root.is_dir() else []
    remedy = (
        "name a data set with data.name (a folder under data.path; `shoal data fetch ml-100k` gets "
        "one, and docs/reference/public_sets.md lists others), tables of your own with "
        "data.files.inter=FILE (or `shoal train FILE`), or a click log with "
        "data.clicks.train=FILE; data.name=synthetic is generated data"
    )
    if data.name is None and root.is_file():
        return f"data.path is {root}, a file, and it is a folder's: write data.files.inter={root}"
    if data.name is None:
        holds = f", which holds {', '.join(have[:8])}" if have else ""
        return f"no data is named, and there is none in data.path={root}{holds}; {remedy}"
    if data.name in PUBLIC_SETS:
        return f"no data set {data.name!r} in {root}: {describe_absent(data.name, data.folder)}"
    return (
        f"no data set {data.name!r} in {root}: neither {data.folder / data.stem}.inter nor "
        f"MovieLens files (u.data, ratings.dat, ratings.csv, or {data.stem}.zip) are there; "
        f"{remedy}{did_you_mean(data.name, [*have, *GENERATED, *PUBLIC_SETS])}"
    )
