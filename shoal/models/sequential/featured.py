"""SASRec with features: what models share that read a history's items and what these are."""

from typing import Literal

from shoal.models.base import Facts
from shoal.models.nn.item_features import ItemFeatures
from shoal.models.sequential.sasrec import SASRec


class FeaturedSASRec(SASRec):
    """SASRec that also has the vectors of every item's features, `features`."""

    reads_features = True

    class Options(SASRec.Options):
        selected_features: list[str] | None = None  # names of the features read; null: all
        # how a feature's list of ids becomes one vector; null: as data.features says
        pooling_mode: Literal["sum", "mean"] | None = None

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.cuda_graph_safe = False
        self.state_width = 0  # features are read from whole histories
        name, std = type(self).__name__, options.initializer_range
        self.features = ItemFeatures(
            name,
            facts,
            options.hidden_size,
            std,
            selected=options.selected_features,
            pooling=options.pooling_mode,
        )
