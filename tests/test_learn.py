"""The tutorials run from a clean folder, and what their text states is true of their output."""

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import shoal

pytest.importorskip("jupytext")
pytest.importorskip("nbclient")

LEARN = Path(__file__).resolve().parents[1] / "docs" / "learn"
sys.path.insert(0, str(LEARN))

from notebooks import TUTORIALS, executed  # noqa: E402

NUMBER = r"(\d+\.\d+)"
ANSI = re.compile(r"\x1b\[[\d;]*m")


class Ran:
    """An executed tutorial: its text outputs, and the folder that it worked in."""

    def __init__(self, name: str, folder: Path):
        self.folder = folder
        self.notebook = executed(name, folder)
        self.outputs = [one for cell in self.notebook.cells for one in cell.get("outputs", [])]

    @property
    def text(self) -> str:
        """What was printed, and the last value of each cell as text."""
        shown = [
            one.get("text") or one.get("data", {}).get("text/plain", "") for one in self.outputs
        ]
        return ANSI.sub("", "\n".join(shown)).replace("\r", "")

    def values(self) -> list[Any]:
        """The last values of cells that are plain Python."""
        found = []
        for one in self.outputs:
            try:
                found.append(ast.literal_eval(one.data["text/plain"]))
            except (AttributeError, KeyError, SyntaxError, ValueError):
                continue
        return found

    def number(self, before: str) -> float:
        """The number that stands behind these words."""
        found = re.search(re.escape(before) + r"\s*" + NUMBER, self.text)
        assert found, f"no number behind {before!r} in\n{self.text}"
        return float(found[1])

    def pictures(self) -> int:
        return sum("image/png" in one.get("data", {}) for one in self.outputs)

    def losses(self, run: str) -> list[float]:
        lines = (self.folder / run / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["loss"] for line in lines]

    def result(self, run: str) -> dict[str, Any]:
        return json.loads((self.folder / run / "result.json").read_text())


def own_data(ran: Ran) -> None:
    assert "user = Member, item = Film No" in ran.text and "line 902: 2 cells" in ran.text
    # Thirty rows are there twice; those of one or two stars are left out before.
    for left_out in ("bad_rows: 2 of", r"filter.duplicates: [12]\d of", "filter.values.Stars:"):
        assert re.search(f"Left out by data.{left_out}", ran.text)
    found, popular = (
        ran.number("EASE on ratings: recall@10"),
        ran.number("Pop on ratings: recall@10"),
    )
    assert found == pytest.approx(2 / 3, abs=0.05) and popular == pytest.approx(1 / 4, abs=0.05)
    assert "Second Alibi" in ran.text  # titles


def features(ran: Ran) -> None:
    bpr, lightfm, described = [one for one in ran.values() if isinstance(one, tuple)]
    assert lightfm[0] > 1.6 * bpr[0]
    new = bpr[1]["interactions"]
    assert bpr[1]["found"] / new < 0.1  # chance: 10 of 170 items
    assert lightfm[1]["found"] / new > 0.25 and described[1]["found"] / new > 0.2
    assert re.search(r"brand +id +item", ran.text) and re.search(r"price +number +item", ran.text)


def clicks(ran: Ran) -> None:
    simple, deep = ran.number("LR on monday: auc"), ran.number("DeepFM on monday: auc")
    best = next(one for one in ran.values() if isinstance(one, float))
    assert simple + 0.5 * (best - simple) < deep < best


def sequences(ran: Ran) -> None:
    bpr, sasrec = (ran.number(f"Fitted({name}: recall@1") for name in ("BPR", "SASRec"))
    assert sasrec > 3 * bpr
    assert "Chess 5 → ['Chess 6'" in ran.text and "Piano 3 → ['Piano 4'" in ran.text
    shares = [float(one) for one in re.findall(r"([+-]\d+\.\d+)$", ran.text, re.MULTILINE)]
    assert sum(shares[:-1]) == pytest.approx(shares[-1], abs=1e-3)
    assert max(shares[:-1]) == shares[0] and re.search(r"^Chess 5 +\+", ran.text, re.MULTILINE)


def own_model(ran: Ran) -> None:
    assert ran.losses("two") == pytest.approx(ran.losses("biased"), rel=1e-5)
    assert "did you mean model.embedding_size?" in ran.text and "1 passed" in ran.text
    assert "for user 5" in ran.text
    code = (ran.folder / "biased.py").read_text()
    assert len(code.splitlines()) < 50


def own_loop(ran: Ran) -> None:
    steps = re.findall(rf"step (\d+): {NUMBER}", ran.text)
    plain, spread = [float(loss) for _, loss in steps[:4]], [float(loss) for _, loss in steps[4:]]
    assert [step for step, _ in steps] == ["10", "20", "30", "40"] * 2
    assert spread == pytest.approx(plain, abs=1.1e-4)  # the last digit that is printed
    model = shoal.load(next((ran.folder / "exported").iterdir()))
    even, odd = model.answer({"input": [[7, 100], [7, 101]]}).flatten().tolist()
    assert even > odd


