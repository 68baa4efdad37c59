"""Write the pages of the reference that are made of code: `python docs/generate.py`.

reference/keys.md      every key of a config, as `shoal config keys` prints it
reference/commands.md  every command: its options, as `--help` has them, and an example
reference/api.md       every public name: its signature and its docstring, which has an example
reference/every_model.md  every model: its docstring and its options
from/every_key.md      every key of other tools that is understood, and what it becomes

The tests compare the pages with the code and run the examples.
"""

import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from typer.main import get_command

import shoal
from shoal.cli.main import app
from shoal.compat.dialects.paddlerec import PaddleRec
from shoal.compat.dialects.recbole import RecBole, rows_of
from shoal.compat.dialects.tdfo import Tdfo
from shoal.compat.dialects.torchrec import TorchRec
from shoal.config import key_page
from shoal.config.keys import MISSING, options_of
from shoal.models import MODELS
from shoal.models import find as find_model
from shoal.models.options import meanings

DOCS = Path(__file__).parent
OPTION = re.compile(r"(?<![\w-])(--[a-z](?:[\w.-]*\w)?(?:=[^\s'`,;)]+)?)")
# In this order they run in one folder, where ratings.csv, day_0.csv, day_1.csv, my_model.py and
# arena.yaml are.
EXAMPLES = {
    "quickstart": "shoal quickstart ratings.csv",
    "train": "shoal train ratings.csv --model=BPR --epochs=3 --output=runs/first",
    "eval": "shoal eval runs/first --eval.topk=[10,20]",
    "recommend": "shoal recommend runs/first --user 7 --topk 5 --explain",
    "report": "shoal report runs/first",
    "export": "shoal export runs/first --to model",
    "artifact add-items": "shoal artifact add-items shop new.npz --to shop-2",
    "predict": "shoal predict clicks --input day_1.csv --output clicks.parquet",
    "serve": "shoal serve model",
    "pipeline check": "shoal pipeline check pipeline.yaml",
    "pipeline recommend": "shoal pipeline recommend pipeline.yaml --user 7 --number 5",
    "pipeline eval": "shoal pipeline eval pipeline.yaml --test later.csv",
    "pipeline serve": "shoal pipeline serve pipeline.yaml",
    "pipeline export": "shoal pipeline export pipeline.yaml --output exported/pipeline",
    "pipeline estimate": "shoal pipeline estimate pipeline.yaml --log requests "
    "--outcomes outcomes.csv",
    "pipeline impressions": "shoal pipeline impressions requests --outcomes outcomes.csv "
    "--output shown.parquet",
    "board": "shoal board runs",
    "runs": "shoal runs",
    "tune": "shoal tune ratings.csv --model=BPR --epochs=2 --trials 3 --output studies/first",
    "sweep": "shoal sweep --models Pop,BPR --data ratings.csv --seeds 2 --epochs=1",
    "arena": "shoal arena arena.yaml",
    "backtest": "shoal backtest ratings.csv --model=BPR --epochs=1 --cuts 2 --output runs/past",
    "launch": "shoal launch --worker_num=2 --server_num=1 ratings.csv --model=BPR --epochs=1",
    "prepare": "shoal prepare ratings.csv --to prepared",
    "plan": "shoal plan ratings.csv --model=BPR --launch.nproc=4",
    "models": "shoal models SASRec",
    "doctor": "shoal doctor",
    "config show": "shoal config show ratings.csv --model=BPR --train.epochs=5",
    "config keys": "shoal config keys separator",
    "config schema": "shoal config schema",
    "new model": "shoal new model TwoTower",
    "import recbole": "shoal import recbole my_model.py",
    "data fetch": "shoal data fetch ml-100k",
    "data make": "shoal data make --data.clicks.synthetic.samples=1000 --to synthetic",
    "data describe": "shoal data describe ratings.csv --html page.html",
    "checkpoint verify": "shoal checkpoint verify runs/first",
    "checkpoint prune": "shoal checkpoint prune runs/first --keep 1",
    "checkpoint copy": "shoal checkpoint copy runs/first runs/copy",
    "codes make": "shoal codes make ratings.csv --to codes.json --size 16",
    "codes append": "shoal codes append texts-codes.json new.npz --to texts-codes.json",
    "codes check": "shoal codes check codes.json ratings.csv",
    "keys make": "shoal keys make keys",
}
# The page of names: those of `shoal` by what they are for; others of it follow by name.
NAMES = {
    "Train": ["run", "fit", "tune", "Feature"],
    "Look at a run": ["evaluate", "recommend", "report"],
    "Use a trained model": ["export", "load", "Pipeline"],
    "Your own loop": ["CollectiveStrategy", "Embedding"],
    "Processes": ["run_rank", "ray"],
    "An Estimator": ["EstimatorSpec", "TrainSpec", "EvalSpec", "ModeKeys", "RunConfig", "Hook"],
}
ELSEWHERE = {
    "Write your own": [
        "shoal.models.base.Model",
        "shoal.training.metrics.base.Metric",
        "shoal.training.trackers.tracker.Tracker",
    ]
}
# The methods that users call, of a name ("") or of what it returns.
METHODS = {
    "shoal.fit": (
        "shoal.runs.fit.Fitted",
        "recommend predict explain similar_items item_vectors user_vectors evaluate save",
    ),
    "shoal.load": (
        "shoal.serving.artifact.artifact.Artifact",
        "recommend predict explain score similar_items vectors",
    ),
    "shoal.Pipeline": ("", "recommend answer"),
    "shoal.ray": ("shoal.runs.ray_cluster", "train launch"),
    "shoal.CollectiveStrategy": (
        "",
        "scope embedding_scope optimizer split slice mean save restore synchronize "
        "export_saved_model estimator minimize module",
    ),
    "shoal.Hook": ("", "begin after_run end"),
    "shoal.models.base.Model": ("", "forward score gather_global negatives terms"),
    "shoal.training.trackers.tracker.Tracker": ("", "begin epoch end"),
}


