"""Store: a meeting as torch's stores are, so that Gloo, NCCL and the elastic agent can use it."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from shoal.world.meeting import Guest


class MeetingStore(dist.Store):
    """Bytes by name, held by the process that holds the meeting.

    Keep it for as long as a PrefixStore of it is used: torch keeps only its own half of the object.
    """

    def __init__(self, guest: Guest, timeout: float):
        super().__init__()
        self._guest, self._timeout = guest, timedelta(seconds=timeout)
        self._clones: list[MeetingStore] = []

    @property
    def timeout(self) -> timedelta:
        """How long get and wait have patience."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Let get and wait have so much patience."""
        self._timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        """Say something, once and for all or again."""
        self._guest.ask("set", key.encode(), _bytes(value))

    def get(self, key: str) -> bytes:
        """What was said, waiting until it is."""
        return self._all("get", [key], self.timeout)[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """As get, of several."""
        return self._all("get", keys, self.timeout)

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        """As set, of several."""
        for key, value in zip(keys, values):
            self.set(key, value)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Until all of them have been said."""
        self._all("wait", keys, self.timeout if timeout is None else timeout)

    def _all(self, verb: str, keys: list[str], timeout: timedelta) -> list[bytes]:
        seconds = timeout.total_seconds()
        found = self._guest.ask(verb, *(key.encode() for key in keys), timeout=seconds)
        if found is None:
            raise dist.DistStoreError(f"wait timeout after {seconds:g} s, keys: {', '.join(keys)}")
        return found

    def check(self, keys: list[str]) -> bool:
        """Whether all of them have been said."""
        return self._guest.ask("check", *(key.encode() for key in keys)) is not None

    def add(self, key: str, amount: int) -> int:
        """Count; the count."""
        found = self._guest.ask("add", key.encode(), str(amount).encode())
        assert found is not None
        return int(found[0])

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Say something where `expected` is what was said before; what stands there now."""
        found = self._guest.ask("exchange", key.encode(), _bytes(expected), _bytes(desired))
        assert found is not None
        return found[0]

    def delete_key(self, key: str) -> bool:
        """Forget; whether it had been said."""
        return self._guest.ask("delete", key.encode()) is not None

    def clone(self) -> MeetingStore:
        """Another of the same meeting, which lives as long as this one."""
        self._clones.append(MeetingStore(self._guest, self.timeout.total_seconds()))
        return self._clones[-1]


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
