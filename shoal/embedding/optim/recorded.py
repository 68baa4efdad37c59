"""Steps of dense optimizers that a CUDA graph can record: all that changes is on the device.

Adam's and RMSprop's are torch's own (`capturable`). Its Adagrad and SGD read learning rate and
step on the host; theirs are here, the same operations in the same order.
"""

from __future__ import annotations

import torch
from torch import Tensor


def make_recordable(optimizer: torch.optim.Optimizer, lr: Tensor) -> None:
    """From now on by the learning rate in `lr`, float32 []."""
    for group in optimizer.param_groups:
        group["lr"] = lr
        if "capturable" in group:
            group["capturable"] = True


def recorded_step(optimizer: torch.optim.Optimizer, lr: Tensor) -> None:
    """One step; the gradients are gone afterwards."""
    if not isinstance(optimizer, torch.optim.Adagrad | torch.optim.SGD):
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return
    for group in optimizer.param_groups:
        learning = [p for p in group["params"] if p.grad is not None]
        if not learning:
            continue
        grads = [p.grad for p in learning]
        values = [p.detach() for p in learning]
        if group["weight_decay"]:
            grads = list(torch._foreach_add(grads, values, alpha=group["weight_decay"]))
        change = list(torch._foreach_mul(grads, -lr))
        if isinstance(optimizer, torch.optim.SGD):
            torch._foreach_add_(values, change)
        else:
            sums = [optimizer.state[p]["sum"] for p in learning]
            torch._foreach_addcmul_(sums, grads, grads)
            roots = torch._foreach_sqrt(sums)
            torch._foreach_add_(roots, group["eps"])
            torch._foreach_addcdiv_(values, change, roots)
    optimizer.zero_grad(set_to_none=True)


def count_step(optimizer: torch.optim.Optimizer) -> None:
    """Before each step, replayed or not: Adagrad's is counted on the host."""
    if isinstance(optimizer, torch.optim.Adagrad):
        for state in optimizer.state.values():
            state["step"] += 1
