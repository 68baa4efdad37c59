"""Which columns are users, items, ratings, times and labels: a guess by their names.

Every guess of columns is made here: for a file of data on a command line, for `shoal.fit`, and for
`shoal quickstart`. Callers print `shown`, so that users see the guess.
"""

import re
from collections.abc import Iterable, Mapping

from shoal.data.column_meaning import words_of

# What a column is called, without words such as id or number; of several the first.
NAMES = {
    "user": "user uid username customer client member visitor reviewer account person profile "
    "buyer shopper viewer reader listener player subscriber guest student session",
    "item": "item iid product article movie film book isbn asin parentasin sku news track song "
    "artist album video game app business restaurant hotel content post page course recipe stock "
    "listing story show anime ean gtin upc ad offer place venue dish",
    "rating": "rating ratings stars score overall",
    "time": "timestamp time ts datetime date unixreviewtime created day",
    "label": "label click clicked clicks isclick isclicked clickflag converted purchased bought "
    "liked target",
}
NUMBERS = {"id", "ids", "no", "nr", "num", "number", "code", "key"}
MOMENTS = {"timestamp", "time", "datetime", "date", "ts", "at", "on", "when"}
# What happens at the time of an interaction, not at a birth or a release.
EVENTS = "order purchase event review rating click visit view created transaction invoice bought "
EVENTS += (
    "watched played rated added session interaction shown impression served ordered purchased "
)
EVENTS += "clicked viewed reviewed listened borrowed rented visited seen started"


def roles_of(columns: Iterable[str], clicks: bool = False) -> dict[str, str]:
    """user, item, rating, time -> the column with such a name; clicks: the label as well.

    >>> roles_of(["User-ID", "ISBN", "Book-Rating", "Location"])
    {'user': 'User-ID', 'item': 'ISBN', 'rating': 'Book-Rating'}
    >>> roles_of(["Order Nr", "Customer No.", "Product Code", "Product Name", "Order Date"])
    {'user': 'Customer No.', 'item': 'Product Code', 'time': 'Order Date'}
    """
    column_by_meaning: dict[tuple[str, str], str] = {}
    for column in columns:
        for meaning in _meanings(column):
            column_by_meaning.setdefault(meaning, column)
    roles = {}
    for role, names in NAMES.items():
        fits = [(name, form) for name in names.split() for form in ("number", "plain", "part")]
        matches = [column_by_meaning[meaning] for meaning in fits if meaning in column_by_meaning]
        if matches and (role != "label" or clicks):
            roles[role] = matches[0]
    return roles


def _meanings(column: str) -> list[tuple[str, str]]:
    """What a name may mean, and how it says it: `number` (User-ID), `plain` (user), `part`."""
    words = words_of(column)
    if not words:
        return []
    plain = "".join(words)
    rest = "".join(word for word in words if word not in NUMBERS)
    meanings = [(plain, "plain")]
    if rest != plain or plain.endswith("id"):
        meanings.append((rest.removesuffix("id") if rest == plain else rest, "number"))
    if words[-1] in ("rating", "ratings", "stars"):
        meanings.append((words[-1], "part"))
    moment = words[0] if words[0] == "when" else words[-1]
    if moment in MOMENTS and {*words} <= {*EVENTS.split(), *MOMENTS}:
        meanings.append((moment if moment not in ("at", "on", "when") else "time", "part"))
    return meanings


def shown(roles: Mapping[str, str], flag: str = "--{}=NAME") -> str:
    """The roles of columns that were guessed, and how to say otherwise.

    >>> shown({"user": "User-ID", "item": "ISBN"})
    'user = User-ID, item = ISBN; change with --user=NAME, --item=NAME'
    """
    guess = ", ".join(f"{role} = {column}" for role, column in roles.items())
    return f"{guess}; change with {', '.join(flag.format(role) for role in roles)}"


def need_roles(where: str, columns: list[str], roles: Mapping[str, str], flag: str) -> None:
    """Refuse columns of which no one could be the user, or the item."""
    missing = [role for role in ("user", "item") if role not in roles]
    if not missing:
        return
    if all(re.fullmatch(r"[\d.,:/+ TZ-]*", name.strip()) for name in columns):
        raise ValueError(
            f"{where}: its first line is {', '.join(columns[:6])}, which are no names of columns; "
            "write names there, such as user_id,item_id,rating, or give them: "
            "--data.columns=[user_id,item_id,rating]"
        )
    if len(columns) == 1:
        raise ValueError(
            f"{where} has one column, {columns[0][:60]!r}; it needs one of users and one of items "
            "(if its cells are separated by an odd sign, set data.separator)"
        )
    raise ValueError(
        f"{where}: no column looks like the {' or the '.join(missing)}; it has "
        f"{', '.join(columns)}. Name {'it' if len(missing) == 1 else 'them'}: "
        + " ".join(flag.format(role) for role in missing)
    )
