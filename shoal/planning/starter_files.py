"""What `shoal quickstart` writes: a config and a script, for the data of a new user.

Everything is decided here from the answers and from a look at the file: which columns are what, how
the text is encoded, which model suits. The config is checked by reading the data with it.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from shoal.config.data_section import DATASETS
from shoal.config.yaml_io import inline
from shoal.data.dataset import Dataset
from shoal.data.loading.captions import columns_of_captions
from shoal.data.loading.load import load_dataset
from shoal.data.loading.location import named_data
from shoal.data.protocol import takes_items_again
from shoal.data.reading import filled, find_reading, numbers_of, shown_readings
from shoal.data.sources.fetch import ARCHIVES
from shoal.data.sources.roles import shown
from shoal.data.statistics import find_data_warnings, time_span
from shoal.files.durable import no_links
from shoal.models import find
from shoal.planning.first_look import FirstLook, look_at
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
# Limits of EASE: its time grows with the cube of the items; an artifact has a row for each user.
MOST_ITEMS, MOST_CELLS = 10_000, 100_000_000
# Limit of SASRec, which scores every item after every row: minutes for an epoch on two cores.
MOST_SCORES = 20_000_000_000
EPOCHS, FEWEST_EPOCHS = 100, 5
PATIENT_PARTS = 5  # of few epochs: so many of them bring nothing better before it ends
TRAINED_ROWS = 10_000_000  # of all epochs together: half a minute of BPR on two cores


@dataclass(frozen=True)
class QuickstartAnswers:
    """The answers: a file or the name of a data set, what for, and where it runs."""

    data: str
    task: str
    place: str
    columns: dict[str, str] = field(default_factory=dict)  # role -> column, as the user chose
    features: tuple[str, ...] = ()  # columns that look like outcomes, and are none
    only_taken: bool = True  # where a label marks the rows that were taken, the others do not count
    # Column of dates such as 05/06/2024 -> what comes first in them: day or month.
    dates: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_file(self) -> bool:
        return self.data != "synthetic" and self.data not in ARCHIVES

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


def write(answers: QuickstartAnswers, folder: Path, look: FirstLook | None = None) -> StarterFiles:
    """Write the config and the script; nothing is written where the data cannot be read.

    look: what was seen of the file already; None: it is looked at now.
    """
    notes: list[str] = []
    if answers.is_file:
        look = look or look_at(Path(answers.data), answers.columns)
        data = _build_file_section(answers, look, notes)
    else:
        data = _build_named_section(answers)
    config, script = (folder / f"{answers.name}{ending}" for ending in (".yaml", ".py"))
    text, user = _format_config(answers, data, config), None
    if answers.must_be_fetched:
        notes.append(f"{answers.data} is not in dataset/ yet: `shoal data fetch {answers.data}`")
    elif (dataset := _read_data(text)) is not None:
        _refuse_tiny_data(answers, dataset)
        text = _format_config(answers, data, config, dataset)
        user = str(dataset.vocab[dataset.user_field][1])
        notes += [
            _describe_counts(dataset),
            *shown_readings(dataset.cells),
            *_list_warnings(answers, dataset, config),
        ]
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in ((config, text), (script, _format_script(config, user))):
        if file.exists() and file.read_text(encoding="utf-8") != content:
            raise ValueError(
                f"{file} is there already, and is not what would be written; move it away, or "
                "write to another folder with --to FOLDER"
            )
        with open(file, "w", encoding="utf-8", opener=no_links) as opened:
            opened.write(content)
    return StarterFiles(config, script, notes, user)


# ---- a look at the data -------------------------------------------------------------------------


def _build_file_section(answers: QuickstartAnswers, look: FirstLook, notes: list[str]) -> list[str]:
    """The section `data` for a file, line by line."""
    if answers.task == "clicks":
        return _build_clicks_section(answers, look, notes)
    roles = {role: look.roles[role] for role in ("user", "item", "time") if role in look.roles}
    shown_roles = roles | ({"label": look.label} if look.label and answers.only_taken else {})
    notes += [f"{look.path}: {shown(shown_roles)}", *_describe_encoding(look)]
    lines = _list_first_lines(look)
    lines += [f"    {role}: {inline(name)}" for role, name in roles.items()]
    lines += _list_reading_lines(look, answers)
    others = [name for name in look.columns if name not in roles.values()]
    title = columns_of_captions(others).get("title")
    loaded_columns = [*roles.values(), *([title] if title else [])]
    label = look.label if answers.only_taken else None
    if label is not None:
        loaded_columns.append(label)
        notes.append(
            f"only the {look.share:.0%} of rows where {label} is 1 count as taken; to count every "
            "row, leave out data.filter.values in the config, and to predict "
            f"{label}, use --task clicks"
        )
    elif look.label is None:
        if (rating := look.roles.get("rating")) is not None:
            notes.append(
                f"every row counts as taken, whatever its {rating}; to predict which rows have a "
                "high one, use --task clicks"
            )
        notes += [
            f"careful: {name} is 0 or 1; if it says which rows were taken, use --label={name}"
            for name in look.two_valued
            if name not in roles.values()
        ]
    notes += _describe_unused_times(look)
    lines.append(
        f"  load: {{inter: {inline(loaded_columns)}}}  # the columns to read; the others are not"
    )
    return [*lines, *_list_split_lines(answers, "time" in roles, label)]


def _build_clicks_section(
    answers: QuickstartAnswers, look: FirstLook, notes: list[str]
) -> list[str]:
    """The section `data` for a file whose clicks are predicted."""
    roles = {role: name for role, name in look.roles.items() if role != "rating"}
    threshold = None
    if look.label is None:
        threshold = rating_of_clicks(look)
        roles["rating"] = look.roles["rating"]
    notes += [f"{look.path}: {shown(roles)}", *_describe_encoding(look)]
    if threshold is not None:
        notes.append(f"no column of clicks: {roles['rating']} ≥ {threshold:g} counts as one")
    lines = _list_first_lines(look)
    lines += [f"    {role}: {inline(name)}" for role, name in roles.items()]
    lines += _list_reading_lines(look, answers)
    outcomes = look.outcomes(threshold)
    left_out = {name: why for name, why in outcomes.items() if name not in answers.features}
    if left_out:
        reasons = ", ".join(f"{name} ({why})" for name, why in left_out.items())
        flags = " ".join(f"--feature={name}" for name in left_out)
        notes.append(
            f"left out, since they may be known only after {look.label or roles['rating']}: "
            f"{reasons}; those that are known before: {flags}"
        )
    unread = [*_find_nested(look), *left_out]
    if unread:
        reason = "known only afterwards, or objects" if left_out else "columns that no model reads"
        lines.append(f"  unload: {{inter: {inline(unread)}}}  # {reason}")
    if threshold is not None:
        lines.append(
            f"  threshold: {{{inline(roles['rating'])}: {threshold:g}}}  # at or above it is a "
            "click, below it is none"
        )
    return lines


def _describe_unused_times(look: FirstLook) -> list[str]:
    """A note where a column may be the time of the rows, and its name did not say so."""
    if "time" in look.roles or not look.moments:
        return []
    names = " or ".join(look.moments)
    return [
        f"careful: no column is taken as the time, and {names} looks like dates or times; if rows "
        f"happened then, use {' or '.join(f'--time={name}' for name in look.moments)}: tests are "
        "then of what came last, as in use"
    ]


def _describe_encoding(look: FirstLook) -> list[str]:
    """A note about text that is not UTF-8; none where it is."""
    if look.section.encoding == "utf-8":
        return []
    return [
        f"its text is not UTF-8, and is read as {look.section.encoding}; where letters look wrong, "
        "change data.encoding in the config"
    ]


def _list_first_lines(look: FirstLook) -> list[str]:
    """The first lines of the section `data` for a file."""
    return [
        "data:",
        "  files:",
        f"    inter: {inline(_format_path(look.path))}  # a row for everything that a user did",
        "    # item: items.csv  # another file, with titles and features of items",
        "  fields:  # which column is what",
    ]


def _list_reading_lines(look: FirstLook, answers: QuickstartAnswers) -> list[str]:
    """Lines of the section `data` that set how the text of a file is read."""
    lines = []
    if answers.dates:
        orders = {name: {"order": order} for name, order in answers.dates.items()}
        lines.append(f"  cells: {inline(orders)}  # what comes first in dates")
    if look.section.encoding != "utf-8":
        encoding = look.section.encoding
        lines.append(f"  encoding: {encoding}  # the letters of the file; it is no UTF-8")
    return [*lines, "  bad_rows: skip  # rows without a user or an item are left out, and counted"]


def _build_named_section(answers: QuickstartAnswers) -> list[str]:
    """The section `data` for a data set that Shoal makes, or that GroupLens publishes."""
    origin = "generated, with known taste" if answers.data == "synthetic" else "MovieLens"
    lines = ["data:", f"  name: {answers.data}  # {origin}"]
    if answers.task != "clicks":
        return [*lines, *_list_split_lines(answers, True)]
    if answers.data == "synthetic":
        return lines
    return [*lines, "  threshold: {rating: 4}  # 4 stars and more are a click, fewer are none"]


def _list_split_lines(
    answers: QuickstartAnswers, timed: bool, label: str | None = None
) -> list[str]:
    """What is trained on, and what is tested on; label: the column that is 1 in rows that count."""
    order = "time" if timed else "file" if answers.task == "next" else "random"
    comments = {
        "time": "the newest of every user is tested on",
        "file": "there is no time: rows count as they stand in the file",
        "random": "there is no time: a part of every user's, by chance, is tested on",
    }
    split = ["  split:", f"    order: {order}  # {comments[order]}"]
    keys = []
    if label is not None:
        keys.append(
            f'    values: {{{inline(label)}: "[1,1]"}}  # without it every row counts as taken'
        )
    if answers.task == "recommend":  # in a sequence the same item may come again
        keys.append("    duplicates: first  # a user's item counts once; null: always")
    if answers.task == "next":
        split.append("    by: leave_one_out  # the last item of a user")
    return [*(["  filter:", *keys] if keys else []), *split]


def rating_of_clicks(look: FirstLook) -> float:
    """The rating from which on a row counts as a click: about half of them do."""
    import polars as pl

    path, columns, roles = look.path, look.columns, look.roles
    if "rating" not in roles:
        raise ValueError(
            f"{path}: click prediction needs a column that says what was clicked (1) and what was "
            f"not (0), or a rating; of {', '.join(columns)} none looks like it. Name it with "
            "--label=NAME or --rating=NAME, or choose --task recommend, which needs none"
        )
    column = look.frame[roles["rating"]].cast(pl.String)
    cells = numbers_of(filled(column), find_reading(column, "float"))
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


def _find_nested(look: FirstLook) -> list[str]:
    """Columns that hold objects, which no feature is made of."""
    import polars as pl

    return [name for name, kind in look.frame.schema.items() if isinstance(kind, pl.Struct)]


def _format_path(path: Path) -> str:
    return str(path) if path.is_absolute() else f"./{path}"


def _read_data(text: str) -> Dataset | None:
    """The data that a config names, read by it; None of a click log."""
    with TemporaryDirectory() as place:
        file = Path(place, "quickstart.yaml")
        file.write_text(text, encoding="utf-8")
        config = resolve([file]).config
    clicks = find(config.model.name).kind == "clicks"
    if named_data(config.data, clicks).kind == "clicks":
        return None
    return load_dataset(config.data, config.run.seed)


def _refuse_tiny_data(answers: QuickstartAnswers, dataset: Dataset) -> None:
    """Refuse data that nothing can be learned from."""
    counts = {"user": dataset.num_users, "item": dataset.num_items}
    for role, column in (("user", dataset.user_field), ("item", dataset.item_field)):
        if counts[role] < 3:  # one, and the padding
            raise ValueError(
                f"{answers.data} has only one {role} (column {column!r}), and there is nothing to "
                f"learn from one; if another column is the {role}, name it with --{role}=NAME"
            )
    if answers.task != "clicks" and not len(dataset.splits["test"]):
        raise ValueError(
            f"{answers.data}: no user has two items, so nothing can be tested; if another column "
            "is the user, name it with --user=NAME"
        )


def _describe_counts(dataset: Dataset) -> str:
    """Size of a data set, its first and last time, and the rows that keys leave out."""
    omissions = [
        f"{count:,} {'row is' if count == 1 else 'rows are'} left out by {key}"
        for key, count in dataset.left_out.items()
    ]
    size = f"{dataset.num_users - 1:,} users with {dataset.num_items - 1:,} items"
    span = time_span(dataset)
    times = "" if span is None else f", from {span[0]} to {span[1]}"
    return "; ".join([f"{dataset.num_inter:,} rows of {size}{times}", *omissions])


def _list_warnings(answers: QuickstartAnswers, dataset: Dataset, config: Path) -> list[str]:
    """Warnings about the data, for the user to read."""
    is_clicks = answers.task == "clicks"
    repeatable = is_clicks or takes_items_again(dataset)
    warnings = find_data_warnings(dataset, repeatable=repeatable, is_ranked=not is_clicks)
    bad = dataset.left_out.get("data.bad_rows", 0)
    if bad > (dataset.num_inter + bad) / 20:
        command = f"shoal train {config} --data.bad_rows=error"
        warnings.append(f"{bad:,} rows cannot be read; `{command}` names the first")
    return [f"careful: {one}" for one in warnings]


# ---- the two files ------------------------------------------------------------------------------

MODELS = {
    "EASE": "learns which items go together, in one step",
    "BPR": "a vector for every user and every item",
    "SASRec": "a transformer that reads what a user took, in order",
    "FPMC": "vectors for every user, and for what follows what",
    "DeepFM": "reads the columns of a row, and pairs of them",
}


def _choose_model(answers: QuickstartAnswers, dataset: Dataset | None) -> str:
    """The model for a task and for data of this size; None: its size is not known yet."""
    if answers.task == "clicks":
        return "DeepFM"
    if dataset is None:
        return "EASE" if answers.task == "recommend" else "SASRec"
    if answers.task == "next":
        scores = dataset.num_inter * dataset.num_items
        return "SASRec" if scores <= MOST_SCORES else "FPMC"
    cells = dataset.num_users * dataset.num_items
    return "EASE" if dataset.num_items <= MOST_ITEMS and cells <= MOST_CELLS else "BPR"


def _format_config(
    answers: QuickstartAnswers, data: list[str], file: Path, dataset: Dataset | None = None
) -> str:
    """The config; dataset: what the data is, where it could be read."""
    model = _choose_model(answers, dataset)
    lines = [
        f"# What is trained, on what, and how. Change what you like, then: shoal train {file.name}",
        "# `shoal config keys` lists every key, `shoal models` every model.",
        "",
        "model:",
        f"  name: {model}  # {MODELS[model]}",
        "",
        *data,
    ]
    if model != "EASE":
        epochs, epochs_note = EPOCHS, ""
        if dataset is not None and dataset.num_inter * EPOCHS > TRAINED_ROWS:
            epochs = min(EPOCHS, max(FEWEST_EPOCHS, TRAINED_ROWS // dataset.num_inter))
            epochs_note = "; few, for a first list soon: more learn more" * (epochs < EPOCHS)
        lines += ["", "train:", f"  epochs: {epochs}  # passes over the data, at most{epochs_note}"]
        patience = "auto" if epochs == EPOCHS else max(2, epochs // PATIENT_PARTS)
        lines += [
            f"  patience: {patience}  # it ends after so many epochs that brought nothing better"
        ]
        lines += ["  batch_size: auto  # rows of one step; auto: by the size of the data"]
    metrics = "[AUC, LogLoss]" if answers.task == "clicks" else "[Recall, NDCG, Hit]"
    best = "AUC" if answers.task == "clicks" else "NDCG@10"
    lines += ["", "eval:", f"  metrics: {metrics}"]
    lines += [] if answers.task == "clicks" else ["  topk: [10]  # of lists of this length"]
    lines += [f"  valid_metric: {best}  # the best epoch is the one that is best in this"]
    if answers.place == "processes":
        count = min(4, max(2, os.cpu_count() or 1))
        lines += ["", "launch:", f"  nproc: {count}  # processes; the numbers are those of one"]
    if answers.place == "gpu":
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


def _format_script(config: Path, user: str | None) -> str:
    """The Python script that trains the config."""
    parts = [SCRIPT, EXPORT] if user is None else [SCRIPT, LISTS, EXPORT]
    return "".join(parts).format(config=config.name, stem=config.stem, user=user)
