"""KD_DAGFM: Directed Acyclic Graph Factorization Machines for CTR Prediction via Knowledge
Distillation, Tian et al., WSDM 2023.

A small student learns the logits of a large teacher. In the student features are the nodes of a
graph whose edges lead from i to j for i <= j; a step multiplies by one more feature:

    h_j <- h0_j * sum over i <= j of P_ij h_i,  P_ij = diag(p_ij) (inner) or q_ij p_ij^T (outer)
    logit = <w, sums of the numbers of each node, of all steps>

The teacher is a cross network (CrossNet, of DCNV2) or a compressed one (CIN, of xDeepFM).

    together          teacher's loss + alpha student's loss + beta (teacher's - student's logit)^2
    teacher_training  teacher's loss; the teacher predicts, as in the file of RecBole
    distillation      alpha student's loss + beta (...)^2; nothing else learns
    finetuning        student's loss

What a part does not learn from does not change it: vectors learn from the teacher, or in finetuning
from the student.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Output
from shoal.models.clicks.base import Vectors
from shoal.models.clicks.dcnv2 import Cross
from shoal.models.nn.mlp import begin_normal


class KD_DAGFM(Vectors):
    """A teacher and its student; but for `teacher_training` the student predicts."""

    recbole_options: ClassVar[Mapping[str, str]] = {"embedding_size": "dim"}
    recbole_without_effect: ClassVar[Mapping[str, str]] = {
        "warm_up": "phase together needs no file of a teacher; shoal train --from continues a run",
    }

    class Options(Vectors.Options):
        dim: int = 16
        initial_range: float = 0.1
        teacher: Literal["CrossNet", "CIN"] = "CrossNet"  # the network that is imitated
        # what learns: both at once, or one after the other, in separate runs
        phase: Literal["together", "teacher_training", "distillation", "finetuning"] = "together"
        type: Literal["inner", "outer"] = "outer"  # matrices of edges: diagonal, or of rank 1
        t_depth: int = 3  # layers of the teacher CrossNet
        t_cin: list[int] = field(default_factory=lambda: [200, 200, 200])  # widths of CIN's layers
        depth: int = 3  # steps of the student along its graph
        alpha: float = 0.1  # weight of the student's own loss
        beta: float = 921.6  # weight of the squared difference of logits

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.make_vectors(options.dim)
        number, phase = self.num_vectors, options.phase
        self.teacher: CrossTeacher | CIN
        if options.teacher == "CrossNet":
            self.teacher = CrossTeacher(number * options.dim, options.t_depth)
        else:
            self.teacher = CIN(number, options.t_cin)
        self.student = DAGFM(number, options.dim, options.depth, options.type)
        self.teacher.requires_grad_(phase in ("together", "teacher_training"))
        self.student.requires_grad_(phase != "teacher_training")
        self.dense_vectors.requires_grad_(phase != "distillation")

    def logits(self, batch: Batch) -> Tensor:
        taught = self.options.phase == "teacher_training"
        return (self.teacher if taught else self.student)(self.vectors(batch))

    def forward(self, batch: Batch) -> Output:
        options = self.options
        if options.phase in ("teacher_training", "finetuning"):
            return super().forward(batch)
        vectors = self.vectors(batch)
        if options.phase == "distillation":
            vectors = vectors.detach()
        taught, learned = self.teacher(vectors), self.student(vectors.detach())
        apart = (taught.detach() - learned).square().sum()
        loss = options.alpha * self.losses(learned, batch).sum() + options.beta * apart
        if options.phase == "together":
            loss = loss + self.losses(taught, batch).sum()
        return Output(loss, batch.size, learned.detach())


class CrossTeacher(nn.Module):
    """Cross layers and a sum: vectors [b, n, dim] -> logits [b]."""

    def __init__(self, width: int, depth: int):
        super().__init__()
        self.cross, self.out = Cross(width, depth), nn.Linear(width, 1)
        begin_normal(self.out)

    def forward(self, vectors: Tensor) -> Tensor:
        return self.out(self.cross(vectors.flatten(1))).squeeze(1)


class CIN(nn.Module):
    """Products of one degree more in every layer, as in xDeepFM: [b, n, dim] -> logits [b]."""

    def __init__(self, number: int, sizes: list[int]):
        super().__init__()
        befores = [number, *sizes[:-1]]
        self.cross = nn.ModuleList(nn.Linear(a * number, b) for a, b in zip(befores, sizes))
        self.out = nn.Linear(sum(sizes), 1, bias=False)
        begin_normal(self)

    def forward(self, vectors: Tensor) -> Tensor:
        columns = vectors.transpose(1, 2)  # [b, dim, n]
        layer, sums = columns, []
        for cross in self.cross:
            layer = cross((layer.unsqueeze(3) * columns.unsqueeze(2)).flatten(2))
            sums.append(layer.sum(1))
        return self.out(torch.cat(sums, 1)).squeeze(1)


class DAGFM(nn.Module):
    """The student: vectors [b, n, dim] -> logits [b]."""

    def __init__(self, number: int, dim: int, depth: int, kind: str):
        super().__init__()
        self.mix = nn.Parameter(torch.eye(number))
        std = (2.0 / (number * (1 + dim))) ** 0.5
        shape = depth, number, number, dim
        self.read = nn.Parameter(torch.randn(shape) * std)
        self.written = nn.Parameter(torch.randn(shape) * std) if kind == "outer" else None
        self.out = nn.Linear(number * (depth + 1), 1)
        begin_normal(self.out)

    def forward(self, vectors: Tensor) -> Tensor:
        first = nodes = self.mix @ vectors
        sums = [first.sum(2)]
        forwards = torch.ones_like(self.mix).triu().unsqueeze(2)  # from i to j >= i
        for number, read in enumerate(self.read):
            if self.written is None:
                heard = torch.einsum("bid,ijd->bjd", nodes, read * forwards)
            else:
                sent = torch.einsum("bid,ijd->bij", nodes, read * forwards)
                heard = torch.einsum("bij,ijd->bjd", sent, self.written[number])
            nodes = first * heard
            sums.append(nodes.sum(2))
        return self.out(torch.cat(sums, 1)).squeeze(1)
