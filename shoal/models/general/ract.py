"""RaCT: Towards Amortized Ranking-Critical Training for Collaborative Filtering, Lobel et al., ICLR
2020.

MultiVAE is the actor; a critic guesses how well the actor ranks the items that it was not shown,
and the actor then learns to please the critic, whose guess has a gradient where a metric has none:

    x_u = [items shown, items hidden, loss of MultiVAE], of which each is scaled over the batch
    critic(x_u) = sigmoid(relu layers(x_u)) ~ NDCG@k of the hidden items, by squared errors
    actor: loss = - sum of critic(x_u)

Stages follow each other in one run: pretrain_epochs of MultiVAE's loss, as many of the critic's,
then the actor's by the critic. Where RecBole trains each in a run of its own, set train.patience so
that the run outlasts the critic's stage, in which rankings stay as they are.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from shoal.models.base import Batch, Facts, Jagged, Output
from shoal.models.general.multivae import MultiVAE
from shoal.models.nn.dropout import normal_like
from shoal.models.nn.mlp import MLP, begin_xavier
from shoal.models.nn.user_items import multi_hot, owners
from shoal.models.options import Count

Stage = Literal["actor", "critic", "finetune"]


class RaCT(MultiVAE):
    """A variational autoencoder that learns from a critic of its rankings."""

    samples_seen: Tensor
    recbole_without_effect: ClassVar[Mapping[str, str]] = {
        "pre_model_path": "stages follow each other in one run: train_stage finetune",
        "save_step": "checkpoints are those of any run (checkpoint.every_steps)",
    }

    class Options(MultiVAE.Options):
        latent_dimension: int = 256  # width of a user's mean and ln of the variance together
        critic_layers: list[int] = field(default_factory=lambda: [100, 100, 10])  # their widths
        metrics_k: Count = 100  # length of the list whose NDCG the critic guesses
        # actor_pretrain: MultiVAE's loss alone; finetune: all stages
        train_stage: Literal["actor_pretrain", "finetune"] = "actor_pretrain"
        pretrain_epochs: int = 150  # epochs of the actor before the critic, and of the critic

    def __init__(self, options: Any, facts: Facts):
        super().__init__(replace(options, latent_dimension=options.latent_dimension // 2), facts)
        sizes = [3, *options.critic_layers]
        self.critic = nn.Sequential(MLP(sizes), nn.Linear(sizes[-1], 1), nn.Sigmoid())
        begin_xavier(self.critic)
        self.users_of_epoch = max(1, len(facts.train_users.unique()))
        self.register_buffer("samples_seen", torch.zeros((), dtype=torch.int64))

    def stage(self) -> Stage:
        """Which part learns in this step."""
        epoch = int(self.samples_seen) // self.users_of_epoch
        if self.options.train_stage == "actor_pretrain" or epoch < self.options.pretrain_epochs:
            return "actor"
        return "critic" if epoch < 2 * self.options.pretrain_epochs else "finetune"

    def forward(self, batch: Batch) -> Output:
        lists, stage = batch.ids["taken"], self.stage()
        assert isinstance(lists, Jagged)
        taken = multi_hot(lists, self.facts.num_items)
        kept = self.kept_items(lists, self.options.dropout_prob)
        shown = taken if kept is None else taken * (kept > 0)
        with torch.set_grad_enabled(torch.is_grad_enabled() and stage != "critic"):
            logits, losses = self.act(lists, shown)
        if stage == "actor" and self.options.train_stage == "actor_pretrain":
            return Output(losses.sum(), batch.size)
        self.samples_seen += len(self.gather_global(losses.detach()))
        if stage == "actor":
            return Output(losses.sum(), batch.size)
        hidden = taken - shown
        guesses = self.guess(torch.stack([shown.sum(1), hidden.sum(1), losses], 1), stage)
        if stage == "finetune":
            return Output(-guesses.sum(), batch.size)
        ranked = logits.masked_fill(shown > 0, -torch.inf)
        errors = guesses - ndcg(ranked, hidden, self.options.metrics_k)
        return Output(errors.square().sum(), batch.size)

    def act(self, lists: Jagged, shown: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of all items, and MultiVAE's loss of each user: [b, num_items], [b]."""
        mean, logvar = self.posterior(lists, shown)
        noise = normal_like(mean) * self.options.noise
        logits = self.logits(mean + noise * torch.exp(0.5 * logvar))
        logits[:, 0] = -torch.inf  # the padding is no item
        owner = owners(lists)
        unlikely = -logits.log_softmax(1)[owner, lists.values]
        losses = torch.zeros_like(mean[:, 0]).index_add(0, owner, unlikely)
        distance = -0.5 * (1.0 + logvar - mean.square() - logvar.exp()).sum(1)
        self.updates += 1
        grown = self.updates / max(1, self.options.total_anneal_steps)
        return logits, losses + grown.clamp(max=self.options.anneal_cap) * distance

    def guess(self, features: Tensor, stage: Stage) -> Tensor:
        """The critic's guesses at the NDCG of users by their features: [b, 3] -> [b]."""
        every = self.gather_global(features)
        spread = (every.var(0, unbiased=False) + 1e-5).sqrt()
        scaled = (features - every.mean(0)) / spread
        weights: dict[str, Tensor] = {}
        for name, weight in self.critic.named_parameters():
            weights[name] = weight.detach() if stage == "finetune" else weight
        return functional_call(self.critic, weights, (scaled,)).squeeze(1)


def ndcg(scores: Tensor, wanted: Tensor, k: int) -> Tensor:
    """NDCG@k of each line of scores [b, n]; wanted [b, n] is 1 for items that count: [b]."""
    k = min(k, scores.shape[1])
    hits = wanted.gather(1, scores.topk(k, dim=1).indices)
    gains = 1.0 / torch.arange(2, k + 2, device=scores.device).log2()
    ideal = (gains * (torch.arange(k, device=scores.device) < wanted.sum(1, keepdim=True))).sum(1)
    return (hits * gains).sum(1) / ideal.clamp(min=0.1)
