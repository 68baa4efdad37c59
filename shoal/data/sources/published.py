"""Public data sets as they are published: what their files are, and the config that reads them.

A set is a description: names of files and values of the section `data`. No set has a reader of its
own; what it needs beyond csv is a table format (lists.py, literals.py, diginetica.py) or a format
of click logs. Where its files lie in data.path/NAME, the values are defaults of the run
(shoal/data/loading/published.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Form:
    """A form that a set comes in.

    files: inter, or train and test -> a file in the folder of the set (packed by gzip or not); of
    a click log clicks.train and others. header: what the first line of the first file holds, where
    two forms have files of one name. values: keys of `data` and `eval`.
    """

    files: Mapping[str, str]
    values: Values = field(default_factory=dict)
    header: str = ""


@dataclass(frozen=True)
class Download:
    """A file at its official address.

    md5, or blob: its SHA-1 as git counts it; neither: no checksum is published. unpack: it is a
    zip archive.
    """

    address: str
    md5: str = ""
    blob: str = ""
    unpack: bool = False

    @property
    def file(self) -> str:
        """What it is called."""
        return self.address.rpartition("/")[2]


@dataclass(frozen=True)
class PublicSet:
    """A public data set.

    what: a few words about it. forms: the first whose files are there is read. by_hand: where a
    person gets it and which files go into its folder, where it has no address that lasts.
    """

    what: str
    forms: tuple[Form, ...]
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""


def _fields(user: str, item: str, time: str = "", rating: str = "") -> Values:
    """The columns of interactions, and no others."""
    columns = {"user": user, "item": item, "time": time, "rating": rating}
    named = {role: column for role, column in columns.items() if column}
    return {
        **{f"data.fields.{role}": column for role, column in named.items()},
        "data.load": {"inter": [*named.values()]},
    }


# LightGCN ----------------------------------------------------------------------------------------

LIGHTGCN = "https://raw.githubusercontent.com/kuandeng/LightGCN/b067ec05f16a24e0e1efe63cd82385f0c469af20/Data"
LISTS = Form(
    {"train": "train.txt", "test": "test.txt"},
    {
        "data.format": "lists",
        "data.split.by": "ratio",
        "data.split.order": "random",
        "data.split.ratio": [0.9, 0.1, 0.0],
        "eval.repeatable": False,
    },
)


def _lightgcn(what: str, name: str, train: str, test: str) -> PublicSet:
    address = f"{LIGHTGCN}/{name}"
    downloads = (
        Download(f"{address}/train.txt", blob=train),
        Download(f"{address}/test.txt", blob=test),
    )
    return PublicSet(f"{what}, split by LightGCN's authors", (LISTS,), downloads)


# Sessions ----------------------------------------------------------------------------------------

SESSIONS: Values = {
    "data.split.by": "sessions",
    "data.filter.user_inter_num": "[2,inf)",
    "data.filter.item_inter_num": "[5,inf)",
    "eval.repeatable": True,
}
# Lines of sessions, and lines of prefixes with the item to find as the last.
PREPARED_SESSIONS = Form(
    {"train": "train.txt", "test": "test.txt"},
    {
        "data.format": "session_lists",
        "data.split.by": "sessions",
        "data.split.targets": "last",
        "data.split.order": "file",
        "data.split.ratio": [0.9, 0.1, 0.0],
        "eval.repeatable": True,
    },
)


def _diginetica(session: str, item: str) -> Form:
    return Form(
        {"inter": "train-item-views.csv"},
        {
            "data.format": "diginetica",
            **_fields(session, item, "eventdate"),
            "data.cells": {"eventdate": {"unit": "ms"}},
            **SESSIONS,
            "data.split.at": ["2016-05-19", "2016-05-26"],
        },
        header=session,
    )


# Amazon ------------------------------------------------------------------------------------------

CATEGORIES_2014 = [
    "Amazon_Instant_Video",
    "Apps_for_Android",
    "Automotive",
    "Baby",
    "Beauty",
    "Books",
    "CDs_and_Vinyl",
    "Cell_Phones_and_Accessories",
    "Clothing_Shoes_and_Jewelry",
    "Digital_Music",
    "Electronics",
    "Grocery_and_Gourmet_Food",
    "Health_and_Personal_Care",
    "Home_and_Kitchen",
    "Kindle_Store",
    "Movies_and_TV",
    "Musical_Instruments",
    "Office_Products",
    "Patio_Lawn_and_Garden",
    "Pet_Supplies",
    "Sports_and_Outdoors",
    "Tools_and_Home_Improvement",
    "Toys_and_Games",
    "Video_Games",
]
CATEGORIES_2023 = [
    "All_Beauty",
    "Amazon_Fashion",
    "Appliances",
    "Arts_Crafts_and_Sewing",
    "Automotive",
    "Baby_Products",
    "Beauty_and_Personal_Care",
    "Books",
    "CDs_and_Vinyl",
    "Cell_Phones_and_Accessories",
    "Clothing_Shoes_and_Jewelry",
    "Digital_Music",
    "Electronics",
    "Gift_Cards",
    "Grocery_and_Gourmet_Food",
    "Handmade_Products",
    "Health_and_Household",
    "Health_and_Personal_Care",
    "Home_and_Kitchen",
    "Industrial_and_Scientific",
    "Kindle_Store",
    "Magazine_Subscriptions",
    "Movies_and_TV",
    "Musical_Instruments",
    "Office_Products",
    "Patio_Lawn_and_Garden",
    "Pet_Supplies",
    "Software",
    "Sports_and_Outdoors",
    "Subscription_Boxes",
    "Tools_and_Home_Improvement",
    "Toys_and_Games",
    "Unknown",
    "Video_Games",
]
AMAZON_2014 = "https://snap.stanford.edu/data/amazon/productGraph/categoryFiles"
UCSD = "https://mcauleylab.ucsd.edu/public_datasets/data"


def _amazon_2014(category: str) -> PublicSet:
    reviews = _fields("reviewerID", "asin", "unixReviewTime", "overall")
    columns = ["user_id", "item_id", "rating", "timestamp"]
    return PublicSet(
        f"Amazon reviews until 2014: {category.replace('_', ' ')}",
        (
            Form({"inter": f"reviews_{category}_5.json"}, {"data.format": "jsonl", **reviews}),
            Form({"inter": f"reviews_{category}.json"}, {"data.format": "jsonl", **reviews}),
            Form(
                {"inter": f"ratings_{category}.csv"},
                {"data.format": "csv", "data.columns": columns, "data.separator": ","},
            ),
        ),
        (Download(f"{AMAZON_2014}/reviews_{category}_5.json.gz"),),
    )


def _amazon_2023(category: str) -> PublicSet:
    values = _fields("user_id", "parent_asin", "timestamp", "rating")
    address = f"{UCSD}/amazon_2023/benchmark/5core/rating_only/{category}.csv.gz"
    return PublicSet(
        f"Amazon reviews until 2023: {category.replace('_', ' ')}",
        (
            Form({"inter": f"{category}.csv"}, {"data.format": "csv", **values}),
            Form({"inter": f"{category}.jsonl"}, {"data.format": "jsonl", **values}),
        ),
        (Download(address),),
    )


# Clicks ------------------------------------------------------------------------------------------

CUT_IN_ORDER: Values = {"data.split.order": "file", "data.split.ratio": [0.8, 0.1, 0.1]}
AVAZU_SLOTS = [
    "hour",
    "C1",
    "banner_pos",
    "site_id",
    "site_domain",
    "site_category",
    "app_id",
    "app_domain",
    "app_category",
    "device_id",
    "device_ip",
    "device_model",
    "device_type",
    "device_conn_type",
    "C14",
    "C15",
    "C16",
    "C17",
    "C18",
    "C19",
    "C20",
    "C21",
]
FRAPPE_SLOTS = [
    "user",
    "item",
    "daytime",
    "weekday",
    "isweekend",
    "homework",
    "cost",
    "weather",
    "country",
    "city",
]
FRAPPE = "https://raw.githubusercontent.com/hexiangnan/neural_factorization_machine/ca2a5d11b929816aa44c6e470e795af144608507/data/frappe"
MIND = "https://recodatasets.z20.web.core.windows.net/newsrec"


def _mind(size: str) -> PublicSet:
    name = f"MIND{size}"
    return PublicSet(
        f"news of MSN, the {size} one: impressions with labels",
        (
            Form(
                {
                    "clicks.train": f"{name}_train/behaviors.tsv",
                    "clicks.test": f"{name}_dev/behaviors.tsv",
                },
                {"data.format": "mind"},
            ),
        ),
        tuple(Download(f"{MIND}/{name}_{part}.zip", unpack=True) for part in ("train", "dev")),
    )


# The list ----------------------------------------------------------------------------------------

KUAIREC_FIELDS = _fields("user_id", "video_id", "timestamp", "watch_ratio")
KUAIREC = Download(
    "https://zenodo.org/records/18164998/files/KuaiRec.zip",
    md5="261550d472c48eff4990fb13c0e5bcf7",
    unpack=True,
)

PUBLIC_SETS: dict[str, PublicSet] = {
    "gowalla": _lightgcn(
        "check-ins of Gowalla",
        "gowalla",
        "a27782bd7a1d4d0744148dc0460ea94da74763f2",
        "9ed5af4b5d21511f33740b4e22e3852f45671800",
    ),
    "yelp2018": _lightgcn(
        "visits of Yelp",
        "yelp2018",
        "cda12361055ba448ae4bd1070f6000c16dea8f22",
        "30dfbc3437b27b74cb2970b435a5ec93ad9f2468",
    ),
    "amazon-book": _lightgcn(
        "books of Amazon",
        "amazon-book",
        "6ef55159c5f1fd7f6d86eb9ff290d0cc2854ac99",
        "09e5da4e0bf46c751c4ba0f4375e414fd13512cd",
    ),
    "diginetica": PublicSet(
        "sessions of a shop (CIKM Cup 2016)",
        (
            _diginetica("sessionId", "itemId"),
            _diginetica("session_id", "item_id"),
            PREPARED_SESSIONS,
        ),
        by_hand="it is part of the CIKM Cup 2016 (https://competitions.codalab.org/competitions/"
        "11161): train-item-views.csv, or SR-GNN's sessions as lines of numbers in train.txt and "
        "test.txt",
    ),
    "yoochoose": PublicSet(
        "sessions of a shop (RecSys Challenge 2015)",
        (
            Form(
                {"inter": "yoochoose-clicks.dat"},
                {
                    "data.format": "csv",
                    "data.columns": ["session_id", "timestamp", "item_id", "category"],
                    "data.separator": ",",
                    **_fields("session_id", "item_id", "timestamp"),
                    **SESSIONS,
                    "data.split.at": ["2014-09-28T03:00:00", "2014-09-29T03:00:00"],
                },
            ),
            PREPARED_SESSIONS,
        ),
        by_hand="yoochoose-data.7z (https://s3-eu-west-1.amazonaws.com/yc-rdata/"
        "yoochoose-data.7z) holds yoochoose-clicks.dat, and 7z unpacks it",
    ),
    "retailrocket": PublicSet(
        "visits of a shop, cut into sessions by pauses",
        (
            Form(
                {"inter": "events.csv"},
                {
                    "data.format": "csv",
                    **_fields("visitorid", "itemid", "timestamp"),
                    **SESSIONS,
                    "data.split.pause": 30.0,
                    "data.split.at": ["2015-09-04T03:00:00", "2015-09-11T03:00:00"],
                },
            ),
        ),
        by_hand="Kaggle has it (https://www.kaggle.com/datasets/retailrocket/ecommerce-dataset): "
        "events.csv",
    ),
    "steam": PublicSet(
        "reviews of games",
        (
            Form(
                {"inter": "steam_reviews.json"},
                {"data.format": "literals", **_fields("username", "product_id", "date")},
            ),
        ),
        (Download(f"{UCSD}/steam/steam_reviews.json.gz"),),
    ),
    "steam-australia": PublicSet(
        "reviews of games by Australians; without usable times",
        (
            Form(
                {"inter": "australian_user_reviews.json"},
                {"data.format": "literals", **_fields("user_id", "item_id")},
            ),
        ),
        (Download(f"{UCSD}/steam/australian_user_reviews.json.gz"),),
    ),
    "lastfm": PublicSet(
        "plays of artists on Last.fm (HetRec 2011)",
        (
            Form(
                {"inter": "user_artists.dat"},
                {"data.format": "csv", **_fields("userID", "artistID", rating="weight")},
            ),
        ),
        (
            Download(
                "https://files.grouplens.org/datasets/hetrec2011/hetrec2011-lastfm-2k.zip",
                unpack=True,
            ),
        ),
    ),
    "lastfm-1k": PublicSet(
        "plays of artists on Last.fm, with times, of 1,000 users",
        (
            Form(
                {"inter": "userid-timestamp-artid-artname-traid-traname.tsv"},
                {
                    "data.format": "csv",
                    "data.columns": [
                        "user_id",
                        "timestamp",
                        "artist_id",
                        "artist_name",
                        "track_id",
                        "track_name",
                    ],
                    "data.quote": None,
                    "data.bad_rows": "skip",
                    **_fields("user_id", "artist_name", "timestamp"),
                },
            ),
        ),
        by_hand="lastfm-dataset-1K.tar.gz (http://mtg.upf.edu/static/datasets/last.fm/"
        "lastfm-dataset-1K.tar.gz) holds userid-timestamp-artid-artname-traid-traname.tsv",
    ),
    "book-crossing": PublicSet(
        "ratings of books; 0 is one without stars",
        (
            Form(
                {"inter": "BX-Book-Ratings.csv"},
                {
                    "data.format": "csv",
                    "data.encoding": "latin-1",
                    "data.separator": ";",
                    "data.escape": "\\",
                    **_fields("User-ID", "ISBN", rating="Book-Rating"),
                },
            ),
        ),
        by_hand="BX-CSV-Dump.zip of Cai-Nicolas Ziegler (http://www2.informatik.uni-freiburg.de/"
        "~cziegler/BX/) holds BX-Book-Ratings.csv",
    ),
    "kuairec": PublicSet(
        "watched shares of videos, the large matrix",
        (Form({"inter": "big_matrix.csv"}, {"data.format": "csv", **KUAIREC_FIELDS}),),
        (KUAIREC,),
    ),
    "kuairec-small": PublicSet(
        "watched shares of videos, the small matrix that is almost full",
        (
            Form(
                {"inter": "small_matrix.csv"},
                {"data.format": "csv", "data.bad_rows": "skip", **KUAIREC_FIELDS},
            ),
        ),
        (KUAIREC,),
    ),
    "taobao": PublicSet(
        "behaviour of users of Taobao: views, carts, favourites and purchases",
        (
            Form(
                {"inter": "UserBehavior.csv"},
                {
                    "data.format": "csv",
                    "data.columns": ["user_id", "item_id", "category_id", "behavior", "timestamp"],
                    "data.separator": ",",
                    **_fields("user_id", "item_id", "timestamp"),
                },
            ),
        ),
        by_hand="Tianchi has it (https://tianchi.aliyun.com/dataset/649): UserBehavior.csv",
    ),
    "criteo": PublicSet(
        "clicks on advertisements, with 13 numbers and 26 categories",
        (Form({"clicks.train": "train.txt"}, {"data.format": "criteo", **CUT_IN_ORDER}),),
        by_hand="Kaggle's Display Advertising Challenge has it (https://www.kaggle.com/c/"
        "criteo-display-ad-challenge): train.txt",
    ),
    "avazu": PublicSet(
        "clicks on advertisements in apps and on sites",
        tuple(
            Form(
                {"clicks.train": file},
                {
                    "data.format": "csv",
                    "data.clicks.label": "click",
                    "data.clicks.slots": AVAZU_SLOTS,
                    "data.separator": ",",
                    **CUT_IN_ORDER,
                },
            )
            for file in ("train.csv", "train")
        ),
        by_hand="Kaggle has it (https://www.kaggle.com/c/avazu-ctr-prediction): train.csv, or "
        "train.gz as it is",
    ),
    "frappe": PublicSet(
        "apps that were used, and in which context; the split of NFM's authors",
        (
            Form(
                {
                    "clicks.train": "frappe.train.libfm",
                    "clicks.valid": "frappe.validation.libfm",
                    "clicks.test": "frappe.test.libfm",
                },
                {"data.format": "libfm", "data.clicks.slots": FRAPPE_SLOTS},
            ),
            Form(
                {"inter": "frappe.csv"},
                {"data.format": "csv", **_fields("user", "item", rating="cnt")},
            ),
        ),
        (
            Download(
                f"{FRAPPE}/frappe.train.libfm", blob="176b2aaf1f63dd13d3e66a5c17c8ec8186e91893"
            ),
            Download(
                f"{FRAPPE}/frappe.validation.libfm",
                blob="50b9c04bcf58dcb46d0b0070d3d6f88b45c9baab",
            ),
            Download(
                f"{FRAPPE}/frappe.test.libfm", blob="d7cdd03f0e2415c97618de617f20bedd50e8fce7"
            ),
        ),
    ),
    "mind-small": _mind("small"),
    "mind-large": _mind("large"),
    **{f"amazon-2014-{category}": _amazon_2014(category) for category in CATEGORIES_2014},
    **{f"amazon-2023-{category}": _amazon_2023(category) for category in CATEGORIES_2023},
}


def find_file(folder: Path, file: str) -> Path | None:
    """A file in a folder, or up to two folders down where archives have it; packed or not."""
    for pattern in ("", "*/", "*/*/"):
        for ending in ("", ".gz"):
            paths = sorted(folder.glob(f"{pattern}{file}{ending}"))
            if paths and paths[0].is_file():
                return paths[0]
    return None


def holds_set(folder: Path, name: str) -> bool:
    """Whether a folder has all files of a form of a set."""
    forms = PUBLIC_SETS[name].forms
    return any(all(find_file(folder, file) for file in form.files.values()) for form in forms)


def shown_names() -> str:
    """The names of all sets, those of Amazon's categories in short."""
    names = [name for name in PUBLIC_SETS if not name.startswith(("amazon-20",))]
    return ", ".join([*names, "amazon-2014-CATEGORY, amazon-2023-CATEGORY"])
