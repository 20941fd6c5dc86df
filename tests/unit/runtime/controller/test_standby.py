"""Two PrimeMasters of a job on a backend in memory: who is created when, who follows, and who claims."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from typing import Any

import pytest
from master_shell_kit import FIRST as RANK
from master_shell_kit import HANG_S, UID, World, until
from memory_backend import MemoryHost
from paired_masters import PairedMaster, commanding, following

from dljob.logs import archive
from dljob.master.state import events as ev
from dljob.master.state.state import Phase, RankPhase
from dljob.master.state.views import NodeView, Outcome
from dljob.plan.model import GRAIN
from dljob.runtime.backend.interface import ON_HEAD, ActorLostError, ActorRef, ActorSpec
from dljob.runtime.backend.masters import FIRST, SECOND, NotCommandingError, actor_name
from dljob.runtime.controller import master_loop, standby
from dljob.runtime.controller.master_loop import MasterLoop
from dljob.runtime.controller.standby import started
from dljob.runtime.journal import journal, kept_record, samples
from dljob.runtime.journal.first_start import JobOverError
from dljob.runtime.journal.job_record import forget, read_notes
from dljob.runtime.journal.journal import FencedError, JournalBrokenError
from dljob.runtime.journal.stores import FileStore
from dljob.spec.standing import StandbyChoice
from dljob.telemetry import reasons

LAST = f"{UID[:8]}/worker/1/1"
"""The host of the last rank."""


async def test_a_standby_on_another_node_goes_on_with_the_record_on_the_volume(tmp_path, monkeypatch):
    monkeypatch.setenv(archive.CHECKPOINT, str(tmp_path / "volume"))
    monkeypatch.setattr(master_loop, "SNAPSHOT_EVERY", 50)
    for pause in ("FIRST_S", "KEEP_S"):
        monkeypatch.setattr(kept_record, pause, 0.02)
    world, place = World(tmp_path / "one"), archive.root(str(tmp_path / "volume"), "j", UID)
    first = await commanding(world, kv=True)
    for number in range(100):
        await first.shell.offer(ev.Commanded(str(number), "restart", "nobody", "test", 0))
    noted = first.shell.timeline.seq
    await until(lambda: [note["seq"] for note in read_notes(place)][-1:] == [noted] and (place / "samples").is_dir())
    sampled = samples.read(place).times
    world.folder = tmp_path / "another"
    second = await following(world, kv=True)
    first.die()
    await until(lambda: second.shell.recovered and read_notes(place)[-1]["seq"] > noted)
    for folder in (place, world.folder):
        numbers = [note["seq"] for note in read_notes(folder)]
        assert numbers == list(range(1, numbers[-1] + 1)), folder
        assert samples.read(folder).times[: len(sampled)] == sampled, folder
    assert [note["seq"] for note in second.shell.timeline.after(0)] == list(range(1, second.shell.timeline.seq + 1))
    assert not (place / "earlier").exists()
    second.close()


async def test_what_was_journaled_since_the_last_look_is_folded_at_the_takeover(world, monkeypatch):
    monkeypatch.setattr(standby, "ANSWER_S", 0.02)
    first = await commanding(world)
    second = await following(world)
    await until(lambda: second.pair._folded == first.shell.journal.position and not second.pair._tasks.tasks)
    monkeypatch.setattr(second.pair, "_fold", lambda at: None)
    await world.backend.kill(await world.backend.lookup(RANK))
    await until(lambda: first.shell.state.restarts.get("Process") == 1 and first.shell.state.phase is Phase.RUNNING)
    first.die()
    await until(lambda: second.shell.recovered)
    assert second.shell.state.restarts.get("Process") == 1
    lives = [{key: own.incarnation for key, own in one.shell.state.ranks.items()} for one in (first, second)]
    assert lives[0] == lives[1]


async def test_a_master_whose_connection_broke_notices_that_it_is_fenced_though_it_commits_nothing(world, monkeypatch):
    broken = asyncio.Event()
    monkeypatch.setattr(journal, "FENCE_S", 0.05)
    first = await commanding(world, kv=True)
    follow = first.follow

    async def breaks_once(segment: int) -> dict[str, Any]:
        if not broken.is_set():
            broken.set()
            raise ActorLostError("the connection broke", certain=False)
        return await follow(segment)

    second = await following(world, kv=True)
    monkeypatch.setattr(first, "follow", breaks_once)
    await until(lambda: second.shell.recovered)
    async with asyncio.timeout(HANG_S):
        with pytest.raises(FencedError, match="epoch 1 is over"):
            await first.task


async def test_a_master_that_was_stopped_before_its_standby_began_is_ended(world, monkeypatch):
    monkeypatch.setattr(standby, "FIRST_SILENT_S", 0.5)
    first = await commanding(world, kv=True)
    first.stopped = True
    second = PairedMaster(world, SECOND, kv=True)
    await until(lambda: second.shell.recovered and f"kill {first.name}" in world.backend.calls)


async def test_a_master_behind_a_later_claim_does_not_answer_again_and_again(world):
    first = await commanding(world)
    known = asyncio.ensure_future(first.pair.answer(first.shell.journal.segment - 1))
    later = asyncio.ensure_future(first.pair.answer(first.shell.journal.segment + 1))
    assert (await known)["commands"]
    assert not later.done(), "it answers after ANSWER_S"
    assert (await later)["commands"]


async def test_a_stopped_master_is_ended_until_it_is_gone_and_no_other_one_is(world, monkeypatch, caplog):
    tries = list[ActorRef]()
    monkeypatch.setattr(standby, "SILENT_S", 0.5)
    for wait in ("ANSWER_S", "KEEP_S"):
        monkeypatch.setattr(standby, wait, 0.02)
    first = await commanding(world, kv=True)
    await following(world, kv=True)
    kill = world.backend.kill

    async def fails_twice(ref: ActorRef) -> None:
        if ref.name != first.name:
            return await kill(ref)
        tries.append(ref)
        if len(tries) == 1:
            raise TimeoutError("Ray's head is away")
        if len(tries) > 2:  # the second order is lost
            await kill(ref)
        return None

    monkeypatch.setattr(world.backend, "kill", fails_twice)
    first.stopped = True
    await until(lambda: f"spawn {first.name}" in world.backend.calls)
    assert [ref.native for ref in tries] == [first] * 3
    assert not world.backend.hosts[first.name].dead, "the new standby has the name of the stopped one"
    assert "Ray's head is away" in caplog.text


async def process() -> asyncio.subprocess.Process:
    """A process of its own: both masters of a test are in one."""
    return await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(600)")


async def test_the_end_of_the_process_is_enough_where_the_call_does_not_break(world, monkeypatch):
    own = await process()
    monkeypatch.setattr(standby, "SILENT_S", 2 * HANG_S)
    monkeypatch.setattr(standby, "ANSWER_S", 0.02)
    first = await commanding(world)
    first.pair._pid = own.pid
    second = await following(world)
    await until(lambda: second.pair._process.pid == own.pid)
    first.stopped = True
    own.kill()
    await until(lambda: second.shell.recovered)
    assert second.shell.journal.epoch == 2
    assert second.pair._process.pid == 0
    # How it ended is told by Linux 6.15 and later.
    assert f"PrimeMaster restarted: it (pid {own.pid}) " in second.shell.state.faults[-1].cause
    await own.wait()


async def test_after_a_lost_claim_the_end_of_the_process_before_counts_no_more(world, monkeypatch):
    own, lost = await process(), list[int]()
    monkeypatch.setattr(standby, "ANSWER_S", 0.02)
    first = await commanding(world)
    first.pair._pid = own.pid
    second = await following(world)
    await until(lambda: second.pair._process.pid == own.pid)

    async def loses(epoch: int) -> bool:
        lost.append(epoch)
        first.pair._pid = os.getpid()  # that of the one that won
        return False

    monkeypatch.setattr(second.shell.journal, "claim", loses)
    own.kill()
    await until(lambda: second.pair._process.pid == os.getpid())
    await own.wait()
    assert lost == [2]
    assert second.shell.journal.epoch == 0


def broken(master: PairedMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first claim of a master meets an error of its disk; later ones would not."""
    claim, tries = master.shell.journal.store.claim, list[int]()

    async def fails_once(epoch: int) -> bool:
        tries.append(epoch)
        if len(tries) == 1:
            raise OSError(errno.EIO, "Input/output error")
        return await claim(epoch)

    monkeypatch.setattr(master.shell.journal.store, "claim", fails_once)


