"""The arguments of a command: config files, overrides, and the folder of a run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from shoal.compat.command_arguments import files_and_overrides

if TYPE_CHECKING:  # `shoal --help` is quick: torch comes in with the command that needs it
    from shoal.config import Resolved

# A run may be evaluated or continued on other processes than those it was launched with.
ONE_PROCESS = {
    "launch.nproc": 1,
    "launch.world_size": -1,
    "launch.ip": "localhost",
    "launch.port": 0,
    "launch.group_offset": 0,
    "launch.hosts": 0,
    "launch.host_index": 0,
    "launch.servers": 0,
    "launch.first_server": 0,
}
TRUST = typer.Option(
    "--trust", help="Run the code and write to the places that the folder's config names."
)
QUIET = typer.Option("--quiet", help="Print warnings and the result alone.")
# Of the commands that answer over HTTP: serve, pipeline serve and board.
HOST = typer.Option(help="Address to listen at.")
PORT = typer.Option(min=0, max=65535, help="Port to listen at; 0: any.")
TOKEN_FILE = typer.Option(help="File with the bearer token to ask for (or SHOAL_TOKEN).")
TLS_CERT = typer.Option(help="Certificate for TLS (PEM).")
TLS_KEY = typer.Option(help="Private key of the certificate (PEM).")
ANNOUNCE = typer.Option(help="File to write the address to.")
# Of those that answer questions by a model: serve and pipeline serve.
PLAIN = typer.Option(help="Listen beyond this host without token or TLS.")
BATCH = typer.Option(min=1, help="Requests answered together, at most.")
BODY_BYTES = typer.Option(min=1, help="Bytes of a request, at most.")
SECONDS = typer.Option(help="Seconds in which a request is sent; as many in which it is answered.")
DEADLINE = typer.Option(
    min=1, help="Milliseconds; a request that would be answered later gets 503 at once."
)
REFRESH = typer.Option(help="Seconds between checks for newer files.")
DRAIN = typer.Option(help="Seconds to answer new connections in after SIGTERM.")
THREADS = typer.Option(help="Threads that compute, of all processes together; 0: all cores.")
PROCESSES = typer.Option(min=1, max=256, help="Processes that answer, all at the same address.")
ITEMS = typer.Option(help="Folder that keeps new items: POST /items is answered.")
ITEMS_TOKEN_FILE = typer.Option(
    help="File with the token that POST /items asks for (or SHOAL_ITEMS_TOKEN); without, that of "
    "the service."
)
BENCH = typer.Option(
    "--bench",
    help="Measure the service on this machine and end: answers per second, p50 and p99 of 1, 8 and "
    "64 clients, and the highest rate within --bench-p99. It listens at loopback alone.",
)
BENCH_SECONDS = typer.Option(min=0.1, help="--bench: seconds of each of some ten figures.")
BENCH_P99 = typer.Option(min=0.1, help="--bench: milliseconds that the p99 may take.")
BENCH_JSON = typer.Option("--json", help="--bench: print an object instead of a table.")
# Endings of files of data, which take the place of a config.
DATA = (
    ".csv",
    ".tsv",
    ".txt",
    ".parquet",
    ".arrow",
    ".feather",
    ".ipc",
    ".jsonl",
    ".ndjson",
    ".inter",
    ".xlsx",
    ".xls",
    ".ods",
)
# Columns of a file of data, as shoal.fit calls them.
COLUMNS = ("user", "item", "time", "rating", "label")


def split_arguments(args: list[str]) -> tuple[list[str], list[str]]:
    """Config files and overrides; arguments of other tools' commands are understood too."""
    from shoal.config.sources import join_values

    files: list[str] = []
    overrides: list[str] = []
    for arg in join_values(args):
        if (translation := files_and_overrides(arg)) is not None:
            files += translation[0]
            overrides += translation[1]
        elif arg.startswith("-") or "=" in arg:
            overrides.append(f"--data.fields.{arg[2:]}" if names_column(arg) else arg)
        else:
            files.append(arg)
    return files, overrides


def names_column(arg: str) -> bool:
    """Whether an override is `--user=NAME` or the like, which gives a column its role."""
    return arg.startswith("--") and "=" in arg and arg[2:].partition("=")[0] in COLUMNS


def only_warnings(quiet: bool) -> list[str]:
    """The overrides that `--quiet` stands for."""
    return ["--run.log_level=warning"] if quiet else []


