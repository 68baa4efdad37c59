"""Tables as careless people make them, each with one habit that tools stumble over.

Tastes are planted: users and items belong to a group each, and users take mostly from their own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

GROUPS = 4
GENRES = ["drama", "comedy", "war", "sci-fi", "noir", "crime", "family", "music", "news", "sport"]
GENRES.append("western")  # 11 of them
TITLES = ["Café", "Señor", "Über", "Ångström", "Façade"]
FIRST_DAY = np.datetime64("2024-01-01")


def pairs(users: int, items: int, rows: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Users and items, each pair once."""
    random = np.random.default_rng(seed)
    own = random.random(4 * rows) < 0.8
    user = random.integers(0, users, 4 * rows)
    group = np.where(own, user % GROUPS, random.integers(0, GROUPS, 4 * rows))
    item = random.integers(0, max(1, items // GROUPS), 4 * rows) * GROUPS + group
    _, first = np.unique(user * (items + GROUPS) + item, return_index=True)
    kept = np.sort(first)[:rows]
    return user[kept], item[kept]


def write(path: Path, head: str, rows: list[str], encoding: str = "utf-8") -> Path:
    path.write_bytes("\n".join([head, *rows, ""]).encode(encoding))
    return path


def dates_of_three_forms(path: Path) -> Path:
    """2024-01-31, 31.01.2024 and Jan 31, 2024 in turn, none of them ambiguous."""
    user, item = pairs(60, 40, 1500)
    day = FIRST_DAY + np.arange(len(user)) % 300
    text = []
    for number, date in enumerate(day.tolist()):
        forms = (f"{date:%Y-%m-%d}", f"{date:%d.%m.%Y}", f"{date:%b %d %Y}")
        text.append(forms[number % 3])
    rows = [f"u{u},i{i},{date}" for u, i, date in zip(user, item, text)]
    return write(path, "user,item,date", rows)


def lists_with_three_separators(path: Path) -> Path:
    """Genres as a|b|c, tags as "a, b, c" and moods as "a;b;c"."""
    user, item = pairs(60, 40, 1500)
    random = np.random.default_rng(2)
    rows = []
    for u, i in zip(user, item):
        cells = []
        for separator in ("|", ", ", ";"):
            some = random.choice(GENRES, random.integers(1, 4), replace=False)
            cells.append(f'"{separator.join(some)}"')
        liked = int(random.random() < 0.5)
        rows.append(f"u{u},i{i},{liked},{','.join(cells)}")
    return write(path, "user,item,liked,genres,tags,moods", rows)


def outcomes_beside_the_label(path: Path) -> Path:
    """Pure noise, but for what came of each click: bought, revenue, dwell, a yes and no, an id."""
    random = np.random.default_rng(3)
    rows = []
    for _ in range(160_000):  # 16,000 are tested: four standard errors of an AUC are .02
        clicked = int(random.random() < 0.3)
        bought = clicked * int(random.random() < 0.6)
        revenue = f"{bought * random.random() * 90:.2f}"
        dwell = f"{clicked * random.exponential(30):.1f}"
        answer = "yes" if clicked and random.random() < 0.7 else "no"
        ticket = f"T{random.integers(10**6)}" if bought else ""
        price = f"{random.random() * 90:.2f}"
        user, item = random.integers(0, 400), random.integers(0, 200)
        rows.append(
            f"u{user},i{item},{clicked},{bought},{revenue},{dwell},{answer},{ticket},{price}"
        )
    return write(path, "user,item,clicked,bought,revenue,dwell,answer,ticket,price", rows)


def prices_with_currency(path: Path) -> Path:
    """$1,234.50 in a cell, which is a number to everybody who reads it."""
    user, item = pairs(60, 40, 1500)
    random = np.random.default_rng(4)
    rows = [
        f'u{u},i{i},{int(random.random() < 0.5)},"${900 + 37 * i + random.random():,.2f}"'
        for u, i in zip(user, item)
    ]
    return write(path, "user,item,clicked,price", rows)


def one_user(path: Path) -> Path:
    """All that one person listened to."""
    rows = [f"me,song {n % 40},{1_700_000_000 + 3600 * n}" for n in range(400)]
    return write(path, "user,song,timestamp", rows)


def no_time(path: Path) -> Path:
    """Nothing but who took what."""
    return write(path, "user,item", [f"u{u},i{i}" for u, i in zip(*pairs(60, 40, 1500))])


def leading_zeros(path: Path) -> Path:
    """Ids of digits, among which 07, 007 and 0007 are three customers."""
    user, item = pairs(60, 40, 1500)
    names = [f"{number // 3:0{number % 3 + 2}d}" for number in range(60)]
    times = 1_700_000_000 + 60 * np.arange(len(user))
    rows = [f"{names[u]},{i:08d},{time}" for u, i, time in zip(user, item, times)]
    return write(path, "customer_id,product_code,ts", rows)


def latin_1(path: Path) -> Path:
    """Semicolons, and titles in the letters of Windows."""
    user, item = pairs(60, 40, 1500)
    rows = [f"u{u};{i};{TITLES[i % 5]} {i};{1 + (u + i) % 5}" for u, i in zip(user, item)]
    return write(path, "User-ID;ISBN;Title;Rating", rows, "latin-1")


def duplicated_rows(path: Path) -> Path:
    """An export that was appended to itself."""
    rows = [f"u{u},i{i}" for u, i in zip(*pairs(60, 40, 1500))]
    return write(path, "user,item", [*rows, *rows])


def many_items(path: Path) -> Path:
    """300,000 items, most of them taken once or twice."""
    random = np.random.default_rng(5)
    item = np.concatenate([np.arange(300_000), (random.pareto(0.6, 300_000) * 40).astype(int)])
    item = random.permutation(item % 300_000)
    user = (random.random(len(item)) ** 2 * 60_000).astype(int)
    rows = [f"u{u},i{i},{1_600_000_000 + 60 * n}" for n, (u, i) in enumerate(zip(user, item))]
    return write(path, "user,item,timestamp", rows)


FILES: dict[str, Callable[[Path], Path]] = {
    "dates": dates_of_three_forms,
    "lists": lists_with_three_separators,
    "outcomes": outcomes_beside_the_label,
    "prices": prices_with_currency,
    "one_user": one_user,
    "no_time": no_time,
    "zeros": leading_zeros,
    "latin_1": latin_1,
    "duplicates": duplicated_rows,
    "many_items": many_items,
}
