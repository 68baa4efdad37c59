"""What a service keeps of histories between requests: answers are those of computing all anew."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported import check_here, export_here, trained
from zoo_models import zoo_config

from shoal.serving.artifact.artifact import Artifact
from shoal.serving.artifact.kept_histories import ALWAYS_EXTENDED, KeptHistories
from shoal.serving.service.questions import Recommend, answer_batch
from shoal.serving.service.service import Service

MANY = 1 << 26
MAX_LEN = 12


pytestmark = pytest.mark.slow
KINDS = ["HSTU", "HSTU without times", "SASRec"]


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("kept") / "artifact"
    name, *without = request.param.split()
    more = {"model__use_times": not without} if name == "HSTU" else {}
    more |= {"model__n_layers": 2, "model__n_heads": 2}
    config = zoo_config(name, data__max_len=MAX_LEN, **more)
    export_here(trained(config), place)
    return place


def opened(folder: Path, most_bytes: int) -> tuple[Artifact, KeptHistories]:
    artifact = Artifact(folder)
    kept = artifact.keep_histories(most_bytes, ALWAYS_EXTENDED)
    assert kept is not None
    return artifact, kept


class Person:
    """Somebody who takes an item now and then."""

    def __init__(self, artifact: Artifact, seed: int):
        self.random, self.artifact = np.random.default_rng(seed), artifact
        self.items: list[str] = []
        self.times = [1_000_000]

    def goes_on(self, events: int = 1) -> None:
        for _ in range(events):
            self.items.append(self.artifact.items.values[self.random.integers(1, 30)])
            self.times.append(self.times[-1] + int(self.random.integers(0, 10**5)))

    def asks(self, artifact: Artifact, later: int = 7) -> Any:
        times = [*self.times[1:], self.times[-1] + later]
        return artifact.recommend(history=self.items, times=times, topk=8)


def same(found: Any, expected: Any) -> None:
    assert [item for item, _ in found] == [item for item, _ in expected]
    scores = [score for _, score in expected]
    assert [score for _, score in found] == pytest.approx(scores, rel=1e-4, abs=1e-6)


def test_lists_and_scores_after_each_event(folder: Path) -> None:
    """From the first item to more than the model reads; a new event costs two places."""
    plain, (artifact, kept) = Artifact(folder), opened(folder, MANY)
    people = [Person(plain, seed) for seed in range(3)]
    for length in range(1, MAX_LEN + 6):
        for person in people:
            person.goes_on()
            before = kept.places
            same(person.asks(artifact), person.asks(plain))
            new = kept.places - before
            assert new == (min(2, length) if length <= MAX_LEN else MAX_LEN)
            if length < MAX_LEN:
                same(person.asks(artifact, later=5000), person.asks(plain, later=5000))
                assert kept.places - before - new == 1  # asked again: the last place alone
    assert len(kept) == 0  # each was taken, and is too long by now
    assert kept.bytes == 0


def test_several_events_at_once_and_another_past(folder: Path) -> None:
    plain, (artifact, kept) = Artifact(folder), opened(folder, MANY)
    person = Person(plain, 5)
    person.goes_on(3)
    same(person.asks(artifact), person.asks(plain))
    person.goes_on(4)
    same(person.asks(artifact), person.asks(plain))
    assert kept.places == 3 + 5
    person.items[1] = next(one for one in plain.items.values[1:] if one != person.items[1])
    same(person.asks(artifact), person.asks(plain))  # nothing of before is true of it
    assert kept.places == 3 + 5 + 7 and kept.hits == 1


def test_memory_is_bounded(folder: Path) -> None:
    """The one that was used longest ago leaves; it is computed anew, and answers are the same."""
    plain = Artifact(folder)
    each = opened(folder, MANY)[1].width * 4 * MAX_LEN
    artifact, kept = opened(folder, 3 * each)
    people = [Person(plain, seed) for seed in range(8)]
    for _ in range(4):
        for person in people:
            person.goes_on(2)
            same(person.asks(artifact), person.asks(plain))
            assert kept.bytes <= 3 * each
    assert 0 < len(kept) < 8 and kept.hits == 0  # by then others had taken the place of each
    for _ in range(2):
        people[0].goes_on()
        same(people[0].asks(artifact), people[0].asks(plain))
    assert kept.hits == 1
    tiny, none = opened(folder, 10)
    same(people[0].asks(tiny), people[0].asks(plain))
    assert len(none) == 0 and none.bytes == 0


def test_users_of_the_data_and_many_at_once(folder: Path) -> None:
    plain, (artifact, _) = Artifact(folder), opened(folder, MANY)
    users = plain.users.values[1:20].tolist()
    for found, expected in zip(artifact.recommend(users).values(), plain.recommend(users).values()):
        same(found, expected)
    people = [Person(plain, seed % 3) for seed in range(12)]  # some of them are the same
    for person in people:
        person.goes_on(6)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            answers = list(pool.map(lambda person: person.asks(artifact), people))
            for person, found in zip(people, answers):
                same(found, person.asks(plain))
                person.goes_on()


def test_parts_that_are_too_large_are_smaller(folder: Path) -> None:
    plain, (artifact, kept) = Artifact(folder), opened(folder, MANY)
    kept._step = 2
    person = Person(plain, 1)
    person.goes_on(9)
    same(person.asks(artifact), person.asks(plain))


def test_in_service(folder: Path) -> None:
    service = Service(folder, MANY)
    assert service.model.kept_histories is not None
    service.model.kept_histories.costs = ALWAYS_EXTENDED
    person = Person(service.model, 2)
    person.goes_on(4)
    for _ in range(3):
        times = [*person.times[1:], person.times[-1]]
        asked = Recommend(history=person.items, times=times, topk=8)
        (answer,) = answer_batch(service.model, "recommend", [asked])
        found = [(one["item"], one["score"]) for one in answer["items"]]
        same(found, person.asks(Artifact(folder), later=0))
        person.goes_on()
    figures = service.counts()
    assert figures["state_requests_total"] == 3 and figures["state_hits_total"] == 2
    assert figures["states"] == 1 and figures["state_bytes"] > 0
    assert Service(folder).counts() == {}


def test_an_export_proves_it(folder: Path, tmp_path: Path) -> None:
    """Where the graph that extends answers otherwise, nothing is exported."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    text = (copy / "extend.json").read_text()
    made = "aten.silu.default" if "aten.silu.default" in text else "aten.gelu.default"
    assert made in text
    (copy / "extend.json").write_text(text.replace(made, "aten.sin.default"))
    with pytest.raises(ValueError, match="scores differ by up to"):
        check_here(copy, None)