def take_data(files: list[str]) -> tuple[list[str], str | None]:
    """Config files, and the data among them: by its ending, a URL, or a folder that is no run's."""
    data = []
    for file in files:
        path = Path(file)
        if "://" in file and path.suffix not in (".yaml", ".yml"):
            data.append(file)
            continue
        ending = Path(path.stem).suffix if path.suffix in (".gz", ".zst") else path.suffix
        if ending in DATA or (path.is_dir() and not (path / "config.yaml").is_file()):
            data.append(file)
    if len(data) > 1:
        raise typer.BadParameter(
            f"{' and '.join(data)} are files of data: give one, of interactions (or clicks), and "
            "name others by what they are: --data.files.item=FILE, --data.files.user=FILE"
        )
    return [file for file in files if file not in data], data[0] if data else None


def need_data() -> None:
    """Refuse a command without arguments where dataset/ is empty; the error says what to type."""
    from shoal.config.data_section import DATASETS
    from shoal.data.loading.location import named_data
    from shoal.runs.run import resolve

    try:
        named_data(resolve().config.data, clicks=False)
    except ValueError:
        data_files = sorted(
            path.name for path in Path().iterdir() if path.suffix in DATA and path.is_file()
        )
        file = shlex.quote(data_files[0]) if data_files else "ratings.csv"
        lines = {
            "shoal quickstart": "asks three questions, writes a config and a script",
            f"shoal train {file}": "your own file: csv, Parquet, Arrow or JSON lines",
            "shoal train --data.name=synthetic": "data that Shoal generates",
        }
        width = max(map(len, lines))
        shown = [f"  {command:{width}}  # {what}" for command, what in lines.items()]
        raise ValueError(
            "\n".join([f"there is nothing to train on in {DATASETS}/; copy one of these:", *shown])
        ) from None


def resolve_args(args: list[str], **settings: Any) -> Resolved:
    """The config of a command's arguments: config files, data in their place, overrides."""
    from shoal.runs.input_data import with_data
    from shoal.runs.run import resolve

    files, overrides = split_arguments(args)
    files, data = take_data(files)
    resolved = resolve(files, overrides, **settings)
    return resolved if data is None else with_data(resolved, data)


def run_arguments(
    args: list[str], resume: bool, output: str | None
) -> tuple[list[str], list[str], bool]:
    """Config files and overrides of a command that trains, and whether a run's config is used."""
    files, overrides = split_arguments(args)
    if resume and len(files) == 1 and not Path(files[0]).is_file():
        output, files = output or files[0], []
    is_run = bool(resume and not files and output)
    if is_run:
        files = [str(run_config(str(output)))]
    if output is not None:
        overrides.append(f"--run.output={json.dumps(output)}")
    return files, overrides, is_run


def check_resumable(resolved: Resolved, resume: bool) -> None:
    """Raise where --resume names no run to continue."""
    if resume and resolved.config.run.output is None:
        raise typer.BadParameter(
            "--resume needs the run's folder: --output DIR, or the folder itself"
        )


def join_arguments(folder: str, files: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Config files and changed values of `shoal train --join RUN`."""
    if files:
        raise typer.BadParameter(f"--join brings the run's config; leave {files[0]} out")
    return [str(run_config(folder))], {**ONE_PROCESS, "run.output": folder}


def key_of(override: str) -> str:
    """`--launch.nproc=2` -> `launch.nproc`"""
    return override.lstrip("-").partition("=")[0].replace("-", "_")


def run_config(folder: str) -> Path:
    """The config of a run's folder."""
    from shoal.training.run_folder import RunFolder

    RunFolder(folder).check_is_run()
    return Path(folder) / "config.yaml"


def daily_arguments(
    start: str, output: str | None, files: list[str]
) -> tuple[list[str], dict[str, Any]]:
    """Config files and changed values of `shoal train --from RUN`.

    How much is printed is set by this command: `--quiet` of RUN's command has no effect.
    """
    if files:
        raise typer.BadParameter(f"--from brings the run's config; leave {files[0]} out")
    from shoal.config.keys import KEYS

    folder = Path(start).absolute()
    values: dict[str, Any] = {"start.run": str(folder), "run.output": output}
    values["run.log_level"] = KEYS["run.log_level"].default
    if (folder / "vocabulary.safetensors").is_file():  # click models have their own ids
        values["start.vocabulary"] = str(folder)
    return [str(run_config(start))], values
