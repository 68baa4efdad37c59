"""`shoal plan`: what a run takes of memory, time and money, before it runs.

--measure, --simulate, --html and --launch join here: each is an option that takes `Planned`
(shoal.runs.planning.planned) or the cluster.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.command.arguments import TRUST, resolve_words
from shoal.command.startup import importing

if TYPE_CHECKING:
    from shoal.runs.planning.cluster import Cluster
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

    where = _cluster(cluster, hosts, devices)
    wanted = None if target is None else Target.read(target)
    if compare is not None:
        from shoal.runs.planning.compare import compare_run

        compared = compare_run(compare, where if cluster else None, trust)
        return typer.echo(json.dumps(compared.facts(), indent=2) if as_json else str(compared))
    if published is not None:
        made = Planned("", TimePlan.of(_published(published), where, wanted))
    else:
        config = resolve_words(context.args).config
        made = plan_config(config, where, wanted, refuse=cluster is None)
    typer.echo(json.dumps(made.facts(), indent=2) if as_json else str(made).lstrip("\n"))


def _cluster(named: str | None, hosts: int | None, devices: int | None) -> Cluster:
    from shoal.runs.planning.cluster_file import read_cluster
    from shoal.runs.planning.presets import this_machine

    found = this_machine() if named is None else read_cluster(named)
    if devices is not None:
        found = replace(found, host=replace(found.host, devices=devices))
    return found if hosts is None else found.of_size(hosts)


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
