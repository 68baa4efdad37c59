"""The one error of this room, and the search for the nearest right spelling."""

import difflib
from collections.abc import Iterable, Sequence


class ConfigError(ValueError):
    """A config that cannot be used: every problem found, a line each (`errors`)."""

    def __init__(self, errors: str | Sequence[str]):
        self.errors = [errors] if isinstance(errors, str) else list(errors)
        if len(self.errors) == 1:
            text = self.errors[0]
        else:
            text = "\n  ".join([f"{len(self.errors)} errors in the config:", *self.errors])
        super().__init__(text)


def nearest(word: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word most like `word`, case aside; None when nothing is near."""
    by_lower: dict[str, str] = {}
    for name in names:
        by_lower.setdefault(name.lower(), name)
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None


def did_you_mean(word: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """`; did you mean X?`, or nothing: the end of a message that lists what is known."""
    match = nearest(word, names, cutoff)
    return f"; did you mean {match}?" if match else ""
