"""Fetch public data sets: download (resumed where it broke), verify, unpack, commit by rename."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import shutil
import stat
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from shoal.config.errors import did_you_mean
from shoal.data.sources.files import SCHEMES, file_system, reaching
from shoal.data.sources.movielens import UNREADABLE
from shoal.data.sources.published import PUBLIC_SETS, Download, holds_set, shown_names

logger = logging.getLogger(__name__)
OFFICIAL = "https://files.grouplens.org/datasets/movielens"
MIRROR_VARIABLE = "SHOAL_MIRROR"
OVER_HTTP = ("http://", "https://", "file://")  # by urllib, which resumes; others by fsspec


class Archive(NamedTuple):
    """What is known of an official archive. holds: the file without which it is not complete."""

    md5: str
    holds: str


ARCHIVES = {
    "ml-100k": Archive("0e33842e24a9c977be4e0107933c0723", "u.data"),
    "ml-1m": Archive("c4d9eecfca2ab87c1945afe126590906", "ratings.dat"),
    "ml-20m": Archive("cd245b17a1ae2cc31bb14903e1204af3", "ratings.csv"),
}


class FetchError(ValueError):
    """A data set could not be fetched; nothing that looks complete was left behind."""


def fetch(name: str, folder: Path, *, mirror: str | None = None, progress: bool = True) -> Path:
    """Bring a data set to FOLDER/NAME and return that path; what is already there is kept.

    mirror (or the environment variable SHOAL_MIRROR): a folder of archives, or an address under
    which NAME.zip lies (file://, http://, https://, or an object store such as s3://). Public sets
    that are no single archive lie there as NAME/FILE.
    """
    mirror = mirror or os.environ.get(MIRROR_VARIABLE)
    if name in PUBLIC_SETS:
        return _fetch_public(name, folder, mirror, progress)
    if name not in ARCHIVES:
        raise FetchError(
            f"no data set {name!r} to fetch; known: {', '.join(ARCHIVES)}, {shown_names()}"
            f"{did_you_mean(name, [*ARCHIVES, *PUBLIC_SETS])}"
        )
    archive = ARCHIVES[name]
    target = folder / name
    if (target / archive.holds).is_file():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        packed = folder / f"{name}.zip"
        if packed.exists():
            if _md5(packed) != archive.md5:
                raise FetchError(
                    f"{packed} is not the official archive (its md5 is {_md5(packed)}, not "
                    f"{archive.md5}); move it away and fetch again"
                )
            _unpack(packed, name, target)
        else:
            file = Download(f"{OFFICIAL}/{name}.zip", md5=archive.md5, unpack=True)
            _download(name, file, packed, mirror, progress)
            _unpack(packed, name, target)
            packed.unlink()
    except OSError as error:
        raise FetchError(f"cannot write {name} to {folder}: {error}") from error
    return target


def _fetch_public(name: str, folder: Path, mirror: str | None, progress: bool) -> Path:
    """Bring the files of a public set to FOLDER/NAME; those that are there are kept."""
    chosen, target = PUBLIC_SETS[name], folder / name
    if holds_set(target, name):
        return target
    if not chosen.downloads:
        forms = [" and ".join(form.files.values()) for form in chosen.forms]
        raise FetchError(
            f"{name} cannot be downloaded without you: {chosen.by_hand}; put "
            f"{' or '.join(dict.fromkeys(forms))} into {target}"
        )
    try:
        target.mkdir(parents=True, exist_ok=True)
        for file in chosen.downloads:
            done = target / (Path(file.file).stem if file.unpack else file.file)
            if done.exists():
                continue
            _download(f"{name}/{file.file}", file, target / file.file, mirror, progress)
            if file.unpack:
                _unpack_beside(target / file.file, done)
    except OSError as error:
        raise FetchError(f"cannot write {name} to {folder}: {error}") from error
    return target


def _download(name: str, file: Download, packed: Path, mirror: str | None, progress: bool) -> None:
    """Put the verified file at `packed`; its .part is kept only when the transfer broke.

    name: what a mirror has it as, without the ending of an archive that is a whole data set.
    """
    in_mirror = name if "/" in name else f"{name}.zip"
    address = _address(in_mirror, file.address, mirror)
    part = packed.with_name(f"{packed.name}.part")
    try:
        if address.startswith(OVER_HTTP):
            _transfer(address, part, name, progress)
        else:
            _copy_from_store(address, part)
    except (OSError, http.client.HTTPException) as error:
        resume_hint = ""
        if part.exists() and part.stat().st_size:
            resume_hint = (
                f" The {part.stat().st_size} bytes received are kept: run it again to resume."
            )
        raise FetchError(
            f"cannot fetch {name} from {address}: {_reason(error)}.{resume_hint} Without internet, "
            f"set {MIRROR_VARIABLE} to a folder or address that holds {in_mirror}"
        ) from error
    if (wrong := _mismatch(part, file)) is not None:
        size = part.stat().st_size
        part.unlink()
        digest, expected = wrong
        raise FetchError(
            f"{address} is not the official {in_mirror}: its {digest} ({size} bytes), not "
            f"{expected}; it was removed. Try again, or set {MIRROR_VARIABLE} to a folder or "
            "address with the official archive"
        )
    if not file.md5 and not file.blob:
        logger.info("%s: %d bytes; no checksum is published for it", name, part.stat().st_size)
    part.replace(packed)


def _mismatch(path: Path, file: Download) -> tuple[str, str] | None:
    """The checksum that a file has and the one that it should have; None where they agree."""
    if file.md5:
        digest = _md5(path)
        return None if digest == file.md5 else (f"md5 is {digest}", file.md5)
    if file.blob:
        digest = _blob(path)
        return None if digest == file.blob else (f"SHA-1 as git counts it is {digest}", file.blob)
    return None


def _address(in_mirror: str, official: str, mirror: str | None) -> str:
    """Where a file is transferred from: its official address, or the mirror's."""
    if mirror is None:
        return official
    if "://" not in mirror:
        place = Path(mirror).expanduser()
        if not (place / in_mirror).is_file():
            have = sorted(p.name for p in place.glob("*.zip")) if place.is_dir() else []
            raise FetchError(
                f"the mirror folder {mirror} holds no {in_mirror}; it holds "
                f"{', '.join(have) or 'no archives'}. Correct {MIRROR_VARIABLE}, or unset it to "
                f"fetch from {official.rpartition('/')[0]}"
            )
        return (place.resolve() / in_mirror).as_uri()
    if mirror.partition("://")[0] not in SCHEMES:
        raise FetchError(
            f"{MIRROR_VARIABLE}: {mirror!r} is neither a folder nor an address; an address begins "
            f"with one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}"
        )
    return f"{mirror.rstrip('/')}/{in_mirror}"


def _transfer(address: str, part: Path, name: str, progress: bool) -> None:
    """Download to `part`, going on where an earlier transfer stopped."""
    from tqdm import tqdm

    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address)
    if have and not address.startswith("file:"):
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: nothing is left to send, or the part is longer than the file
            raise
        if error.headers.get("Content-Range") == f"bytes */{have}":
            return
        part.unlink()
        return _transfer(address, part, name, progress)
    with response:
        resumed = response.status == 206
        sent = response.headers.get("Content-Range", "")
        if resumed and not sent.startswith(f"bytes {have}-"):
            raise OSError(f"asked for the bytes from {have} on, the server sent {sent!r}")
        have = have if resumed else 0
        length = response.headers.get("Content-Length")
        total = None if length is None else have + int(length)
        shown = {"desc": name, "total": total, "initial": have, "unit": "B", "unit_scale": True}
        bar = tqdm(**shown, file=sys.stderr, disable=not progress)
        with part.open("ab" if resumed else "wb") as out, bar:
            while chunk := response.read(1 << 18):
                out.write(chunk)
                have += len(chunk)
                bar.update(len(chunk))
    if total is not None and have != total:
        raise OSError(f"the connection ended after {have} of {total} bytes")


