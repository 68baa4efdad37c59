"""The tutorials as Jupyter notebooks, executed: `python docs/learn/notebooks.py build/notebooks`.

The tutorials are the `.md` files of this folder: text, and cells of code. Each is executed by
itself in a new folder, as somebody new would, and written with its output as `NAME.ipynb`.
"""

import os
import sys
import tempfile
from pathlib import Path

import jupytext
import nbclient
from nbformat import NotebookNode, v4

HERE = Path(__file__).resolve().parent
TUTORIALS = sorted(page.stem for page in HERE.glob("*.md") if page.stem != "index")
# IPython goes on when a shell command (`!shoal …`) fails. Here that is an error, unless the
# tutorial shows how the command fails: the cell then has the tag `raises-exception`.
CHECKED = """
def _checked(command, shell=get_ipython(), run=get_ipython().system):
    run(command)
    status = shell.user_ns["_exit_code"]
    if bool(status) != (command in {fails}):
        raise RuntimeError(f"status {{status}}: {{command}}")
get_ipython().system = _checked
"""


def executed(name: str, folder: Path) -> NotebookNode:
    """The tutorial with its output; what it writes is in the folder."""
    notebook = jupytext.read(HERE / f"{name}.md")
    tagged = [c for c in notebook.cells if "raises-exception" in c.metadata.get("tags", [])]
    fails = [cell.source.removeprefix("!") for cell in tagged]
    notebook.cells.insert(0, v4.new_code_cell(CHECKED.format(fails=fails)))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # finds `shoal`
    client = nbclient.NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        force_raise_errors=True,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env={**os.environ, "PATH": path})
    del notebook.cells[0]
    return notebook


def main(target: Path, *names: str) -> None:
    """Write the notebooks of these tutorials (of all, if none is named)."""
    target.mkdir(parents=True, exist_ok=True)
    for name in names or TUTORIALS:
        with tempfile.TemporaryDirectory() as folder:
            jupytext.write(executed(name, Path(folder)), target / f"{name}.ipynb")
        print(target / f"{name}.ipynb")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
