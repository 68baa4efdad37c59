"""Columns by their names: those of well-known files, and those that are not what they look like."""

import polars as pl
import pytest

from shoal.data.dates import DateOrder, seconds_of_dates
from shoal.data.sources.roles import need_roles, roles_of

KNOWN = {
    "Book-Crossing": ("User-ID,ISBN,Book-Rating", "User-ID,ISBN,Book-Rating,"),
    "Online Retail": (
        "InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country",
        "CustomerID,StockCode,,InvoiceDate",
    ),
    "Retailrocket": ("timestamp,visitorid,event,itemid", "visitorid,itemid,,timestamp"),
    "Amazon": (
        "reviewerID,asin,overall,unixReviewTime,reviewText",
        "reviewerID,asin,overall,unixReviewTime",
    ),
    "MovieLens": ("userId,movieId,rating,timestamp", "userId,movieId,rating,timestamp"),
    "Yelp": ("review_id,user_id,business_id,stars,date", "user_id,business_id,stars,date"),
    "LastFM": ("userID,artistID,weight", "userID,artistID,,"),
    "orders": ("Order Nr,Customer No.,Product Code,birth_date", "Customer No.,Product Code,,"),
    "plain names": ("product,product_id,user,created_at", "user,product_id,,created_at"),
    "shop": ("uid,sku,title,qty,ordered_at", "uid,sku,,ordered_at"),
    "words": ("customer,ean,when bought,session_length", "customer,ean,,when bought"),
    "nothing": ("a,b,c,,", ",,,"),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_columns_of_known_files(name: str) -> None:
    columns, expected = KNOWN[name]
    roles = roles_of(columns.split(","))
    assert ",".join(roles.get(k, "") for k in ("user", "item", "rating", "time")) == expected


def test_labels_are_those_of_click_models() -> None:
    columns = ["user_id", "item_id", "clicked", "age"]
    assert "label" not in roles_of(columns) and roles_of(columns, True)["label"] == "clicked"


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["1", "2.5", "3"], "which are no names of columns"),
        (["00017", "2026-10-08T12:30:00Z", "+49"], "--data.columns="),
        (["user;item"], "has one column"),
        (["user", "x"], "no column looks like the item; it has user, x. Name it: --item=NAME"),
    ],
)
def test_columns_without_a_role_are_named(columns: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        need_roles("a.csv", columns, roles_of(columns), "--{}=NAME")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (["2024-01-31", "2024-02-01"], 86400),
        (["12/31/2010 8:26", "1/2/2011 8:26"], 2 * 86400),
        (["31.12.2010 08:26", "02.01.2011 08:26"], 2 * 86400),
        (["Jan 31, 2024", "Feb 1, 2024"], 86400),
        (["2024-01-31T10:00:00Z", "2024-01-31T10:00:30Z"], 30),
        (["31-Jan-2024", "01-Feb-2024"], 86400),
        (["31.01.25 11:05", "01.02.25 11:05"], 86400),
        (["31/01/25", "1/2/25"], 86400),
        (["1/31/25 8:26", "2/1/25 8:26"], 86400),
        (["31.12.68", "1.1.69"], -36524 * 86400),  # as strptime reads %y
    ],
)
def test_dates_as_people_write_them(text: list[str], seconds: int) -> None:
    order = DateOrder()
    order.add(pl.Series(text))
    first, last = seconds_of_dates(pl.Series(text), order.leading or "day").to_list()
    assert last - first == seconds


def test_text_that_is_no_date() -> None:
    assert seconds_of_dates(pl.Series(["soon", None])).to_list() == [None, None]
    assert seconds_of_dates(pl.Series(["01-02-03", "25-01-15"])).to_list() == [None, None]
