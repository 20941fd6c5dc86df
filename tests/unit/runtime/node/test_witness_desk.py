"""PrimeMaster's side of outside witnesses: what the core hears of them, once, and dumps."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dljob.master.state import events as ev
from dljob.master.state.sightings import Sighting, rank_of
from dljob.master.state.state import RankPhase
from dljob.master.state.views import HostId, NodeView
from dljob.plan.witnesses import DumpPlan, WitnessPlan
from dljob.runtime.controller import witness_desk
from dljob.runtime.controller.witness_desk import WitnessDesk
from dljob.runtime.process.messages import NodeHeartbeat
from dljob.tasks import TaskOwner
from dljob.telemetry import reasons

PLANS = (
    WitnessPlan("look", 9000, "/m", "a", "Hang", above=True, value=0.0, dump=DumpPlan(9001, "/dump")),
    WitnessPlan("act", 9000, "/m", "b", "SilentCorruption", above=True, value=0.0, act=True),
)


class Backend:
    """Node agents that answer with this."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def lookup(self, name: str) -> str | None:
        return None if name.endswith("gone") else name

    async def call(self, agent: str, what: str, name: str) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Desk:
    def __init__(self, folder: Path, answer: Any = (b"trace", "")) -> None:
        self.told: list[ev.Event] = []
        facts = SimpleNamespace(
            is_torch_world=True,
            host_of=lambda rank: HostId("w", rank),
            ranks=range(2),
            ranks_of=lambda index: (index,),
            group_ranks=lambda group: (group,),
        )
        units = {f"w/{n}": SimpleNamespace(members=(("w", n),)) for n in range(2)}
        rank = {"phase": RankPhase.READY, "incarnation": 1, "ready_at": 100.0, "pid": 0}
        host = {"pid": 7, "slots": (), "devices": ()}
        self.state = SimpleNamespace(
            ranks={("w", n): SimpleNamespace(**rank) for n in range(2)},
            hosts={
                HostId("w", 0): SimpleNamespace(node="n0", **host),
                HostId("w", 1): SimpleNamespace(node="gone", **host),
            },
            nodes=(NodeView("n0", (), (), (), pod="train-workers-a"),),
            exclusions={},
            housed={"n0": ("w/0",), "gone": ("w/1",)},
            job=SimpleNamespace(uid="0123456789", roles={"w": facts}, plan=SimpleNamespace(units=units)),
        )
        setup = SimpleNamespace(folder=folder, plan=SimpleNamespace(witnesses=PLANS))
        self.now = 200.0
        self.owner = TaskOwner(print)
        self.desk = WitnessDesk(
            setup, Backend(answer), self._offer, lambda: self.state, owner=self.owner, clock=lambda: self.now
        )  # type: ignore[arg-type]

    async def _offer(self, *events: ev.Event) -> None:
        self.told += events

    async def hear(self, *sightings: Sighting, troubles: tuple[tuple[str, str], ...] = ()) -> list[ev.Event]:
        self.told = []
        await self.desk.record("n0", NodeHeartbeat(1, 1, sightings=sightings, troubles=troubles))
        return self.told


LOOKS, ACTS = Sighting("look", 1.0, (("rank", "0"),), 5.0), Sighting("act", 1.0, (("rank", "0"),), 5.0)


async def test_a_witness_that_may_not_act_gives_evidence_once_for_an_incarnation(tmp_path):
    kit = Desk(tmp_path)
    evidence, note = await kit.hear(LOOKS)
    assert isinstance(evidence, ev.CauseLearned)
    assert (evidence.target, evidence.clues[0].source, evidence.incarnation) == ("w/0", "witness", 1)
    assert isinstance(note, ev.NoteReported)
    assert note.message == "w/0: witness look: a > 0 for 30 s of rank=0, which means Hang"
    assert await kit.hear(LOOKS) == []
    kit.state.ranks["w", 0].incarnation = 2
    assert len(await kit.hear(LOOKS)) == 2
    assert dict(kit.desk.hanging("w")) == {0: "witness look: a > 0 for 30 s of rank=0"}
    assert not kit.desk.hanging("v")


async def test_a_witness_that_may_act_accuses_its_rank_alone_unless_the_trouble_is_older(tmp_path):
    kit = Desk(tmp_path)
    (found,) = await kit.hear(ACTS)
    assert isinstance(found, ev.HangFound)
    assert (found.role, found.rank, found.kind, found.by) == ("w", 0, "SilentCorruption", "act")
    kit.state.ranks["w", 0].incarnation = 2
    kit.state.ranks["w", 0].ready_at = 199.0
    assert [type(one) for one in await kit.hear(ACTS)] == [ev.CauseLearned, ev.NoteReported]


