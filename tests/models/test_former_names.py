"""Names of the release before that users' own models may call, pass or override."""

import pytest
import torch
from torch import Tensor

from shoal.models.base import Init
from shoal.models.clicks.lr import LR
from shoal.models.nn.interactions import Dots
from shoal.models.sequential.base import Sequential


def test_a_former_method_name_warns_and_calls_the_new_one() -> None:
    dots, first, vectors = Dots(3), torch.randn(2, 4), torch.randn(2, 2, 4)
    with pytest.warns(FutureWarning, match="beside is called concat_dots now"):
        result = dots.beside(first, vectors)
    assert torch.equal(result, dots.concat_dots(first, vectors))


def test_a_former_argument_name_warns_and_passes_the_new_one() -> None:
    class Own(LR):
        def __init__(self, options, facts):
            super().__init__(options, facts)
            self.more = self.embeddings(1, Init("constant", 0.0), beside="_more")

    from shoal.models.base import Facts

    with pytest.warns(FutureWarning, match="argument beside of embeddings is called suffix now"):
        model = Own(LR.Options(), Facts(num_slots=2, rows=10))
    assert [table.name for table in model.more.fields.values()] == ["slots_more"]


def test_a_model_that_overrides_a_former_method_name_keeps_its_override() -> None:
    with pytest.warns(FutureWarning, match="Own defines asked, which is called project_states now"):

        class Own(Sequential):
            def asked(self, states: Tensor) -> Tensor:
                return 2.0 * states

    assert Own.project_states is Own.asked
