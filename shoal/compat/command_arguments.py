"""Arguments of other tools' commands: PaddleRec's, its launchers' and RecBole's list of files."""

from __future__ import annotations

import json
from pathlib import Path

import typer

# Left in a command line of fleetrun or paddle.distributed.launch; what is started is ours.
PADDLEREC_PROGRAMS = (
    "trainer.py",
    "static_trainer.py",
    "static_ps_trainer.py",
    "static_gpubox_trainer.py",
)


def files_and_overrides(argument: str) -> tuple[list[str], list[str]] | None:
    """The config files and overrides that an argument of another tool means; None: it is Shoal's.

    PaddleRec has `-m FILE` and `-o KEY=VALUE`, RecBole `--config_files='a.yaml b.yaml'`.
    """
    if not argument.startswith("-"):
        if Path(argument).name not in PADDLEREC_PROGRAMS:
            return None
        typer.echo(f"{argument} is PaddleRec's own program; Shoal takes its part", err=True)
        return [], []
    key, _, value = argument.lstrip("-").partition("=")
    if key in ("m", "o") and not value:
        what = "-m CONFIG.yaml" if key == "m" else "-o key=value"
        raise typer.BadParameter(f"-{key} needs a value: {what}")
    if key == "m":
        return [value], []
    if key == "o":
        return [], [f"--{value}"]
    if key.replace("-", "_") in ("config_files", "config_file_list"):
        return value.split(), []
    return None


def as_paddle_launches(overrides: list[str]) -> list[str]:
    """`--ips A,B --gpus 0,1`, as paddle.distributed.launch has them: a process per GPU, on each."""
    parts = [(argument.lstrip("-").partition("="), argument) for argument in overrides]
    options = {key: value for (key, _, value), _ in parts}
    rest = [argument for (key, _, _), argument in parts if key not in ("ips", "gpus")]
    gpus = options.get("gpus")
    nproc = len(gpus.split(",")) if gpus is not None else None
    if gpus is not None:
        rest.append(f"--run.gpu_ids={json.dumps(gpus)}")
        if not {"nproc", "launch.nproc"} & options.keys():
            rest.append(f"--launch.nproc={nproc}")
    if "ips" in options:
        from shoal.launch.roles import place_of

        hosts = [host.strip() for host in options["ips"].split(",") if host.strip()]
        num_processes = options.get("nproc") or options.get("launch.nproc") or nproc
        if num_processes is None:
            num_processes = _visible_gpus()
            rest.append(f"--launch.nproc={num_processes}")
        host, here = place_of(hosts), int(num_processes)
        if len(hosts) > 1:
            rest += [f"--launch.ip={hosts[0]}", f"--launch.world_size={here * len(hosts)}"]
            rest.append(f"--launch.group_offset={here * host}")
            if not {"port", "launch.port"} & options.keys():
                rest.append("--launch.port=6170")
    return rest


def _visible_gpus() -> int:
    from shoal.distributed.gpus import count_gpus

    count = count_gpus(None)
    if not count:
        raise typer.BadParameter(
            "--ips starts a process for each visible GPU, and there is none; give --nproc N"
        )
    typer.echo(f"--ips without --gpus: {count} processes here, one for each visible GPU", err=True)
    return count
