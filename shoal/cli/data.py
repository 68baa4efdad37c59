"""Commands about data: `shoal data fetch | make | describe` and `shoal prepare`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.arguments import TRUST, resolve_args, split_arguments
from shoal.cli.exit import print_next
from shoal.cli.startup import check_address_space
from shoal.files.durable import written

if TYPE_CHECKING:
    from shoal.config import Resolved
    from shoal.data.prepared.engine import LocalEngine, RayEngine


def fetch(
    name: Annotated[str, typer.Argument(help="A data set: ml-100k, gowalla, steam, and others.")],
    to: Annotated[str, typer.Option(help="Folder that holds data sets.")] = "dataset",
) -> None:
    """Download a public data set, check it and unpack it; or say where a person gets it.

    SHOAL_MIRROR may name a folder or a URL that holds the files. An unknown name lists all that
    there are.
    """
    from shoal.data.sources import fetch as archives

    typer.echo(f"{name}: {archives.fetch(name, Path(to))}")


def make(
    context: typer.Context,
    to: Annotated[str, typer.Option(help="The folder, a new one.")],
    days: Annotated[
        int, typer.Option(help="Number of days to train on, a file of each kind for each.")
    ] = 2,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Write synthetic clicks (data.clicks.synthetic) as MLPerf's multi-hot Criteo.

    The folders train, valid and test get day_N_sparse_multi_hot.npz, _dense.npy and _labels.npy.
    """
    from shoal.clicks.make_days import make_days

    section = resolve_args(context.args, trust=trust).config.data.clicks.synthetic
    best = make_days(section, Path(to), days)
    for split, auc in best.items():
        typer.echo(f"{to}/{split}: the best possible AUC is {auc:.4f}")
    typer.echo(
        f"train on it: shoal train --model=DCNV2 --data.format=multi_hot --data.path={to} "
        f"--data.clicks.train=train/*.npz --data.clicks.valid=valid/*.npz "
        f"--data.clicks.test=test/*.npz --data.clicks.slots={section.slots} "
        f"--data.clicks.dense={section.dense}"
    )


