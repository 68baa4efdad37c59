"""ClickData: the click log that a config describes, with its readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from shoal.clicks import synthetic
from shoal.clicks.custom import Custom
from shoal.clicks.cut_log import cut_in_order
from shoal.clicks.formats import FORMATS, LineFormat
from shoal.clicks.layout import Layout
from shoal.clicks.log import ClickLog, pick_format, read_layout
from shoal.clicks.memory_mapped import open_log
from shoal.clicks.samples import ClickReader, InMemory, Samples
from shoal.clicks.stream import SplitFiles, Stream, load, share
from shoal.config.errors import did_you_mean
from shoal.config.output import flat
from shoal.config.schema import ClicksSection, Config, DataSection
from shoal.data.dataset import Split
from shoal.data.loading.location import named_data
from shoal.data.prepared.dataset import find_log
from shoal.data.reading import shown_readings
from shoal.data.sources.files import find_files
from shoal.data.statistics import DOES, FEW, few
from shoal.distributed.world import World

SPLITS: tuple[Split, ...] = ("train", "valid", "test")
OF_FILES = ("pipe_command", "custom", "split_files")


@dataclass
class ClickData:
    """What a run reads: the layout, the training reader and a reader for each split to evaluate."""

    name: str
    form: str
    reader_kind: str  # memory, stream or custom
    layout: Layout
    group: int | None  # the slot that GAUC groups by
    reader: ClickReader
    readers: dict[str, ClickReader]
    files: dict[str, list[Path]]
    fingerprint: dict[str, Any]
    sources: dict[str, str]  # split -> where its samples come from, in the user's words
    # split -> names of its files that are trained on too
    trained_on: dict[str, list[str]] = field(default_factory=dict)

    def describe(self) -> str:
        """The block of facts that the log shows."""
        lines = [
            f"{self.name} ({self.form}, reader {self.reader_kind})",
            f"The number of slots: {len(self.layout.slots)}",
            f"The number of dense values: {len(self.layout.dense)}",
            f"Ids are: {f'below {self.layout.rows}' if self.layout.rows else 'any of 64 bits'}",
        ]
        for split, reader in {"train": self.reader, **self.readers}.items():
            inner = reader.inner if isinstance(reader, SplitFiles) else reader
            files = f"{len(self.files[split])} files, " if split in self.files else ""
            num_samples = inner.known_samples
            count = (
                "a number of samples known at the end"
                if num_samples is None
                else f"{num_samples} samples"
            )
            scope = " of this process" if isinstance(reader, SplitFiles) else ""
            rate = ""
            if isinstance(inner, InMemory) and isinstance(inner.samples, Samples) and num_samples:
                rate = f", click rate {inner.samples.labels.mean(dtype='float64'):.4f}"
            lines.append(f"The {split} log: {files}{count}{scope}{rate}")
        lines += [f"Read {line}; data.cells says otherwise" for line in self.read_as()]
        return "\n".join(lines)

    def read_as(self) -> list[str]:
        """A line for each column whose cells are not read as they stand."""
        return shown_readings(self.layout.cells)

    def warnings(self) -> list[str]:
        """A sentence for each reason why metrics of this log mean little."""
        warnings = [
            f"{len(names):,} of the files to {DOES[split]} on are trained on too ({names[0]}"
            f"{', ...' if len(names) > 1 else ''}); metrics then tell what was remembered: name "
            f"other files with data.clicks.{split}"
            for split, names in self.trained_on.items()
        ]
        counts = {split: reader.known_samples or 0 for split, reader in self.readers.items()}
        return warnings + [
            few(p, count, "sample") for p, count in counts.items() if 0 < count < FEW
        ]


def open_clicks(config: Config, world: World, tile: int, source: str | None = None) -> ClickData:
    """Find the files, agree on what they hold, and make the readers.

    tile: samples that a rank predicts at a time in evaluation. source: of the click log, if
    `named_data` was asked for it before.
    """
    make = {"prepared": _prepared, "synthetic_clicks": _synthetic, "log": _logged}
    opened = make[source or named_data(config.data, clicks=True).source](config, world, tile)
    section, layout = config.data.clicks, opened.layout
    if section.group is not None:
        if section.group not in layout.slots:
            raise ValueError(
                f"data.clicks.group: there is no slot {section.group}; slots are "
                f"{', '.join(layout.slots)}{did_you_mean(section.group, layout.slots)}"
            )
        opened.group = layout.slots.index(section.group)
    elif "GAUC" in config.eval.metrics:
        raise ValueError("eval.metrics: GAUC needs the slot that it groups by: data.clicks.group")
    if not opened.readers and config.train.eval_every:
        raise ValueError(
            "there is nothing to evaluate on: name files with data.clicks.valid or "
            "data.clicks.test, or set train.eval_every=0"
        )
    return opened


def _synthetic(config: Config, world: World, tile: int) -> ClickData:
    section, clicks = config.data.clicks.synthetic, config.data.clicks
    _refuse(config, (*SPLITS, *OF_FILES), "data.format synthetic_clicks is generated")
    layout = synthetic.layout(section)
    samples: dict[str, Samples] = {
        p: synthetic.synthetic_clicks(section, p).samples for p in SPLITS
    }
    sources: dict[str, str] = dict.fromkeys(SPLITS, "data.clicks.synthetic")
    shuffle = config.train.shuffle and clicks.reader == "memory"
    fingerprint = {"planted": section.model_dump(mode="json"), "shuffle": shuffle}
    reader, readers = _in_memory(config, world, tile, layout, samples)
    return ClickData(
        name=config.data.title,
        form="synthetic_clicks",
        reader_kind=clicks.reader,
        layout=layout,
        group=None,
        reader=reader,
        readers=readers,
        files={},
        fingerprint=fingerprint,
        sources=sources,
    )


def _keys(clicks: ClicksSection) -> dict[str, str]:
    """Split -> the key that names its files: of valid and test, one that is absent is the other."""
    parts = {"train": ("train",), "valid": ("valid", "test"), "test": ("test", "valid")}
    keys_by_split = {
        split: [key for key in keys if getattr(clicks, key)] for split, keys in parts.items()
    }
    return {split: keys[0] for split, keys in keys_by_split.items() if keys}


def _refuse(config: Config, keys: tuple[str, ...], why: str) -> None:
    """Refuse options that only raw files have."""
    chosen_keys = [key for key in keys if getattr(config.data.clicks, key)]
    chosen_keys += ["reader"] if config.data.clicks.reader == "custom" else []
    if chosen_keys:
        raise ValueError(f"data.clicks.{chosen_keys[0]} is for raw files, and {why}; leave it out")


def _in_memory(
    config: Config, world: World, tile: int, layout: Layout, samples: Mapping[str, Samples]
) -> tuple[ClickReader, dict[str, ClickReader]]:
    """Readers of samples that are there: that of training, and those of the other splits."""
    shuffle = config.train.shuffle and config.data.clicks.reader == "memory"
    batch_size = config.samples_per_step(world.size)
    reader = InMemory(samples["train"], layout, batch_size, config.run.seed, shuffle)
    return reader, {
        split: InMemory(split_samples, layout, tile, tile=tile)
        for split, split_samples in samples.items()
        if split != "train"
    }


def _prepared(config: Config, world: World, tile: int) -> ClickData:
    """Logs that `shoal prepare` has parsed: their samples are mapped."""
    data, clicks = config.data, config.data.clicks
    _refuse(config, OF_FILES, "data.clicks.train is a prepared folder")
    logs: dict[str, tuple[Samples, Layout, list[list[Any]]]] = {}
    sources: dict[str, str] = {}
    for split, key in _keys(clicks).items():
        folder = find_log(getattr(clicks, key), data.path)
        if folder is None:
            raise ValueError(
                f"data.clicks.{key} is no prepared folder, and data.clicks.train is one; prepare "
                f"it too: shoal prepare {getattr(clicks, key)} --to DIR"
            )
        logs[split] = open_log(folder)
        sources[split] = f"data.clicks.{key} ({folder})"
    _, layout, files = logs["train"]
    for split, (_, other_layout, _) in logs.items():
        if other_layout != layout:
            raise ValueError(
                f"{sources[split]} has other columns than {sources['train']}; prepare both with "
                "the same data.clicks options"
            )
    for key in ("label", "rows", "slots", "dense"):
        chosen, stored = getattr(clicks, key), getattr(layout, key)
        stored = layout.slot_rows if key == "rows" and layout.slot_rows else stored
        equivalents = (len(stored), [*stored]) if isinstance(stored, tuple) else (stored,)
        if chosen is not None and chosen not in equivalents:
            raise ValueError(
                f"data.clicks.{key} is {chosen}, and {sources['train']} was prepared with "
                f"{equivalents[-1]}; leave it out, or prepare it again"
            )
    samples = {split: log[0] for split, log in logs.items()}
    reader, readers = _in_memory(config, world, tile, layout, samples)
    reader.prefetch = True  # a disk may have to be waited for
    fingerprint = _fingerprint(config, layout, files)
    return ClickData(
        name=data.title,
        form="prepared",
        reader_kind=clicks.reader,
        layout=layout,
        group=None,
        reader=reader,
        readers=readers,
        files={},
        fingerprint=fingerprint,
        sources=sources,
        trained_on=_trained_on(
            config, {split: log[2] for split, log in logs.items()}, lambda f: f[0]
        ),
    )


def _fingerprint(config: Config, layout: Layout, files: list[list[Any]]) -> dict[str, Any]:
    """What distinguishes the samples of a log and their order from another's, prepared or not."""
    clicks = config.data.clicks
    return {
        "layout": [list(layout.slots), list(layout.dense), layout.label, layout.rows]
        + [list(layout.slot_rows)] * bool(layout.slot_rows)
        + [layout.cells] * bool(layout.cells),
        "files": files,
        "command": clicks.pipe_command,
        "order": [clicks.reader, config.train.shuffle and clicks.reader == "memory"],
        "split_over": None,
    }


