"""PaddleRec's GPUBox: `sync_mode: gpubox`, and the variables that its run_gpubox.sh sets.

There a server process, its ports and the GPUs are named by environment variables. Here tables are
divided over processes with a GPU each, so the GPUs alone say something; what would ask for more
than that is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.config.dialect import Translation

GPUS, SERVERS = "FLAGS_selected_gpus", "PADDLE_PSERVERS_IP_PORT_LIST"
PLAN = (
    "sync_mode gpubox (parameter servers on GPUs) is strategy sharded, a process for each GPU: "
    "tables above strategy.replicate_below are divided over the GPUs, every GPU has the smaller "
    "ones, and no server is started; the log says which is where, `shoal plan` before the run"
)
NEEDLESS = (  # what run_gpubox.sh sets besides, for the server that there is none of
    "PADDLE_PSERVER_PORT_ARRAY", "PADDLE_PSERVER_NUMS", "PADDLE_PORT", "POD_IP",
    "PADDLE_TRAINER_ID", "PADDLE_TRAINERS", "PADDLE_CURRENT_ENDPOINT", "PADDLE_TRAINER_ENDPOINTS",
    "FLAGS_LAUNCH_BARRIER",
)  # fmt: skip


def read_gpubox(reader: object, environment: Mapping[str, str]) -> Translation:
    """What gpubox means here, with the variables there are; ValueError for what cannot be."""
    values: dict[str, object] = {"strategy.name": "sharded"}
    notes = [PLAN]
    if environment.get("TRAINING_ROLE", "TRAINER").upper() != "TRAINER":
        raise ValueError(
            f"TRAINING_ROLE is {environment['TRAINING_ROLE']}: gpubox needs no server process "
            "here; start the trainer alone (`shoal train -m CONFIG.yaml`)"
        )
    trainers = environment.get("PADDLE_TRAINERS_NUM", "1")
    if trainers != "1":
        raise ValueError(
            f"PADDLE_TRAINERS_NUM is {trainers}: hosts are named by launch.world_size, launch.ip "
            "and launch.group_offset here (docs/distributed.md); unset it"
        )
    servers = [one for one in environment.get(SERVERS, "").split(",") if one]
    elsewhere = [one for one in servers if one.split(":")[0] not in ("127.0.0.1", "localhost")]
    if len(servers) > 1 or elsewhere:
        raise ValueError(
            f"{SERVERS} is {environment[SERVERS]}: no servers are started for gpubox here, and "
            "rows are divided over the processes of all hosts; unset it, and name the hosts by "
            "launch.world_size, launch.ip and launch.group_offset (docs/distributed.md)"
        )
    if GPUS in environment:
        gpus = [one.strip() for one in environment[GPUS].split(",")]
        if not all(one.isdecimal() for one in gpus) or len(set(gpus)) < len(gpus):
            raise ValueError(
                f"{GPUS} is {environment[GPUS]!r}; it is a list of GPUs such as 0,1,2,3"
            )
        values |= {"run.gpu_ids": ",".join(gpus), "launch.nproc": len(gpus)}
        notes.append(f"{GPUS}={environment[GPUS]}: {len(gpus)} processes, a GPU each")
    idle = [name for name in (SERVERS, *NEEDLESS) if environment.get(name)]
    if idle:
        notes.append(f"without effect, since no server is started: {', '.join(idle)}")
    if reader not in (None, "InmemoryDataset"):
        notes.append(
            f"PaddleRec's gpubox takes reader_type InmemoryDataset alone; {reader} is read here as "
            "under every strategy"
        )
    return Translation(values, notes=notes)
