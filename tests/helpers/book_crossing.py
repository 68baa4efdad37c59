r"""Files as Book-Crossing has them: semicolons, ISO-8859-1, every cell quoted, `\"` within cells.

NULL stands without quotes, ISBNs hold odd characters, ratings are 0 to 10, of which 0 is implicit.
"""

from pathlib import Path

import numpy as np

CITIES = ["málaga, andalucía, spain", "köln, nordrhein-westfalen, germany", 'n/a, "ok", usa', "x"]
AUTHORS = ["Gabriel García Márquez", 'John "Jack" Doe', "Ann; Lee", "Zoë O'Hara\\\\", "J. R. R. T."]
ENDS = ["X", "0", "/", "x", "*", "\\"]


def write(folder: Path, users: int = 900, books: int = 600, ratings: int = 20_000) -> None:
    """BX-Users.csv, BX-Books.csv and BX-Book-Ratings.csv."""
    random = np.random.default_rng(3)
    lines = [_line("User-ID", "Location", "Age")]
    ages = random.integers(10, 90, users)
    for u in range(users):
        age = "NULL" if u % 3 == 0 else f'"{ages[u]}"'
        lines.append(f"{_line(str(u + 1), CITIES[u % 4])};{age}")
    _save(folder / "BX-Users.csv", lines)
    isbns = [f"{k:09d}{ENDS[k % 6]}" for k in range(books)]
    isbns[5:8] = ["O9088446X\\", '"034"5', " 0 330/48"]
    lines = [_line("ISBN", "Book-Title", "Book-Author", "Year-Of-Publication", "Publisher")]
    for k, isbn in enumerate(isbns):
        title = f'A "quoted" title; No. {k} ({chr(0xE9)}t{chr(0xE9)})'
        year = str(0 if k % 9 == 0 else 1950 + k % 60)
        lines.append(_line(isbn, title, AUTHORS[k % 5], year, "P&amp;H"))
    _save(folder / "BX-Books.csv", lines)
    lines = [_line("User-ID", "ISBN", "Book-Rating")]
    taken: set[tuple[int, int]] = set()
    while len(taken) < ratings:
        u = int(random.integers(0, users))
        k = int(random.zipf(1.3)) % books
        k = (k * 7 + u % 4 * 3) % books if random.random() < 0.5 else int(random.integers(0, books))
        if (u, k) not in taken:
            taken.add((u, k))
            liked = (u % 4 == k % 4) + random.random()
            rating = 0 if random.random() < 0.4 else int(min(10, 3 + 4 * liked))
            lines.append(_line(str(u + 1), isbns[k], str(rating)))
    _save(folder / "BX-Book-Ratings.csv", lines)


def _line(*cells: str) -> str:
    quoted = [cell.replace("\\", "\\\\").replace('"', '\\"') for cell in cells]
    return ";".join(f'"{cell}"' for cell in quoted)


def _save(path: Path, lines: list[str]) -> None:
    path.write_bytes(("\r\n".join(lines) + "\r\n").encode("iso-8859-1"))
