"""What the most popular items for everyone are worth: the line that a model has to beat."""

from shoal.training.metrics import higher_is_better

MEND = "train longer (train.epochs), search its settings (shoal tune), or take EASE"


def popular_line(found: dict[str, float], test: dict[str, float], metric: str, digits: int) -> str:
    """A line for the log; metric: the one by which the best epoch was chosen."""
    line = f"the most popular items for everyone: {metric} {found[metric]:.{digits}f}"
    sign = 1.0 if higher_is_better(metric) else -1.0
    if sign * test[metric] >= sign * found[metric]:
        return line
    return f"{line}. The model has {test[metric]:.{digits}f}, which is worse: {MEND}"
