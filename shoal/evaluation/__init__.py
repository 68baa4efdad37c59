"""Evaluation: exact metrics, the same for every number of ranks and every batch size."""

from shoal.evaluation.evaluator import Evaluator

__all__ = ["Evaluator"]
