"""Back-test: train on the past and test on what comes next, at several moments of one data set.

PARENT/cut-1/, cut-2/, …   a run each, as `shoal train` makes them
PARENT/backtest.json       the cuts, their metrics, and means over the cuts

A cut trains on what is before its moment (the last tenth of that validates) and tests on what comes
until the next cut. What is later is not there: neither rows nor users or items.
"""

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import shoal
from shoal import config as config_room
from shoal.config import Resolved
from shoal.config.data_section import seconds_of
from shoal.config.schema import Config
from shoal.config.yaml_io import read, read_file
from shoal.data.dataset import Dataset
from shoal.data.loading.load import load_dataset
from shoal.data.loading.location import interactions_of
from shoal.data.protocol import decide, values_of
from shoal.data.split import shown_time
from shoal.files.durable import replace_durably
from shoal.files.folders import inner_folder
from shoal.models import find
from shoal.runs.run import label, train
from shoal.runs.run_files import read_result, same_settings, whole
from shoal.training.run_folder import RunFolder

log = logging.getLogger("shoal")
FIRST = 0.5  # share of the interactions before the first of --cuts
VALID = 0.1  # share of a cut's past that validates


@dataclass(frozen=True)
class TimeCut:
    """A cut in time: where valid and test begin, and where the test ends (None: with the data)."""

    valid: float
    test: float
    until: float | None

    def values(self, config: Config) -> dict[str, Any]:
        """Config values of the cut's run."""
        kept, field = dict(config.data.filter.values), config.data.fields.time
        if self.until is not None:
            kept[field] = f"(-inf,{self.until!r})"
        at = [_moment(self.valid), _moment(self.test)]
        return {"data.split.at": at, "data.filter.values": kept}


def backtest(
    resolved: Resolved, cuts: int | None, at: Sequence[str], parent: str | None = None
) -> dict[str, Any]:
    """Train and test every cut that is not finished; what backtest.json holds."""
    config = resolved.config
    folder = Path(parent or Path(config.run.root, f"backtest-{label(config.model, config.data)}"))
    dataset = _load_timed(config)
    times = np.sort(dataset.flat(str(dataset.time_field)))
    # Decided once, from all of the data: every cut counts repeats alike.
    resolved = resolved.with_values(values_of(decide(config, dataset)), "the data")
    config = resolved.config
    chosen = _cuts_at(times, at) if at else _cuts_by_count(times, cuts or 5)
    done: list[dict[str, Any]] = []
    for number, cut in enumerate(chosen, start=1):
        place = RunFolder(inner_folder(folder, f"cut-{number}", make=False))
        resolved_cut = resolved.with_values(
            {**cut.values(config), "run.output": str(place.path)}, "shoal backtest"
        )
        until = "the end" if cut.until is None else shown_time(cut.until)
        cut_title = f"cut {number} of {len(chosen)}: test from {shown_time(cut.test)} until {until}"
        if place.is_run:
            _check_same(place, resolved_cut.config)
        if place.is_finished:
            log.info("%s is finished already: %s", cut_title, place.path)
            result = read_result(place.path / "result.json")
        else:
            log.info("%s", cut_title)
            shoal.STARTED = time.perf_counter()
            result = train(resolved_cut, resume=place.is_run)
        done.append(
            {
                "folder": str(place.path),
                "test_from": shown_time(cut.test),
                "until": None if cut.until is None else until,
                "train": int((times < cut.valid).sum()),
                "test": int(((times >= cut.test) & (times < (cut.until or np.inf))).sum()),
                "best_epoch": whole(result.get("best_epoch")),
                "metrics": result["test"],
            }
        )
        report: dict[str, Any] = {"model": config.model.title, "dataset": config.data.title}
        report |= {"cuts": done, "mean": _over(done, np.mean), "deviation": _over(done, np.std)}
        replace_durably(folder / "backtest.json", (json.dumps(report, indent=2) + "\n").encode())
    return report


def _load_timed(config: Config) -> Dataset:
    """The interactions of a config, which have times."""
    data = config.data
    if find(config.model.name).kind == "clicks":
        raise ValueError(f"shoal backtest ranks items, and {config.model.title} predicts clicks")
    if interactions_of(data) == "prepared":
        raise ValueError(
            f"{data.path} is a prepared folder, whose rows are chosen already; give `shoal "
            "backtest` the files that it was made of"
        )
    if data.fields.time in data.filter.values:
        raise ValueError(
            f"data.filter.values.{data.fields.time}: `shoal backtest` chooses rows by time itself; "
            "leave it out"
        )
    dataset = load_dataset(data, config.run.seed)
    if dataset.time_field is None:
        raise ValueError(
            f"data set {data.title!r} has no times to cut at: name their column with "
            "data.fields.time, and load it (data.load.inter)"
        )
    return dataset


def _cuts_by_count(times: np.ndarray, cuts: int) -> list[TimeCut]:
    """Cuts of the second half into windows of equally many interactions; the first half is past."""
    places = (len(times) * (FIRST + (1 - FIRST) * np.arange(cuts) / cuts)).astype(np.int64)
    return _windows(times, [float(times[place]) for place in places])


def _cuts_at(times: np.ndarray, at: Sequence[str]) -> list[TimeCut]:
    moments = [seconds_of(_number(one)) for one in at]
    if moments != sorted(set(moments)):
        raise ValueError(f"--at {','.join(at)}: every date must come after the one before")
    return _windows(times, moments)


def _windows(times: np.ndarray, moments: list[float]) -> list[TimeCut]:
    time_cuts = []
    for test, until in zip(moments, [*moments[1:], None]):
        past = times[times < test]
        valid = float(past[int(len(past) * (1 - VALID))]) if len(past) else test
        tested = times[(times >= test) & (times < (np.inf if until is None else until))]
        if not len(tested) or not (past < valid).any():
            which = "before" if len(tested) else "from"
            raise ValueError(
                f"a cut at {shown_time(test)} has too few interactions {which} there; times run "
                f"from {shown_time(times[0])} to {shown_time(times[-1])}: choose fewer cuts, or "
                "other dates (--at)"
            )
        time_cuts.append(TimeCut(valid, test, until))
    return time_cuts


def _check_same(place: RunFolder, config: Config) -> None:
    """Refuse a folder whose run has another config."""
    old, new = (
        {key: value for key, value in config_values.items() if key not in ("run", "launch")}
        for config_values in (
            read_file(place.path / "config.yaml")[0],
            read(config_room.dump(config), "")[0],
        )
    )
    if not same_settings(kept=old, wanted=new):
        raise ValueError(
            f"{place.path} holds a run of another config; name another folder with --output"
        )


def _over(cuts: list[dict[str, Any]], function: Any) -> dict[str, float]:
    names = [name for name in cuts[0]["metrics"] if all(name in cut["metrics"] for cut in cuts)]
    return {name: float(function([cut["metrics"][name] for cut in cuts])) for name in names}


def _number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _moment(seconds: float) -> str | float:
    """A moment as a date where a date is exact, else as a number."""
    text = shown_time(seconds)
    return text if "-" in text and seconds_of(text) == seconds else seconds