def main() -> None:
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())


def command_page() -> str:
    """Every command with its options and an example."""
    lines = [
        "# Every command",
        "",
        "For those who type commands: what `shoal COMMAND --help` prints, and an example of each. "
        "Any [key of a config](keys.md) can stand in a command that takes a config, as "
        "`--section.key=value`.",
    ]
    for name, command in list_commands(get_command(app)):
        if name not in EXAMPLES:
            raise SystemExit(f"docs/generate.py: add an example of `shoal {name}` to EXAMPLES")
        what, _, more = (command.help or "").partition("\n\n")
        lines += ["", f"## shoal {name}", "", prose(what), ""]
        lines += [prose(part) + "\n" for part in more.split("\n\n") if part]
        lines += ["```bash", EXAMPLES[name], "```"]
        if rows := [option_row(option) for option in command.params if not option.hidden]:
            lines += ["", "| option | default | what it does |", "| --- | --- | --- |", *rows]
    return "\n".join(lines) + "\n"


def list_commands(group: Any, words: str = "", hidden: bool = False) -> Iterator[tuple[str, Any]]:
    """The commands of a group and of the groups in it, by name."""
    for name, command in group.commands.items():
        if command.hidden and not hidden:
            continue
        if hasattr(command, "commands"):
            yield from list_commands(command, f"{words}{name} ", hidden)
        else:
            yield words + name, command


