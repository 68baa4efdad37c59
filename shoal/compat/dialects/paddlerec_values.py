"""How the values of PaddleRec's keys are read, where they are not the same in Shoal.

What a key means there may depend on other keys, so most functions take what else is `said`.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.config.dialect import Row, Translation
from shoal.config.errors import did_you_mean
from shoal.config.launch_section import EVERY_GPU
from shoal.config.sources import BARE
from shoal.config.yaml_io import inline

# Scripts of PaddleRec that read lines of slots, and do no more than Shoal does by itself.
SLOT_READERS = ("criteo_reader", "benchmark_reader", "queuedataset_reader")
PIPED = ("QueueDataset", "InmemoryDataset")
READERS = (*PIPED, "DataLoader", "RecDataset")


@dataclass
class Said:
    """The strongest value of each of PaddleRec's keys, and what they are said about."""

    values: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = Path(".")  # of the config: their relative paths begin here
    model: str = ""
    options: Collection[str] | None = ()  # model.KEY of the model; None: there is no such model

    def runner(self, key: str) -> Any:
        return self._get(f"runner.{key}")

    def hyper(self, key: str) -> Any:
        return self._get(f"hyper_parameters.{key}")

    def _get(self, key: str) -> Any:
        value = self.values.get(key)
        return None if value is BARE else value


# Single values -----------------------------------------------------------------------------------


def as_bool(value: Any) -> Any:
    """There 0 and 1 stand for truth values too."""
    return bool(value) if type(value) is int and value in (0, 1) else value


def truth(value: Any) -> bool:
    value = as_bool(value)
    if not isinstance(value, bool):
        raise ValueError(f"given {inline(value)}; allowed: true or false")
    return value


def as_lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def whole(value: Any, least: int) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"given {inline(value)}; allowed: a whole number ≥ {least}")
    return value


def thread_num(value: Any) -> Translation:
    """Threads that parse and, where there are several, compute.

    Nearly all configs there say 1 without a thought; a worker then keeps its share of the cores.
    """
    several = type(value) is int and value > 1
    return Translation({"data.clicks.threads": value}, {"run.threads": value} if several else {})


def slots(value: Any) -> int:
    """There the label is counted as a slot."""
    return whole(value, 2) - 1


def use_gpu(value: Any) -> str:
    return "cuda" if truth(value) else "cpu"


def use_fleet(said: Said, value: Any) -> Translation:
    """Launched processes always train together; on GPUs there are as many as GPUs, as there."""
    together = truth(value) and as_bool(said.runner("use_gpu")) is True
    return Translation(implied={"launch.nproc": EVERY_GPU} if together else {})


def no_effect(value: Any) -> Translation:
    """A truth value that changes nothing."""
    return nothing(truth(value))


def nothing(value: Any) -> Translation:
    """Any value: it sets nothing here."""
    return Translation()


def sync_mode(said: Said, value: Any) -> Translation:
    if value is None:
        return Translation()
    if value in ("sync", "async", "geo"):
        return Translation({"strategy.ps.mode": value})
    if value == "gpubox":
        device = "cpu" if as_bool(said.runner("use_gpu")) is False else "auto"
        return read_gpubox(said.runner("reader_type"), os.environ, device)
    if value == "heter":
        raise ValueError(
            "heter is refused: a model is not cut into a CPU and a GPU part; use async, or gpubox"
        )
    modes = ["sync", "async", "geo", "gpubox"]
    hint = did_you_mean(str(value), modes)
    raise ValueError(f"given {inline(value)}; allowed: {', '.join(modes)}{hint}")


# Readers -----------------------------------------------------------------------------------------


def _stem(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"given {inline(value)}; it is the name of a Python file, without .py")
    return Path(value.removesuffix(".py")).name


def reader_type(said: Said, value: Any) -> Translation:
    if value is None:
        return Translation()
    if value not in READERS:
        hint = did_you_mean(str(value), READERS)
        raise ValueError(f"given {inline(value)}; allowed: {', '.join(READERS)}{hint}")
    if value == "QueueDataset":
        return Translation({"data.clicks.reader": "stream"})
    if value == "InmemoryDataset" or _reads_slots(said.runner("train_reader_path")):
        return Translation({"data.clicks.reader": "memory"})
    return Translation()  # train_reader_path names the reader


def _reads_slots(reader: Any) -> bool:
    return reader is None or (isinstance(reader, str) and _stem(reader) in SLOT_READERS)