def _copy_from_store(address: str, part: Path) -> None:
    """Copy an object to `part`; OSError says why it cannot be had."""
    part.unlink(missing_ok=True)  # of a transfer over http, which would be resumed
    try:
        with reaching(address, MIRROR_VARIABLE):
            system, path = file_system(address, MIRROR_VARIABLE)
            system.get_file(path, str(part))
    except ValueError as error:
        part.unlink(missing_ok=True)
        raise OSError(str(error)) from error


def _unpack_beside(packed: Path, target: Path) -> None:
    """Unpack all of an archive to `target`, all or nothing, and remove the archive."""
    with _unpacked(packed, target) as content:
        content.rename(target)
        target.chmod(0o755)  # the temporary folder was private
    packed.unlink()


def _unpack(packed: Path, name: str, target: Path) -> None:
    """Unpack NAME/... of the archive to `target`, all or nothing."""
    with _unpacked(packed, target) as temporary:
        content = temporary / name if (temporary / name).is_dir() else temporary
        if not (content / ARCHIVES[name].holds).is_file():
            raise FetchError(f"{packed} holds no {ARCHIVES[name].holds}; it is not {name}")
        if target.exists():  # something of the user's: add what is missing, replace nothing
            for entry in sorted(content.iterdir(), key=lambda e: e.name == ARCHIVES[name].holds):
                if not (target / entry.name).exists():
                    entry.rename(target / entry.name)
        else:
            content.rename(target)
            target.chmod(0o755)  # the temporary folder was private


@contextmanager
def _unpacked(packed: Path, target: Path) -> Iterator[Path]:
    """A temporary folder beside `target` with what an archive holds; what is left there is removed.

    An archive that cannot be read is one error.
    """
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    try:
        with zipfile.ZipFile(packed) as archive:
            for member in archive.infolist():
                _check_member(member, packed)
            _check_space(archive, packed, temporary)
            archive.extractall(temporary)
        yield temporary
    except UNREADABLE as error:
        problem = str(error) or type(error).__name__
        raise FetchError(f"{packed} is damaged: {problem}; remove it and fetch again") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_member(member: zipfile.ZipInfo, packed: Path) -> None:
    """Refuse names that lead out of the folder, and links."""
    path = PurePosixPath(member.filename.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
        raise FetchError(
            f"{packed}: the entry {member.filename!r} leads out of the folder; refused"
        )
    if stat.S_ISLNK(member.external_attr >> 16):
        raise FetchError(f"{packed}: the entry {member.filename!r} is a link; refused")


def _check_space(archive: zipfile.ZipFile, packed: Path, folder: Path) -> None:
    """Refuse an archive that would fill the disk; a member never unpacks to more than it says."""
    needed = sum(member.file_size for member in archive.infolist())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise FetchError(
            f"{packed} holds {needed / 1e9:.1f} GB unpacked, and the disk has {free / 1e9:.1f} GB "
            "free; remove it if it should be smaller, or make room"
        )


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _blob(path: Path) -> str:
    """The SHA-1 of a file as git counts it."""
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