def _logged(config: Config, world: World, tile: int) -> ClickData:
    data, clicks = config.data, config.data.clicks
    form = pick_format(data)
    if clicks.reader == "custom" and clicks.custom is None:
        raise ValueError("data.clicks.reader custom needs data.clicks.custom: FILE.py[:CLASS]")
    if clicks.reader == "custom" and clicks.pipe_command is not None:
        raise ValueError("data.clicks: a custom reader and pipe_command exclude each other")
    if clicks.pipe_command is not None and not isinstance(FORMATS[form], LineFormat):
        raise ValueError(f"data.clicks.pipe_command works on lines; {form} files have none")
    files: dict[str, list[Path]] = {}
    sources: dict[str, str] = {}
    for split, key in _keys(clicks).items():
        paths = files[split] = find_files(getattr(clicks, key), data.path, f"data.clicks.{key}")
        rest = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        sources[split] = f"data.clicks.{key} ({paths[0]}{rest})"
    layout = read_layout(data, form, files["train"])
    logs = {
        split: ClickLog(paths, form, layout, clicks.pipe_command, data.separator)
        for split, paths in files.items()
    }
    is_cut = _is_cut(data)
    if is_cut:
        logs = dict(cut_in_order(logs["train"], data.split.ratio))
        shares = _shares_of(data.split.ratio)
        sources = {split: f"{shares[split]} of {sources['train']}" for split in logs}
    maker = _Maker(config, world, tile)
    readers: dict[str, ClickReader] = {}
    if is_cut:
        readers = {split: maker.evaluation(log) for split, log in logs.items() if split != "train"}
        for split, other in (("valid", "test"), ("test", "valid")):
            if other in readers:
                readers.setdefault(split, readers[other])
    elif "valid" in logs:
        readers["valid"] = maker.evaluation(logs["valid"])
        is_shared = files["valid"] == files["test"]
        readers["test"] = readers["valid"] if is_shared else maker.evaluation(logs["test"])
    reader = maker.training(logs["train"])
    if reader.num_batches == 0:
        raise ValueError(f"data.clicks.train: {clicks.train} has no samples")
    fingerprint = _fingerprint(config, layout, logs["train"].fingerprint())
    fingerprint["split_over"] = world.size if clicks.split_files else None
    if is_cut:
        fingerprint["cut"] = data.split.ratio
    return ClickData(
        name=data.title,
        form=form,
        reader_kind=clicks.reader,
        layout=layout,
        group=None,
        reader=reader,
        readers=readers,
        files=files,
        fingerprint=fingerprint,
        sources=sources,
        trained_on=_trained_on(config, files, lambda path: path.name),
    )