def option_row(option: Any) -> str:
    """One row of the table of options."""
    names = [*option.opts, *option.secondary_opts]
    if not names[0].startswith("-"):
        names = [option.metavar or names[0].upper()]
    default = "" if option.default is None or option.default is False else f"`{option.default}`"
    shown = "required" if option.required else default
    cells = [", ".join(f"`{name}`" for name in names), shown, prose(option.help or "")]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def name_page() -> str:
    """Every public name: signature, docstring, example."""
    lines = [
        "# Every name of Python",
        "",
        "For those who write Python: each public name, what it takes, and an example. The examples "
        "run as they are, from the top to the bottom.",
    ]
    for title, names in list_names():
        lines += ["", f"## {title}"]
        for name in names:
            lines += ["", f"### {name}", *describe(name)]
    return "\n".join(lines) + "\n"


def list_names() -> Iterator[tuple[str, list[str]]]:
    """Headings, and the full names below each."""
    listed = {"__version__", *(name for names in NAMES.values() for name in names)}
    for title, names in NAMES.items():
        yield title, [f"shoal.{name}" for name in names]
    yield from ELSEWHERE.items()
    yield "More", [f"shoal.{name}" for name in shoal.__all__ if name not in listed]


def find(name: str) -> Any:
    """What a full name means."""
    if name in sys.modules:
        return sys.modules[name]
    owner, _, last = name.rpartition(".")
    return getattr(import_module(owner), last)


def describe(name: str) -> Iterator[str]:
    """The lines about one name."""
    value = find(name)
    if callable(value) and not is_protocol(value):
        yield from ["", "```python", signature(name, value), "```"]
    yield from docstring(inspect.getdoc(value) or "")
    if name not in METHODS:
        return
    place, methods = METHODS[name]
    yield from ["", "| | |", "| --- | --- |"]
    for method in methods.split():
        member = getattr(find(place or name), method)
        line = prose((inspect.getdoc(member) or "").partition("\n\n")[0]).replace("|", "\\|")
        yield f"| `{signature(method, member, brief=True)}` | {line} |"


def docstring(text: str) -> Iterator[str]:
    """A docstring as lines of Markdown: prose, examples, drawings."""
    for part in text.split("\n\n"):
        if part.startswith(">>> "):
            yield from ["", "```pycon", part, "```"]
        elif part.startswith("import "):
            yield from ["", "```python", part.replace("\n", "\n\n", 1), "```"]
        elif re.search(r"^ |\S {2,}\S", part, re.MULTILINE):
            yield from ["", "```text", textwrap.dedent(part), "```"]
        else:
            yield from ["", re.sub(r"docs/reference/(\w+)\.md", r"[\1](\1.md)", prose(part))]


def is_protocol(value: Any) -> bool:
    """True for a class that is only described, never called."""
    return getattr(value, "_is_protocol", False)


def signature(name: str, what: Callable[..., Any], brief: bool = False) -> str:
    """How it is called. brief: without types, for a table."""
    parts, star = [], False
    for parameter in inspect.signature(what).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind == parameter.KEYWORD_ONLY and not star:
            parts.append("*")
        star = star or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        parts.append(describe_parameter(parameter, brief))
    line = f"{name}({', '.join(parts)})"
    if brief or len(line) <= 88:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), ")"])


def describe_parameter(parameter: inspect.Parameter, brief: bool) -> str:
    """A parameter with its type, unless brief, and its default."""
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    text = stars.get(parameter.kind, "") + parameter.name
    is_typed = not brief and parameter.annotation is not parameter.empty
    if is_typed:
        text += f": {annotation(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return text
    default = "..." if "<" in repr(parameter.default) else repr(parameter.default)
    return f"{text} = {default}" if is_typed else f"{text}={default}"


def annotation(kind: Any) -> str:
    """A type as a person writes it."""
    text = kind if isinstance(kind, str) else inspect.formatannotation(kind)
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)


def prose(text: str) -> str:
    """A paragraph in one line; options in it are code."""
    line = " ".join(text.split())
    return line if "`" in line else OPTION.sub(r"`\1`", line)


