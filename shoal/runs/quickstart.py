"""What `shoal quickstart` writes: a config and a script, for data that somebody has just brought.

Everything is decided here from the answers and from a look at the file: which columns are what, how
the text is encoded, which model suits. The config is checked by reading the data with it.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from shoal.config.data_section import DATASETS, DataSection
from shoal.config.yaml_io import inline
from shoal.data.dataset import Dataset
from shoal.data.doubts import doubts
from shoal.data.prepared.captions import columns_of_captions
from shoal.data.prepared.named import named_data
from shoal.data.prepared.prepare import load_dataset
from shoal.data.sources.fetch import ARCHIVES
from shoal.data.sources.roles import NAMES, need_roles, roles_of, shown
from shoal.data.sources.table import columns_of, format_of, read_frame
from shoal.data.statistics import time_span
from shoal.models import find
from shoal.runs.given import check_there, encoding_of
from shoal.runs.run import resolve

TASKS = {
    "recommend": "recommend items: which items suit a user",
    "next": "the next item: what a user takes next, after what they took before",
    "clicks": "click prediction: how likely a click (or a like) is",
}
PLACES = {
    "here": "on this machine, in one process",
    "processes": "on this machine, in several processes",
    "gpu": "on this machine's GPU",
}
# Of EASE: its time grows with the cube of the items, and an artifact has a row for each user.
MOST_ITEMS, MOST_CELLS = 10_000, 100_000_000


@dataclass(frozen=True)
class Asked:
    """The answers: a file or the name of a data set, what for, and where it runs."""

    data: str
    task: str
    place: str
    columns: dict[str, str] = field(default_factory=dict)  # role -> column, as somebody said

    @property
    def is_file(self) -> bool:
        return self.data != "planted" and self.data not in ARCHIVES

    @property
    def name(self) -> str:
        """What the files that are written are called, without their endings."""
        stem = re.sub(r"[^\w-]+", "-", Path(self.data).name.partition(".")[0], flags=re.ASCII)
        return f"{stem.strip('-') or 'data'}-{self.task}"

    @property
    def must_be_fetched(self) -> bool:
        place = Path(DATASETS, self.data)
        return self.data in ARCHIVES and not (place.is_dir() or Path(f"{place}.zip").is_file())


class StarterFiles(NamedTuple):
    """The two files, lines to show about the data, and a user to ask for (None: not known)."""

    config: Path
    script: Path
    notes: list[str]
    user: str | None


def write(asked: Asked, folder: Path) -> StarterFiles:
    """Look at the data, write the config and the script; nothing is written where that fails."""
    notes: list[str] = []
    data = _of_file(asked, notes) if asked.is_file else _of_name(asked)
    config, script = (folder / f"{asked.name}{ending}" for ending in (".yaml", ".py"))
    text, user = _config(asked, data, config, "EASE"), None
    if asked.must_be_fetched:
        notes.append(f"{asked.data} is not in dataset/ yet: `shoal data fetch {asked.data}`")
    elif (found := _read(text)) is not None:
        _need_many(asked, found)
        cells = found.num_users * found.num_items
        if asked.task == "recommend" and (found.num_items > MOST_ITEMS or cells > MOST_CELLS):
            text = _config(asked, data, config, "BPR")
        user = str(found.vocab[found.user_field][1])
        notes += [_counted(found), *_careful(asked, found, config)]
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in ((config, text), (script, _script(config, user))):
        if file.exists() and file.read_text(encoding="utf-8") != content:
            raise ValueError(
                f"{file} is there already, and is not what would be written; move it away, or "
                "write to another folder with --to FOLDER"
            )
        file.write_text(content, encoding="utf-8")
    return StarterFiles(config, script, notes, user)


# ---- a look at the data -------------------------------------------------------------------------


def _of_file(asked: Asked, notes: list[str]) -> list[str]:
    """The section `data` for a file, line by line."""
    path = Path(asked.data)
    check_there(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name the file in it that says who took what")
    encoding = encoding_of(path)
    section = DataSection(encoding=encoding, bad_rows="skip")
    columns = columns_of(path, section)
    for role, name in asked.columns.items():
        if name not in columns:
            raise ValueError(f"--{role}={name}: {path} has only {', '.join(columns)}")
    roles = roles_of(columns, asked.task == "clicks") | asked.columns
    roles = {role: roles[role] for role in NAMES if role in roles}
    need_roles(str(path), columns, roles, "--{}=NAME")
    threshold = None
    if asked.task == "clicks":
        if "label" not in roles:
            threshold = _threshold(path, section, roles, columns)
    else:
        roles.pop("rating", None)
    notes.append(f"{path}: {shown(roles)}")
    lines = ["data:", "  files:"]
    lines += [f"    inter: {inline(_as_typed(path))}  # a row for everything that a user did"]
    lines += ["    # item: items.csv  # another file, with titles and features of items"]
    lines += ["  fields:  # which column is what"]
    lines += [f"    {role}: {inline(name)}" for role, name in roles.items() if role != "rating"]
    lines += [f"    rating: {inline(roles['rating'])}"] if threshold is not None else []
    if encoding != "utf-8":
        lines.append(f"  encoding: {encoding}  # the letters of the file; it is no UTF-8")
    lines.append("  bad_rows: skip  # rows without a user or an item are left out, and counted")
    if asked.task == "clicks":
        odd = _nested(path, section)
        if odd:
            lines.append(f"  unload: {{inter: {inline(odd)}}}  # columns that no model can read")
        if threshold is not None:
            lines.append(
                f"  threshold: {{{inline(roles['rating'])}: {threshold:g}}}  # at or above it is a "
                "click, below it is none"
            )
            notes.append(f"no column of clicks: {roles['rating']} ≥ {threshold:g} counts as one")
        return lines
    title = columns_of_captions(one for one in columns if one not in roles.values()).get("title")
    wanted = [*roles.values(), *([title] if title else [])]
    lines.append(f"  load: {{inter: {inline(wanted)}}}  # the columns to read; the others are not")
    return [*lines, *_split(asked, "time" in roles)]


def _of_name(asked: Asked) -> list[str]:
    """The section `data` for a data set that Shoal makes, or that GroupLens publishes."""
    what = "generated, with known taste" if asked.data == "planted" else "MovieLens"
    lines = ["data:", f"  name: {asked.data}  # {what}"]
    if asked.task != "clicks":
        return [*lines, *_split(asked, True)]
    if asked.data == "planted":
        return lines
    return [*lines, "  threshold: {rating: 4}  # 4 stars and more are a click, fewer are none"]


def _split(asked: Asked, timed: bool) -> list[str]:
    """What is trained on, and what is tested on."""
    order = "time" if timed else "file" if asked.task == "next" else "random"
    said = {
        "time": "the newest of every user is tested on",
        "file": "there is no time: rows count as they stand in the file",
        "random": "there is no time: a part of every user's, by chance, is tested on",
    }
    split = ["  split:", f"    order: {order}  # {said[order]}"]
    if asked.task == "next":  # where the same item may come again
        return [*split, "    by: leave_one_out  # the last item of a user"]
    return ["  filter:", "    duplicates: first  # a user's item counts once; null: always", *split]


def _threshold(
    path: Path, section: DataSection, roles: dict[str, str], columns: list[str]
) -> float:
    """The rating from which on a row counts as a click: about half of them do."""
    import polars as pl

    if "rating" not in roles:
        raise ValueError(
            f"{path}: click prediction needs a column that says what was clicked (1) and what was "
            f"not (0), or a rating; of {', '.join(columns)} none looks like it. Name it with "
            "--label=NAME or --rating=NAME, or choose --task recommend, which needs none"
        )
    cells = read_frame(path, section)[roles["rating"]].cast(pl.Float64, strict=False)
    cells = cells.fill_nan(None).drop_nulls()
    values = cells.unique().sort().to_list()
    if len(values) < 2:
        raise ValueError(
            f"{path}: {roles['rating']!r} does not tell clicks from others: its values are "
            f"{', '.join(f'{one:g}' for one in values) or 'no numbers'}; name another column with "
            "--label=NAME or --rating=NAME"
        )
    middle = cells.median()
    return next((one for one in values[1:] if one >= middle), values[-1])


def _nested(path: Path, section: DataSection) -> list[str]:
    """Columns that hold objects, which no feature is made of."""
    import polars as pl

    form = format_of(path, section)
    frame = form.sample(path, form.header(path, section), section)
    return [name for name, kind in frame.schema.items() if isinstance(kind, pl.Struct)]


def _as_typed(path: Path) -> str:
    return str(path) if path.is_absolute() else f"./{path}"


def _read(text: str) -> Dataset | None:
    """The data that a config names, read by it; None of a click log."""
    with TemporaryDirectory() as place:
        file = Path(place, "quickstart.yaml")
        file.write_text(text, encoding="utf-8")
        config = resolve([file]).config
    clicks = find(config.model.name).kind == "clicks"
    if named_data(config.data, clicks).kind == "clicks":
        return None
    return load_dataset(config.data, config.run.seed)


def _need_many(asked: Asked, found: Dataset) -> None:
    """Refuse data that nothing can be learned from."""
    counts = {"user": found.num_users, "item": found.num_items}
    for role, column in (("user", found.user_field), ("item", found.item_field)):
        if counts[role] < 3:  # one, and the padding
            raise ValueError(
                f"{asked.data} has only one {role} (column {column!r}), and there is nothing to "
                f"learn from one; if another column is the {role}, name it with --{role}=NAME"
            )
    if asked.task != "clicks" and not len(found.splits["test"]):
        raise ValueError(
            f"{asked.data}: no user has two items, so nothing can be tested; if another column is "
            "the user, name it with --user=NAME"
        )


def _counted(found: Dataset) -> str:
    """Its size, its first and last time, and what is left out by which key."""
    left = [f"{count:,} rows are left out by {key}" for key, count in found.left_out.items()]
    size = f"{found.num_users - 1:,} users with {found.num_items - 1:,} items"
    span = time_span(found)
    times = "" if span is None else f", from {span[0]} to {span[1]}"
    return "; ".join([f"{found.num_inter:,} rows of {size}{times}", *left])


def _careful(asked: Asked, found: Dataset, config: Path) -> list[str]:
    """What a look at the data makes doubtful."""
    told = doubts(found, repeatable=asked.task != "recommend")
    bad = found.left_out.get("data.bad_rows", 0)
    if bad > (found.num_inter + bad) / 20:
        why = f"shoal train {config} --data.bad_rows=error"
        told.append(f"{bad:,} rows cannot be read; `{why}` names the first")
    return [f"careful: {one}" for one in told]


# ---- the two files ------------------------------------------------------------------------------

MODELS = {
    "EASE": "learns which items go together, in one step",
    "BPR": "a vector for every user and every item",
    "SASRec": "a transformer that reads what a user took, in order",
    "DeepFM": "reads the columns of a row, and pairs of them",
}


def _config(asked: Asked, data: list[str], file: Path, ranking: str) -> str:
    """The config; ranking: the model that recommends."""
    model = {"recommend": ranking, "next": "SASRec", "clicks": "DeepFM"}[asked.task]
    lines = [
        f"# What is trained, on what, and how. Change what you like, then: shoal train {file.name}",
        "# `shoal config keys` lists every key, `shoal models` every model.",
        *("", "model:", f"  name: {model}  # {MODELS[model]}"),
        *("", *data),
    ]
    if model != "EASE":
        lines += ["", "train:", "  epochs: 100  # passes over the data, at most"]
        lines += ["  patience: 5  # it ends after so many epochs that brought nothing better"]
        lines += ["  batch_size: 2048  # rows of one step, over all processes"]
    metrics = "[AUC, LogLoss]" if asked.task == "clicks" else "[Recall, NDCG, Hit]"
    best = "AUC" if asked.task == "clicks" else "NDCG@10"
    lines += ["", "eval:", f"  metrics: {metrics}"]
    lines += [] if asked.task == "clicks" else ["  topk: [10]  # of lists of this length"]
    lines += [f"  valid_metric: {best}  # the best epoch is the one that is best in this"]
    if asked.place == "processes":
        count = min(4, max(2, os.cpu_count() or 1))
        lines += ["", "launch:", f"  nproc: {count}  # processes; the numbers are those of one"]
    if asked.place == "gpu":
        lines += ["", "run:", "  device: cuda  # the GPU; auto: where there is one"]
    return "\n".join(lines) + "\n"


SCRIPT = '''"""Trains what {config} says. Run it with: python {stem}.py"""

from pathlib import Path

import shoal

config = Path(__file__).with_name("{config}")

# Trains, and tests the best epoch on what was held back. Keys may be changed here too, as in
# shoal.run(config_file_list=[config], **{{"run.seed": 7}}).
result = shoal.run(config_file_list=[config])
print(result["test"])
'''
LISTS = """
# The best items of a user whom the data knows, with their scores.
for item, score in shoal.recommend(result["folder"], user={user!r}, topk=5):
    print(item, round(score, 3))
"""
EXPORT = """
# A folder that needs neither config nor data: `shoal serve {stem}-model` answers over HTTP.
# shoal.export(result["folder"], "{stem}-model")
"""


def _script(config: Path, user: str | None) -> str:
    """The same from Python."""
    parts = [SCRIPT, EXPORT] if user is None else [SCRIPT, LISTS, EXPORT]
    return "".join(parts).format(config=config.name, stem=config.stem, user=user)
