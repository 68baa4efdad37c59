"""`shoal board`: a page over all runs below a folder, live while they train."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from shoal import how_to_install
from shoal.cli.arguments import ANNOUNCE, HOST, PORT, TLS_CERT, TLS_KEY, TOKEN_FILE
from shoal.cli.startup import importing


def board(
    root: Annotated[str, typer.Argument(help="Folder that holds runs, at any depth.")] = "runs",
    host: Annotated[str, HOST] = "127.0.0.1",
    port: Annotated[int, PORT] = 8080,
    allow_stop: Annotated[
        bool, typer.Option("--allow-stop", help="Let the page stop runs, which then save.")
    ] = False,
    token_file: Annotated[str | None, TOKEN_FILE] = None,
    tls_cert: Annotated[str | None, TLS_CERT] = None,
    tls_key: Annotated[str | None, TLS_KEY] = None,
    plain: Annotated[bool, typer.Option(help="Listen beyond this host without TLS.")] = False,
    announce: Annotated[str | None, ANNOUNCE] = None,
) -> None:
    """Show all runs below a folder in a browser: live, filtered, sorted, compared."""
    try:
        with importing():
            from shoal.experiments.board.server import run_board
            from shoal.serving.http.listening import read_token
    except ImportError as error:
        raise ValueError(f"{error}: {how_to_install('serve')}") from error
    from shoal.training.run_folder import start_logging

    start_logging("info")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # until it listens; then it stops in order
    run_board(
        root=root,
        host=host,
        port=port,
        token=read_token(token_file),
        certificate=tls_cert,
        key=tls_key,
        plain=plain,
        may_stop=allow_stop,
        announce=announce,
    )
