"""`shoal plan`: what a run takes of memory, time and money, before it runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.command.arguments import TRUST, resolve_words
from shoal.command.startup import importing

if TYPE_CHECKING:
    from shoal.config.schema import Config
    from shoal.runs.planning.cluster import Cluster
    from shoal.runs.planning.planned import Planned
    from shoal.runs.planning.work import Work


def plan(
    context: typer.Context,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="FILE|PRESET", help="Machines to plan for; this one by default."),
    ] = None,
    hosts: Annotated[int | None, typer.Option(min=1, help="How many of its hosts.")] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="How many GPUs (or cores) of each host.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Find the hosts for it: '1 epoch in 2 h'.")
    ] = None,
    published: Annotated[
        str | None,
        typer.Option(
            metavar="NAME:BATCH", help="In the place of a config: dlrm-dcnv2:55296, hstu:512."
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Beside what this run measured; it brings the config."),
    ] = None,
    simulate: Annotated[
        bool,
        typer.Option("--simulate", help="Failures, checkpoints, and queues of servers, too."),
    ] = False,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write it as a page.")] = None,
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
        from shoal.runs.planning.choosing import Target
        from shoal.runs.planning.planned import Planned, plan_config
        from shoal.runs.planning.showing import TimePlan

    later = {"--simulate": simulate, "--html": html, "--launch": launch}
    first = {"--cluster": cluster, "--target": target, "--published": published, "--json": as_json}
    if measure:
        _refuse("--measure", {**first, **later, "--compare": compare})
    elif compare is not None:
        _refuse("--compare", later)
    if output is not None and not (measure or launch):
        raise typer.BadParameter(
            "--output is for --measure and --launch; a page goes to --html FILE"
        )
    for file in map(Path, filter(None, (html, output))):
        if not file.parent.is_dir():
            raise ValueError(f"there is no folder {file.parent} to write {file.name} into; make it")
    if measure:
        return _measure(context.args, output)
    where = _cluster(cluster, hosts, devices)
    wanted = None if target is None else Target.read(target)
    if compare is not None:
        from shoal.runs.planning.compare import compare_run

        compared = compare_run(compare, where if cluster else None, trust)
        return typer.echo(json.dumps(compared.facts(), indent=2) if as_json else str(compared))
    config = None
    if published is not None:
        made = Planned("", TimePlan.of(_published(published), where, wanted))
    else:
        config = resolve_words(context.args).config
        made = plan_config(config, where, wanted, refuse=cluster is None)
    if made.time is None and (simulate or html is not None or launch is not None):
        raise ValueError(
            f"--simulate, --html and --launch need steps: {made.memory.splitlines()[-1]}"
        )
    if made.time is not None and (simulate or html is not None):
        from shoal.runs.planning.simulated import Simulated

        epochs = 1.0 if config is None else float(config.train.epochs)
        epochs = epochs if wanted is None else wanted.epochs
        made = replace(made, simulated=Simulated.of(made.time.chosen, epochs))
    if html is not None:
        from shoal.runs.planning.page import plan_page

        _write(plan_page(made), html)
    if launch is not None:
        _write(_job(launch, made, context.args, config), output)
    if html is None and launch is None:
        typer.echo(json.dumps(made.facts(), indent=2) if as_json else str(made).lstrip("\n"))


def _refuse(option: str, others: Mapping[str, object]) -> None:
    """Options that would have no effect beside one."""
    given = [name for name, value in others.items() if value]
    if given:
        raise typer.BadParameter(f"{option} goes without {', '.join(given)}")


def _cluster(named: str | None, hosts: int | None, devices: int | None) -> Cluster:
    from shoal.runs.planning.cluster_file import read_cluster
    from shoal.runs.planning.presets import this_machine

    found = this_machine() if named is None else read_cluster(named)
    if devices is not None:
        found = replace(found, host=replace(found.host, devices=devices))
    return found if hosts is None else found.of_size(hosts)


def _measure(words: list[str], output: str | None) -> None:
    """Measures, prints what differs from the nearest preset, and writes or prints the file."""
    with importing():
        from shoal.runs.planning.measure import measure, shapes_of
        from shoal.runs.planning.measured_cluster import differences, measured_file

    config = resolve_words(words).config if words else None
    shapes = None if config is None else shapes_of(config)
    folder = None if config is None else config.rows.tiers.ssd
    tell = lambda part: typer.echo(f"measuring: {part}", err=True)  # noqa: E731
    found = measure(shapes, folder, tell=tell)
    typer.echo(differences(found), err=output is None)
    _write(measured_file(found), output)


def _job(launcher: str, made: Planned, words: list[str], config: Config | None) -> str:
    """The job of a plan, with its keys."""
    from shoal.runs.planning.choosing import keys
    from shoal.runs.planning.jobs import job_of, write_job

    if made.time is None or config is None:
        raise typer.BadParameter("--launch needs a config: a published model has nothing to start")
    plan = made.time.chosen
    chosen = keys(plan.best) | ({} if made.simulated is None else made.simulated.keys)
    all_words = [*words, *(f"--{key}={value}" for key, value in chosen.items())]
    output = config.run.output or "runs/planned"
    return write_job(launcher, job_of(plan.best.layout, plan.cluster, all_words, output=output))


def _write(text: str, output: str | None) -> None:
    """Into a file, or to the terminal."""
    if output is None:
        return typer.echo(text, nl=False)
    from shoal.world.durable import replace_durably, written

    with written(Path(output)):
        replace_durably(Path(output), text.encode())
    typer.echo(f"written: {output}")


def _published(given: str) -> Work:
    from shoal.config.errors import did_you_mean
    from shoal.runs.planning.work import PUBLISHED

    name, _, batch = given.partition(":")
    if name not in PUBLISHED or not batch.isdecimal() or int(batch) < 1:
        raise typer.BadParameter(
            f"--published {given}: wanted NAME:BATCH with a global batch, such as dlrm-dcnv2:55296;"
            f" names: {', '.join(PUBLISHED)}{did_you_mean(name, PUBLISHED)}"
        )
    return PUBLISHED[name](int(batch))
