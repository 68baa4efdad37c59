"""`shoal plan`: what a run takes of memory, time and money, before it runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.arguments import TRUST, resolve_args
from shoal.cli.startup import importing

if TYPE_CHECKING:
    from shoal.planning.cluster import Cluster
    from shoal.planning.plan_text import TimePlan


def plan(
    context: typer.Context,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="FILE|PRESET", help="Machines to plan for; this one by default."),
    ] = None,
    hosts: Annotated[
        int | None, typer.Option(min=1, help="Number of hosts of the cluster.")
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Number of GPUs (or cores) of each host.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Find the number of hosts for a target: '1 epoch in 2 h'.")
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="RUN", help="Compare with what this run measured; it brings the config."
        ),
    ] = None,
    launch: Annotated[
        str | None,
        typer.Option(
            metavar="LAUNCHER",
            help="Print the plan's job instead: slurm, torchx, ray, k8s or kubeflow.",
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure this machine (a minute): a file for --cluster."),
    ] = False,
    output: Annotated[
        str | None, typer.Option(metavar="FILE", help="With --measure and --launch: write there.")
    ] = None,
    trust: Annotated[bool, TRUST] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print an object for programs.")] = False,
) -> None:
    """Print what a run takes: memory of every table, milliseconds of a step by part, cost.

    Configs and keys as for train: shoal plan config.yaml --cluster DGX-H100 --hosts 8. A config
    whose rows do not fit this machine is refused; with --cluster strategies that fit are ranked.
    """
    with importing():
        from shoal.planning.plan import plan_config
        from shoal.planning.ranking import Target

    if measure:
        _refuse(
            "--measure",
            {
                "--cluster": cluster,
                "--target": target,
                "--json": as_json,
                "--launch": launch,
                "--compare": compare,
            },
        )
    elif compare is not None:
        _refuse("--compare", {"--launch": launch})
    if output is not None:
        _check_output(output, is_written=measure or launch is not None)
    # Measure this machine, compare a run with its plan, or plan a config.
    if measure:
        return _measure(context.args, output)
    machines = _cluster(cluster, hosts, devices)
    parsed_target = None if target is None else Target.read(target)
    if compare is not None:
        from shoal.planning.comparison_with_run import compare_run

        compared = compare_run(compare, machines if cluster else None, trust)
        return typer.echo(json.dumps(compared.facts(), indent=2) if as_json else str(compared))
    config = resolve_args(context.args, trust=trust).config
    run_plan = plan_config(config, machines, parsed_target, refuse=cluster is None)
    if launch is None:
        text = json.dumps(run_plan.facts(), indent=2) if as_json else str(run_plan)
        return typer.echo(text.lstrip("\n"))
    if run_plan.time is None:
        raise ValueError(f"--launch needs steps: {run_plan.memory.splitlines()[-1]}")
    folder = config.run.output or "runs/planned"
    _write(_job(launch, run_plan.time.chosen, context.args, folder), output)


def _refuse(option: str, others: Mapping[str, object]) -> None:
    """Refuse options that have no effect together with `option`."""
    conflicts = [name for name, value in others.items() if value]
    if conflicts:
        raise typer.BadParameter(f"{option} goes without {', '.join(conflicts)}")


def _check_output(output: str, is_written: bool) -> None:
    """Refuse a file that nothing is written to, or whose folder does not exist."""
    if not is_written:
        raise typer.BadParameter("--output is for --measure and --launch")
    folder, file = Path(output).parent, Path(output).name
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder} to write {file} into; make it")


def _cluster(named: str | None, hosts: int | None, devices: int | None) -> Cluster:
    from shoal.planning.cluster_file import read_cluster
    from shoal.planning.presets import this_machine

    machines = this_machine() if named is None else read_cluster(named)
    if devices is not None:
        machines = replace(machines, host=machines.host.with_devices(devices))
    return machines if hosts is None else machines.of_size(hosts)


def _measure(args: list[str], output: str | None) -> None:
    """Measure this machine, print how the nearest preset differs, and write or print the file."""
    with importing():
        from shoal.planning.probed_cluster import differences, measured_file
        from shoal.planning.probes import measure, shapes_of

    config = resolve_args(args).config if args else None
    shapes = None if config is None else shapes_of(config)
    folder = None if config is None else config.rows.tiers.ssd
    report = lambda part: typer.echo(f"measuring: {part}", err=True)  # noqa: E731
    measurement = measure(shapes, folder, report=report)
    typer.echo(differences(measurement), err=output is None)
    _write(measured_file(measurement), output)


def _job(launcher: str, plan: TimePlan, args: list[str], output: str) -> str:
    """The job of a plan, with its keys; output: the folder of its run."""
    from shoal.planning.jobs import job_of, write_job
    from shoal.planning.ranking import keys

    plan_args = [f"--{key}={value}" for key, value in keys(plan.best).items()]
    job = job_of(
        plan.best.layout,
        plan.cluster,
        [*args, *plan_args],
        needed=plan.best.host_bytes,
        output=output,
    )
    return write_job(launcher, job)


def _write(text: str, output: str | None) -> None:
    """Write a text into a file, or print it."""
    if output is None:
        return typer.echo(text, nl=False)
    from shoal.files.durable import replace_durably, written

    with written(Path(output)):
        replace_durably(Path(output), text.encode())
    typer.echo(f"written: {output}")
