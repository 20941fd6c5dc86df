"""PrimeMaster's answers to savers: journaled before they are given; one decides while the others wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dljob.master.state import events as ev
from dljob.master.state.checkpoint_ids import CheckpointId, RunId
from dljob.master.transition import initial, transition
from dljob.plan.plan import plan
from dljob.runtime.controller.services import checkpoint_service as module
from dljob.runtime.controller.services.checkpoint_service import CheckpointService
from dljob.spec.model import DLJobManifest


class Queues:
    """The cut service, as far as the desk asks it."""

    def __init__(self) -> None:
        self.back: list[str | None] = []
        """Answers of `go_back`; then all queues are there."""
        self.verified: list[str] = []

    async def ready(self) -> None:
        pass

    async def verify(self, world: str) -> None:
        self.verified.append(world)

    async def go_back(self) -> str | None:
        return self.back.pop(0) if self.back else ""


class Journal:
    """As much of a shell as the desk needs."""

    def __init__(self) -> None:
        spec = {"roles": [{"name": "t", "type": "Elastic", "replicas": 2, "entrypoint": {"class": "a.B"}}]}
        manifest = DLJobManifest.model_validate({"metadata": {"name": "j"}, "spec": spec})
        self.state = initial(plan(manifest), manifest.spec, "u" * 32, 0.0)
        self.recovered, self.aborted = True, False
        self.final: Any = None
        self.changed = asyncio.Condition()
        self.written: list[ev.Event] = []
        self.cuts = Queues()

    async def offer(self, event: ev.Event) -> None:
        self.written.append(event)
        self.state = transition(self.state, event, 1.0).state
        async with self.changed:
            self.changed.notify_all()


def mark(number: int, step: int) -> dict[str, int]:
    return {"attempt": 1, "number": number, "step": step}


def question(what: str, number: int = 2, **more: Any) -> dict[str, Any]:
    return {"what": what, "world": "t", "run": {"attempt": 1, "number": number}, **more}


@pytest.fixture
def journal() -> Journal:
    return Journal()


async def ask(journal: Journal, desk: CheckpointService, node: str = "n1", **what: Any) -> dict[str, Any]:
    return await desk.answer(journal, what, node)  # type: ignore[arg-type]


async def test_a_checkpoint_that_a_disk_refuses_stands_in_the_state_until_a_save_succeeds(journal):
    desk, refused = CheckpointService(), {"rank": "t/1", "folder": "/data/t", "why": "No space left on device"}
    assert await ask(journal, desk, what="not saved", world="t", mark=mark(1, 5), **refused) == {"why": ""}
    (problem,) = journal.state.problems
    assert problem.message == (
        "t/1: step 5 of run 1.1 is not on disk: No space left on device (/data/t); none is on disk"
    )
    await ask(journal, desk, what="commit", world="t", mark=mark(1, 6))
    assert journal.state.problems == ()
    await ask(journal, desk, what="not saved", world="t", mark=mark(1, 5), **refused)
    assert journal.state.problems == (), "a save that was tried later has succeeded"
    await ask(journal, desk, what="not saved", world="t", mark=mark(1, 7), **refused)
    assert "; the last one on disk is step 6 of run 1.1" in journal.state.problems[0].message


async def test_a_checkpoint_is_journaled_once_and_one_of_the_past_is_refused(journal):
    desk = CheckpointService()
    for _ in range(2):
        assert await ask(journal, desk, what="commit", world="t", mark=mark(1, 5)) == {"why": "", "keep": []}
    assert len(journal.written) == 1
    await ask(journal, desk, what="commit", world="t", mark=mark(1, 4), oldest=mark(1, 4))
    assert journal.state.saves["t"].oldest == CheckpointId(RunId(1, 1), 4)
    assert (await ask(journal, desk, **question("decide", chosen=mark(1, 5))))["chosen"] == mark(1, 5)
    said = await ask(journal, desk, what="commit", world="t", mark=mark(1, 6))
    assert said == {"why": "run 1.2 has restored step 5 of run 1.1", "keep": []}
    late = await ask(journal, desk, **question("decide", number=1, chosen=None))
    assert late["why"] == "run 1.2 of t has begun"


async def test_one_saver_decides_and_the_others_wait_for_its_decision(journal):
    desk = CheckpointService()
    assert (await ask(journal, desk, **question("turn")))["yours"]
    assert (await ask(journal, desk, **question("turn")))["yours"], "its node asks again: it is another process of it"
    waits = asyncio.create_task(ask(journal, desk, "n2", **question("turn")))
    await asyncio.sleep(0)
    await ask(journal, desk, **question("decide", chosen=None))
    said = await waits
    assert (said["yours"], said["chosen"], said["why"]) == (False, None, "")
    second = await ask(journal, desk, "n2", **question("decide", chosen=mark(1, 9)))
    assert second["chosen"] is None, "the first word counts"


async def test_a_saver_that_waits_too_long_asks_again_and_a_turn_expires(journal, monkeypatch):
    desk = CheckpointService()
    monkeypatch.setattr(module, "POLL_S", 0.0)
    await ask(journal, desk, **question("turn"))
    assert await ask(journal, desk, "n2", **question("turn")) == {"again": True}
    desk._turns = {key: (node, 0.0) for key, (node, _) in desk._turns.items()}
    assert (await ask(journal, desk, "n2", **question("turn")))["yours"]


async def test_nothing_is_written_by_a_master_that_ends_and_not_yet_by_one_that_begins(journal, monkeypatch):
    desk = CheckpointService()
    monkeypatch.setattr(module, "LATER_S", 0.0)
    journal.recovered = False
    assert await ask(journal, desk, **question("turn")) == {"later": True}
    journal.aborted = True
    assert await ask(journal, desk, **question("turn")) == {"gone": True}
    journal.aborted, journal.final = False, {}
    assert await ask(journal, desk, **question("turn")) == {"gone": True}
    assert journal.written == []


async def test_no_rank_goes_on_before_its_queues_are_back(journal, monkeypatch):
    desk = CheckpointService()
    monkeypatch.setattr(module, "LATER_S", 0.0)
    assert (await ask(journal, desk, **question("turn")))["among"] is None
    assert journal.cuts.verified == ["t"], "before the saver searches"
    journal.cuts.back = [None, "queue samples cannot go back"]
    assert await ask(journal, desk, **question("decide", chosen=None)) == {"again": True}
    said = await ask(journal, desk, "n2", **question("turn"))
    assert (said["yours"], said["why"]) == (False, "queue samples cannot go back; all ranks of the cut must restart")
    assert (await ask(journal, desk, "n2", **question("turn")))["why"] == ""


async def test_a_world_whose_cuts_are_lost_is_given_no_choice_and_a_misfit_is_refused(journal):
    desk = CheckpointService()
    await journal.offer(ev.CutsFound((), ((1, "torn"),), ("t", "w/0")))
    assert (await ask(journal, desk, **question("turn")))["among"] == []
    refused = await ask(journal, desk, **question("decide", chosen=mark(1, 9)))
    assert (refused["known"], refused["why"]) == (False, module.NOT_WHOLE)
    assert (await ask(journal, desk, "n2", **question("turn")))["yours"]
    assert (await ask(journal, desk, "n2", **question("decide", chosen=None)))["why"] == ""