async def test_a_standby_whose_claim_meets_an_error_takes_no_epoch_from_the_other_one(world, monkeypatch):
    first = await commanding(world)
    second = await following(world)
    broken(second, monkeypatch)
    first.die()  # Ray starts it again: its name stays
    with pytest.raises(JournalBrokenError, match="Input/output error"):
        await second.task
    assert await second.shell.journal.store.epochs() == (1,)
    again = PairedMaster(world, FIRST)
    await until(lambda: again.shell.recovered)
    assert again.shell.journal.epoch == 2


async def test_a_claim_that_fails_ends_the_job_where_no_other_master_is_left(world, tmp_path, monkeypatch):
    first = await commanding(world)
    second = await following(world)
    broken(second, monkeypatch)
    del world.backend.hosts[first.name]
    first.die()
    await until(lambda: second.shell.final)
    assert second.shell.final["reason"] == reasons.JOURNAL_FAILED  # type: ignore[index]
    assert "set spec.master.journal.path" in second.shell.final["message"]  # type: ignore[index]
    assert await FileStore(tmp_path / "journal").epochs() == (1,), "an epoch without a master fences nobody"
    assert not second.pair.follows.is_set()


async def test_the_commanding_master_creates_its_standby_once_all_run(world, monkeypatch):
    """A machine that is busy with the start of the ranks has no time for a process that is not needed yet."""
    may_start, created = asyncio.Event(), list[list[RankPhase]]()
    start, spawn, name = MemoryHost.start, world.backend.spawn, actor_name(UID, SECOND)

    def phases() -> list[RankPhase]:
        return [own.phase for _, own in sorted(first.shell.state.ranks.items())]

    async def starts_late(host: MemoryHost, order: Any) -> None:
        if host.name == LAST:
            await may_start.wait()
        await start(host, order)

    async def noted(spec: ActorSpec) -> ActorRef:
        if spec.name == name:
            created.append(phases())
        return await spawn(spec)

    monkeypatch.setattr(MemoryHost, "start", starts_late)
    monkeypatch.setattr(world.backend, "spawn", noted)
    first = PairedMaster(world, FIRST)
    await until(lambda: phases() == [RankPhase.READY, RankPhase.STARTING])
    for _ in range(10):
        await first.shell.offer(ev.Tick())
    assert f"spawn {name}" not in world.backend.calls
    may_start.set()
    await until(lambda: f"spawn {name}" in world.backend.calls)
    assert created == [[RankPhase.READY, RankPhase.READY]]
    await first.pair.end_other()
    assert f"kill {name}" in world.backend.calls


