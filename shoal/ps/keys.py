"""Keys: CURVE key pairs in files, so that only workers of this cluster reach its servers.

    KEYS/server.secret     mode 0600, on hosts that run servers
    KEYS/worker.secret     mode 0600, on hosts that run workers
    KEYS/server.public     what a worker must know of the servers
    KEYS/worker.public     whom the servers let in

One command makes all four; copy the folder to every host. Each file is one line: the key in Z85.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import zmq

ROLES = ("server", "worker")


class KeysError(ValueError):
    """Keys are absent, damaged or open to others."""


@dataclass(frozen=True)
class Keys:
    """What one role needs: its own pair and the public key of the other."""

    public: bytes
    secret: bytes
    peer: bytes


def make_keys(folder: str | Path) -> Path:
    """Make the key pairs; refuses to replace any."""
    folder = Path(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths = [folder / f"{role}.{part}" for role in ROLES for part in ("public", "secret")]
    there = [path for path in paths if path.exists()]
    if there:
        raise KeysError(
            f"{there[0]} exists already; running jobs may need it. Name another folder, or remove "
            "it first"
        )
    for role in ROLES:
        public, secret = zmq.curve_keypair()
        _write(folder / f"{role}.public", public, 0o644)
        _write(folder / f"{role}.secret", secret, 0o600)
    return folder


def _write(path: Path, key: bytes, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(key + b"\n")


def read_keys(folder: str | Path, role: str) -> Keys:
    """The keys of a role: `server` or `worker`."""
    other = "worker" if role == "server" else "server"
    folder = Path(folder)
    return Keys(
        _read(folder / f"{role}.public"),
        _read(folder / f"{role}.secret", private=True),
        _read(folder / f"{other}.public"),
    )


def _read(path: Path, private: bool = False) -> bytes:
    try:
        if private and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise KeysError(
                f"{path} can be read by others; run `chmod 600 {path}`, and make new keys if "
                "somebody may have seen it"
            )
        key = path.read_bytes().strip()
    except OSError as error:
        raise KeysError(
            f"cannot read the key {path}: {error.strerror}; make keys with `shoal keys make "
            f"{path.parent}` and copy the folder to every host"
        ) from error
    if len(key) != 40:
        raise KeysError(f"{path} holds no key: {len(key)} characters, there must be 40")
    return key
