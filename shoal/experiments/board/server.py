"""Listening: the board until a signal comes."""

import logging
from pathlib import Path

from shoal.experiments.board.app import Board
from shoal.experiments.board.run_index import Root
from shoal.serving.http.listening import LOOPBACK, BoundedServer, check_reach, run_at

log = logging.getLogger("shoal")


def run_board(
    root: str,
    host: str,
    port: int,
    token: str | None,
    certificate: str | None,
    key: str | None,
    plain: bool,
    may_stop: bool,
    announce: str | Path | None,
) -> None:
    """Show the runs below a folder."""
    if host not in LOOPBACK and token is None:
        raise ValueError(
            f"--host {host} is reached by others: the board asks them for a token (--token-file, "
            "or SHOAL_TOKEN)"
        )
    local = check_reach(host, token, certificate, key, plain)
    board = Board(Root(root), token, local, may_stop)
    server = BoundedServer.around(board.app(), board, None, certificate, key)
    server.drain = 0.0  # a board stands behind no load balancer

    def listens(url: str) -> None:
        log.info("runs below %s: %s (Ctrl-C ends it)", root, url)

    run_at(server, host, port, listens, announce)