def train_reader_path(said: Said, value: Any) -> Translation:
    """A script of PaddleRec's is not needed; another is a custom reader."""
    if value is None:
        return Translation()
    stem = _stem(value)
    if stem == "criteo_lr_reader":
        raise ValueError(
            "criteo_lr_reader is refused: ids with weights are not read; give slots, criteo_reader"
        )
    if stem in SLOT_READERS or said.runner("reader_type") in PIPED:
        return Translation()
    file = said.folder / f"{value.removesuffix('.py')}.py"
    note = f"RecDataset of {file} reads the data; what it imports (Paddle too) must be installed"
    return Translation(
        {"data.clicks.reader": "custom", "data.clicks.custom": f"{file}:RecDataset"}, notes=[note]
    )


def infer_reader_path(said: Said, value: Any) -> Translation:
    """One reader reads all files here."""
    if value is None or value == said.runner("train_reader_path"):
        return Translation()
    piped = said.runner("reader_type") in PIPED
    if _reads_slots(value) and (piped or _reads_slots(said.runner("train_reader_path"))):
        return Translation()
    raise ValueError(
        f"{inline(value)} is refused: one reader reads all files; give runner.train_reader_path's"
    )


def pipe_command(said: Said, value: Any) -> Translation:
    """A program, as it is; but those of PaddleRec's that write Paddle's own format are not run."""
    if value in (None, ""):
        return Translation()
    if said.runner("reader_type") in ("DataLoader", "RecDataset"):
        reason = f"reader_type {said.runner('reader_type')} has no program, there as here"
        return Translation(notes=[f"pipe_command has no effect: {reason}"])
    if not isinstance(value, str):
        raise ValueError(f"given {inline(value)}; it is a program and its arguments")
    try:
        arguments = shlex.split(value)
    except ValueError as error:
        raise ValueError(f"given {inline(value)}: {error}") from None
    for number, argument in enumerate(arguments):
        if not argument.endswith(".py"):
            continue
        places = (Path(argument), said.folder / argument, said.folder / Path(argument).name)
        file = next((place for place in places if place.is_file()), None)
        if _stem(argument) in SLOT_READERS and (file is None or _needs_paddle(file)):
            reason = f"{argument} reads lines of slots, which Shoal reads itself"
            return Translation(notes=[f"pipe_command is not run: {reason}"])
        if file is None and _is_script(arguments[: number + 1]):
            looked = ", ".join(dict.fromkeys(str(Path.cwd() / place) for place in places))
            raise ValueError(
                f"given {value}, but there is no {argument}; it was looked for at {looked}"
            )
        if file is None:
            break
        if _needs_paddle(file):
            raise ValueError(
                f"{value} is refused: {file} imports paddle, so it writes Paddle's own format; "
                "write lines of slots (click:0 dense_feature:0.5 1:737395) instead"
            )
        arguments[number] = str(file)
        return Translation({"data.clicks.pipe_command": shlex.join(arguments)})
    return Translation({"data.clicks.pipe_command": value})


def _is_script(arguments: list[str]) -> bool:
    """Whether the last word is what runs, not an argument of a program that may mean anything."""
    program, *rest = arguments
    if not rest:
        return shutil.which(program) is None
    options = all(argument.startswith("-") for argument in rest[:-1])
    return options and Path(program).name.startswith("python")


def _needs_paddle(file: Path) -> bool:
    """Whether a script imports paddle; only its lines are looked at, nothing is run."""
    lines = file.read_text("utf-8", "replace").splitlines()
    beginnings = [line.split()[:2] for line in lines]
    return any(
        len(beginning) == 2
        and beginning[0] in ("import", "from")
        and beginning[1].split(".")[0] == "paddle"
        for beginning in beginnings
    )


# Options of the model ----------------------------------------------------------------------------


def option(
    key: str, name: str, rule: str, convert: Callable[[Said, Any], Any] | None = None
) -> Row:
    """A key that is an option of the model; refused where the model has no such option."""

    def read(said: Said, value: Any) -> Translation:
        if said.options is None:  # reported already: there is no such model
            return Translation()
        if f"model.{name}" not in said.options:
            raise ValueError(f"is refused: {said.model} has no option {name}; leave it out")
        return Translation({f"model.{name}": convert(said, value) if convert else value})

    return Row(key, (f"model.{name}",), rule, read, with_context=True)


