"""The site: `make docs` writes it to build/docs. Its pages read well as Markdown in a clone, too.

The tutorials in learn/ are notebooks (MyST): SHOAL_DOCS_RUN=1 runs them, as `make docs` does, and a
page that did not change is not run again. `make docs TUTORIALS=off` shows them without output.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from ipython_pygments_lexers import IPython3Lexer
from sphinx.application import Sphinx

HERE = Path(__file__).parent
# Pages that stand elsewhere in the clone, by the name they have in the site.
ELSEWHERE = {
    "from/commands": "examples/pages/README.md",
    "understand/security": "SECURITY.md",
    "understand/contributing": "CONTRIBUTING.md",
    "benchmarks/results": "benchmarks/RESULTS.md",
    "benchmarks/method": "benchmarks/README.md",
    "understand/changelog": "CHANGELOG.md",
}
# The side bar: a folder under each caption, in this order; pages not named here follow.
SIDE_BAR = {
    "Start": ("start", "install five_minutes"),
    "Learn": (
        "learn",
        "index own_data features clicks sequences own_model own_loop many_processes servers gpu "
        "tiers serving pipeline daily",
    ),
    "Come from": (
        "from",
        "recbole paddlerec torchrec deeprec implicit lightfm tdfo commands every_key",
    ),
    "Reference": (
        "reference",
        "config keys commands api models every_model bert4rec codes data public_sets frames "
        "features vectors clicks prepare metrics report board tune arena own_models collective "
        "rows servers elastic clusters gpu export serving pipeline explain daily errors",
    ),
    "Understand": (
        "understand",
        "laws distributed strategies failure table_plan rows tiers security zoo why_numbers_differ "
        "architecture csv_to_batch step_alone step_sharded step_with_servers request contributing "
        "changelog",
    ),
    "Benchmarks": ("benchmarks", "index results method"),
}

project = "Shoal"
author = "the authors of Shoal"
extensions = ["myst_nb", "sphinx_copybutton"]
exclude_patterns = ["_static"]
smartquotes = False  # options are written --so

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
nb_execution_mode = "cache" if os.environ.get("SHOAL_DOCS_RUN") else "off"
nb_execution_cache_path = str(HERE.parent / "build" / "docs-cache")
nb_execution_timeout = 600
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # by default scripts of another host

html_theme = "furo"
html_title = "Shoal"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
html_show_search_summary = False  # read from files, a page cannot read the others for an excerpt
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1769aa", "color-brand-content": "#1769aa"},
    "dark_css_variables": {"color-brand-primary": "#6db3f2", "color-brand-content": "#6db3f2"},
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def add_pages_from_elsewhere(
    app: Sphinx, env: Any, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Sphinx finds pages below docs/ alone; these join them, so that links to them work."""
    for name, path in ELSEWHERE.items():
        app.project.docnames.add(name)
        app.project._docname_to_path[name] = Path("..") / path
        app.project._path_to_docname[HERE.parent / path] = name
    added.update(ELSEWHERE)
    return []


def add_side_bar(app: Sphinx, name: str, source: list[str]) -> None:
    """The side bar is part of the site, not of the front page as a clone shows it."""
    if name != app.config.root_doc:
        return
    for caption, (folder, words) in SIDE_BAR.items():
        there = {page for page in app.project.docnames if page.startswith(f"{folder}/")}
        first = [page for word in words.split() if (page := f"{folder}/{word}") in there]
        entries = [*first, *sorted(there - {*first})]
        lines = ["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *entries, "```", ""]
        source[0] += "\n".join(lines)


class TutorialTimes:
    """Prints which tutorial runs, and how long it took: together they take minutes."""

    def __init__(self) -> None:
        self.started: dict[str, float] = {}

    def begin(self, app: Sphinx, name: str, source: list[str]) -> None:
        if name.startswith("learn/") and name != "learn/index":
            self.started[name] = time.perf_counter()
            print(f"{name}: running", file=sys.stderr, flush=True)

    def end(self, app: Sphinx, doctree: Any) -> None:
        if (started := self.started.pop(app.env.docname, None)) is not None:
            seconds = time.perf_counter() - started
            print(f"{app.env.docname}: {seconds:.1f} s", file=sys.stderr, flush=True)


def setup(app: Sphinx) -> None:
    if nb_execution_mode != "off":
        times = TutorialTimes()
        app.connect("source-read", times.begin)
        app.connect("doctree-read", times.end)
    app.add_lexer("python", IPython3Lexer)  # cells of tutorials run commands: !shoal train …
    app.connect("env-get-outdated", add_pages_from_elsewhere)
    app.connect("source-read", add_side_bar)
