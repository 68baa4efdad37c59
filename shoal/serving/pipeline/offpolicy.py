"""Off-policy estimates: what a pipeline would have earned on logged requests, without showing it.

What is estimated is the value of a request: the mean, over requests like those of the log, of the
sum of the labels over the places that the log shows, had the new pipeline filled them:

    value = mean over requests of  Σ over places k, items a  of  π(a at k) × f(request, a, k)

π is the chance with which the new pipeline shows a at k, f the mean label of a at k. That f does
not depend on the other items of the list is assumed (the item-position model; Li, Abbasi-Yadkori,
Kveton and others, "Offline evaluation of ranking policies with click models", 2018). A shown item
has the weight w = π(a at k) / p(a at k), where p is the chance in the log.

    ips     mean over requests of Σ_k w y
    snips   by place: Σ w y / Σ w × the mean of Σ_a π(a at k)
    dr      mean over requests of Σ_k [ Σ_a π(a at k) q(a, k) + w (y - q(shown, k)) ]

q is a model of the labels that was fitted on other requests (direct_model.py). IPS and DR are right
in the mean; SNIPS is so for many requests. Intervals are those of means over requests (SNIPS: of
its linear part), at 95 % by Student's t of the effective sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from shoal.serving.pipeline.direct_model import DirectModel, fit_direct_models
from shoal.serving.pipeline.evaluation import TestQuestion, warn_taken
from shoal.serving.pipeline.pipeline import Pipeline
from shoal.serving.pipeline.placed_items import is_exact, placed_items
from shoal.serving.pipeline.question import PipelineQuestion
from shoal.serving.pipeline.request_log import LoggedRequest

BLOCK = 256  # requests that pass the stages together
LEVEL = 0.975  # of the upper end of an interval
FEW = 100  # requests: an effective sample below has intervals that are not to be trusted
NOT_COVERED = 3.0  # deviations of the mean weight below what it should be


@dataclass(frozen=True)
class ValueEstimate:
    """An estimate of the value per request, and its 95 % interval."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class EstimateReport:
    """What a log says of a pipeline.

    logged            what the shown lists earned, on the same requests
    requests          of the log; supported: those with a known chance at every place that counts
    places            how many places count, at most
    effective         requests that were shown as the new pipeline would, which the weighted ones
                      are worth: (Σ w)² / Σ w², over places and requests, by mean places
    covered           the mean of Σ w / Σ π: 1 where the log can show all that the pipeline shows
    clipped           share of places whose weight was clipped
    is_exact          whether the pipeline's chances are exact, or shares of drawn lists
    warnings          sentences about what the log cannot say
    """

    estimates: list[ValueEstimate]
    logged: ValueEstimate
    requests: int
    supported: int
    places: int
    effective: float
    covered: float
    clipped: float
    is_exact: bool
    warnings: list[str]


@dataclass(frozen=True)
class WeightedPlaces:
    """Logged places against the new pipeline; arrays are float64 [requests, places].

    labels, weights  of the shown items; 0 behind the end of a list
    mass             Σ_a π(a at k); 0 behind the end of the logged list
    direct           Σ_a π(a at k) q(a, k); residuals: y - q(shown, k)
    """

    labels: np.ndarray
    weights: np.ndarray
    mass: np.ndarray
    direct: np.ndarray
    residuals: np.ndarray


def estimate(
    pipeline: Pipeline,
    requests: Sequence[LoggedRequest],
    labels: Sequence[np.ndarray],
    num_places: int | None = None,
    clip: float | None = None,
    num_draws: int = 200,
) -> EstimateReport:
    """The value of a pipeline by IPS, SNIPS and DR.

    labels: of the shown items of each request. num_places: count the first so many places; None:
    all. clip: the largest weight; None: any. num_draws: lists that are drawn where the chances of
    the pipeline are not known exactly.
    """
    longest = max((len(request) for request in requests), default=0)
    places = longest if num_places is None else min(num_places, longest)
    pairs = [
        (request, of_request[:places])
        for request, of_request in zip(requests, labels)
        if len(request) and not np.isnan(request.place_propensity[:places]).any()
    ]
    if len(pairs) < 2:
        raise ValueError(_why_unsupported(requests, places))
    own = [request for request, _ in pairs]
    models, folds = fit_direct_models(own, [values for _, values in pairs], places)
    weighted = _weigh(pipeline, own, [values for _, values in pairs], models, folds, num_draws)
    clipped = 0.0
    if clip is not None:
        clipped = float((weighted.weights > clip).sum() / max(1, (weighted.weights > 0).sum()))
        weighted.weights[weighted.weights > clip] = clip
    return _report(weighted, len(requests), clipped, clip, is_exact(pipeline, places))


def warn_known_outcomes(
    pipeline: Pipeline, requests: Sequence[LoggedRequest], labels: Sequence[np.ndarray]
) -> None:
    """Warn where the pipeline's artifacts learned from what came of the logged requests."""
    questions = []
    for request, values in zip(requests, labels):
        if request.user is not None and (values > 0).any():
            words = [item for item, label in zip(request.items, values) if label > 0]
            items = np.unique(pipeline.items.ids.find(words))
            question = question_of(pipeline, request, number=len(request))
            questions.append(TestQuestion(question, items[items > 0], len(words)))
    warn_taken(pipeline, questions)


def question_of(pipeline: Pipeline, request: LoggedRequest, number: int) -> PipelineQuestion:
    """The question of a request, with the columns of its context that the pipeline reads."""
    columns = [] if pipeline.ranker is None else pipeline.ranker.columns
    context = {name: value for name, value in request.context.items() if name in columns}
    return PipelineQuestion(
        user=request.user,
        history=request.history,
        number=number,
        context=context,
        time=request.time,
    )


