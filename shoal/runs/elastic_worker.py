"""A worker of an elastic run: it joins the servers, and trains the batches that they lease."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import shoal
from shoal import config as config_room
from shoal.config import Resolved
from shoal.data.dataset import Dataset
from shoal.data.protocol import values_of
from shoal.distributed.rank_variables import is_worker, launched_number
from shoal.distributed.world import PeerLost, World
from shoal.launch.servers import early_heartbeat
from shoal.ps.address import nobody_listens
from shoal.ps.worker.link import ServerError
from shoal.runs.announcement import announce
from shoal.runs.build import build
from shoal.runs.forecast import expected
from shoal.runs.vocabulary_growth import save_taken, save_vocabularies
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
    if world.size > 1:
        raise ValueError(
            f"strategy.ps.elastic: this process is one of {world.size} ranks; start workers with "
            "`shoal launch --worker_num=N --server_num=M`, or with `shoal train --join RUN`"
        )
    if config.run.output is None:
        raise ValueError(
            "strategy.ps.elastic: set run.output, on a disk that all hosts share: any worker may "
            "have to save"
        )
    folder = RunFolder(config.run.output)
    start_logging(config.run.log_level, launched_number(), form=config.run.log)
    addresses = config.strategy.ps.addresses
    try:
        # Servers that are gone are not joined, before any data is read.
        if not is_worker() and addresses and all(map(nobody_listens, addresses)):
            servers = ", ".join(addresses)
            raise PeerLost(
                f"no server of this run listens ({servers}): it has ended, or was stopped"
            )
        with early_heartbeat(config, world.rank):
            parts = build(config, world)
    except (PeerLost, ServerError):
        if not folder.is_finished:
            raise
        log.info("the run in %s is over: nothing is left for this worker to do", folder.path)
        return {}
    # What all workers must agree on; the strategy is that of parameter servers.
    config = parts.config
    agreed = agreed | values_of(config)  # a worker that joins reads what the data decided
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
        folder.write_config(config_room.dump(config))
        for file, text in code.items():
            folder.keep_code(file, text)
        if isinstance(parts.dataset, Dataset):
            save_vocabularies(folder.path, parts.dataset)
            save_taken(folder.path, parts.dataset, config.start.vocabulary)

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
