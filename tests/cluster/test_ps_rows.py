"""`shoal launch` with rows that come and go: one process, other numbers of servers, evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from commands import finish, result

pytestmark = pytest.mark.slow
CONFIG = {
    "model": "LR",
    "data.format": "slots",
    "data.clicks.train": "log.txt",
    "data.clicks.test": "log.txt",
    "data.clicks.slots": 4,
    "data.clicks.dense": 0,
    "data.clicks.reader": "stream",
    "train.epochs": 2,
    "train.batch_size": 100,
    "train.optimizer.name": "adagrad",
    "train.optimizer.lr": 0.1,
    "checkpoint.every_steps": 7,
    "checkpoint.whole_every": 3,
    "rows.admission.threshold": 3,
    "rows.admission.show_coefficient": 0.5,
    "rows.counter_decay.every": 6,
    "rows.counter_decay.rate": 0.75,
    "rows.shrink.every": 8,
    "rows.shrink.max_age": 6,
    "rows.shrink.min_score": 1,
    "run.progress": False,
    "run.trackers": [],
    "run.threads": 1,
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    random = np.random.default_rng(1)
    ids = (2**50 * random.power(0.3, (2000, 4)).round(3)).astype(int)
    labels = (random.random(2000) < 0.2 + 0.6 * (ids[:, 0] % 7 < 3)).astype(int)
    with open(folder / "log.txt", "w") as file:
        for label, some in zip(labels, ids.tolist()):
            slots = " ".join(f"{k + 1}:{id_}" for k, id_ in enumerate(some))
            file.write(f"click:{label} {slots}\n")
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, "data.path": str(folder)}))
    return path


def test_servers_one_process_and_other_numbers(config: Path) -> None:
    place = config.parent
    finish("train", config, "--output", place / "alone", cwd=place)
    many = ("--worker_num=2", "--server_num=2", "-m", config)
    finish("launch", *many, "--output", place / "whole", cwd=place)
    alone = result(place / "alone")["test"]
    assert result(place / "whole")["test"] == pytest.approx(alone, abs=1e-4)
    output = finish("launch", *many, "--output", place / "cut", "-o", "train.epochs=1", cwd=place)
    assert "rows dropped in step 8" in output
    words = ("--worker_num=1", "--server_num=3", "-m", config, "--resume")
    finish("launch", *words, "--output", place / "cut", cwd=place)
    assert result(place / "cut")["test"] == pytest.approx(alone, abs=1e-4)
    finish("eval", place / "whole", "--output", place / "eval", cwd=place)
    whole = result(place / "whole")["test"]
    assert result(place / "eval")["test"] == pytest.approx(whole, abs=1e-6)
