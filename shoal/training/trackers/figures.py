"""What trackers show: the figures of an epoch and of a result by name, and a tool's id of a run."""

from pathlib import Path
from typing import Any

from shoal.files.durable import replace_durably


def figures_of(line: dict[str, Any]) -> dict[str, float]:
    """The numbers of an epoch's line by the names that curves have: loss/train, valid/ndcg@10."""
    figures = {"loss/train": line["loss"]}
    figures |= {f"valid/{name}": value for name, value in line.get("valid", {}).items()}
    return figures


def outcome_of(result: dict[str, Any]) -> dict[str, float]:
    """The metrics of a result by the names that tools show: best_valid/ndcg@10, test/ndcg@10."""
    return {
        f"{part}/{name}": value
        for part in ("best_valid", "test")
        for name, value in result.get(part, {}).items()
    }


def kept_id(folder: Path, tool: str) -> str | None:
    """The id that a tool gave to this run; None where it did not yet."""
    file = folder / f"{tool}.id"
    return file.read_text().strip() if file.is_file() else None


def keep_id(folder: Path, tool: str, run_id: str) -> None:
    """Write the id of a tracker's run, for a resumed run to find."""
    replace_durably(folder / f"{tool}.id", f"{run_id}\n".encode())
