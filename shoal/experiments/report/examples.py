"""Lists of single users, and items that many lists have, by their titles."""

from typing import Any

from shoal.pages.html import Html, Numeral, escape, join, section, table
from shoal.runs.run_record import RunRecord, short

WORST, EXAMPLES, ITEMS = 4, 4, 10


def lists_of_users(record: RunRecord) -> Html:
    """Users that the run serves worst, and some from the best to the middle."""
    users, metric = record.users, record.metric
    if users is None or metric not in record.user_metrics:
        return Html("")
    ranked = users.filter(users[metric].is_finite()).sort(
        [metric, "train", "user"], descending=[False, True, False]
    )
    if not len(ranked):
        return Html("")
    titles = _titles(record)
    worst = ranked.head(WORST).to_dicts()
    places = {int(k * (len(ranked) - 1) / 2 / (EXAMPLES - 1)) for k in range(EXAMPLES)}
    reverse = ranked.reverse()
    others = [reverse.row(k, named=True) for k in sorted(places)]
    text = f"By {metric} on the test split; of equal ones those with the most training first."
    return join(
        [
            section("Users served worst", text, _cards(worst, metric, titles)),
            section(
                "Users from the best to the middle",
                "A tick marks an item that the user took in the test split.",
                _cards(others, metric, titles),
            ),
        ]
    )


def most_recommended(record: RunRecord) -> Html:
    """The items that most lists have."""
    assert record.items is not None and record.users is not None
    top = record.items.sort(["recommended", "item"], descending=[True, False]).head(ITEMS)
    ranks = record.items["train"].rank("min", descending=True)
    by_item = dict(zip(record.items["item"], ranks))
    rows = [
        (
            short(item["title"] or item["item"], 60),
            Numeral(f"{100 * item['recommended'] / max(1, len(record.users)):.1f}"),
            item["train"],
            int(by_item[item["item"]]),
        )
        for item in top.to_dicts()
    ]
    text = "The share of users whose list has the item; its training interactions, and its rank."
    return section(
        "Recommended most", text, table(["item", "in lists, %", "training", "rank"], rows)
    )


def _titles(record: RunRecord) -> dict[str, str]:
    if record.items is None:
        return {}
    titled_items = record.items.filter(record.items["title"].is_not_null())
    return dict(zip(titled_items["item"], titled_items["title"]))


def _cards(users: list[dict[str, Any]], metric: str, titles: dict[str, str]) -> Html:
    return Html(f'<div class="grid">{join(_card(one, metric, titles) for one in users)}</div>')


def _card(user: dict[str, Any], metric: str, titles: dict[str, str]) -> Html:
    num_hits = sum(map(bool, user["hits"]))
    head = (
        f"trained on {user['train']:,}, {num_hits:,} of {user['positives']:,} found, "
        f"{metric} {user[metric]:.4f}"
    )
    items = [short(_name(item, titles), 60) for item in user["items"][:ITEMS]]
    lines = [
        f'<li class="good">{escape(name)} ✓</li>' if hit else f"<li>{escape(name)}</li>"
        for name, hit in zip(items, user["hits"])
    ]
    return Html(
        f"<div><b>{escape(short(user['user'], 60))}</b> "
        f'<span class="soft">{escape(short(head, 160))}</span>'
        f'<ol class="items">{"".join(lines)}</ol></div>'
    )


def _name(item: str | None, titles: dict[str, str]) -> str:
    if item is None:
        return "–"
    return titles.get(item, item)
