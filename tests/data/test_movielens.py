"""MovieLens in its own formats, unpacked, nested and zipped."""

import os
import zipfile
from pathlib import Path

import pytest

from shoal.config.schema import DataSection
from shoal.data.loading.load import load_dataset

ROWS = [
    ("196", "242", 3.0, 881250949.0),
    ("186", "302", 3.5, 891717742.0),
    ("196", "302", 1.0, 8.0),
]
TEXT = {
    "u.data": "".join(
        "\t".join(f"{v:g}" if i == 2 else f"{v}" for i, v in enumerate(r)) + "\n" for r in ROWS
    ),
    "ratings.dat": "196::242::3::881250949\n186::302::3.5::891717742\n196::302::1::8\n",
    "ratings.csv": "userId,movieId,rating,timestamp\n"
    "196,242,3.0,881250949\n186,302,3.5,891717742\n196,302,1.0,8\n",
}


def zipped(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)


def load(folder, name="ml", **options):
    return load_dataset(DataSection(name=name, path=str(folder), cache=False, **options), 1)


@pytest.mark.parametrize("place", ["folder", "nested", "zip beside", "zip inside"])
@pytest.mark.parametrize("file", TEXT)
def test_every_format_in_every_place(tmp_path, file, place):
    if place == "folder":
        (tmp_path / "ml").mkdir()
        (tmp_path / "ml" / file).write_text(TEXT[file])
    elif place == "nested":
        (tmp_path / "ml" / "ml").mkdir(parents=True)
        (tmp_path / "ml" / "ml" / file).write_text(TEXT[file])
    else:
        path = tmp_path / "ml.zip" if place == "zip beside" else tmp_path / "ml" / "ml.zip"
        zipped(path, {"ml/README": "x", f"ml/{file}": TEXT[file], "ml/deep/er/u.data": "junk"})
    data = load(tmp_path)
    tokens = [data.vocab[f][data.inter[f]].tolist() for f in ("user_id", "item_id")]
    numbers = [data.inter[f].tolist() for f in ("rating", "timestamp")]
    assert list(zip(*tokens, *numbers)) == ROWS
    assert data.types == {
        "user_id": "token",
        "item_id": "token",
        "rating": "float",
        "timestamp": "float",
    }


def test_fields_are_named_and_chosen_by_the_config(tmp_path):
    zipped(tmp_path / "ml.zip", {"ml/ratings.dat": TEXT["ratings.dat"]})
    data = load(tmp_path, fields={"user": "viewer"}, load={"inter": ["viewer", "item_id"]})
    assert list(data.inter) == ["viewer", "item_id"]
    with pytest.raises(ValueError, match=r"holds interactions in one file only: take user out"):
        load(tmp_path, load={"user": ["*"]})
    with pytest.raises(ValueError, match=r"data\.load leaves out 'item_id'"):
        load(tmp_path, load={"inter": ["user_id"]})


def test_bad_archives_and_files(tmp_path):
    (tmp_path / "ml.zip").write_bytes(b"PK no zip")
    with pytest.raises(ValueError, match=r"cannot read .*ml\.zip.*fetch it again"):
        load(tmp_path)
    zipped(tmp_path / "ml.zip", {"ml/other": "x"})
    with pytest.raises(ValueError, match=r"ml\.zip holds none of u\.data"):
        load(tmp_path)
    zipped(tmp_path / "ml.zip", {"ml/ratings.csv": "user,movie\n1,2\n"})
    with pytest.raises(ValueError, match=r"ml\.zip:ratings\.csv, line 1: .*userId,movieId"):
        load(tmp_path)
    zipped(tmp_path / "ml.zip", {"ml/ratings.dat": "1::2::3::4\n1::2::3\n"})
    with pytest.raises(ValueError, match=r"ratings\.dat, line 2: 3 cells .* 4 .*'1::2::3'"):
        load(tmp_path)
    zipped(tmp_path / "ml.zip", {"ml/ratings.csv": "userId,movieId,rating,timestamp\n1,2,bad,4\n"})
    with pytest.raises(ValueError, match=r"csv, line 2: 'bad' in 'rating' is not a number"):
        load(tmp_path)
    with pytest.raises(ValueError, match=r"no MovieLens ratings for 'none'"):
        load(tmp_path, "none", format="movielens")


def test_ml_1m(tmp_path):
    folder = os.environ.get("SHOAL_TEST_DATA")
    if not folder or not (Path(folder) / "ml-1m.zip").exists():
        pytest.skip("SHOAL_TEST_DATA names no folder with ml-1m.zip")
    data = load(folder, "ml-1m")
    # figures of the archive's README: 6040 users, 1,000,209 ratings, of 3706 rated movies
    assert (data.num_users, data.num_items, data.num_inter) == (6041, 3707, 1_000_209)
    assert data.vocab["user_id"][:2].tolist() == ["[PAD]", "1"]
    assert data.vocab["item_id"][1] == "1193"
    assert data.inter["timestamp"][0] == 978300760
