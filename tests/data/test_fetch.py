"""Fetching: resumed, verified, unpacked all or nothing. Against a real HTTP server on this host."""

import hashlib
import http.server
import io
import os
import shutil
import socket
import stat
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.config.schema import DataSection
from shoal.data.loading.load import load_dataset
from shoal.data.sources.fetch import ARCHIVES, Archive, FetchError, fetch
from shoal.data.sources.published import PUBLIC_SETS, Download
from shoal.runs.run import resolve

RATINGS = "".join(f"{n % 50}\t{n % 97}\t{n % 5 + 1}\t{n}\n" for n in range(40_000))


def make_zip(members, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


GOOD = make_zip({"ml-100k/": "", "ml-100k/README": "read me", "ml-100k/u.data": RATINGS})
GOOD += b"\0" * (-len(GOOD) % 4)  # so that its quarters are whole


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """The archive GOOD is the official one, and no mirror is set from outside."""
    monkeypatch.setitem(ARCHIVES, "ml-100k", Archive(hashlib.md5(GOOD).hexdigest(), "u.data"))
    monkeypatch.delenv("SHOAL_MIRROR", raising=False)


class Server:
    """Serves one archive; `breaks` transfers end after `limit` bytes; `ranges` can be refused."""

    def __init__(self, content):
        self.content = content
        self.breaks, self.limit = 0, len(content) // 2
        self.ranges = True
        self.requests = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/base"

    def answer(self, request):
        wanted = request.headers.get("Range")
        self.requests.append((request.path, wanted))
        if request.path != "/base/ml-100k.zip":
            request.send_error(404)
            return
        begin = 0
        if wanted and self.ranges:
            begin = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if begin >= len(self.content):
                request.send_response(416)
                request.send_header("Content-Range", f"bytes */{len(self.content)}")
                request.end_headers()
                return
            request.send_response(206)
            last = len(self.content) - 1
            request.send_header("Content-Range", f"bytes {begin}-{last}/{len(self.content)}")
        else:
            request.send_response(200)
        body = self.content[begin:]
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if self.breaks:
            self.breaks -= 1
            body = body[: self.limit]
        request.wfile.write(body)

    def close(self):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server():
    server = Server(GOOD)
    yield server
    server.close()


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_download_verify_unpack_use(tmp_path, server):
    found = fetch("ml-100k", tmp_path / "data", mirror=server.url, progress=False)
    assert found == tmp_path / "data" / "ml-100k"
    assert names(tmp_path / "data") == ["ml-100k"]
    assert names(found) == ["README", "u.data"]
    assert (found / "u.data").read_text() == RATINGS
    data = load_dataset(DataSection(name="ml-100k", path=str(tmp_path / "data")), 1)
    assert data.num_inter == 40_000
    # what is there is kept, and nothing is asked for again
    assert fetch("ml-100k", tmp_path / "data", mirror=server.url, progress=False) == found
    assert len(server.requests) == 1


@pytest.mark.parametrize("as_address", [False, True], ids=["folder", "file://"])
def test_mirror_on_disk_from_the_environment(tmp_path, monkeypatch, as_address):
    mirror = tmp_path / "my archives"
    mirror.mkdir()
    (mirror / "ml-100k.zip").write_bytes(GOOD)
    monkeypatch.setenv("SHOAL_MIRROR", mirror.as_uri() if as_address else str(mirror))
    found = fetch("ml-100k", tmp_path / "data", progress=False)
    assert (found / "u.data").exists()
    assert names(mirror) == ["ml-100k.zip"]


def test_archive_that_is_already_there_is_used_and_kept(tmp_path):
    (tmp_path / "ml-100k.zip").write_bytes(GOOD)
    fetch("ml-100k", tmp_path, mirror="http://127.0.0.1:9/nobody", progress=False)
    assert names(tmp_path) == ["ml-100k", "ml-100k.zip"]


def test_archive_of_another_content_is_not_touched(tmp_path):
    (tmp_path / "ml-100k.zip").write_bytes(b"the user's own")
    with pytest.raises(FetchError, match=r"is not the official archive.*move it away"):
        fetch("ml-100k", tmp_path, progress=False)
    assert (tmp_path / "ml-100k.zip").read_bytes() == b"the user's own"
    assert names(tmp_path) == ["ml-100k.zip"]


def test_broken_transfer_is_resumed(tmp_path, server):
    server.breaks = 2
    for limit, kept in ((len(GOOD) // 2, len(GOOD) // 2), (len(GOOD) // 4, 3 * len(GOOD) // 4)):
        server.limit = limit
        with pytest.raises(FetchError, match=rf"{kept} bytes received are kept.*SHOAL_MIRROR"):
            fetch("ml-100k", tmp_path, mirror=server.url, progress=False)
        assert names(tmp_path) == ["ml-100k.zip.part"]
        assert (tmp_path / "ml-100k.zip.part").read_bytes() == GOOD[:kept]
    fetch("ml-100k", tmp_path, mirror=server.url, progress=False)
    assert [wanted for _, wanted in server.requests] == [
        None,
        f"bytes={len(GOOD) // 2}-",
        f"bytes={3 * len(GOOD) // 4}-",
    ]
    assert names(tmp_path) == ["ml-100k"]
    assert (tmp_path / "ml-100k" / "u.data").read_text() == RATINGS


def test_server_without_ranges_starts_over(tmp_path, server):
    server.ranges = False
    (tmp_path / "ml-100k.zip.part").write_bytes(GOOD[:1000])
    fetch("ml-100k", tmp_path, mirror=server.url, progress=False)
    assert (tmp_path / "ml-100k" / "u.data").read_text() == RATINGS


@pytest.mark.parametrize("surplus", [b"", b"too long"])
def test_part_that_is_complete_or_too_long(tmp_path, server, surplus):
    (tmp_path / "ml-100k.zip.part").write_bytes(GOOD + surplus)
    fetch("ml-100k", tmp_path, mirror=server.url, progress=False)
    assert names(tmp_path) == ["ml-100k"]
    assert len(server.requests) == (2 if surplus else 1)


@pytest.mark.parametrize("part", [b"", b"junk from elsewhere"])
def test_tampered_download_leaves_nothing(tmp_path, server, part):
    if part:
        (tmp_path / "ml-100k.zip.part").write_bytes(part)
    else:
        server.content = GOOD.replace(b"read me", b"read ME")
    with pytest.raises(FetchError, match=r"is not the official ml-100k\.zip: its md5 is .*removed"):
        fetch("ml-100k", tmp_path, mirror=server.url, progress=False)
    assert names(tmp_path) == []


def test_missing_archive_and_dead_server(tmp_path, server):
    with pytest.raises(FetchError, match=r"HTTP 404 Not Found.*set SHOAL_MIRROR to a folder"):
        fetch("ml-100k", tmp_path, mirror=server.url + "/elsewhere", progress=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(FetchError, match=r"cannot fetch ml-100k from .*refused.*SHOAL_MIRROR"):
            fetch("ml-100k", tmp_path, mirror=address, progress=False)
    assert names(tmp_path) == []


def test_bad_names_and_mirrors(tmp_path):
    with pytest.raises(FetchError, match=r"no data set .ml100k. .*ml-20m.*mean ml-100k\?"):
        fetch("ml100k", tmp_path, progress=False)
    with pytest.raises(FetchError, match=r"mirror folder .*nowhere holds no ml-100k\.zip"):
        fetch("ml-100k", tmp_path, mirror=str(tmp_path / "nowhere"), progress=False)
    with pytest.raises(FetchError, match="neither a folder nor an address"):
        fetch("ml-100k", tmp_path, mirror="gopher://host/x", progress=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchError, match=r"cannot write ml-100k to .*file"):
        fetch("ml-100k", tmp_path / "file", progress=False)


def link_entry():
    entry = zipfile.ZipInfo("ml-100k/link")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../evil", "leads out of the folder"),
        ("ml-100k/../../evil", "leads out of the folder"),
        ("/tmp/evil", "leads out of the folder"),
        ("..\\evil", "leads out of the folder"),
        ("C:\\evil", "leads out of the folder"),
        (link_entry(), "is a link; refused"),
        ("ml-100k/other", r"holds no u\.data; it is not ml-100k"),
    ],
)
def test_dangerous_archives_are_refused(tmp_path, monkeypatch, name, message):
    members = {} if "other" in str(name) else {"ml-100k/u.data": RATINGS}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for member, text in members.items():
            archive.writestr(member, text)
        archive.writestr(name, "/etc/passwd")
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "ml-100k.zip").write_bytes(buffer.getvalue())
    digest = hashlib.md5(buffer.getvalue()).hexdigest()
    monkeypatch.setitem(ARCHIVES, "ml-100k", Archive(digest, "u.data"))
    with pytest.raises(FetchError, match=message):
        fetch("ml-100k", tmp_path / "data", mirror=str(mirror), progress=False)
    assert not (tmp_path / "data" / "ml-100k").exists()
    assert not list(tmp_path.rglob("evil"))
    assert not list((tmp_path / "data").glob(".*"))


def test_an_archive_larger_than_the_disk_is_refused(tmp_path, server, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=10))
    with pytest.raises(FetchError, match=r"unpacked, and the disk has 0\.0 GB free"):
        fetch("ml-100k", tmp_path, mirror=server.url, progress=False)
    assert not (tmp_path / "ml-100k").exists()