def sizes(value: Any) -> list[int]:
    if not isinstance(value, list) or not value or any(type(size) is not int for size in value):
        raise ValueError(f"given {inline(value)}; it is a list of sizes, such as [512, 256, 16]")
    return value


def bottom_sizes(said: Said, value: Any) -> list[int]:
    """The last layer there is the vector of the dense values; here it is model.dim wide."""
    *layers, last = sizes(value)
    dim = said.hyper("sparse_feature_dim")
    if dim is not None and last != dim:
        raise ValueError(
            f"given {inline(value)}; the last layer must be as wide as sparse_feature_dim, {dim}"
        )
    return layers


def top_sizes(said: Said, value: Any) -> list[int]:
    """The last layer there is the probability of either class; here one logit."""
    *layers, last = sizes(value)
    if last not in (1, 2):
        raise ValueError(f"given {inline(value)}; the last layer must be 2, click or no click")
    return layers


def structure(said: Said, value: Any) -> str:
    return "stacked" if truth(value) else "parallel"


def num_field(said: Said, value: Any) -> Translation:
    """Says again how many slots (and for LR dense values) there are."""
    counted, num_dense = said.hyper("sparse_inputs_slots"), said.hyper("dense_input_dim")
    counted, num_dense = 27 if counted is None else counted, 13 if num_dense is None else num_dense
    if type(counted) is not int or type(num_dense) is not int:
        return Translation()  # that error stands already
    num_slots, both = counted - 1, counted - 1 + num_dense
    expected = both if said.model == "LR" else num_slots
    if value != expected:
        raise ValueError(
            f"given {inline(value)}, but there are {expected} fields by sparse_inputs_slots and "
            "dense_input_dim; say the number of slots with sparse_inputs_slots"
        )
    return Translation()


# GPUBox: there a server process, its ports and the GPUs are named by environment variables (those
# of run_gpubox.sh). Here tables are divided over processes with a GPU each, so the GPUs alone say
# something; what would ask for more than that is refused by name.

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


def read_gpubox(
    reader: object, environment: Mapping[str, str], device: str = "auto"
) -> Translation:
    """What gpubox means here, with the variables there are; ValueError for what cannot be.

    device: cpu where GPUs are not to be used.
    """
    values: dict[str, object] = {"strategy.name": "sharded"}
    notes = [PLAN]
    if environment.get("TRAINING_ROLE", "TRAINER").upper() != "TRAINER":
        raise ValueError(
            f"TRAINING_ROLE is {environment['TRAINING_ROLE']}: start the trainer alone"
        )
    trainers = environment.get("PADDLE_TRAINERS_NUM", "1")
    if trainers != "1":
        raise ValueError(
            f"PADDLE_TRAINERS_NUM is {trainers}: hosts are named by launch.world_size, launch.ip "
            "and launch.group_offset here (docs/understand/distributed.md); unset it"
        )
    servers = [one for one in environment.get(SERVERS, "").split(",") if one]
    elsewhere = [one for one in servers if one.split(":")[0] not in ("127.0.0.1", "localhost")]
    if len(servers) > 1 or elsewhere:
        raise ValueError(
            f"{SERVERS} is {environment[SERVERS]}: no servers are started for gpubox here; unset "
            "it, and name hosts by launch.world_size, launch.ip and launch.group_offset"
        )
    if GPUS in environment:
        gpus = [one.strip() for one in environment[GPUS].split(",")]
        if not all(one.isdecimal() for one in gpus) or len(set(gpus)) < len(gpus):
            raise ValueError(
                f"{GPUS} is {environment[GPUS]!r}; it is a list of GPUs such as 0,1,2,3"
            )
        values |= {"run.gpu_ids": ",".join(gpus), "launch.nproc": len(gpus)}
        from shoal.distributed.gpus import count_gpus  # imports torch

        usable = count_gpus(",".join(gpus), device)
        place = "a GPU each" if usable else "on CPUs, since no GPU can be used here"
        notes.append(f"{GPUS}={environment[GPUS]}: {len(gpus)} processes, {place}")
    idle = [name for name in (SERVERS, *NEEDLESS) if environment.get(name)]
    if idle:
        notes.append(f"without effect, since no server is started: {', '.join(idle)}")
    if reader not in (None, "InmemoryDataset"):
        notes.append(
            f"PaddleRec's gpubox takes reader_type InmemoryDataset alone; {reader} is read here as "
            "under every strategy"
        )
    return Translation(values, notes=notes)