@pytest.mark.parametrize(
    ("mode", "addresses", "wanted"),
    [
        ("Auto", ("10.0.0.1",) * 3, False),
        ("Auto", ("10.0.0.1", "10.0.0.1", "10.0.0.2"), True),
        ("Always", ("10.0.0.1",) * 3, True),
        ("Never", ("10.0.0.1", "10.0.0.2", "10.0.0.3"), False),
    ],
)
async def test_machines_are_counted_by_their_addresses_and_not_by_their_raylets(
    world, monkeypatch, mode, addresses, wanted
):
    """An embedded Ray of several raylets ends with its one machine, and with it any standby."""
    choices, choose = list[StandbyChoice](), standby.choose_standby

    async def nodes() -> tuple[NodeView, ...]:
        amount = (("CPU", 8 * GRAIN),)
        return tuple(NodeView(f"n{at}", amount, amount, (), ip) for at, ip in enumerate(addresses))

    monkeypatch.setattr(world.backend, "nodes", nodes)
    monkeypatch.setattr(standby, "choose_standby", lambda *asked: choices.append(choose(*asked)) or choices[-1])
    monkeypatch.setattr(standby, "KEEP_S", 0.01)
    PairedMaster(world, FIRST, mode=mode)
    await until(lambda: len(choices) > 1)  # what the first look led to is done by the second one
    assert (f"spawn {actor_name(UID, SECOND)}" in world.backend.calls) is wanted