def model_page() -> str:
    """Every model with its paper, what it does and its options."""
    lines = [
        "# Every model and its options",
        "",
        "For those who tune a model: what `shoal models NAME` prints. An option is written "
        "`model.OPTION`. [Models](models.md) helps to choose one.",
    ]
    for folder, title in FAMILIES.items():
        lines += ["", f"## {title}"]
        for name, module in MODELS.items():
            if module == f"shoal.models.{folder}.{name.lower()}":
                lines += ["", f"### {name}", *describe_model(name)]
    return "\n".join(lines) + "\n"


def describe_model(name: str) -> Iterator[str]:
    """The lines about one model."""
    model = find_model(name)
    text = (sys.modules[model.__module__].__doc__ or "").strip()
    text = text.removeprefix(f"{name}: ")
    yield from docstring(text[:1].upper() + text[1:])
    meaning = meanings(model.Options)
    rows = []
    for name_of_key, key in options_of(model.Options).items():
        option = name_of_key.removeprefix("model.")
        default = "must be given" if key.default is MISSING else f"`{plain(key.default)}`"
        rows.append(f"| `{option}` | {default} | {prose(meaning[option])} |")
    if rows:
        yield from ["", "| option | default | meaning |", "| --- | --- | --- |", *rows]
    if changed := getattr(model.Options, "DEFAULTS", {}):
        keys = ", ".join(f"`{key}: {plain(value)}`" for key, value in changed.items())
        yield from ["", f"Defaults of a run that it changes: {keys}."]


def plain(value: Any) -> str:
    """A value as a config has it."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def dialect_page() -> str:
    """The tables of the dialects."""
    lines = [
        "# Every key of other tools",
        "",
        "For those who bring a config: each key of another tool that Shoal knows, and what it "
        "becomes here. `shoal config show CONFIG` prints the same for your own file.",
    ]
    for dialect, page, head in DIALECTS:
        title = page.partition(".")[0]
        lines += ["", f"## {dialect.tool}", "", f"More about it: [{title}]({page}).", ""]
        lines += [dialect.table_text(head).strip()]
        if dialect is RecBole:
            lines += recbole_models()
    return "\n".join(lines) + "\n"


def recbole_models() -> list[str]:
    """The keys of RecBole's models that are no options by their own names."""
    lines = [
        "",
        "### Keys of RecBole's models",
        "",
        "A key of a model that is an option of the same name here is not listed "
        "([options of every model](../reference/every_model.md)).",
        "",
        "| model | RecBole key | here | how it is read |",
        "| --- | --- | --- | --- |",
    ]
    for name in MODELS:
        model = find_model(name)
        options = options_of(model.Options)
        rows = {row.key: row for row in rows_of(model)}
        for row in rows.values():
            if not row.targets and f"model.{row.key}" in options:
                continue  # the option of its name goes before it
            targets = ", ".join(f"`{target}`" for target in row.targets) or "–"
            lines.append(f"| {name} | `{row.key}` | {targets} | {row.rule} |")
    return lines


# Folders of shoal/models, in the order of the page.
FAMILIES = {
    "general": "Models of users and items",
    "knowledge": "With a knowledge graph",
    "sequential": "Models of sequences",
    "retrieval": "Retrieval",
    "clicks": "Models of clicks",
    "clicks.history": "Clicks, with a history",
    "clicks.labels": "Clicks, with several labels",
}
# Each with its page, and the heading of its first column.
DIALECTS: list[tuple[Any, str, str]] = [
    (RecBole, "recbole.md", "RecBole key"),
    (PaddleRec, "paddlerec.md", "PaddleRec key"),
    (TorchRec, "torchrec.md", "flag"),
    (Tdfo, "tdfo.md", "key"),
]
PAGES: dict[str, Callable[[], str]] = {
    "reference/keys.md": key_page,
    "reference/commands.md": command_page,
    "reference/api.md": name_page,
    "reference/every_model.md": model_page,
    "from/every_key.md": dialect_page,
}

if __name__ == "__main__":
    main()
