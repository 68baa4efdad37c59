"""Runs from Python: functions that do what the commands do.

import shoal
result = shoal.run(model="BPR", dataset="ml-100k", config_file_list=["test.yaml"], nproc=2)
result["test"]["recall@10"]
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

import shoal
from shoal import config as config_room
from shoal.config import Command, ConfigError, Resolved
from shoal.config.output import flat
from shoal.config.plugins import refuse_while_running
from shoal.config.schema import Config, DataSection, LaunchSection, ModelSection, RunSection
from shoal.config.sources import Origin
from shoal.config.trust import OwnValues, check_code_trusted, check_trusted
from shoal.data.loading.location import NamedData, named_data
from shoal.distributed.gpus import check_gpus, choose_gpus, pick_device
from shoal.distributed.hosts import WorldError, check_installed, is_loopback
from shoal.distributed.rank_variables import is_worker, set_rank
from shoal.distributed.shared_gpu import SharedGpu
from shoal.distributed.world import PeerLost, World, connect
from shoal.launch.child import GRACE_SECONDS, is_launched, record_failure
from shoal.launch.hosts import LaunchError, secret_of
from shoal.launch.roles import Roles
from shoal.launch.servers import early_heartbeat
from shoal.models import find, lookup
from shoal.models.base import Model
from shoal.models.own import check_launchable, is_own, is_registered, register_model
from shoal.optimizers.selection import problems as row_optimizer_problems
from shoal.runs.announcement import announce
from shoal.runs.build import build
from shoal.runs.decay import ages_after, save_ages
from shoal.runs.folder_inputs import keep_inputs
from shoal.runs.forecast import expected
from shoal.runs.host_processes import train_launched, with_new_servers
from shoal.runs.published_data import with_published
from shoal.runs.results import RunResult, check_copied
from shoal.runs.user_code import kept_code, own_code, own_names
from shoal.runs.warm_start import begin, keep_before, validate_first
from shoal.training.metrics import load_metric, with_names
from shoal.training.run_folder import RunFolder, host_log, is_run_config, start_logging
from shoal.training.slow_steps import SLOW
from shoal.training.trackers.tracker import find_tracker
from shoal.training.trainer import Trainer

log = logging.getLogger("shoal")


def resolve(
    files: Sequence[str | Path] = (),
    overrides: Sequence[str] = (),
    values: dict[str, Any] | None = None,
    source: str = "python",
    command: Command | None = None,
    folder: str | Path | None = None,
    trust: bool = False,
    trusted_values: OwnValues | None = None,
) -> Resolved:
    """Load a config: files, then Python values (of `source`), then command-line overrides.

    folder: the run that one of the files is the config of; code that it names needs `trust`, and
    files of models and metrics are then the copies that the folder keeps. trusted_values: values
    that need no trust. A file of a run's or a search's folder may be somebody else's, too, where
    it is named as a file or as the source of `values`: code that it names needs `trust`.
    """
    config_file = None if folder is None else Path(folder) / "config.yaml"
    values = with_names(values or {})
    if config_file is not None and trust:
        values = {**kept_code(config_file), **values}

    def allow_code(key: str, name: str, origin: Origin) -> None:
        from_run_folder = origin.source == str(config_file) or is_run_config(origin.source)
        runs = key == "run.plugins" or (is_own(name) and not is_registered(name))
        trusted_names = (trusted_values or {}).get(key, ())
        if from_run_folder and not trust and runs and name not in trusted_names:
            check_code_trusted(key, name, origin)

    resolved = config_room.load(
        files,
        overrides,
        values,
        models=lookup,
        kinds=lambda name: find(name).kind,
        metrics=load_metric,
        source=source,
        command=command,
        allow_code=allow_code,
    )
    if not trust:
        if config_file is not None:
            check_trusted(resolved, config_file, trusted_values)
        if is_run_config(source):
            check_trusted(resolved, source)
        for file in filter(is_run_config, map(str, files)):
            check_trusted(resolved, file, trusted_values, places=False)
    resolved = with_published(resolved)
    wrong = row_optimizer_problems(resolved.config.train.optimizer)
    if wrong:
        raise ConfigError([f"{resolved.origins[key]}: {text}" for key, text in wrong])
    return resolved


def resolve_run(
    folder: str | Path,
    overrides: Sequence[str] = (),
    values: dict[str, Any] | None = None,
    source: str = "python",
    trust: bool = False,
    trusted_values: OwnValues | None = None,
) -> Resolved:
    """Load the config of a run's folder; code that it names needs `trust`, or trusted_values."""
    RunFolder(folder).check_is_run()
    file = Path(folder) / "config.yaml"
    return resolve(
        [file],
        overrides,
        values,
        source,
        folder=folder,
        trust=trust,
        trusted_values=trusted_values,
    )


