"""Keys: CURVE key pairs in files, so that only workers of this cluster reach its servers.

    KEYS/for-servers/    server.secret (mode 0600), server.public, worker.public: whom they let in
    KEYS/for-workers/    worker.secret (mode 0600), worker.public, server.public: whom they trust

One command makes all of them; a host gets the part of its role, so that who holds a worker's part
cannot pass for a server. Each file is one line: the key in Z85. A folder of keys may also be one of
the parts itself, or hold the files of both roles.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import zmq

from shoal.distributed.curve import CurveKeys
from shoal.files.folders import inner_folder

ROLES = ("server", "worker")


class KeysError(ValueError):
    """Keys are absent, damaged or open to others."""


def make_keys(folder: str | Path) -> Path:
    """Make the key pairs; refuses to replace any."""
    folder = Path(folder)
    parts = {role: folder / f"for-{role}s" for role in ROLES}
    files = [f"{role}.{part}" for role in ROLES for part in ("public", "secret")]
    existing = [place / name for place in (folder, *parts.values()) for name in files]
    existing = [path for path in existing if path.exists()]
    if existing:
        raise KeysError(
            f"{existing[0]} exists already; running jobs may need it. Name another folder, or "
            "remove it first"
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for place in parts.values():
        inner_folder(folder, place.name, mode=0o700)
    for role in ROLES:
        public, secret = zmq.curve_keypair()
        _write(parts[role] / f"{role}.secret", secret, 0o600)
        for place in parts.values():
            _write(place / f"{role}.public", public, 0o644)
    return folder


def _write(path: Path, key: bytes, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        os.fchmod(handle, mode)  # whatever the umask: only this user may write it
        file.write(key + b"\n")


def read_keys(folder: str | Path, role: str) -> CurveKeys:
    """The keys of a role: `server` or `worker`."""
    other = "worker" if role == "server" else "server"
    folder = Path(folder)
    part = folder / f"for-{role}s"
    if part.is_dir():
        _check_writers(folder, folder.stat())
        folder = part
    public, secret = folder / f"{role}.public", folder / f"{role}.secret"
    keys = CurveKeys(_read(public), _read(secret, private=True), _read(folder / f"{other}.public"))
    if zmq.curve_public(keys.secret) != keys.public:
        raise KeysError(
            f"{public} does not belong to {secret}; copy both from one folder of `shoal keys make`"
        )
    return keys


def _read(path: Path, private: bool = False) -> bytes:
    try:
        _check_writers(path.parent, path.parent.stat())
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if private and status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise KeysError(
                    f"{path} can be read by others; run `chmod 600 {path}`, and make new keys if "
                    "somebody may have seen it"
                )
            _check_writers(path, status)
            key = file.read(100).strip()
    except OSError as error:
        raise KeysError(
            f"cannot read the key {path}: {error.strerror}; make keys with `shoal keys make "
            "FOLDER`, copy for-servers and for-workers to the hosts of those, and name FOLDER"
        ) from error
    if len(key) != 40:
        raise KeysError(f"{path} holds no key: {len(key)} characters, there must be 40")
    return key


def _check_writers(path: Path, status: os.stat_result) -> None:
    """Refuse what others may change: with a public key of theirs they would come in."""
    # In a folder with the sticky bit no user can replace another user's files.
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky:
        raise KeysError(
            f"{path} can be changed by others; run `chmod go-w {path}`, and make new keys if "
            "somebody may have changed it"
        )
