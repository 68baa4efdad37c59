"""The import rules of docs/understand/architecture.md, read off the source."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.models import MODELS

ROOT = Path(__file__).resolve().parents[1] / "shoal"
FILES = sorted(ROOT.rglob("*.py"))

# From the top down; a room imports from its own row and the rows below it.
FLOORS = [
    {"__main__"},
    {"cli"},
    {"compat"},
    {"experiments", "daily"},
    {"planning", "serving"},
    {"runs"},
    {"loop", "recommender", "launch"},
    {"training"},
    {"models", "ps"},
    {"embedding"},
    {"trees"},
    {"clicks"},
    {"data"},
    {"optimizers"},
    {"config"},
    {"distributed"},
    {"files", "kernels"},
    {"pages"},
]
LINES_OF_A_MODEL = 150
LARGEST_SHARE = 0.15  # of the package's lines that one room may have
MODEL_MAY_IMPORT = {
    "shoal.models.nn",
    "shoal.data.batch",
    "shoal.data.feature_table",
    "shoal.data.features",
    "shoal.data.joined",
    "shoal.data.knowledge",
    "shoal.embedding.module",
    "shoal.embedding.rows.table",
    "shoal.models",
    "shoal.trees",
}


@dataclass(frozen=True)
class Source:
    """What a file has: dotted names that it imports, functions that it calls by their names, texts,
    and the classes at its top.
    """

    imports: set[str]
    calls: set[str]
    texts: set[str]
    classes: list[str]


@functools.cache
def source(path: Path) -> Source:
    """What stands wherever in a file; each is parsed once."""
    tree = ast.parse(path.read_text())
    found = Source(set(), set(), set(), [x.name for x in tree.body if isinstance(x, ast.ClassDef)])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.imports.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.calls.add(node.func.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.texts.add(node.value)
    return found


def imports(path: Path) -> set[str]:
    return source(path).imports


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def floor(name: str) -> int:
    found = [number for number, rooms in enumerate(FLOORS) if name in rooms]
    page = "docs/understand/architecture.md"
    assert found, f"the room {name!r} stands on no floor: add it to FLOORS and {page}"
    return found[0]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down(path: Path) -> None:
    here = path.relative_to(ROOT).with_suffix("").parts[0]
    if here == "__init__":
        return
    for name in imports(path):
        if name.split(".")[0] == "shoal" and room(name) and not room(name).startswith("_"):
            target = room(name)
            if (
                name == f"shoal.{target}"
                and not (ROOT / target).exists()
                and not (ROOT / f"{target}.py").exists()
            ):
                continue  # a name of the package itself, such as shoal.STARTED
            assert floor(target) >= floor(here), (
                f"{path.name} imports {name}, which stands above it"
            )


def test_models_import_only_what_they_may() -> None:
    layers = ROOT / "models" / "nn"  # what models are made of
    for path in (ROOT / "models").rglob("*.py"):
        for name in imports(path) if layers not in path.parents else ():
            if name.startswith("shoal"):
                if path.name in ("__init__.py", "own.py") and name.startswith(
                    ("shoal.config.errors", "shoal.config.keys", "shoal.config.plugins")
                ):
                    continue  # no models, but how they are found
                allowed = any(name == one or name.startswith(one + ".") for one in MODEL_MAY_IMPORT)
                assert allowed, f"models/{path.name} imports {name}"


def test_a_model_file_is_read_at_once() -> None:
    """What several models share, or what is no part of one, stands in files beside them."""
    modules = {place.partition(":")[0] for place in MODELS.values()}
    assert "shoal.models.general.bpr" in modules
    lengths = {
        name: len((ROOT.parent / (name.replace(".", "/") + ".py")).read_text().splitlines())
        for name in modules
    }
    assert {name: lines for name, lines in lengths.items() if lines > LINES_OF_A_MODEL} == {}


def test_only_distributed_talks_to_peers() -> None:
    for path in FILES:
        for name in imports(path):
            if name.startswith("torch.distributed"):
                where = str(path.relative_to(ROOT))
                joins = where in [
                    f"distributed/{n}.py" for n in ("world", "rendezvous", "tunnel", "gloo")
                ]
                assert joins, f"{where} imports {name}; collectives belong to distributed/world.py"


def test_only_kernels_calls_the_core_and_triton() -> None:
    """By import, or by a name in a string that is looked up."""
    for path in FILES:
        where = path.relative_to(ROOT)
        if where.parts[0] == "kernels":
            continue
        for name in imports(path):
            assert name.split(".")[0] != "triton", f"{where} imports {name}"
            core = name.startswith(("shoal._core", "shoal.kernels.core.load_core"))
            assert not core, f"{where} imports {name}; call a function of shoal.kernels"
        assert not source(path).texts & {"triton", "_core", "shoal._core"}, where


def test_no_private_name_of_torch_is_used() -> None:
    """But for torch._foreach_*, which its documentation lists, and the type of an operator."""
    allowed = {"torch._ops.OpOverload"}
    for path in FILES:
        for name in re.findall(r"\btorch(?:\.\w+)*\._[a-zA-Z]\w*(?:\.\w+)*", path.read_text()):
            fine = name in allowed or name.startswith("torch._foreach_")
            assert fine, f"{path.relative_to(ROOT)} uses {name}"


def test_importing_changes_nothing_outside() -> None:
    """Neither the environment nor the collector: a program may import shoal for one function."""
    code = (
        "import gc, os; before = dict(os.environ); import shoal.runs.run, shoal.runs.fit; "
        "assert dict(os.environ) == before and gc.isenabled()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_only_distributed_reads_rank_variables() -> None:
    for path in FILES:
        if path.name not in ("world.py", "rank_variables.py"):
            text = path.read_text()
            for variable in ('"RANK"', '"WORLD_SIZE"', '"LOCAL_RANK"', '"MASTER_ADDR"'):
                assert variable not in text, f"{path.name} names {variable}"


def test_nothing_is_unpickled_or_evaluated() -> None:
    for path in FILES:
        assert not source(path).calls & {"eval", "exec"}, path
        names = imports(path)
        assert not any(name.split(".")[0] in ("pickle", "dill", "marshal") for name in names), path
        assert "torch.load(" not in path.read_text(), path


def test_the_top_has_rooms_alone() -> None:
    """No loose file but what a package must have, and each room on a floor."""
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set().union(*FLOORS) - {"__main__"}
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_no_room_is_a_drawer() -> None:
    """A room that has grown above its share does more than one job."""
    lines: dict[str, int] = {}
    for path in FILES:
        name = path.relative_to(ROOT).parts[0]
        lines[name] = lines.get(name, 0) + len(path.read_text().splitlines())
    most = LARGEST_SHARE * sum(lines.values())
    assert {name: count for name, count in lines.items() if count > most} == {}


def needs_of_files() -> dict[str, set[str]]:
    """Modules, and those that each imports, be it for types alone or within a function."""
    names = {}
    for path in FILES:
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        names[".".join(part for part in parts if part != "__init__")] = path
    needs = {}
    for name, path in names.items():
        found = {one if one in names else one.rpartition(".")[0] for one in imports(path)}
        needs[name] = found & names.keys() - {name, "shoal"}
    return needs


def circle_of(needs: dict[str, set[str]]) -> list[str]:
    """What is left when all that needs nothing else is taken away again and again."""
    needs = dict(needs)
    while free := [name for name, others in needs.items() if not others & needs.keys()]:
        for name in free:
            del needs[name]
    return sorted(needs)


def test_no_files_import_in_a_circle() -> None:
    assert not circle_of(needs_of_files())


def test_no_folders_import_in_a_circle() -> None:
    """A folder and one inside it are two."""

    def folder(name: str) -> str:
        is_folder = (ROOT.parent / name.replace(".", "/") / "__init__.py").is_file()
        return name if is_folder else name.rpartition(".")[0]

    needs: dict[str, set[str]] = {}
    for name, others in needs_of_files().items():
        needs.setdefault(folder(name), set()).update(folder(one) for one in others)
    assert not circle_of({name: others - {name} for name, others in needs.items()})


def test_a_class_name_means_one_thing() -> None:
    """But for the blocks that models are stacked of, each in the file of its model."""
    found: dict[str, list[str]] = {}
    for path in FILES:
        for name in source(path).classes:
            if not name.startswith("_"):
                found.setdefault(name, []).append(str(path.relative_to(ROOT)))
    twice = {name: where for name, where in found.items() if len(where) > 1 and name != "Block"}
    assert not twice


def test_there_is_no_utils() -> None:
    assert not [path for path in FILES if "util" in path.stem or "helper" in path.stem]


def test_one_search_for_the_nearest_spelling() -> None:
    """config.errors.did_you_mean: one measure of likeness, one wording."""
    searching = [path for path in FILES if "difflib" in path.read_text()]
    assert [str(path.relative_to(ROOT)) for path in searching] == ["config/errors.py"]
