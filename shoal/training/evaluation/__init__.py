"""Evaluation: exact metrics, the same for every number of ranks and every batch size."""

from shoal.training.evaluation.clicks import ClickEvaluator, predicted
from shoal.training.evaluation.evaluator import Evaluator

__all__ = ["ClickEvaluator", "Evaluator", "predicted"]
