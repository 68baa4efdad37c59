"""What a training step is given: its own random numbers, hard negatives, a learning rate."""

import math
import time
from collections.abc import Iterator
from dataclasses import replace

import torch
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as format_tensors
from torch import Tensor

from shoal.config.data_section import ClicksSection
from shoal.config.schema import Config, OptimizerSection
from shoal.data.batch import Batch
from shoal.data.reader import Reader
from shoal.distributed.world import World
from shoal.models.base import Model, WholeData
from shoal.models.nn.dropout import begin_step


def solve(model: Model, seed: int, device: torch.device) -> None:
    """Compute a model in closed form, on the host; every rank draws the same initial values."""
    torch.manual_seed(seed)
    model.cpu()
    model.solve()
    model.to(device)


STILL_SOLVING = b"."  # what ranks that wait are sent; a collective has a time limit
SIGN_SECONDS = 30.0


def solve_from_samples(
    model: Model, train: Reader, valid: Reader | None, world: World, seed: int
) -> None:
    """Compute a model from all samples on rank 0, on the host; every rank gets the result."""
    torch.manual_seed(seed)
    model.cpu()
    if world.is_main:
        last_sign = time.monotonic()

        def continues() -> None:
            nonlocal last_sign
            if world.size > 1 and time.monotonic() - last_sign > SIGN_SECONDS:
                world.broadcast_bytes(STILL_SOLVING)
                last_sign = time.monotonic()

        validation = None if valid is None else (lambda: valid.batches(0))
        model.solve_from(WholeData(lambda: train.batches(0), validation, continues))
        if world.size > 1:
            solution = {name: one.contiguous() for name, one in model.state_dict().items()}
            world.broadcast_bytes(format_tensors(solution))
    else:
        while (received := world.broadcast_bytes(None)) == STILL_SOLVING:
            pass
        model.load_state_dict(parse_tensors(received))
    model.to(world.device)


def check_solver(model: Model, clicks: ClicksSection, elastic: bool) -> None:
    """Refuse a run in which rank 0 does not see all samples, for a model that needs them."""
    if not model.solves_from_samples:
        return
    title = type(model).__name__
    if clicks.split_files:
        raise ValueError(
            f"data.clicks.split_files: {title} is computed from all samples by the first process, "
            "and the files would be divided among processes; set it to false"
        )
    if elastic:
        raise ValueError(
            f"strategy.ps.elastic: {title} is computed once from all samples, and no worker can "
            "take over half of that; set it to false, or strategy.name=single"
        )


def check_reader(reader: Reader, config: Config) -> None:
    """Refuse a config that needs to know more of the epoch than its reader does."""
    if config.train.accumulate > 1 and (
        reader.num_batches is None or config.data.clicks.split_files
    ):
        raise ValueError(
            "train.accumulate cuts batches whose samples every process can count; with "
            "data.clicks.split_files, or a reader that does not know its length, set it to 1"
        )
    requirements = {
        "train.balance": (config.train.balance, reader.balance, "false"),
        "train.batch_tokens": (config.train.batch_tokens, reader.batch_tokens, "null"),
    }
    for key, (setting, supported, default) in requirements.items():
        if setting != supported:
            raise ValueError(
                f"{key} counts the items of histories, and {config.model.title} learns from "
                f"samples without any; set {key}={default}, or choose a sequential model"
            )
    schedule = config.train.optimizer.schedule
    if reader.num_batches is None and schedule != "constant":
        raise ValueError(
            f"train.optimizer.schedule {schedule} depends on the number of steps, which this "
            "reader of clicks knows only when it has read all; use constant, or "
            "data.clicks.reader memory"
        )


def in_step(batches: Iterator[Batch], reader: Reader, world: World) -> Iterator[Batch]:
    """Batches until no rank has any left; a rank that has none continues with empty ones."""
    while True:
        batch = next(batches, None)
        has_batch = torch.tensor([0 if batch is None else 1], device=world.device)
        if not world.all_reduce(has_batch).item():
            return
        yield reader.empty() if batch is None else batch


def seed_step(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Make dropout a pure function of (seed, step, sample): resuming needs no random state.

    What else a custom model draws from torch is one of (seed, step, rank).
    """
    begin_step(seed, step, device)
    number = seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + rank * 0x94D049BB133111EB
    number %= 2**63
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)


def keep_hardest(model: Model, batch: Batch, config: Config) -> Batch:
    """Dynamic negatives: of `candidates` draws for each negative keep the one scored highest."""
    section = config.train.negatives
    if section is None or not section.dynamic:
        return batch
    if model.kind == "sequential":
        raise ValueError(
            f"dynamic negatives are not defined for the sequential model {config.model.title}; set "
            "train.negatives.dynamic=false"
        )
    drawn = batch.ids["neg_item"]
    assert isinstance(drawn, Tensor)
    model.eval()
    with torch.no_grad():
        scores = model.score(batch, drawn).view(batch.size, section.num, section.candidates)
    model.train()
    best = scores.argmax(-1, keepdim=True)
    hardest = drawn.view_as(scores).gather(-1, best).squeeze(-1)
    return replace(batch, ids={**batch.ids, "neg_item": hardest})


def learning_rate(section: OptimizerSection, step: int, steps_per_epoch: int, epochs: int) -> float:
    """The rate of optimizer step `step` (from 0)."""
    if step < section.warmup_steps:
        return section.lr * (step + 1) / section.warmup_steps
    epoch = step // max(1, steps_per_epoch)
    total = max(1, steps_per_epoch * epochs - section.warmup_steps)
    done = min(1.0, (step - section.warmup_steps) / total)
    if section.schedule == "linear":
        return section.lr * (1.0 - done)
    if section.schedule == "cosine":
        return section.lr * 0.5 * (1.0 + math.cos(math.pi * done))
    if section.schedule == "step":
        return section.lr * section.gamma ** (epoch // section.decay_epochs)
    if section.schedule == "exponential":
        return section.lr * section.gamma**epoch
    return section.lr