def many_processes(ran: Ran) -> None:
    for run in ("two", "sharded", "killed"):
        assert ran.losses(run) == pytest.approx(ran.losses("one"), rel=1e-5), run
    assert len(ran.losses("killed")) == 6
    assert re.search(r"status -9 after [2-5] of 6 epochs", ran.text)


def servers(ran: Ran) -> None:
    assert ran.losses("sync") == pytest.approx(ran.losses("one"), rel=1e-5)
    files = next(one for one in ran.values() if isinstance(one, dict))
    first, second = files.values()
    assert first == pytest.approx(second, rel=0.1)  # half of the rows each
    assert ran.result("async")["test"]["auc"] == pytest.approx(
        ran.result("one")["test"]["auc"], abs=0.02
    )


def gpu(ran: Ran) -> None:
    assert ran.losses("run") == pytest.approx(ran.losses("cores"), rel=1e-4)
    assert re.search(r"strategy single on 1 process \((cpu|cuda)\)", ran.text)
    assert re.search(r". GPU +", ran.text) and "slots_linear" in ran.text


def tiers(ran: Ran) -> None:
    lines = re.findall(r"^(\S+(?:safetensors|json)) +(\w{8}) +(\w{8})$", ran.text, re.MULTILINE)
    assert len(lines) == 5 and all(memory == disk for _, memory, disk in lines)
    assert [] in ran.values()  # nothing is left in the scratch folder
    rows = int(re.search(r"(\d+) rows in host, ssd", ran.text)[1])  # type: ignore[index]
    assert rows / 2001 == pytest.approx(1 / 3, abs=0.05)


def serving(ran: Ran) -> None:
    known, unknown = [one for one in ran.values() if isinstance(one, dict) and "by" in one]
    assert known["by"] == "model" and [*known["items"][0]] == ["item", "score", "title"]
    assert unknown["by"] == "popularity" and unknown["unknown"] == ["somebody new"]
    assert "requests, all answered; the last by 'second'" in ran.text and "status 0" in ran.text
    assert "because of" in ran.text


def pipeline(ran: Ran) -> None:
    assert "a question's context must have: Device" in ran.text and "status 0" in ran.text
    stages = json.loads((ran.folder / "stages.json").read_text())["stages"]
    ndcg = {one["stage"]: one["ndcg@10"] for one in stages}
    assert ndcg["retrieve"] < ndcg["retrieve taste"] and ndcg["rank"] > 1.2 * ndcg["allowed"]
    costs = ("rank", "boost", "at_most", "explore")
    assert [ndcg[name] for name in costs] == sorted((ndcg[name] for name in costs), reverse=True)
    assert re.search(r"'taste'.* \{'rank': -?\d+", ran.text)  # where it came from, what moved it
    assert "1,201 requests" in ran.text and "label that is not 0: shown.parquet" in ran.text
    assert "1,201 of 1,201 requests count (100%), 3 places" in ran.text
    logged, *others = (ran.number(f" {name} ") for name in ("logged", "ips", "snips", "dr"))
    assert all(other > logged for other in others)


def daily(ran: Ran) -> None:
    wednesday, anew = ran.result("wednesday"), ran.result("anew")
    after = wednesday["best_valid"]["recall@10"]
    assert after > 1.5 * wednesday["before"]["recall@10"]
    assert after > 0.9 * anew["best_valid"]["recall@10"]
    assert "tuesday ← monday" in ran.text and "wednesday ← tuesday" in ran.text


CHECKS = (own_data, features, clicks, sequences, own_model, own_loop, many_processes, servers)
FACTS = {check.__name__: check for check in (*CHECKS, gpu, tiers, serving, pipeline, daily)}


@pytest.mark.slow
@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_runs_and_is_true(name: str, tmp_path: Path) -> None:
    ran = Ran(name, tmp_path)
    FACTS[name](ran)
    assert ran.pictures() >= (name not in ("own_model", "gpu"))


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_reads_as_the_others(name: str) -> None:
    text = (LEARN / f"{name}.md").read_text().split("---\n", 2)[2].strip()
    title, reader, outcome = text.split("\n\n")[:3]
    assert title.startswith("# ") and reader.startswith("For people who")
    assert outcome.startswith("At the end")
    assert 3 <= len(re.findall(r"^## \d\. ", text, re.MULTILINE)) <= 7
    assert text.splitlines()[-1].startswith("**Next:** ")


def test_there_are_thirteen() -> None:
    assert set(TUTORIALS) == set(FACTS) and len(TUTORIALS) == 13
