"""The words of a command: config files, overrides, and the folder of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:  # `shoal --help` is quick: torch comes in with the command that needs it
    from shoal.config import Resolved

# How a run was launched says nothing about how it is evaluated, or continued on other processes.
ONE_PROCESS = {
    "launch.nproc": 1,
    "launch.world_size": -1,
    "launch.ip": "localhost",
    "launch.port": 0,
    "launch.group_offset": 0,
    "launch.hosts": 0,
    "launch.host": 0,
    "launch.servers": 0,
    "launch.first_server": 0,
}
# Left in a command line of fleetrun or paddle.distributed.launch; what is started is ours.
PADDLEREC_PROGRAMS = (
    "trainer.py",
    "static_trainer.py",
    "static_ps_trainer.py",
    "static_gpubox_trainer.py",
)
PADDLE_PORT = 6170
# Endings of files of data, which take the place of a config.
DATA = (
    *(".csv", ".tsv", ".txt", ".parquet", ".arrow", ".feather", ".ipc", ".jsonl", ".ndjson"),
    ".inter",
)
TRUST = typer.Option("--trust", help="Run the code that the run folder's config names.")


def split_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Config files and overrides. `--config_files='a.yaml b.yaml'` is RecBole's way to name files.

    A word after `--key` (without =) is that key's value.
    """
    files: list[str] = []
    overrides: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if Path(word).name in PADDLEREC_PROGRAMS and not word.startswith("-"):
            typer.echo(f"{word} is PaddleRec's own program; Shoal takes its part", err=True)
            continue
        if not word.startswith("-"):
            (files if "=" not in word else overrides).append(word)
            continue
        if "=" not in word and rest and not rest[0].startswith("--"):
            word = f"{word}={rest.pop(0)}"
        key, _, value = word.lstrip("-").partition("=")
        if key in ("m", "o") and not value:
            what = "-m CONFIG.yaml" if key == "m" else "-o key=value"
            raise typer.BadParameter(f"-{key} needs a value: {what}")
        if key == "m":  # PaddleRec's way to name the file, and to override a key
            files.append(value)
            continue
        if key == "o":
            overrides.append(f"--{value}")
            while rest and "=" in rest[0] and not rest[0].startswith("-"):
                overrides.append(f"--{rest.pop(0)}")
            continue
        if key.replace("-", "_") in ("config_files", "config_file_list"):
            files += value.split()
        else:
            overrides.append(word)
    return files, overrides


def take_data(files: list[str]) -> tuple[list[str], str | None]:
    """Config files, and the file or folder of data among them."""
    data = [word for word in files if is_data(word)]
    if len(data) > 1:
        raise typer.BadParameter(
            f"{' and '.join(data)} are files of data: give one, of interactions (or clicks), and "
            "name others by what they are: --data.files.item=FILE, --data.files.user=FILE"
        )
    return [word for word in files if word not in data], data[0] if data else None


def is_data(word: str) -> bool:
    """Whether a word in the place of a config is data: by its ending; or a folder, of no run."""
    path = Path(word)
    ending = Path(path.stem).suffix if path.suffix in (".gz", ".zst") else path.suffix
    return ending in DATA or (path.is_dir() and not (path / "config.yaml").is_file())


def resolve_words(words: list[str], **how: Any) -> Resolved:
    """The config that words of a command give: config files, data in their place, overrides."""
    from shoal.runs.given import with_data
    from shoal.runs.run import resolve

    files, overrides = split_arguments(words)
    files, data = take_data(files)
    resolved = resolve(files, overrides, **how)
    return resolved if data is None else with_data(resolved, data)


def run_arguments(
    arguments: list[str], resume: bool, output: str | None
) -> tuple[list[str], list[str], bool]:
    """As split_arguments, of a command that trains; and whether a run brings its own config."""
    files, overrides = split_arguments(arguments)
    if resume and len(files) == 1 and not Path(files[0]).is_file():
        output, files = output or files[0], []
    is_run = bool(resume and not files and output)
    if is_run:
        files = [str(run_config(str(output)))]
    if output is not None:
        overrides.append(f"--run.output={json.dumps(output)}")
    return files, overrides, is_run


def as_paddle_launches(overrides: list[str]) -> list[str]:
    """`--ips A,B --gpus 0,1`, as paddle.distributed.launch has them: a process per GPU, on each."""
    given = {key_of(word): word.partition("=")[2] for word in overrides}
    rest = [word for word in overrides if key_of(word) not in ("ips", "gpus")]
    gpus = given.get("gpus")
    nproc = len(gpus.split(",")) if gpus is not None else None
    if gpus is not None:
        rest.append(f"--run.gpu_ids={json.dumps(gpus)}")
        if not {"nproc", "launch.nproc"} & given.keys():
            rest.append(f"--launch.nproc={nproc}")
    if "ips" in given:
        from shoal.launch.roles import place_of

        hosts = [word.strip() for word in given["ips"].split(",") if word.strip()]
        said = given.get("nproc") or given.get("launch.nproc") or nproc
        if said is None:
            raise typer.BadParameter("--ips needs --gpus 0,1 or --nproc N: the processes of a host")
        host, here = place_of(hosts), int(said)
        if len(hosts) > 1:
            rest += [f"--launch.ip={hosts[0]}", f"--launch.world_size={here * len(hosts)}"]
            rest.append(f"--launch.group_offset={here * host}")
            if not {"port", "launch.port"} & given.keys():
                rest.append(f"--launch.port={PADDLE_PORT}")
    return rest


def check_resumable(resolved: Resolved, resume: bool) -> None:
    """Refuse to resume nothing."""
    if resume and resolved.config.run.output is None:
        raise typer.BadParameter(
            "--resume needs the run's folder: --output DIR, or the folder itself"
        )


def join_arguments(folder: str, files: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Of `shoal train --join RUN`: the run's config, and what is other than in it."""
    if files:
        raise typer.BadParameter(f"--join brings the run's config; leave {files[0]} out")
    return [str(run_config(folder))], {**ONE_PROCESS, "run.output": folder}


def check_joinable(resolved: Resolved, folder: str) -> None:
    """Refuse to join a run whose workers are ranks."""
    if not resolved.config.workers_come_and_go:
        raise typer.BadParameter(
            f"--join {folder}: the workers of that run do not come and go; start it with "
            "strategy.ps.mode=async (or geo) and strategy.ps.elastic=true"
        )


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
    """Of `shoal train --from RUN`: the run's config, and what is other than in it."""
    if files:
        raise typer.BadParameter(f"--from brings the run's config; leave {files[0]} out")
    folder = Path(start).absolute()
    values: dict[str, Any] = {"start.run": str(folder), "run.output": output}
    if (folder / "vocabulary.safetensors").is_file():  # click models have ids of their own
        values["start.words"] = str(folder)
    return [str(run_config(start))], values
