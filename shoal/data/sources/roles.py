"""Which columns are users, items, ratings and times: a guess by their names, which is logged."""

from __future__ import annotations

import re
from collections.abc import Iterable

# In small letters and without signs, as User-ID is userid; of several the first.
NAMES = {
    "user": "userid user uid username customerid customer reviewerid memberid visitorid clientid",
    "item": "itemid item iid movieid bookid isbn asin productid product articleid newsid trackid "
    "songid artistid videoid gameid businessid sku movie book",
    "rating": "rating ratings bookrating stars score overall",
    "time": "timestamp time ts datetime date unixreviewtime createdat",
}


def roles_of(columns: Iterable[str]) -> dict[str, str]:
    """user, item, rating, time -> the column of that name or a like one, where there is one.

    >>> roles_of(["User-ID", "ISBN", "Book-Rating", "Location"])
    {'user': 'User-ID', 'item': 'ISBN', 'rating': 'Book-Rating'}
    """
    plain = {re.sub(r"[^a-z0-9]", "", name.lower()): name for name in columns}
    found = {}
    for role, names in NAMES.items():
        here = [plain[name] for name in names.split() if name in plain]
        if here:
            found[role] = here[0]
    return found
