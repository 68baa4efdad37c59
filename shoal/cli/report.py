"""`shoal report`: a page of one run, or one that compares several."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.startup import DATA_SPACE, importing


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="Folders of runs.")],
    output: Annotated[
        str | None,
        typer.Option(help="The page. Default: RUN/report.html; of several ./report.html"),
    ] = None,
) -> None:
    """Write a page about a run: curves, test with intervals, what is recommended to whom.

    Several runs are compared with the first of them.
    """
    with importing(needed=DATA_SPACE):
        from shoal.experiments.report import report as write_report

    page = write_report(*runs, output=output)
    typer.echo(f"{page}: open it in a browser ({Path(page).stat().st_size / 1024:.0f} KiB)")
