"""The site of `make docs`: built without a warning, used in a real browser, offline."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from browser import Browser, needs_browser

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, its tutorials not run; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    words = ["-q", "-W", "--keep-going", "-d", str(folder / "doctrees"), "docs"]
    env = {name: value for name, value in os.environ.items() if name != "SHOAL_DOCS_RUN"}
    command = [sys.executable, "-m", "sphinx", *words, str(folder / "html")]
    built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder / "html"


def test_every_page_is_in_the_site(site: Path) -> None:
    front = (site / "index.html").read_text()
    for page in (ROOT / "docs").glob("**/*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html")
        assert (site / name).is_file()
        assert name.name == "index.html" or f'href="{name}"' in front, name  # the side bar


@pytest.mark.slow
@needs_browser
def test_the_site_in_a_browser(site: Path) -> None:
    """Read from files, without a server: nothing leaves the machine, and the search finds pages."""
    pages = sorted(page for page in site.glob("**/*.html") if "_static" not in page.parts)
    with Browser() as browser:
        browser.open((site / "search.html").as_uri() + "?q=checkpoint")
        browser.wait_for("document.querySelector('ul.search a[href*=distributed]') !== null")
        light = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        browser.dark()
        assert browser.evaluate("getComputedStyle(document.body).backgroundColor") != light
        browser.resize(390, 844)
        for page in pages:
            browser.open(page.as_uri())
            wide = browser.evaluate("document.documentElement.scrollWidth")
            assert wide <= 390, f"{page.relative_to(site)} is {wide} wide on a phone"
        assert browser.left_the_machine == []
        assert browser.errors == []


@pytest.mark.slow
def test_a_build_prints_which_tutorial_runs_and_how_long_it_took(tmp_path: Path) -> None:
    """A site of one tutorial, with the configuration of the docs."""
    source = tmp_path / "docs"
    (source / "learn").mkdir(parents=True)
    own = "ELSEWHERE.clear()\nSIDE_BAR.clear()\nhtml_css_files = html_static_path = []\n"
    (source / "conf.py").write_text((ROOT / "docs" / "conf.py").read_text() + own)
    (source / "index.md").write_text("# Site\n\n```{toctree}\nlearn/short\n```\n")
    head = "---\nfile_format: mystnb\nkernelspec:\n  name: python3\n---\n"
    (source / "learn" / "short.md").write_text(f"{head}# Short\n\n```{{code-cell}}\n1 + 1\n```\n")
    for runs, printed in (("1", True), ("", False)):
        built = subprocess.run(
            [sys.executable, "-m", "sphinx", "-q", str(source), str(tmp_path / f"html{runs}")],
            env={**os.environ, "SHOAL_DOCS_RUN": runs},
            capture_output=True,
            text=True,
        )
        said = re.search(r"learn/short: running\n(.*\n)*learn/short: \d+\.\d s\n", built.stderr)
        assert (said is not None) == printed, built.stderr


def test_a_site_is_built_without_running_tutorials() -> None:
    """`make docs TUTORIALS=off`; another word is an error."""

    def commands(word: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["make", "-n", "docs", f"TUTORIALS={word}"], cwd=ROOT, capture_output=True, text=True
        )

    assert re.search(r"SHOAL_DOCS_RUN=1 .*sphinx", commands("on").stdout)
    assert re.search(r"SHOAL_DOCS_RUN= .*sphinx", commands("off").stdout)
    assert "TUTORIALS=maybe: on or off" in commands("maybe").stderr
