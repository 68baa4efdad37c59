"""Scripts of `lightfm` on Shoal's LightFM: one import changes.

    from shoal.compat.lightfm import LightFM

model.py             LightFM: fit, predict, predict_rank, representations
data.py              Dataset: ids and names of features become matrices
evaluation.py        precision_at_k, recall_at_k, auc_score, reciprocal_rank
cross_validation.py  random_train_test_split

Arguments have lightfm's names and defaults, results its shapes and types. An argument that cannot
be honoured is refused, never ignored. See docs/from/lightfm.md.
"""

from shoal.compat.lightfm.model import FeatureFactors as LightFM

__all__ = ["LightFM"]