def _shares_of(ratio: list[float]) -> dict[str, str]:
    """Split -> its share of a log that is cut in the order of its rows, in words."""
    places = ("the first", "the middle", "the last")
    return {
        split: f"{place} {100 * part / sum(ratio):.3g} %"
        for split, place, part in zip(SPLITS, places, ratio)
    }


def _is_cut(data: DataSection) -> bool:
    """Whether one log is cut into train, valid and test, in the order of its rows."""
    clicks = data.clicks
    if clicks.valid or clicks.test or data.split.order != "file":
        return False
    for key in OF_FILES:
        if getattr(clicks, key):
            raise ValueError(
                f"data.clicks.{key} and data.split.order=file exclude each other: a log that is "
                "cut in the order of its rows is read whole by every worker"
            )
    return True


def _trained_on(
    config: Config, files: Mapping[str, list[Any]], name: Callable[[Any], str]
) -> dict[str, list[str]]:
    """Split -> names of its files that are trained on too, unless they are tested first."""
    shared = {
        split: [entry for entry in entries if entry in files["train"]]
        for split, entries in files.items()
    }
    if config.start.test_first:
        return {}
    return {
        split: [name(entry) for entry in entries]
        for split, entries in shared.items()
        if entries and split != "train" and getattr(config.data.clicks, split) is not None
    }