def run(
    model: str | type[Model] | None = None,
    dataset: str | None = None,
    config_file_list: Sequence[str | Path] | None = None,
    config_dict: dict[str, Any] | None = None,
    resume: bool = False,
    **values: Any,
) -> RunResult:
    """Train, evaluate and test; what result.json holds. Other keywords are config keys.

    model: a name that `shoal models` lists, FILE.py:Class, or a class of your own.

    >>> import shoal
    >>> small = {"data.synthetic": {"users": 90, "items": 60, "interactions": 2000}}
    >>> keys = {"run.output": "runs/first", "run.log_level": "warning", "run.progress": False}
    >>> result = shoal.run("BPR", "synthetic", epochs=1, **small, **keys)
    >>> result["folder"], 0.0 <= result["test"]["recall@10"] <= 1.0
    ('runs/first', True)
    """
    refuse_while_running("shoal.run")
    if isinstance(model, type):
        model = register_model(model)
    keys = {**(config_dict or {}), **values}
    keys |= {key: v for key, v in (("model", model), ("dataset", dataset)) if v is not None}
    resolved = resolve(config_file_list or (), (), keys)
    try:
        return RunResult(train(resolved, resume))
    except shoal.Interrupted as error:
        raise KeyboardInterrupt(str(error)) from None


