"""A worker of an elastic run: it joins the servers, and trains the batches that they lease."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import shoal
from shoal.config import Resolved
from shoal.data.protocol import values_of
from shoal.distributed.rank_variables import is_worker, launched_number
from shoal.distributed.world import PeerLost, World
from shoal.launch.servers import early_heartbeat
from shoal.ps.address import nobody_listens
from shoal.ps.worker.link import ServerError
from shoal.runs.announcement import announce
from shoal.runs.build import build
from shoal.runs.data_size import decided_values
from shoal.runs.folder_inputs import keep_inputs
from shoal.runs.forecast import expected
from shoal.training.elastic_trainer import LeasedTrainer
from shoal.training.run_folder import RunFolder, start_logging

log = logging.getLogger("shoal")


def train_leased(
    resolved: Resolved,
    world: World,
    resume: bool,
    agreed: dict[str, Any],
    code: Mapping[str, bytes],
    on_peer_lost: Callable[[str], None],
) -> dict[str, Any]:
    """Take part in a run; its result, where this worker is the one that ends it.

    agreed: values of the config that are the same for all. code: files of models and metrics.
    """
    config = resolved.config
    folder = _find_folder(config.run.output, world.size)
    start_logging(config.run.log_level, launched_number(), form=config.run.log)
    try:
        if not is_worker():
            _check_servers(config.strategy.ps.addresses)
        with early_heartbeat(config, world.rank):
            parts = build(config, world)
    except (PeerLost, ServerError):
        if not folder.is_finished:
            raise
        log.info("the run in %s is over: nothing is left for this worker to do", folder.path)
        return {}
    # What all workers must agree on; the strategy is that of parameter servers.
    config = parts.config
    # a worker that joins reads what the data and its size decided
    agreed = agreed | values_of(config) | decided_values(config.train, config.eval)
    strategy: Any = parts.strategy
    strategy.on_peer_lost(on_peer_lost)

    def take_charge(begins: bool) -> None:
        """This worker evaluates and saves from now on."""
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.check_inner_folders()
        start_logging(config.run.log_level, 0, folder.path / "train.log", config.run.log)
        log.info("worker %d evaluates and saves", strategy.client.worker)
        if not begins:
            return
        for note in resolved.notes:
            log.info("%s", note)
        announce(parts)
        keep_inputs(folder, config, code, parts.dataset)

    trainer = LeasedTrainer(
        config,
        parts.strategy,
        parts.reader,
        parts.evaluator,
        folder,
        parts.fingerprint,
        agreed={"config": agreed, "data": parts.fingerprint},
        take_charge=take_charge,
        resume=resume,
    )
    trainer.extra_results = expected(parts)
    result = trainer.fit(shoal.STARTED)
    parts.strategy.close()
    log.info("run folder: %s", folder.path)
    return {**result, "folder": str(folder.path)} if result else {}


def _find_folder(output: str | None, world_size: int) -> RunFolder:
    """The folder of the run, which all workers share; a worker is a process by itself."""
    if world_size > 1:
        raise ValueError(
            f"strategy.ps.elastic: this process is one of {world_size} ranks; start workers with "
            "`shoal launch --worker_num=N --server_num=M`, or with `shoal train --join RUN`"
        )
    if output is None:
        raise ValueError(
            "strategy.ps.elastic: set run.output, on a disk that all hosts share: any worker may "
            "have to save"
        )
    return RunFolder(output)


def _check_servers(addresses: Sequence[str]) -> None:
    """Refuse to join servers that are gone, before any data is read."""
    if addresses and all(map(nobody_listens, addresses)):
        servers = ", ".join(addresses)
        raise PeerLost(f"no server of this run listens ({servers}): it has ended, or was stopped")
