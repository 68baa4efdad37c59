"""Reports: what runs left behind as one page that needs nothing else.

statistics.py       intervals and tests over users
quality.py          groups of users and items, what is recommended
figures.py          plots
run_page.py         the page of one run; examples.py: its lists, with titles
plan_section.py     what was planned, compared with what was measured
comparison_page.py  the page of several runs; comparison.py: whether and how far they differ
"""

from pathlib import Path


def report(*runs: str | Path, output: str | Path | None = None) -> Path:
    """Write the page of a run, or one that compares several; where it is.

    The first of several is what the others are compared with. Without `output` the page is
    report.html: of one run in its folder, of several in the present one.

    >>> import shoal  # after the example of shoal.run
    >>> shoal.report("runs/first").name
    'report.html'
    """
    from shoal.experiments.report.comparison_page import compare_page
    from shoal.experiments.report.run_page import run_page
    from shoal.files.durable import replace_durably, written
    from shoal.runs.run_record import read_runs

    records = read_runs(runs)
    if not records:
        raise ValueError("name the folder of at least one run; `shoal runs` lists them")
    if output is None:
        output = "report.html" if len(records) > 1 else records[0].folder / "report.html"
    file = Path(output)
    if file.is_dir():
        raise ValueError(f"{file} is a folder; name a file in it: --output {file / 'report.html'}")
    if not file.parent.is_dir():
        raise ValueError(f"there is no folder {file.parent} to write {file.name} into; make it")
    text = run_page(records[0]) if len(records) == 1 else compare_page(records)
    with written(file):  # never through a link, which another user may have put into a run
        replace_durably(file, text.encode("utf-8", errors="replace"))
    return file
