"""Evaluation: exact metrics, the same for every number of ranks and every batch size."""

from shoal.evaluation.clicks import ClickEvaluator
from shoal.evaluation.evaluator import Evaluator
from shoal.evaluation.interval import Interval

__all__ = ["ClickEvaluator", "Evaluator", "Interval"]
