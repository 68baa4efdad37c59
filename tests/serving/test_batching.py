"""Questions that wait are answered, whenever they come."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("starlette", reason="shoal serve needs the extra `serve`")

from shoal.serving.service.batching import Batcher


def test_a_question_that_comes_as_a_batch_ends_is_answered() -> None:
    async def ask() -> list[int]:
        batcher = Batcher(list, most=8, waiting=8, threads=threads)
        async with asyncio.timeout(60):
            return [await batcher.ask(number) for number in range(20)]

    with ThreadPoolExecutor(1) as threads:
        assert asyncio.run(ask()) == list(range(20))
