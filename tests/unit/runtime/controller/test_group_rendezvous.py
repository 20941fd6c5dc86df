"""PrimeMaster's answers to members of collective groups: who is in it, whether all have come, who is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dljob.master.state.state import JobState, RankPhase, RankState
from dljob.master.transition import initial
from dljob.plan.plan import plan
from dljob.runtime.controller import group_rendezvous as module
from dljob.runtime.controller.group_rendezvous import GroupRendezvous
from dljob.spec.model import DLJobManifest
from dljob.tasks import TaskOwner


class Job:
    """As much of a shell as the desk needs; tests say what becomes of ranks."""

    def __init__(self) -> None:
        roles = [{"name": name, "entrypoint": {"class": "a.B"}} for name in ("a", "b")]
        groups = {"groups": [{"name": "w", "roles": ["a", "b"]}]}
        manifest = DLJobManifest.model_validate(
            {"metadata": {"name": "j"}, "spec": {"roles": roles, "collectives": groups}}
        )
        self.state: JobState = initial(plan(manifest), manifest.spec, "u" * 32, 0.0)
        self.setup = SimpleNamespace(info=SimpleNamespace(uid="u" * 32, attempt=2))
        self.final: Any = None
        self.changed = asyncio.Condition()

    async def rank(self, role: str, incarnation: int, phase: RankPhase = RankPhase.READY) -> None:
        own = RankState(phase=phase, incarnation=incarnation, restart_reason="killed" if incarnation > 1 else "")
        self.state = replace(self.state, ranks=self.state.ranks.set((role, 0), own))
        await self.tell()

    async def tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()


class Members:
    """Asks as the members do, each in a task of its own."""

    def __init__(self, job: Job) -> None:
        self.job, self.desk = job, GroupRendezvous(TaskOwner(print))
        self.tasks: list[asyncio.Task[dict[str, Any]]] = []

    def ask(self, role: str, epoch: int = 0, *, life: int = 1, **more: Any) -> asyncio.Task[dict[str, Any]]:
        asked = {"group": "w", "me": [role, 0, life], "epoch": epoch, "round": 1, "offer": f"from {role}", "met": False}
        answer = self.desk.answer(self.job, {**asked, **more})  # type: ignore[arg-type]
        self.tasks.append(asyncio.create_task(answer))
        return self.tasks[-1]


@pytest.fixture
async def members() -> AsyncIterator[Members]:
    made = Members(Job())
    yield made
    for task in (*made.tasks, *([made.desk._watcher] if made.desk._watcher else [])):
        task.cancel()


async def both(members: Members) -> None:
    for role in ("a", "b"):
        await members.job.rank(role, 1)


async def met(members: Members) -> None:
    await both(members)
    assert [await members.ask("a", 2), await members.ask("b", 2)][1] == {"offer": "from a"}


async def test_members_of_a_group_are_told_once_all_have_a_process(members):
    await members.job.rank("a", 1)
    asked = members.ask("a")
    await asyncio.sleep(0.05)
    assert not asked.done()
    await members.job.rank("b", 1)
    said = await asyncio.wait_for(asked, 60)
    assert said["members"] == [["a", 0, 1], ["b", 0, 1]]
    assert (said["epoch"], said["absent"], said["job"]) == (2, [], "uuuuuuuu.2")


async def test_missing_members_of_a_group_are_named(members, monkeypatch):
    monkeypatch.setattr(module, "POLL_S", 0.01)
    await members.job.rank("a", 1)
    assert (await members.ask("a"))["absent"] == [["b", 0, "has not started yet"]]
    await members.job.rank("b", 1)
    assert await members.ask("a", 2) == {"missing": ["b/0"]}
    assert await members.ask("b", 2) == {"offer": "from a"}
    assert await members.ask("a", 2) == {"offer": "from a"}
    assert await members.ask("a", 2, met=True) == {"missing": []}


async def test_the_first_members_offer_goes_to_all_of_a_round(members):
    await both(members)
    first, second = members.ask("b", 2), members.ask("a", 2)
    assert [await asyncio.wait_for(each, 60) for each in (first, second)] == [{"offer": "from a"}] * 2
    again = members.ask("b", 2, round=2)
    await asyncio.sleep(0.05)
    assert not again.done()
    members.ask("a", 2, round=2, offer="another")
    assert await asyncio.wait_for(again, 60) == {"offer": "another"}
    assert sorted(key[1:] for key in members.desk._rounds) == [(2, 1), (2, 2)]


async def test_a_first_member_that_tries_again_is_met_at_its_new_address(members, monkeypatch):
    monkeypatch.setattr(module, "POLL_S", 0.01)
    await both(members)
    for address in ("closed", "open"):
        assert await members.ask("a", 2, offer=address) == {"missing": ["b/0"]}
    assert await members.ask("b", 2) == {"offer": "open"}
    assert await members.ask("a", 2, offer="later") == {"offer": "open"}  # as it was told to b


async def test_a_member_that_gave_up_does_not_count_as_arrived(members, monkeypatch):
    monkeypatch.setattr(module, "POLL_S", 0.01)
    monkeypatch.setattr(module, "GIVEN_UP_S", 0.0)
    await both(members)
    assert await members.ask("a", 2) == {"missing": ["b/0"]}
    assert await members.ask("b", 2) == {"missing": ["a/0"]}
    monkeypatch.setattr(module, "POLL_S", 20.0)
    again = [members.ask("b", 2), members.ask("a", 2, offer="another")]
    assert [await asyncio.wait_for(each, 60) for each in again] == [{"offer": "another"}] * 2


async def test_a_member_waiting_in_a_group_hears_who_is_lost(members):
    await both(members)
    watching = members.ask("a", 2, met=True)
    await asyncio.sleep(0.05)
    assert not watching.done()
    await members.job.rank("b", 1, RankPhase.WAITING)
    said = await asyncio.wait_for(watching, 60)
    assert (said["absent"], said["ended"], said["epoch"]) == ([["b", 0, "has not started yet"]], False, 2)
    await members.job.rank("b", 2)
    assert (await members.ask("a", 2, met=True))["members"] == [["a", 0, 1], ["b", 0, 2]]
    assert members.ask("a", 3) is not None
    await asyncio.sleep(0)
    assert [key[1] for key in members.desk._rounds] == [3]


async def test_a_member_that_ended_or_is_busy_is_told_to_the_others(members, monkeypatch):
    await both(members)
    await members.job.rank("b", 1, RankPhase.SUCCEEDED)

    async def said(**more: Any) -> tuple[Any, ...]:
        answer = await members.ask("a", 2, met=True, **more)
        return answer["absent"], answer["ended"], answer["busy"]

    gone = [["b", 0, "has ended"]]
    assert await said(busy=True) == (gone, True, [])  # of those that are there nobody needs to know it
    await members.ask("b", 2, met=True, busy=True)
    assert await said() == (gone, True, [["b", 0]])
    await members.ask("b", 2, met=True, busy=False)
    assert await said() == (gone, True, [])
    await members.ask("b", 2, met=True, busy=True)
    monkeypatch.setattr(module, "BUSY_S", 0.0)
    assert await said() == (gone, True, [])  # its process says nothing any more
    assert (await members.ask("a"))["over"] == "b/0 has ended"


async def test_a_process_that_was_replaced_is_told_so(members):
    await members.job.rank("a", 2)
    said = await members.ask("a")
    assert said == {"over": "this process is no member of it: it was a/0 in incarnation 1"}
    assert await members.ask("a", group="x") == {"over": "the job has no group x"}


async def test_the_end_of_the_job_is_the_end_of_its_groups(members):
    await both(members)
    watching = members.ask("a", 2, met=True)
    await asyncio.sleep(0.05)
    members.job.final = {"phase": "Failed"}
    await members.job.tell()
    said = await asyncio.wait_for(watching, 60)
    assert (said["why"], said["ended"]) == ("the job is over", True)
    assert (await members.ask("a"))["over"] == "the job is over"
