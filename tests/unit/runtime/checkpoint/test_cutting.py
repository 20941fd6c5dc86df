"""A rank's part in a cut: which save belongs to it, what lies beside the state, and what PrimeMaster is told."""

from __future__ import annotations

import json
import random
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from checkpoint_kit import a_saver, client, place
from life_kit import context as here

from dljob.errors import UnreachableError
from dljob.runtime.checkpoint.checkpoints import Checkpoints
from dljob.runtime.process import context
from dljob.runtime.queues import cutting
from dljob.runtime.queues.session import cut_numbers


class Line:
    """Answers questions to PrimeMaster."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.incarnations: dict[str, int] = {}
        self.asked: list[tuple[str, Any]] = []
        self.answers: list[Any] = []

    def ask(self, what: str, args: Any, timeout_s: float) -> Future[Any]:
        self.asked.append((what, args))
        future: Future[Any] = Future()
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future


@pytest.fixture
def line(monkeypatch):
    monkeypatch.setattr(cut_numbers, "last_taken", 0)
    monkeypatch.setattr(cutting.data_queue, "mark", lambda number, _: "" if number < 9 else "queue q is away")
    made = Line()
    context.install(here(calls=made))
    yield made
    context.install(None)


def test_the_save_of_a_cut_is_on_disk_and_brings_the_random_numbers_back(line, tmp_path):
    with a_saver() as (saver, _):
        mine = Checkpoints()
        own = mine._client = client(place(saver, tmp_path))  # type: ignore[reportPrivateUsage]
        own.called = lambda: 4
        noted: list[tuple[str, int]] = []
        own.note = lambda name, value: noted.append((name, value))
        random.seed(1)
        np.random.seed(1)
        mine.save(3, {"a": 1}, persist=False)
        drawn = random.random(), np.random.random()  # noqa: S311
        mine.save(4, {"a": 2})
        mine.wait(20)
        assert mine.latest() == 4
        assert [value for name, value in noted if name == "saves"] == [1, 2]
        waited = [value for name, value in noted if name == "saving"]
        assert 0 <= waited[0] <= waited[1]
        ((what, (told,)),) = line.asked
        assert (what, told["number"], told["why"], told["mark"]["step"]) == ("cut_taken", 4, "", 3)
        own.called = lambda: 9
        line.answers = [UnreachableError("away")]
        mine.save(5, {"a": 3})
        assert line.asked[1][1][0]["why"] == "queue q is away"
        mine.wait(20)
        assert mine.load() == (5, {"a": 3})
        mine.close()
        found = cutting.random_states()
        cutting.restore_random_states(found)
        assert (random.random(), np.random.random()) != drawn  # noqa: S311


def test_random_numbers_repeat_after_a_restore():
    found = cutting.random_states()
    drawn = random.random(), np.random.random()  # noqa: S311
    cutting.restore_random_states(found)
    assert (random.random(), np.random.random()) == drawn  # noqa: S311


def test_ranks_of_a_world_take_the_same_save(line):
    part, orders = cutting.CutPart(), iter((5, 5, 6, 6))
    own: Any = SimpleNamespace(
        called=lambda: 7, place=lambda: SimpleNamespace(world=2, of="t"), next_order=lambda: next(orders)
    )
    line.answers = [UnreachableError("away"), 6]
    assert part.find_due_cut(own) == 0
    orders = iter((5, 5, 6, 6))
    own.next_order = lambda: next(orders)
    assert part.find_due_cut(own) == 0
    assert line.asked[-1] == ("cut_at", [7, "t", 5])
    assert part.find_due_cut(own) == 7


def _servers(count: int) -> str:
    cluster = {"chief": ["a:1"], "ps": [f"a:{2 + number}" for number in range(count)]}
    return json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})


@pytest.mark.parametrize("servers", [(1, 2), (3, 2), (2, 2), (0, 2), (2, 0)])
def test_a_chief_is_told_that_another_number_of_servers_wrote_its_checkpoint(
    line, tmp_path, monkeypatch, caplog, servers
):
    saved, present = servers
    state = {"tf": "path", "ranges": 9}
    with a_saver() as (saver, _):
        for count, saves in ((saved, True), (present, False)):
            monkeypatch.setenv("TF_CONFIG", _servers(count) if count else "")
            mine = Checkpoints()
            mine._client = client(place(saver, tmp_path))  # type: ignore[reportPrivateUsage]
            if saves:
                mine.save(4, state)
            else:
                assert mine.load() == (4, state)
            mine.close()
    said = [one.getMessage() for one in caplog.records if "was written with" in one.getMessage()]
    assert line.asked == [], "it is no part of a cut"
    assert len(said) == (0 < saved != present > 0)
    for words in said:
        assert f"step 4 was written with {saved} parameter server" in words
        assert f"this attempt has {present}:" in words
