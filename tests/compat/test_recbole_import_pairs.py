"""`shoal import recbole` marks losses that compare the samples of one process with each other."""

from pathlib import Path

import pytest
from recbole_classes import CLICKS, GRAPH, POINTWISE, SEQUENCE, SIDE_LOSS

from shoal.compat.recbole_import.draft import Line
from shoal.compat.recbole_import.translation import translate

LOSS = "        loss = self.loss((user_e"  # a line of calculate_loss, where a batch's vectors are
METHOD = """
    def compare(self, view1, view2):
        def scores(a, b):
            return a @ b.transpose(0, 1)

        view1, view2 = torch.nn.functional.normalize(view1), view2 / 0.2
        return scores(view1, view2)
"""
LAYER = """

def similarity(a, b):
    return torch.matmul(a, b.t())


class Contrast(nn.Module):
    def forward(self, view1, view2):
        return similarity(view1, view2)
"""
COMPARED = {
    "mm": ("torch.mm(user_e, pos_e.t())", "torch.mm(user_e, pos_e.t())"),
    "matmul": ("user_e.matmul(pos_e.T)", "user_e.matmul(pos_e.T)"),
    "augmented": ("torch.cat([user_e, pos_e]) @ pos_e.T / 0.2", "torch.cat([user_e, pos_e]) @ p"),
    "itself": ("torch.mm(user_e, user_e.transpose(1, 0))", "torch.mm(user_e, user_e.transpose("),
    "gathered": ("self.all()[user] @ self.all()[torch.unique(pos)].T", "self.all()[user] @ self"),
    "distances": ("torch.pdist(user_e).pow(2).mul(-2).exp().mean().log()", "torch.pdist(user_e)"),
    "two distances": ("torch.cdist(user_e, pos_e)", "torch.cdist(user_e, pos_e)"),
    "a method": ("self.compare(user_e, view2=pos_e)", "a @ b.transpose(0, 1)"),
    "a layer": ("self.contrast(user_e, pos_e)", "torch.matmul(a, b.t())"),
}
NOT_COMPARED = {
    "all items": "torch.mm(user_e, self.item_embedding.weight.t())",
    "all items through a method": "self.compare(user_e, self.item_embedding.weight)",
    "a table with itself": "self.compare(self.item_embedding.weight, self.item_embedding.weight)",
    "sizes": "torch.eye(len(user), user_e.size(1)) @ torch.eye(len(user), user_e.shape[1]).T",
    "dimensions": "user_e.T @ pos_e",
    "places of a sample": "torch.matmul(user_e[:, None], pos_e[:, None].transpose(1, 2))",
    "prototypes": "torch.cdist(user_e, self.prototypes)",
}


def looks_of(folder: Path, text: str) -> list[Line]:
    """Lines of the table that are about samples of one process."""
    (folder / "theirs.py").write_text(text)
    moved = translate(str(folder / "theirs.py"))
    lines = [line for line in moved.lines if "compares the samples of one process" in line.look]
    assert moved.text.count("# LOOK: it compares the samples of one process") == len(lines)
    return lines


def with_side(expression: str) -> str:
    """A class whose loss computes an expression of its batch."""
    assert SIDE_LOSS.count(LOSS) == 1
    text = SIDE_LOSS.replace(LOSS, f"        side = {expression}\n{LOSS}")
    text = text.replace(
        "self.loss, self.reg =", "self.contrast = Contrast()\n        self.loss, self.reg ="
    )
    text = text.replace("\n\nclass PopularMF", f"{LAYER}\n\nclass PopularMF")
    return text + METHOD


@pytest.mark.parametrize("kind", COMPARED)
def test_losses_over_pairs_of_samples_ask_a_person(kind: str, tmp_path: Path) -> None:
    expression, what = COMPARED[kind]
    (line,) = looks_of(tmp_path, with_side(expression))
    assert line.what.startswith(what)


@pytest.mark.parametrize("kind", NOT_COMPARED)
def test_other_products_do_not(kind: str, tmp_path: Path) -> None:
    assert looks_of(tmp_path, with_side(NOT_COMPARED[kind])) == []


@pytest.mark.parametrize("text", [SIDE_LOSS, GRAPH, SEQUENCE, POINTWISE, CLICKS])
def test_classes_that_compare_with_all_items_do_not(text: str, tmp_path: Path) -> None:
    assert looks_of(tmp_path, text) == []