def test_files_of_the_user_in_the_folder_stay(tmp_path, server):
    (tmp_path / "ml-100k").mkdir()
    (tmp_path / "ml-100k" / "README").write_text("mine")
    (tmp_path / "ml-100k" / "ml-100k.inter").write_text("mine too")
    fetch("ml-100k", tmp_path, mirror=server.url, progress=False)
    assert (tmp_path / "ml-100k" / "README").read_text() == "mine"
    assert names(tmp_path / "ml-100k") == ["README", "ml-100k.inter", "u.data"]


def test_real_ml_1m_archive_is_recognised(tmp_path):
    folder = os.environ.get("SHOAL_TEST_DATA")
    if not folder or not (Path(folder) / "ml-1m.zip").exists():
        pytest.skip("SHOAL_TEST_DATA names no folder with ml-1m.zip")
    found = fetch("ml-1m", tmp_path, mirror=folder, progress=False)
    assert (found / "ratings.dat").stat().st_size == 24_594_131


# ---- public sets ---------------------------------------------------------------------------------


def git_blob(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


LINES = {"train.txt": b"0 1 2 3\n1 2 3 4\n", "test.txt": b"0 4\n1 5\n"}


@pytest.fixture
def lists(monkeypatch, tmp_path):
    """A mirror that has gowalla's files, whose checksums are those that are known."""
    downloads = tuple(
        Download(f"https://example.invalid/{file}", blob=git_blob(content))
        for file, content in LINES.items()
    )
    monkeypatch.setitem(
        PUBLIC_SETS, "gowalla", replace(PUBLIC_SETS["gowalla"], downloads=downloads)
    )
    mirror = tmp_path / "mirror"
    (mirror / "gowalla").mkdir(parents=True)
    for file, content in LINES.items():
        (mirror / "gowalla" / file).write_bytes(content)
    return mirror


def test_files_of_a_public_set(tmp_path, lists, monkeypatch):
    monkeypatch.setenv("SHOAL_MIRROR", str(lists))
    found = fetch("gowalla", tmp_path / "data", progress=False)
    assert names(found) == ["test.txt", "train.txt"]
    config = resolve((), ["--data.name=gowalla", f"--data.path={tmp_path / 'data'}"]).config
    data = load_dataset(config.data, 1)
    assert len(data.splits["test"]) == 2
    (lists / "gowalla" / "train.txt").unlink()  # what is there is kept
    assert fetch("gowalla", tmp_path / "data", progress=False) == found
    (found / "train.txt").unlink()
    with pytest.raises(FetchError, match=r"holds no gowalla/train\.txt"):
        fetch("gowalla", tmp_path / "data", progress=False)


def test_a_file_with_another_checksum_is_removed(tmp_path, lists):
    (lists / "gowalla" / "test.txt").write_bytes(b"0 5\n")
    with pytest.raises(FetchError, match=r"not the official gowalla/test\.txt: its SHA-1 as git"):
        fetch("gowalla", tmp_path / "data", mirror=str(lists), progress=False)
    assert names(tmp_path / "data" / "gowalla") == ["train.txt"]


def test_an_archive_of_a_public_set_is_unpacked(tmp_path, caplog):
    mirror = tmp_path / "mirror" / "lastfm"
    mirror.mkdir(parents=True)
    rows = "userID\tartistID\tweight\n" + "".join(f"{n % 5}\t{n}\t{n}\n" for n in range(20))
    (mirror / "hetrec2011-lastfm-2k.zip").write_bytes(
        make_zip({"user_artists.dat": rows, "readme.txt": "read me"})
    )
    with caplog.at_level("INFO"):
        found = fetch("lastfm", tmp_path / "data", mirror=str(mirror.parent), progress=False)
    assert "no checksum is published for it" in caplog.text
    assert names(found) == ["hetrec2011-lastfm-2k"]
    config = resolve((), ["--data.name=lastfm", f"--data.path={tmp_path / 'data'}"]).config
    assert load_dataset(config.data, 1).num_inter == 20
    (mirror / "hetrec2011-lastfm-2k.zip").write_bytes(make_zip({"../user_artists.dat": rows}))
    with pytest.raises(FetchError, match="leads out of the folder"):
        fetch("lastfm", tmp_path / "other", mirror=str(mirror.parent), progress=False)
    assert names(tmp_path / "other" / "lastfm") == ["hetrec2011-lastfm-2k.zip"]


def test_a_set_that_a_person_must_get(tmp_path):
    with pytest.raises(FetchError, match=r"taobao cannot be .*Tianchi.*put UserBehavior\.csv into"):
        fetch("taobao", tmp_path, progress=False)
    (tmp_path / "taobao").mkdir()
    (tmp_path / "taobao" / "UserBehavior.csv").write_text("1,2,3,pv,4\n")
    assert fetch("taobao", tmp_path, progress=False) == tmp_path / "taobao"
    with pytest.raises(FetchError, match=r"no data set 'tabao' .*amazon-2014-CATEGORY.*taobao\?"):
        fetch("tabao", tmp_path, progress=False)
