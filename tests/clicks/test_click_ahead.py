"""Work done ahead in threads: its order, its bounds, its errors, its end."""

from __future__ import annotations

import threading
import time

import pytest

from shoal.data.prefetch import ahead


def test_work_ahead_keeps_its_order_and_its_bounds() -> None:
    begun: list[int] = []

    def items():
        for number in range(40):
            begun.append(number)
            yield number

    def work(number: int) -> int:
        time.sleep(0.002 * (number % 3))
        return number * number

    before = set(threading.enumerate())
    results = ahead(work, items(), 3)
    assert [next(results) for _ in range(5)] == [0, 1, 4, 9, 16]
    assert len(begun) <= 5 + 2 * 3 + 2  # those taken, those that wait, one each in hand
    results.close()  # type: ignore[attr-defined]
    left = [one.name for one in threading.enumerate() if one not in before]
    assert not [name for name in left if name.startswith(("shoal-parse", "shoal-read"))]
    assert list(ahead(work, range(20), 2)) == [n * n for n in range(20)]


def test_errors_in_threads_come_through() -> None:
    def broken():
        yield 1
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        list(ahead(lambda x: x, broken(), 2))
    with pytest.raises(ZeroDivisionError):
        list(ahead(lambda x: 1 // x, [1, 0], 2))
