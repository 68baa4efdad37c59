"""Figures of a service, in the text that Prometheus reads."""

from __future__ import annotations

import time
from bisect import bisect_left


class Figures:
    """Counts requests and how long they took, by route."""

    bounds = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  # seconds

    def __init__(self) -> None:
        self.begun = time.time()
        self.requests: dict[tuple[str, int], int] = {}
        self.seconds: dict[str, float] = {}
        self.buckets: dict[str, list[int]] = {}
        self.in_flight = 0

    def count(self, route: str, status: int, seconds: float) -> None:
        """One request was answered."""
        self.requests[route, status] = self.requests.get((route, status), 0) + 1
        self.seconds[route] = self.seconds.get(route, 0.0) + seconds
        counts = self.buckets.setdefault(route, [0] * (len(self.bounds) + 1))
        counts[bisect_left(self.bounds, seconds)] += 1

    def text(self, extra_figures: dict[str, float], info: dict[str, str]) -> str:
        """All of it, and further numbers by name."""
        lines = ["# TYPE shoal_requests_total counter"]
        for (route, status), number in sorted(self.requests.items()):
            labels = f'route="{route}",status="{status}"'
            lines.append(f"shoal_requests_total{{{labels}}} {number}")
        lines.append("# TYPE shoal_request_seconds histogram")
        for route, counts in sorted(self.buckets.items()):
            total = 0
            for bound, number in zip([*map(str, self.bounds), "+Inf"], counts):
                total += number
                labels = f'route="{route}",le="{bound}"'
                lines.append(f"shoal_request_seconds_bucket{{{labels}}} {total}")
            lines.append(f'shoal_request_seconds_sum{{route="{route}"}} {self.seconds[route]:.6f}')
            lines.append(f'shoal_request_seconds_count{{route="{route}"}} {total}')
        figures = {
            **extra_figures,
            "in_flight": self.in_flight,
            "uptime_seconds": time.time() - self.begun,
        }
        for name, value in figures.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# TYPE shoal_{name} {kind}", f"shoal_{name} {value:g}"]
        escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
        labels = ",".join(f'{name}="{value.translate(escapes)}"' for name, value in info.items())
        lines += ["# TYPE shoal_artifact_info gauge", f"shoal_artifact_info{{{labels}}} 1"]
        return "\n".join(lines) + "\n"
