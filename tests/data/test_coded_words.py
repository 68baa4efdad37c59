"""Words of a column as numbers: a few of them, and many, in the same way."""

from __future__ import annotations

import polars as pl
import pytest

from shoal.data.sources import typed


@pytest.mark.parametrize(
    "texts", [["b", None, "a", "b", ""], [None, None], [], ["7"]], ids=["words", "empty", "0", "1"]
)
def test_few_words_are_numbered_as_many(
    texts: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    series = pl.Series(texts, dtype=pl.String)
    few = typed._coded(series)
    monkeypatch.setattr(typed, "FEW", -1)
    many = typed._coded(series)
    assert few.values.tolist() == many.values.tolist() and few.values.dtype == many.values.dtype
    assert few.words is not None and many.words is not None
    assert few.words.tolist() == many.words.tolist() and few.words.dtype == many.words.dtype