def run_rank(
    rank: int,
    model: str | None,
    dataset: str | None,
    config_file_list: Sequence[str | Path] | None,
    kwargs: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """One rank of a run, for torch.multiprocessing.spawn.

    `kwargs` may hold `config_dict` (with world_size, ip, port, nproc, offset) and a `queue`, which
    receives the result of global rank 0.

    >>> import shoal, torch.multiprocessing as mp
    >>> small = {"data.synthetic": {"users": 90, "items": 60, "interactions": 2000}, "epochs": 1}
    >>> keys = {"run.output": "runs/spawned", "run.log_level": "error", "run.progress": False}
    >>> kwargs = {"config_dict": {"nproc": 1, **small, **keys}}
    >>> mp.spawn(shoal.run_rank, args=("BPR", "synthetic", None, kwargs), nprocs=1)
    >>> len(shoal.recommend("runs/spawned", user="7", topk=3))
    3
    """
    kwargs = dict(kwargs or {})
    queue = kwargs.pop("queue", None)
    values = dict(kwargs.pop("config_dict", None) or {})
    if kwargs:
        raise TypeError(f"run_rank takes config_dict and queue, not {', '.join(sorted(kwargs))}")
    values |= {key: v for key, v in (("model", model), ("dataset", dataset)) if v is not None}
    resolved = resolve(config_file_list or (), (), values)
    section = resolved.config.launch
    size = section.nproc if section.world_size == -1 else section.world_size
    if size > 1 and section.port == 0:
        raise ValueError("config_dict needs the ip and port at which the ranks meet")
    if rank >= section.nproc:
        raise ValueError(f"rank {rank} of nproc={section.nproc}: give spawn nprocs=nproc")
    set_rank(
        rank=section.group_offset + rank,
        size=size,
        local_rank=rank,
        local_size=section.nproc,
        address=section.ip,
        port=section.port,
        secret=secret_of(section),
    )
    try:
        result = train_here(resolved)
    except PeerLost:
        time.sleep(GRACE_SECONDS)  # let the rank that really failed be the first to end
        raise
    if queue is not None and section.group_offset + rank == 0:
        queue.put(result)
    return check_copied(result)


def train(resolved: Resolved, resume: bool = False) -> dict[str, Any]:
    """Train on as many processes as the config says: here, or as ranks that are launched.

    A dict without entries on hosts that do not run rank 0: the result is written on the first.
    NotCopied, after training, where checkpoints did not reach checkpoint.copy_to.
    """
    try:
        result = _train(resolved, resume)
    except (ValueError, WorldError, LaunchError) as error:  # written in the words of this package
        if error.args and isinstance(error.args[0], str):
            error.args = (resolved.with_written_keys(error.args[0]), *error.args[1:])
        raise
    return result if is_launched() else check_copied(result)  # else the launcher checks


def _train(resolved: Resolved, resume: bool) -> dict[str, Any]:
    if resume and not is_worker():
        resolved = with_new_servers(resolved)
    config, section = resolved.config, resolved.config.launch
    if config.strategy.name == "ps":
        check_installed("parameter servers")
    if section.nproc:  # refuse what cannot be written before anything is made
        for tracker in config.run.trackers:
            find_tracker(tracker)
    if not is_worker():
        run = config.run
        check_gpus(run.device, run.gpu_ids, section.nproc, share=run.share_gpu)
    alone = section.nproc == 1 and section.world_size in (-1, 1) and not section.servers
    if is_worker() or (alone and not section.max_restarts):
        return train_here(resolved, resume)
    for name in own_names(resolved.config.model.name, resolved.config.eval.metrics):
        check_launchable(name)
    if section.nproc:  # refuse what cannot be read or launched before anything is made
        data_of(config.data, config.model.name)
        secret_of(section)
    if not section.nproc or section.group_offset:  # rank 0 is on another host
        train_launched(resolved, resume)
        return {}
    folder = run_folder(resolved.config)
    folder.create(resume)
    resolved = resolved.with_values({"run.output": str(folder.path)}, "the launcher")
    with folder.recording_failure():
        train_launched(resolved, resume, folder)
    return {**json.loads((folder.path / "result.json").read_text()), "folder": str(folder.path)}


def resolve_with_roles(
    files: Sequence[str | Path], overrides: Sequence[str], roles: Roles, **options: Any
) -> Resolved:
    """A config for parameter servers, with what this host runs of them; `options` as in resolve."""
    ip, port = roles.workers[0].rsplit(":", 1) if roles.workers else ("localhost", "0")
    values = {
        "launch.nproc": roles.nproc,
        "launch.world_size": roles.world_size,
        "launch.hosts": roles.hosts,
        "launch.host_index": roles.host_index,
        "launch.group_offset": roles.group_offset,
        "launch.servers": roles.num_servers,
        "launch.first_server": roles.first_server,
        "launch.ip": ip,
        "launch.port": int(port),
        "strategy.ps.addresses": roles.servers,  # none: they tell where they listen
    }
    why = "trains with parameter servers: leave it out, or use `shoal train --nproc=N`"
    command = Command("shoal launch", values, {"strategy.name": ("ps", why)})
    resolved = resolve(files, overrides, command=command, **options)
    servers = resolved.config.strategy.ps
    if roles.many_hosts and servers.keys is None and not servers.plain:
        raise ValueError(
            "several hosts, and no keys: make them once with `shoal keys make FOLDER`, and set "
            "strategy.ps.keys=FOLDER; on a network of your own, strategy.ps.plain=true does without"
        )
    key_values: dict[str, Any] = {}
    if servers.keys is not None:
        # All workers have them: they decide who may join, and encrypt what workers send each other.
        if resolved.config.launch.secret is None:
            key_values["launch.secret"] = servers.keys
        on_cpus = resolved.config.run.device == "cpu" or not torch.cuda.is_available()
        if on_cpus and not is_loopback(ip) and resolved.origins["launch.encrypt"] == "default":
            key_values["launch.encrypt"] = True
    if servers.plain:
        key_values["launch.plain"] = True
    return resolved.with_values(key_values, "shoal launch") if key_values else resolved


def connect_as(run: RunSection, launch: LaunchSection) -> World:
    """The world that the two sections of a config ask for."""
    shares_gpu = False
    if run.share_gpu and is_worker():
        choose_gpus(run.gpu_ids, tell=False)
        shares_gpu = pick_device(run.device).type == "cuda"
    world = connect(
        "cpu" if shares_gpu else run.device,
        join_timeout=launch.join_timeout,
        threads=run.threads,
        gpu_ids=run.gpu_ids,
        shared_memory=launch.shared_memory,
        encrypt=launch.encrypt,
    )
    return SharedGpu(world, pick_device(run.device, world.rank)) if shares_gpu else world


def data_of(section: DataSection, model: str) -> NamedData:
    """The data that a config names for its model; ValueError where it is not there."""
    return named_data(section, find(model).kind == "clicks")


def train_here(resolved: Resolved, resume: bool = False) -> dict[str, Any]:
    """Train as one process: alone, or as the rank that the environment says."""
    config = resolved.config
    # What cannot be read is refused before anything is made.
    data = data_of(config.data, config.model.name)
    world = connect_as(config.run, config.launch)
    code = own_code(config.model.name, config.eval.metrics)
    with ExitStack() as stack:
        stack.callback(world.close)
        stack.enter_context(SLOW.watched(config.launch.hang_timeout))
        if config.elastic:
            from shoal.runs.elastic_worker import (
                train_leased,  # and all of servers: not for every start
            )

            return train_leased(resolved, world, resume, comparable(config, code), code, _leave)
        agree(world, "config", comparable(config, code))
        folder = _open_folder(config, world, resume, stack)
        file = folder.path / "train.log" if world.is_main else None
        start_logging(config.run.log_level, world.rank, file, config.run.log)
        for note in [*resolved.notes, *world.notes]:
            log.info("%s", note)
        if not world.is_main:
            host_log.info("host %s joined %s", world.host, world.place)
        # Data and model; what the data decided is in the config from here on.
        with early_heartbeat(config, world.rank):
            parts = build(config, world, data=data)
        config = parts.config
        agree(world, "data", parts.fingerprint)
        parts.strategy.on_peer_lost(_leave)
        announce(parts)
        trainer = Trainer(
            config, parts.strategy, parts.reader, parts.evaluator, folder, parts.fingerprint
        )
        # The model begins as a checkpoint, another run or the config says.
        before: dict[str, float] = {}
        restored = resume and trainer.restore()
        if not restored and (config.start.run is not None or config.start.pretrained):
            begin(config.start, config.model, parts.strategy, parts.dataset, world)
            before = validate_first(trainer, parts.dataset)
        if world.is_main:  # a run that is refused keeps the config that it was trained with
            keep_inputs(folder, config, code, parts.dataset)
            if config.start.value_decay.after:
                last = None if config.start.run is None else Path(config.start.run)
                save_ages(folder.path, ages_after(last, parts.dataset))
            before = keep_before(folder.path, before)
        trainer.extra_results = expected(parts) | ({"before": before} if before else {})
        result = trainer.fit(shoal.STARTED)
        parts.strategy.close()
        where = "" if world.is_main else " (on the first host)"
        host_log.info("run folder: %s%s", folder.path, where)
        return {**result, "folder": str(folder.path)}


def _open_folder(config: Config, world: World, resume: bool, stack: ExitStack) -> RunFolder:
    """The folder that rank 0 names for all; it is locked there until the stack is closed."""
    name = world.broadcast_bytes(str(run_folder(config).path).encode() if world.is_main else None)
    folder = RunFolder(name.decode())
    if world.is_main:
        folder.create(resume)
        stack.enter_context(folder.locked())
        if not is_launched():  # else the launcher knows better
            stack.enter_context(folder.recording_failure())
        if not folder.is_run:
            folder.write_config(config_room.dump(config))
    return folder


def _leave(why: str) -> None:
    """Servers or workers are lost, and this process may wait where it cannot hear of it."""
    record_failure(PeerLost(why))
    os._exit(2)


def run_folder(config: Config) -> RunFolder:
    """The folder that the config names, or a new one."""
    return RunFolder(
        config.run.output or RunFolder.new_name(config.run.root, label(config.model, config.data))
    )


def comparable(config: Config, code: Mapping[str, bytes] = MappingProxyType({})) -> dict[str, Any]:
    """The values that must be the same on all ranks, by dotted key; code: files by name."""
    values = flat(config.model_dump(mode="json", exclude={"launch", "run"}))
    values.pop("data.path")  # hosts may keep the data in different places
    values["model.name"] = config.model.title  # and files of code
    values["eval.metrics"] = config.eval.metric_names
    for file, text in code.items():
        values[f"text of {file} (SHA-256)"] = hashlib.sha256(text).hexdigest()
    return values | {"run.seed": config.run.seed}


def agree(world: World, subject: str, values: dict[str, Any]) -> None:
    """Refuse to train when a rank was given something else than rank 0."""
    text = json.dumps(values).encode()
    first = json.loads(world.broadcast_bytes(text if world.is_main else None))
    values = json.loads(text)
    for key in {**first, **values}:
        if first.get(key) != values.get(key):
            raise ValueError(
                f"the {subject} of rank {world.rank} on host {world.host} differs from that of "
                f"rank 0: {key} is {values.get(key)!r} here and {first.get(key)!r} there"
            )


def label(model: ModelSection, data: DataSection) -> str:
    """The stem of a new run's folder."""
    return f"{model.title}-{data.title}"
