"""shoal.fit as an estimator of scikit-learn: clone, cross_val_score, GridSearchCV take it.

from sklearn.model_selection import cross_val_score
cross_val_score(FrameEstimator("BPR", user="uid", item="iid", epochs=20), ratings, cv=5)

scikit-learn is not imported, and need not be installed.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from shoal.config.errors import did_you_mean
from shoal.config.output import flat
from shoal.models.base import Model
from shoal.runs.fit import Fitted, fit
from shoal.training.metrics import higher_is_better


class FrameEstimator:
    """A model to be trained on frames of interactions; parameters are those of shoal.fit.

    metric  what `score` returns; those for which less is better come with a minus before them
    keys    config keys, as in shoal.fit: epochs=5, **{"train.optimizer.lr": 0.01}

    `fit` trains on all rows; `score` tests on others, where what was trained on counts as seen.

    >>> import polars
    >>> from shoal.compat.sklearn import FrameEstimator
    >>> rows = [(f"u{n % 40}", n * 7 % 97) for n in range(1200)]
    >>> frame = polars.DataFrame(rows, schema=["uid", "iid"], orient="row")
    >>> estimator = FrameEstimator("BPR", user="uid", item="iid", metric="recall@5", epochs=1)
    >>> fitted = estimator.set_params(**{"run.progress": False}).fit(frame[:1000])
    >>> len(fitted.recommend("u7", topk=3)), 0.0 <= fitted.score(frame[1000:]) <= 1.0
    (3, True)
    """

    def __init__(
        self,
        model: str | type[Model] = "BPR",
        *,
        user: str = "user_id",
        item: str = "item_id",
        time: str | None = None,
        label: str | None = None,
        rating: str | None = None,
        users: Any = None,
        items: Any = None,
        metric: str = "ndcg@10",
        **keys: Any,
    ):
        self.model, self.user, self.item, self.time = model, user, item, time
        self.label, self.rating, self.users, self.items = label, rating, users, items
        self.metric, self.keys = metric, keys

    # ---- parameters -----------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Every parameter, config keys among them."""
        named = ("model", "user", "item", "time", "label", "rating", "users", "items", "metric")
        return {**{name: getattr(self, name) for name in named}, **self.keys}

    def set_params(self, **params: Any) -> Self:
        """Change parameters, or add config keys; what is no key is an error of `fit`."""
        own = self.get_params().keys() - self.keys.keys()
        for name, value in params.items():
            if name in own:
                setattr(self, name, value)
            else:
                self.keys = {**self.keys, name: value}
        return self

    def __repr__(self) -> str:
        plain = type(self)().get_params()
        changed = {
            k: v for k, v in self.get_params().items() if k not in plain or plain[k] is not v
        }
        title = self.model.__name__ if isinstance(self.model, type) else self.model
        rest = (f"{k}={v!r}" for k, v in changed.items() if k not in ("model", "users", "items"))
        return f"FrameEstimator({', '.join([repr(title), *rest])})"

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks for: nothing here is special."""
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=False))

    # ---- use ------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train on all rows of a frame; y is not read, and may hold users to split by."""
        names = ("user", "item", "time", "label", "rating", "users", "items")
        keys = {"data.split.ratio": [1, 0, 0], "train.eval_every": 0, **self.keys}
        _, _, k = self.metric.partition("@")
        if k and not any(key.startswith("eval.topk") or key == "topk" for key in flat(keys)):
            keys["eval.topk"] = sorted({int(k), 10})  # 10: of eval.valid_metric
        place = None
        if "run.output" not in flat(keys):
            place = tempfile.TemporaryDirectory(prefix="shoal-")
            keys["run.output"] = str(Path(place.name, "run"))
        self.fitted_ = fit(self.model, X, **{name: getattr(self, name) for name in names}, **keys)
        self._place = place  # as long as what was fitted: a fit that fails leaves the one before
        return self

    def score(self, X: Any, y: Any = None) -> float:
        """`metric` on other interactions, or on labelled rows of a click model; more is better."""
        metrics = self._fitted().evaluate(X)
        if self.metric not in metrics:
            raise ValueError(
                f"metric={self.metric!r} is not among {', '.join(metrics)}"
                f"{did_you_mean(self.metric, metrics)}; see eval.metrics and eval.topk"
            )
        sign = 1.0 if higher_is_better(self.metric) else -1.0
        return sign * metrics[self.metric]

    def predict(self, X: Any) -> Any:
        """Probabilities of clicks of rows, of click models: [n]."""
        return self._fitted().predict(X)

    def recommend(
        self, user: Any = None, topk: int = 10, history: Sequence[Any] | None = None
    ) -> Any:
        """The best items of a user, of several, or for a history, as of Fitted."""
        return self._fitted().recommend(user, topk, history)

    def _fitted(self) -> Fitted:
        if not hasattr(self, "fitted_"):
            raise ValueError("FrameEstimator is not fitted yet; call fit(frame) first")
        return self.fitted_