@pytest.mark.parametrize("on_head", [True, False])
async def test_the_standby_of_a_journal_in_a_folder_stays_with_the_folder(world, on_head):
    """A head that is replaced has another node id; every other node is pinned by its id."""
    specs = list[ActorSpec]()
    backend: Any = world.backend
    first = await commanding(world)
    first.close()
    backend.hosts.pop(actor_name(UID, SECOND), None)

    async def noted(spec: ActorSpec) -> None:
        specs.append(spec)

    async def nodes() -> tuple[NodeView, ...]:
        return (NodeView("n1", (), (), (), head=on_head), NodeView("n2", (), (), (), head=not on_head))

    backend.spawn, backend.nodes, backend.own_node = noted, nodes, lambda: "n1"
    await first.pair._create()
    (actor,) = specs
    assert (actor.node, actor.prefer, actor.resources) == ((None, None, ON_HEAD) if on_head else ("n1", None, ()))


async def test_an_empty_folder_is_not_the_journal_of_a_job_that_has_begun(world, tmp_path):
    """The volume is not mounted on the node on which Ray starts PrimeMaster again."""
    first = await commanding(world)
    first.die()
    world.backend.calls.clear()
    world.folder = tmp_path / "not-mounted"
    second = PairedMaster(world, SECOND)
    with pytest.raises(JournalBrokenError, match=r"not-mounted/journal is empty on .*, though the job has begun"):
        await second.task
    assert not (world.folder / "journal").exists(), "a claim would fence a master that has the journal"
    assert not world.backend.calls


async def test_a_follower_answers_nobody_else(world):
    await commanding(world)
    second = await following(world)
    loop: asyncio.Future[MasterLoop] = asyncio.get_running_loop().create_future()
    with pytest.raises(NotCommandingError, match="the other one commands"):
        await started(loop, second.pair)
    loop.set_result(second.shell)
    assert await started(loop, second.pair) is second.shell
    assert await started(loop, None) is second.shell


async def test_a_standby_claims_nothing_after_the_end_of_the_job(world):
    """Ray may end the commanding one before its standby, though it was told to end that one first."""
    first = await commanding(world)
    second = await following(world)
    for name, host in world.backend.hosts.items():
        if "/worker/" in name:
            host.report(int(name.split("/")[2]), 1, Outcome(ok=True, result="7"))
    await until(lambda: first.shell.final and second.pair._over)
    first.die()
    assert second.shell.journal.epoch == 0


@pytest.mark.parametrize("kv", [False, True])
async def test_a_standby_that_is_left_alone_by_an_ended_job_begins_it_no_second_time(world, monkeypatch, kv):
    """The commanding one may die after the job's keys are deleted, its journal among them, and before its standby."""
    monkeypatch.setattr(standby, "KEEP_S", 0.01)
    first = await commanding(world, kv=kv)
    second = await following(world, kv=kv)
    for name, host in world.backend.hosts.items():
        if "/worker/" in name:
            host.report(int(name.split("/")[2]), 1, Outcome(ok=True, result="7"))
    await until(lambda: first.shell.final)
    world.backend.calls.clear()
    first.die()
    ends = await asyncio.gather(second.task, return_exceptions=True)
    assert [type(end) for end in ends] == ([JobOverError] if kv else [type(None)])
    assert not [call for call in world.backend.calls if not call.startswith(("release", "kill"))]
    assert second.shell.final is None or second.shell.final["phase"] == "Succeeded"


async def test_a_job_that_ends_between_claim_and_replay_is_not_begun_again(world, monkeypatch):
    first = await commanding(world, kv=True)
    second = await following(world, kv=True)
    claim = second.shell.journal.claim

    async def claims_just_before_the_end(number: int) -> bool:
        won = await claim(number)
        await forget(world.backend.kv, UID)
        return won

    monkeypatch.setattr(second.shell.journal, "claim", claims_just_before_the_end)
    first.die()
    with pytest.raises(JobOverError, match="is over"):
        await second.task
    assert not second.shell.recovered