def describe(
    context: typer.Context,
    write: Annotated[
        str | None, typer.Option(help="Write the features as yaml, to edit and train with.")
    ] = None,
    html: Annotated[str | None, typer.Option(help="Write a page with plots.")] = None,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Print figures of a data set and the features that its columns suggest.

    Configs, data files and keys as for train: shoal data describe ratings.csv --html page.html
    """
    check_address_space()
    from shoal.planning.data_summary import describe_run

    resolved = resolve_args(context.args, trust=trust)
    for note in resolved.read_notes:
        typer.echo(note)
    description = describe_run(resolved.config)
    typer.echo(description.text)
    if write is not None:
        with written(write):
            Path(write).write_text(description.yaml, encoding="utf-8")
        typer.echo(f"{write}: the features, to edit and to add to a config")
    if html is not None:
        if description.page is None:
            raise ValueError("--html: a page is made of interactions, and this is a click log")
        with written(html):
            Path(html).write_text(description.page(), encoding="utf-8")
        typer.echo(f"{html}: open it in a browser")
    args = [shlex.quote(arg) for arg in context.args]
    args += [shlex.quote(write)] if write is not None else []
    commands = [(" ".join(["shoal train", *args]), f"trains {resolved.config.model.title} on it")]
    if html is None and description.page is not None:
        page = " ".join(["shoal data describe", *args, "--html page.html"])
        commands.append((page, "a page with plots"))
    print_next(commands)


def prepare(
    context: typer.Context,
    to: Annotated[str, typer.Option(help="The prepared folder.")],
    memory: Annotated[str, typer.Option(help="Memory to work in, besides the words.")] = "2GB",
    append: Annotated[bool, typer.Option("--append", help="Add the inputs to the folder.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only compare the checksums.")] = False,
    engine: Annotated[str, typer.Option(help="Where files are read: here, or ray.")] = "here",
    ray_address: Annotated[
        str | None, typer.Option(help="With --engine ray: auto, or the cluster's address.")
    ] = None,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Make a prepared folder of raw files: INPUT... [CONFIG.yaml] --to DIR.

    Interactions: csv with a header (Goodreads), atomic files (.inter, .user, .item), MovieLens,
    Parquet; folders and patterns of them. `shoal train --data.path=DIR` trains from it.

    Click logs (--data.format=criteo or slots; csv and Parquet with --data.clicks.slots=[...]):
    `shoal train --data.clicks.train=DIR` trains from it.
    """
    check_address_space()
    import logging

    from tqdm import tqdm

    from shoal.clicks import memory_mapped as mapped
    from shoal.config.sizes import read_size
    from shoal.data.prepared import folder
    from shoal.data.prepared import preparation as preparing

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    budget = read_size(memory)
    if not isinstance(budget, int) or budget < 64 << 20:
        raise typer.BadParameter(f"--memory is {memory}; it is at least 64MB")
    if check:
        typer.echo(f"{to}: {folder.check(Path(to))} files are as they were written")
        return
    raw = _find_raw_files(context.args, trust)
    worker = _find_engine(engine, ray_address)
    for note in raw.resolved.read_notes:
        typer.echo(note)
    config = raw.resolved.config
    sizes = [path.stat().st_size for path in raw.paths]
    with tqdm(total=sum(sizes), unit="B", unit_scale=True, disable=None, desc="reading") as bar:
        job = folder.PrepareJob(
            inputs=raw.names,
            to=Path(to),
            config=config.data,
            seed=config.run.seed,
            memory=budget,
            append=append,
            command=shlex.join(["shoal", *without_engine(sys.argv[1:])]),
            progress=bar.update,
            engine=worker,
        )
        manifest = mapped.prepare_log(job) if raw.is_log else preparing.prepare(job)
    typer.echo(_describe_prepared(manifest, to, raw.is_log))


@dataclass(frozen=True)
class RawFiles:
    """What is prepared, and how it is read."""

    names: list[str]  # files, folders and patterns as they were typed
    paths: list[Path]  # the files that they name
    resolved: Resolved
    is_log: bool  # a click log, not interactions


def _find_raw_files(args: list[str], trust: bool) -> RawFiles:
    """The raw files among the arguments, and the config that says how they are read."""
    from shoal.data.loading.location import holds_log
    from shoal.data.prepared import inputs
    from shoal.data.sources.files import input_files
    from shoal.runs.input_data import with_columns
    from shoal.runs.run import resolve

    files, overrides = split_arguments(args)
    configs = [file for file in files if Path(file).suffix in (".yaml", ".yml", ".toml")]
    names = [file for file in files if file not in configs]
    if not names:
        raise typer.BadParameter("name the raw files to prepare: shoal prepare INPUT... --to DIR")
    resolved = resolve(configs, overrides, trust=trust)
    if holds_log(resolved.config.data):
        return RawFiles(names, input_files(names), resolved, is_log=True)
    paths = inputs.expand(names)
    if inputs.is_table(paths[0]):
        resolved = with_columns(resolved, paths[0], tuple(inputs.ALIASES))
    return RawFiles(names, paths, resolved, is_log=False)


def _find_engine(engine: str, ray_address: str | None) -> LocalEngine | RayEngine:
    """What reads the files: this process, or a Ray cluster."""
    from shoal.data.prepared.engine import LocalEngine, RayEngine

    if engine not in ("here", "ray"):
        raise typer.BadParameter(f"--engine is {engine}; it is here or ray")
    if engine == "here" and ray_address is not None:
        raise typer.BadParameter("--ray-address goes with --engine ray")
    return RayEngine(ray_address) if engine == "ray" else LocalEngine()


def _describe_prepared(manifest: Mapping[str, Any], to: str, is_log: bool) -> str:
    """What a prepared folder holds, what was left out, and how to train from it."""
    from shoal.data.column_store import Stored

    skipped = f"; {manifest['bad_rows']} bad rows were left out" if manifest.get("bad_rows") else ""
    for key, count in manifest.get("left_out", {}).items():
        skipped += f"; {count} were left out by {key}"
    if is_log:
        slots = manifest["layout"]["slots"]
        return (
            f"{to}: {manifest['rows']} samples of {len(slots)} slots{skipped}; "
            f"train from it with --data.clicks.train={Path(to).resolve()}"
        )
    users, items = (
        len(Stored.from_entry(manifest["words"][manifest["options"]["fields"][side]]["ends"])) - 1
        for side in ("user", "item")
    )
    return (
        f"{to}: {manifest['rows']} interactions of {users} users with {items} items{skipped}; "
        f"train from it with --data.path={Path(to).parent} --data.name={Path(to).name}"
    )


def without_engine(args: list[str]) -> list[str]:
    """A command without the arguments that name its engine: the folder does not depend on it."""
    kept, remaining = [], list(args)
    while remaining:
        arg = remaining.pop(0)
        if arg.partition("=")[0] not in ("--engine", "--ray-address"):
            kept.append(arg)
        elif "=" not in arg and remaining:
            remaining.pop(0)
    return kept