async def test_a_witness_that_lies_of_a_rank_of_another_node_accuses_nobody(tmp_path):
    kit = Desk(tmp_path)
    (note,) = await kit.hear(Sighting("act", 1.0, (("rank", "1"),), 5.0))  # it runs on the node `gone`
    assert isinstance(note, ev.NoteReported)
    assert "no one rank is meant" in note.message


async def test_a_witness_that_always_lies_costs_its_rank_one_restart(tmp_path):
    kit = Desk(tmp_path)
    accused = 0
    for incarnation in range(1, 6):
        kit.state.ranks["w", 0].incarnation = incarnation
        kit.state.ranks["w", 0].ready_at = kit.now - 1.0  # the lie is older than this life
        if incarnation == 1:
            kit.state.ranks["w", 0].ready_at = 100.0
        accused += sum(isinstance(one, ev.HangFound) for one in await kit.hear(ACTS))
        kit.now += 10.0
    assert accused == 1


async def test_words_about_no_one_rank_are_told_once_however_their_labels_change(tmp_path):
    kit = Desk(tmp_path)
    (note,) = await kit.hear(Sighting("look", 1.0, (("rank", "8"),)))
    assert isinstance(note, ev.NoteReported)
    assert note.message.endswith("on pod train-workers-a: no one rank is meant")
    assert await kit.hear(Sighting("look", 1.0, (("rank", "9"),)), Sighting("unknown", 1.0)) == []
    assert not kit.desk.hanging("w")


async def test_a_witness_that_cannot_be_read_is_told_once(tmp_path):
    kit = Desk(tmp_path)
    (note,) = await kit.hear(troubles=(("look", "no answer within 1 s"),))
    assert note == ev.NoteReported(
        reasons.WITNESS_UNREADABLE, "witness look on pod train-workers-a: no answer within 1 s"
    )
    assert await kit.hear(troubles=(("look", "Connection refused"),)) == []


async def dumps(kit: Desk) -> tuple[Path, Path]:
    gone, here = kit.desk.dump("w", "w-0-1")
    await asyncio.gather(*kit.owner.tasks)
    return Path(gone), Path(here)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((b"trace", ""), "trace"),
        ((b"", "late"), "no dump of look: late\n"),
        (OSError("lost"), "no dump of look: lost\n"),
    ],
)
def test_dumps_are_linked_at_once_and_each_file_says_what_came_of_it(tmp_path, answer, said):
    async def one() -> tuple[Path, Path]:
        return await dumps(Desk(tmp_path, answer))

    gone, here = asyncio.run(one())
    assert here.name == "w-0-1.look-n0.dump"
    assert here.read_text() == said
    assert gone.read_text() == "no dump of look: its node's agent does not answer\n"


async def test_dumps_are_waited_for_but_not_those_that_are_late(tmp_path, monkeypatch):
    kit = Desk(tmp_path)
    await kit.desk.wait_for_dumps()
    _, here = kit.desk.dump("w", "w-0-1")
    assert not written(here)
    await kit.desk.wait_for_dumps()
    assert written(here) == "trace"
    monkeypatch.setattr(witness_desk, "DUMPED_S", 0.01)
    late = Desk(tmp_path)
    late.desk._backend.call = never  # type: ignore[method-assign]
    _, here = late.desk.dump("w", "w-0-2")
    await late.desk.wait_for_dumps()
    assert not written(here)
    if len(late.owner.tasks) > 1:  # on a busy machine the node without an agent is still looked for, too
        await asyncio.wait(set(late.owner.tasks), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0)
    assert len(late.owner.tasks) == 1, "it is still asked for"
    late.owner.close()


def written(file: str) -> str:
    return Path(file).read_text() if Path(file).exists() else ""


async def never(*_: object) -> None:
    await asyncio.Event().wait()


async def test_only_witnesses_of_hangs_are_asked_for_the_rank_that_hangs(tmp_path, monkeypatch):
    kit, asked = Desk(tmp_path), list[object]()

    def counted(state: Any, node: str, labels: Any) -> Any:
        asked.append(labels)
        return rank_of(state, node, labels)

    await kit.hear(LOOKS, *[ACTS] * 9)
    monkeypatch.setattr(witness_desk, "rank_of", counted)
    assert list(kit.desk.hanging("w")) == [0]
    assert asked == [LOOKS.labels], "each look-up holds up PrimeMaster's loop"
