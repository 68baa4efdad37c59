"""Diffusion: noise that is added step by step, and the way back, for models that learn to undo it.

    x_t = sqrt(a_t) x_0 + sqrt(1 - a_t) normal            a_t = product of 1 - beta up to t
    x_(t-1) = mean of what x_t came from, given a guess at x_0

Steps are drawn by how large their losses were lately, of all samples of the global batch.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from shoal.models.nn.dropout import normal_like, uniform_like
from shoal.models.nn.mlp import begin_xavier
from shoal.models.nn.transformer import ACTIVATIONS

Schedule = Literal["linear", "linear-var", "cosine", "binomial"]
LEAST = 0.001  # of all draws, shared evenly: every step is drawn now and then


class Diffusion(nn.Module):
    """The noise of each step, and the latest losses of each.

    steps are numbers 0 .. steps - 1 [b], x [b, d]
    """

    kept: Tensor  # [steps]: a_t, how much of the start is left
    left: Tensor  # [steps]: how much of x_0 is in the mean of the step before
    right: Tensor  # [steps]: and how much of x_t
    weights: Tensor  # [steps]: of a step's squared error
    losses: Tensor  # [steps, remembered]: the latest ones; nan until there are so many

    def __init__(self, betas: Tensor, remembered: int, reweight: bool):
        super().__init__()
        kept = (1.0 - betas).cumprod(0)
        before = torch.cat([kept.new_ones(1), kept[:-1]])
        ratio = kept / (1.0 - kept)  # of signal to noise
        weights = torch.ones_like(ratio)
        if reweight:
            weights[1:] = ratio[:-1] - ratio[1:]
        left = betas * before.sqrt() / (1.0 - kept)
        right = (1.0 - before) * (1.0 - betas).sqrt() / (1.0 - kept)
        numbers = {"kept": kept, "left": left, "right": right, "weights": weights}
        for name, values in numbers.items():
            self.register_buffer(name, values.float(), persistent=False)
        self.register_buffer("losses", torch.full((len(betas), remembered), math.nan))

    def draw(self, size: int) -> tuple[Tensor, Tensor]:
        """A step for each sample [size], and what its loss is divided by, to be fair to all."""
        drawn = uniform_like(torch.empty(size, 1, device=self.kept.device)).squeeze(1)
        count = len(self.losses)
        chances = self.losses.square().mean(1).sqrt()
        chances = (1.0 - LEAST) * chances / chances.sum() + LEAST / count
        even = torch.full_like(chances, 1.0 / count)
        chances = torch.where(self.losses.isnan().any(), even, chances)
        steps = torch.searchsorted(chances.cumsum(0), drawn).clamp(max=count - 1)
        return steps, chances[steps] * count

    def remember(self, steps: Tensor, losses: Tensor) -> None:
        """Keep the latest losses of each step: steps and losses of a global batch, [b] each."""
        for step, latest in enumerate(self.losses):
            joined = torch.cat([latest, losses[steps == step]])
            latest.copy_(joined[-len(latest) :])

    def noisy(self, x: Tensor, steps: Tensor) -> Tensor:
        """x as it is after so many steps: [b, d]."""
        kept = self.kept[steps].unsqueeze(1)
        return kept.sqrt() * x + (1.0 - kept).sqrt() * normal_like(x)

    def undone(self, x: Tensor, guess: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """x [b, d] after all steps back but the last; guess (x_t, steps [b]) -> x_0."""
        for step in range(len(self.kept) - 1, 0, -1):
            steps = torch.full((x.shape[0],), step, device=x.device)
            x = self.left[step] * guess(x, steps) + self.right[step] * x
        return x


class Denoiser(nn.Module):
    """Layers that know the step: [b, sizes[0]], steps [b] -> [b, sizes[-1]].

    What comes in is the first product, without its bias.
    """

    def __init__(self, inputs: int, sizes: list[int], time_size: int, activation: str):
        """inputs: how many numbers the first product reads."""
        super().__init__()
        self.time_size = time_size
        self.time = nn.Linear(time_size, time_size)
        self.first = nn.Linear(time_size, sizes[0])
        self.activate = ACTIVATIONS[activation]()
        layers: list[nn.Module] = []
        for width_in, width_out in pairwise(sizes):
            layers += [nn.Linear(width_in, width_out), ACTIVATIONS[activation]()]
        self.layers = nn.Sequential(*layers)
        begin_xavier(self)
        # What is known of the step is read by the layer that made the first product: its weights
        # begin as narrow. Wider ones set the last step apart, whose weight in the loss is small.
        std = math.sqrt(2.0 / (inputs + time_size + sizes[0]))
        nn.init.normal_(self.first.weight, std=std)

    def forward(self, product: Tensor, steps: Tensor) -> Tensor:
        half = self.time_size // 2
        powers = torch.arange(half, device=steps.device) / max(1, half)
        angles = steps.unsqueeze(1) * torch.exp(-math.log(10_000.0) * powers)
        waves = torch.cat([angles.cos(), angles.sin()], 1)
        waves = nn.functional.pad(waves, (0, self.time_size - 2 * half))
        return self.layers(self.activate(product + self.first(self.time(waves))))


def betas_of(
    schedule: Schedule, steps: int, scale: float, least: float, most: float, fixed: bool
) -> Tensor:
    """The share of noise that each step adds: float64 [steps].

    fixed: the first step adds next to nothing, so that small noise is undone well.
    """
    line = torch.linspace(scale * least, scale * most, steps, dtype=torch.float64)
    number = torch.arange(steps + 1, dtype=torch.float64)
    if schedule == "linear":
        betas = line
    elif schedule == "binomial":
        betas = 1.0 / (steps - number[:-1] + 1.0)
    else:
        angles = (number / steps + 0.008) / 1.008 * math.pi / 2
        left = angles.cos().square() if schedule == "cosine" else 1.0 - line
        if schedule == "linear-var":
            left = torch.cat([left.new_ones(1), left])
        betas = (1.0 - left[1:] / left[:-1]).clamp(max=0.999)
    if fixed:
        betas[0] = 1e-5
    return betas
