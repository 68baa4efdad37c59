"""Fixtures of the tests of parameter servers."""

from __future__ import annotations

import pytest

import shoal.ps.worker.client
import shoal.ps.worker.heartbeat
import shoal.ps.worker.link


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that ask again soon."""
    monkeypatch.setattr(shoal.ps.worker.link, "PING_SECONDS", 0.1)
    monkeypatch.setattr(shoal.ps.worker.heartbeat, "PING_SECONDS", 0.1)
    monkeypatch.setattr(shoal.ps.worker.link, "AGAIN_SECONDS", 0.3)
    monkeypatch.setattr(shoal.ps.worker.client, "GOODBYE_SECONDS", 1.5)
