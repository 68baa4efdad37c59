"""DiffRec: Diffusion Recommender Model, Wang et al., SIGIR 2023.

What a user took is drowned in noise step by step, and a network learns to say what was there:

    x_t = sqrt(a_t) x_0 + sqrt(1 - a_t) normal        h = layers([drop(x_t), time(t)])
    loss = w_t * mean over items of (x_0 - (V h + b))^2,  w_t = SNR(t - 1) - SNR(t), w_0 = 1

A user is answered by all steps back, from what was taken; the last one ends in a product of h and
the rows V of items. Every step reads all of both tables, the first layer and V.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.models.base import Batch, Facts, Jagged, Output, Retrieval
from shoal.models.general.autoencoder import Autoencoder
from shoal.models.nn.diffusion import Denoiser, Diffusion, Schedule, betas_of
from shoal.models.nn.dropout import dropout
from shoal.models.nn.user_items import multi_hot
from shoal.models.options import Count, Positive

WITHOUT_EFFECT = {
    "w_max": "T-DiffRec, which weighs items by their time, is not here",
    "w_min": "T-DiffRec, which weighs items by their time, is not here",
}


class DiffRec(Autoencoder):
    """Diffusion of the items of a user; a new user is folded in."""

    recbole_options: ClassVar[Mapping[str, str]] = {"time-aware": "time_aware"}
    recbole_without_effect: ClassVar[Mapping[str, str]] = WITHOUT_EFFECT

    class Options(Retrieval.Options):
        noise_schedule: Schedule = "linear"  # how noise grows over the steps
        noise_scale: Positive = 0.001  # factor of noise_min and noise_max
        noise_min: Positive = 0.0005  # noise of the first step
        noise_max: Positive = 0.005  # noise of the last step
        steps: Count = 5  # steps of noise
        beta_fixed: bool = True  # the first step adds next to nothing
        sampling_steps: Literal[0] = 0  # steps of noise added before a user is answered
        sampling_noise: Literal[False] = False  # noise in the steps back
        reweight: bool = True  # weigh the error of a step by the noise that it adds
        mean_type: Literal["x0"] = "x0"  # what the network says: what was there
        history_num_per_term: Count = 10  # losses of a step that its chance to be drawn comes from
        dims_dnn: list[int] = field(default_factory=lambda: [300])  # widths of the layers
        embedding_size: Count = 10  # width of what the layers know of the step
        # activation of the layers
        mlp_act_func: Literal["tanh", "relu", "sigmoid"] = "tanh"
        norm: bool = False  # true: the noisy items of a user are scaled to length 1
        time_aware: Literal[False] = False  # T-DiffRec, which is not here

        DEFAULTS: ClassVar[dict[str, Any]] = {"train.negatives": None}

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        sizes = options.dims_dnn
        self.make_tables(sizes[0], sizes[-1])
        time_size, activation = options.embedding_size, options.mlp_act_func
        self.denoiser = Denoiser(facts.num_items, sizes, time_size, activation)
        self.diffusion = diffusion_of(options)

    def hidden(self, x: Tensor, steps: Tensor) -> Tensor:
        """The last layer, which meets the rows of items: [b, num_items] -> [b, dims_dnn[-1]]."""
        x = F.normalize(x) if self.options.norm else x
        x = dropout(x, 0.5) if self.training else x
        return self.denoiser(x @ self.embed.whole("shown"), steps)

    def forward(self, batch: Batch) -> Output:
        lists = batch.ids["taken"]
        assert isinstance(lists, Jagged)
        x = multi_hot(lists, self.facts.num_items)
        steps, share = self.diffusion.draw(batch.size)
        answers = self.logits(self.hidden(self.diffusion.noisy(x, steps), steps))
        errors = (x - answers)[:, 1:].square().mean(1)  # the padding is no item
        losses = self.diffusion.weights[steps] * errors
        self.diffusion.remember(self.gather_global(steps), self.gather_global(losses.detach()))
        return Output((losses / share).sum(), batch.size)

    def encode(self, lists: Jagged) -> Tensor:
        x = multi_hot(lists, self.facts.num_items)
        x = self.diffusion.undone(x, lambda x, steps: self.logits(self.hidden(x, steps)))
        return self.hidden(x, torch.zeros(len(lists), dtype=torch.int64, device=x.device))


def diffusion_of(options: Any) -> Diffusion:
    """The diffusion that a model's options describe."""
    betas = betas_of(
        options.noise_schedule,
        options.steps,
        options.noise_scale,
        options.noise_min,
        options.noise_max,
        options.beta_fixed,
    )
    return Diffusion(betas, options.history_num_per_term, options.reweight)
