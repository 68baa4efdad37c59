"""The command `shoal`: every command by name, and how it starts and ends."""

from __future__ import annotations

import copy
import os
import signal
import sys
from typing import Annotated, Any

import typer

import shoal
from shoal.cli import (
    arena,
    artifact,
    backtest,
    board,
    codes,
    data,
    doctor,
    exit,
    importing,
    inspect,
    new,
    pipeline,
    planning,
    quickstart,
    recommend,
    report,
    request_log,
    serving,
    startup,
    training,
    tune,
)

# Torch comes in with the command that needs it, so that `shoal --help` is quick.
TAKES_KEYS: dict[str, Any] = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
    "epilog": "Any config key as --section.key=value: `shoal config keys` lists them. RecBole's "
    "flat keys (--epochs=5, --nproc=2) work too.",
}
FILES = {**TAKES_KEYS, "options_metavar": "[CONFIG.yaml]... [--KEY=VALUE]... [OPTIONS]"}
INPUTS = {**TAKES_KEYS, "options_metavar": "INPUT... [CONFIG.yaml] --to DIR [OPTIONS]"}
OLD_NAMES = {"server": "ps server"}  # of commands that were renamed in this release
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Shoal trains recommenders: one model file, one config, any number of processes.",
)
app.command("quickstart")(quickstart.quickstart)
app.command("train", **FILES)(training.train)
app.command("launch", **FILES)(training.launch)
app.command("tune", **FILES)(tune.tune)
app.command("sweep", **FILES)(tune.sweep)
app.command("arena")(arena.arena)
app.command("backtest", **FILES)(backtest.backtest)
app.command("serve")(serving.serve)
app.command("board")(board.board)
app.command("eval", **TAKES_KEYS)(serving.evaluate)
app.command("export")(serving.export)
app.command("recommend")(recommend.recommend)
app.command("predict")(serving.predict)
app.command("prepare", **INPUTS)(data.prepare)
app.command("plan", **FILES)(planning.plan)
app.command("models")(inspect.models)
app.command("runs")(inspect.runs)
app.command("report")(report.report)
app.command("doctor")(doctor.doctor)

config_app = typer.Typer(no_args_is_help=True, help="Look at configs and their keys.")
config_app.command("show", **FILES)(inspect.config_show)
config_app.command("keys")(inspect.config_keys)
config_app.command("schema")(inspect.config_schema)
app.add_typer(config_app, name="config")

new_app = typer.Typer(no_args_is_help=True, help="Write starting points of your own.")
new_app.command("model")(new.model)
app.add_typer(new_app, name="new")

import_app = typer.Typer(no_args_is_help=True, help="Move models that were written elsewhere.")
import_app.command("recbole")(importing.recbole)
app.add_typer(import_app, name="import")

data_app = typer.Typer(no_args_is_help=True, help="Get data sets, and look at them.")
data_app.command("fetch")(data.fetch)
data_app.command("make", **FILES)(data.make)
data_app.command("describe", **FILES)(data.describe)
app.add_typer(data_app, name="data")

checkpoint_app = typer.Typer(no_args_is_help=True, help="Look after the checkpoints of a run.")
checkpoint_app.command("verify")(inspect.checkpoint_verify)
checkpoint_app.command("prune")(inspect.checkpoint_prune)
checkpoint_app.command("copy")(inspect.checkpoint_copy)
app.add_typer(checkpoint_app, name="checkpoint")

artifact_app = typer.Typer(no_args_is_help=True, help="Change an exported model.")
artifact_app.command("add-items")(artifact.add_items)
app.add_typer(artifact_app, name="artifact")

codes_app = typer.Typer(no_args_is_help=True, help="Semantic ids of items.")
codes_app.command("make", **FILES)(codes.make)
codes_app.command("append")(codes.append)
codes_app.command("check", **TAKES_KEYS)(codes.check)
app.add_typer(codes_app, name="codes")

pipeline_app = typer.Typer(no_args_is_help=True, help="Retrieval, ranking and rules as a file.")
pipeline_app.command("check")(pipeline.check)
pipeline_app.command("recommend")(pipeline.recommend)
pipeline_app.command("eval")(pipeline.evaluate)
pipeline_app.command("export")(pipeline.export)
pipeline_app.command("serve")(pipeline.serve)
pipeline_app.command("estimate")(request_log.estimate)
pipeline_app.command("impressions")(request_log.impressions)
app.add_typer(pipeline_app, name="pipeline")

ps_app = typer.Typer(no_args_is_help=True, help="Parameter servers by hand.")
ps_app.command("server")(training.server)
app.add_typer(ps_app, name="ps", hidden=True)

keys_app = typer.Typer(
    no_args_is_help=True,
    help="Encryption keys of workers and servers. Keys of a config: shoal config keys.",
)
keys_app.command("make")(inspect.keys_make)
app.add_typer(keys_app, name="keys")


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[
        bool, typer.Option("--version", help="Print the version and what was built.")
    ] = False,
) -> None:
    """Shoal trains recommenders: one model file, one config, any number of processes."""
    startup.begin()
    if show:
        for line in doctor.describe_build():
            typer.echo(line)
        raise typer.Exit


def find_command(name: list[str]) -> typer.Typer:
    """The app with the command or group of this name alone: typer builds all that an app has."""
    commands = [command for command in app.registered_commands if [command.name] == name]
    groups = [group for group in app.registered_groups if [group.name] == name]
    if not commands and not groups:
        return app
    narrow = copy.copy(app)
    narrow.registered_commands, narrow.registered_groups = commands, groups
    return narrow


def rename_old_command() -> None:
    """Run a command by the name it has now where an old name was typed."""
    old_name = " ".join(sys.argv[1:2])
    if old_name in OLD_NAMES:
        new_name = OLD_NAMES[old_name]
        print(
            f"shoal {old_name} is now shoal {new_name}; the old name works until the next release",
            file=sys.stderr,
        )
        sys.argv[1:2] = new_name.split()


def refuse_part_of_a_name(name: list[str]) -> None:
    """Refuse a part of a command such as `describe`; the error names `shoal data describe`."""
    if not name or any(command.name == name[0] for command in app.registered_commands):
        return
    whole = [
        f"shoal {group.name} {command.name}"
        for group in app.registered_groups
        for command in (group.typer_instance.registered_commands if group.typer_instance else ())
        if command.name == name[0] and group.name != name[0]
    ]
    if whole and all(group.name != name[0] for group in app.registered_groups):
        raise ValueError(f"there is no command shoal {name[0]}; did you mean {' or '.join(whole)}?")


def main() -> None:
    """Entry point of the `shoal` command."""
    if "SHOAL_LAUNCHER" not in os.environ:  # else the launcher stops us and reports it
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, exit.stop)
        sys.unraisablehook = exit.not_dropped
    try:
        rename_old_command()
        refuse_part_of_a_name(sys.argv[1:2])
        find_command(sys.argv[1:2])(standalone_mode=True)
    except SystemExit:
        if "SHOAL_LAUNCHER" not in os.environ:
            exit.ignore_signals()
        raise
    except shoal.Interrupted as error:
        exit.exit_stopped(error)
    except Exception as error:
        if exit.raised:
            exit.exit_stopped(exit.raised[0])
        exit.fail(error)


if __name__ == "__main__":
    main()
