"""Evaluation: exact metrics, the same for every number of ranks and every batch size."""

from shoal.training.evaluation.clicks import ClickEvaluator, predicted
from shoal.training.evaluation.evaluator import Evaluator
from shoal.training.evaluation.interval import Interval

__all__ = ["ClickEvaluator", "Evaluator", "Interval", "predicted"]