class _Maker:
    """Makes readers of the kind that the config names."""

    def __init__(self, config: Config, world: World, tile: int):
        self.config = config
        self.world = world
        self.tile = tile
        self.section = config.data.clicks
        self.flat = flat(config.model_dump(mode="json"))

    def evaluation(self, files: ClickLog) -> ClickReader:
        """In tiles; never split by files, so that every rank makes as many steps."""
        return self._make(files, self.tile, self._counts(files), self.tile)

    def training(self, files: ClickLog) -> ClickReader:
        """In global batches, or in batches of this worker's own files."""
        batch_size = self.config.samples_per_step(self.world.size)
        counts = self._counts(files)
        if not self.section.split_files:
            return self._make(files, batch_size, counts)
        rank, size = self.world.rank, self.world.size
        worker_log = files.part(rank, size)
        first = sum(len(files.part(worker, size).files) for worker in range(rank))
        worker_counts = None if counts is None else counts[first : first + len(worker_log.files)]
        inner = self._make(worker_log, share(batch_size, rank, size), worker_counts)
        most = inner.num_batches  # of all workers: as many steps for each
        if most is not None:
            most = int(self.world.stack(torch.tensor([most], device=self.world.device)).max())
        return SplitFiles(inner, rank, size, most)

    def _make(
        self, files: ClickLog, batch_size: int, counts: list[int] | None, tile: int | None = None
    ) -> ClickReader:
        section = self.section
        if section.reader == "custom":
            assert section.custom is not None
            return Custom(section.custom, files.files, self.flat, files.layout, batch_size, tile)
        if section.reader == "stream":
            return Stream(files, batch_size, counts, section.threads, tile, section.profile)
        mapped = files.mapped()
        samples = mapped or load(files, section.threads, section.profile)
        shuffle = tile is None and self.config.train.shuffle
        seed = self.config.run.seed
        reader = InMemory(samples, files.layout, batch_size, seed, shuffle, tile)
        reader.prefetch = mapped is not None  # a disk may have to be waited for
        return reader

    def _counts(self, files: ClickLog) -> list[int] | None:
        """Samples of every file, for a stream: each rank counts some. None: a program decides."""
        if self.section.reader != "stream" or files.command is not None:
            return None
        rank, size = self.world.rank, self.world.size
        counts = torch.zeros(len(files.files), dtype=torch.int64)
        for number in range(rank, len(files.files), size):
            counts[number] = files.count(files.files[number]) or 0
        return self.world.all_reduce(counts.to(self.world.device)).tolist()
