"""What is installed, what docs and messages recommend to install, and what CI runs."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import shoal
from shoal.planning.machine_check import EXTRAS as MACHINE_EXTRAS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
LARGE = {"encode", "mlflow", "onnx", "ray", "torchrec", "torchx", "wandb"}
NAMES = ("constraints.txt", ".ci/build.txt", ".ci/tools.txt")
LOCKS = [(ROOT / name).read_text() for name in NAMES]
PINS = re.findall(r"^([\w.-]+)==(\S+)(.*)$", "\n".join(LOCKS).replace("\\\n", " "), re.MULTILINE)
TEXTS = [
    *(ROOT / "Makefile", ROOT / ".ci" / "run"),
    *(path for kind in ("*.md", "docs/**/*.md", "benchmarks/*.md") for path in ROOT.glob(kind)),
    *(
        path
        for kind in ("shoal/**/*.py", "examples/**/*", ".github/**/*")
        for path in ROOT.glob(kind)
    ),
]


def dry_run(*words: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "EXTRAS")}
    return subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True, env=env)


def test_every_pin_has_a_hash() -> None:
    assert len(PINS) > 20
    assert [name for name, _, hashes in PINS if "--hash=sha256:" not in hashes] == []
    assert "--require-hashes" in (ROOT / "Makefile").read_text()


def test_setup_fetches_from_the_index_of_pip_alone() -> None:
    """Any mirror will do: nothing names a place, and no build fetches what it needs by itself."""
    files = ("Makefile", "pyproject.toml", "CMakeLists.txt", ".ci/wheels.py", ".ci/manylinux.cmake")
    for file in files:
        text = (ROOT / file).read_text()
        assert not re.search(r"https?://|git\+|FetchContent|ExternalProject", text), file
    lines = [line for line in dry_run("-B", "tools").stdout.splitlines() if "pip install" in line]
    commands = [one for line in lines for one in re.split("&+", line) if "pip install" in one]
    assert len(commands) == 5
    for one in commands:
        assert re.search(r"--require-hashes|--no-build-isolation --no-deps| torch==", one), one


@pytest.mark.parametrize("extra", sorted({*EXTRAS, ""} - LARGE))
def test_make_installs_what_a_small_extra_needs(extra: str) -> None:
    """Otherwise its tests would skip in every run."""
    pins = {canonicalize_name(name): version for name, version, _ in PINS}
    needs = [Requirement(text) for text in EXTRAS.get(extra, PROJECT["project"]["dependencies"])]
    wrong = [
        str(need)
        for need in needs
        if need.name != "torch"
        and (need.marker is None or need.marker.evaluate())
        and not need.specifier.contains(pins.get(canonicalize_name(need.name), "0"))
    ]
    assert wrong == []


def test_extras_keep_the_clone_installed_in_place() -> None:
    for words in (
        ("extras",),
        ("test-all",),
        ("extras", "EXTRAS=serve"),
        ("extras", "EXTRAS=ray onnx"),
    ):
        lines = dry_run(*words).stdout.splitlines()
        assert any('-e ".[' in line for line in lines), words
        assert [line for line in lines if replaces_the_clone(line)] == []
    assert "torchrec~=1." in dry_run("extras").stdout
    wrong = dry_run("extras", "EXTRAS=sreve")
    assert wrong.returncode != 0
    assert set(wrong.stderr.partition("there are ")[2].rstrip(". \nStop").split()) == {
        *(set(EXTRAS) - {"dev"})
    }


def replaces_the_clone(text: str) -> bool:
    """True where pip would put a copy of Shoal beside the clone, which then has no core."""
    joined = re.sub(r'"\s*\n\s*f?"|\s+', " ", text)
    commands = re.findall(r"pip3? install((?: [^\s`;&|]+)*)", joined)
    return any(
        re.search(r" ['\"]?\.(/?['\"]?( |$)|\[)", words) and " -e" not in words
        for words in commands
    )


def test_no_text_recommends_to_replace_the_clone() -> None:
    texts = [path for path in TEXTS if path.is_file()]
    assert len(texts) > 100
    assert [path for path in texts if replaces_the_clone(path.read_text(errors="ignore"))] == []
    for text in ("pip install '.[serve]'", 'pip\n  install ".[ray]" here', "pip install -q . && x"):
        assert replaces_the_clone(text), text
    assert not replaces_the_clone("pip install --no-deps -e '.[serve]'")
    assert not replaces_the_clone("pip install torch==2.13.0")


def test_no_text_names_a_package_of_ours_that_an_index_might_have() -> None:
    """Whoever claims the name there would be installed. how_to_install is for those who have it."""
    texts = [path for path in TEXTS if path.is_file()]
    found = [
        path
        for path in texts
        if re.search(r"pip install\S*\s+\S*shoal", path.read_text(errors="ignore"))
    ]
    assert found == [ROOT / "shoal" / "__init__.py"]


def test_messages_leave_to_one_function_how_extras_are_installed() -> None:
    """It depends on where Shoal is: in a clone, or installed."""
    files = [path for path in ROOT.glob("shoal/**/*.py") if path.parent != ROOT / "shoal"]
    named = re.compile(r"make extras|pip install (?!triton)")
    assert [path for path in files if named.search(path.read_text())] == []
    for extra in MACHINE_EXTRAS:
        assert extra in EXTRAS
        assert shoal.how_to_install(extra) == f"make extras EXTRAS={extra} (in the clone)"


def test_docs_bring_no_secret_to_hosts_that_do_not_need_it() -> None:
    """A copy names the part of one role, never the folder that holds both secrets."""
    lines = [line for path in ROOT.glob("docs/**/*.md") for line in path.read_text().splitlines()]
    copies = [line for line in lines if re.search(r"\b(scp|rsync|cp)\s.*(keys|\.secret)", line)]
    assert [line for line in copies if not re.search(r"keys/for-(workers|servers)\b", line)] == []
    assert any("scp -rp keys/for-workers" in line for line in copies)


def test_ci_runs_lint_types_and_tests() -> None:
    runs = [(ROOT / ".ci" / "run").read_text().splitlines()]
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        jobs = yaml.safe_load(path.read_text())["jobs"].values()
        runs.append([step.get("run", "") for job in jobs for step in job["steps"]])
    for lines in runs:
        made = [line.split()[1] for line in lines if line.startswith("make ")]
        assert made and all(dry_run(target).returncode == 0 for target in made)
    made = [line.split()[1] for line in runs[0] if line.startswith("make ")]
    assert made == ["browser", "check", "test"]
    check = dry_run("check").stdout
    assert all(tool in check for tool in ("ruff check", "ruff format --check", "mypy"))


def test_the_version_is_in_one_place() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None and newest[1] == shoal.__version__.partition(".dev")[0]