def _weigh(
    pipeline: Pipeline,
    requests: Sequence[LoggedRequest],
    labels: Sequence[np.ndarray],
    models: Sequence[DirectModel],
    folds: np.ndarray,
    num_draws: int,
) -> WeightedPlaces:
    """Every logged place against what the pipeline would show there."""
    places = max(map(len, labels))
    weighted = WeightedPlaces(*(np.zeros((len(requests), places)) for _ in range(5)))
    words = np.asarray(pipeline.items.ids.words, dtype=object)
    for first in range(0, len(requests), BLOCK):
        block = requests[first : first + BLOCK]
        numbers = [len(labels[first + n]) for n in range(len(block))]
        questions = [question_of(pipeline, *pair) for pair in zip(block, numbers)]
        for row, placed in enumerate(placed_items(pipeline, questions, num_draws), start=first):
            request, size = requests[row], len(labels[row])
            model, here = models[folds[row]], np.arange(size)
            shown = request.items[:size]
            chances = placed.of(pipeline.items.ids.find(shown))[here, here]
            weighted.labels[row, :size] = labels[row]
            weighted.weights[row, :size] = chances / request.place_propensity[:size]
            weighted.mass[row, :size] = placed.chances.sum(axis=0)
            predicted = model.table(words[placed.items].tolist(), size)
            weighted.direct[row, :size] = (placed.chances * predicted).sum(axis=0)
            weighted.residuals[row, :size] = labels[row] - model.table(shown, size)[here, here]
    return weighted


def _report(
    weighted: WeightedPlaces, requests: int, clipped: float, clip: float | None, exact: bool
) -> EstimateReport:
    weights, mass = weighted.weights, weighted.mass
    size, places = weights.shape
    squares = float((weights**2).sum())
    mean_places = max(1e-12, float((mass > 0).sum() / size))
    effective = float(weights.sum()) ** 2 / squares / mean_places if squares else 0.0
    earned = (weights * weighted.labels).sum(axis=1)
    corrected = (weighted.direct + weights * weighted.residuals).sum(axis=1)
    estimates = [
        _mean("ips", earned, effective),
        _self_normalised(weighted, effective),
        _mean("dr", corrected, effective),
    ]
    missing = (mass - weights).sum(axis=1)  # 0 in the mean where the log can show all
    is_short = missing.mean() > NOT_COVERED * missing.std(ddof=1) / np.sqrt(size)
    covered = float(weights.sum() / mass.sum()) if mass.sum() else 0.0
    warnings = []
    if clip is None and is_short and covered < 0.99:
        warnings.append(
            f"the log could have shown only about {covered:.0%} of what this pipeline shows: IPS "
            "counts the rest as if it earned nothing, SNIPS as if it earned as much, DR by its "
            "model"
        )
    if effective < FEW:
        warnings.append(
            f"the weighted requests are worth {effective:.0f} that were shown this pipeline's "
            "lists: these intervals are not to be trusted; log more, explore more, or take a "
            "pipeline that differs less"
        )
    if clip is not None and clipped:
        warnings.append(
            f"{clipped:.1%} of the weights above 0 were clipped to {clip:g}: IPS is too low where "
            "labels are positive, and no interval counts that"
        )
    return EstimateReport(
        estimates=estimates,
        logged=_mean("logged", weighted.labels.sum(axis=1), size),
        requests=requests,
        supported=size,
        places=places,
        effective=effective,
        covered=covered,
        clipped=clipped,
        is_exact=exact,
        warnings=warnings,
    )


def _mean(name: str, values: np.ndarray, effective: float) -> ValueEstimate:
    """The mean of values of requests, and its interval."""
    mean, deviation = float(values.mean()), float(values.std(ddof=1)) / np.sqrt(len(values))
    reach = float(student.ppf(LEVEL, max(1.0, effective - 1))) * deviation
    return ValueEstimate(name, mean, mean - reach, mean + reach)


def _self_normalised(weighted: WeightedPlaces, effective: float) -> ValueEstimate:
    """SNIPS; its interval is that of the mean of its linear part (delta method)."""
    weights, labels = weighted.weights, weighted.labels
    mass, mean_weights = weighted.mass.mean(axis=0), weights.mean(axis=0)
    has_weight = mean_weights > 0
    scale = np.where(has_weight, 1 / np.where(has_weight, mean_weights, 1.0), 0.0)
    means = (weights * labels).mean(axis=0) * scale  # by place: the mean label of a shown item
    value = float((means * mass).sum())
    # A label pulls its own mean towards it: what it pulls is its share of the weights (jackknife).
    pull = 1 - np.minimum(0.5, scale * weights / len(weights))
    parts = mass * scale * weights * (labels - means) / pull + means * (weighted.mass - mass)
    spread = _mean("snips", parts.sum(axis=1), effective)
    reach = spread.high - spread.value
    return ValueEstimate("snips", value, value - reach, value + reach)


def _why_unsupported(requests: Sequence[LoggedRequest], places: int) -> str:
    """Why the log says nothing, and what to do."""
    if not requests:
        return "the log holds no requests"
    first_known = sum(len(one) > 0 and not np.isnan(one.place_propensity[0]) for one in requests)
    if not first_known:
        return (
            "the log has no propensities: nothing was drawn at random, so it cannot say what other "
            "items would have earned. Let the pipeline explore while it logs (rule `explore`)"
        )
    return (
        f"of {len(requests):,} requests {first_known:,} have a known chance at the first place, "
        f"and fewer than 2 at all {places} places: --places 1 counts the first place alone. "
        "Chances of further places are logged where `explore` with method epsilon is the last rule"
    )
