"""PrimeMaster's loop over a backend in memory: orders carried out, a new master goes on, nothing left at any end."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from master_shell_kit import FIRST, World, end_all, ended, running, until
from memory_backend import MemoryHost

from dljob.master.state import actions as ac
from dljob.master.state import events as ev
from dljob.master.state.state import Phase
from dljob.master.state.views import HostId, NodeView, Outcome
from dljob.runtime.controller import master_loop as shell_module
from dljob.runtime.controller.executor import Executor
from dljob.runtime.controller.master_loop import MasterOverError
from dljob.runtime.journal import journal as journal_module
from dljob.runtime.journal import timeline as timeline_module
from dljob.runtime.journal.first_start import highest_claim
from dljob.runtime.journal.journal import Journal, JournalBrokenError
from dljob.runtime.journal.stores import FileStore
from dljob.runtime.process.messages import Heartbeat, StartOrder
from dljob.runtime.process.worker_context import peers_of
from dljob.telemetry import reasons


async def test_a_job_from_its_first_event_to_nothing_left(world, shell):
    assert world.backend.groups == {"01234567/worker/0/1": "n1", "01234567/worker/1/1": "n1"}
    end_all(world)
    status = await ended(world)
    assert (status["phase"], status["result"]) == ("Succeeded", "7")
    assert json.loads((world.folder / "status.json").read_text()) == status


def publishing() -> bool:
    return any("_publish" in repr(task.get_coro()) for task in asyncio.all_tasks())


async def test_the_end_is_seen_when_its_last_status_is_written_and_nothing_is_written_after_it(world, monkeypatch):
    """Who sees the end may take down what the master runs on, as `dljob run` does."""
    monkeypatch.setattr(shell_module, "STATUS_EVERY_S", 0.0)
    shell = world.master()
    write, about_to, may, written = shell.timeline.status, asyncio.Event(), asyncio.Event(), list[str]()

    async def held(status: dict[str, Any]) -> None:
        if status["phase"] == "Succeeded":
            about_to.set()
            await may.wait()
        written.append(status["phase"])
        await write(status)

    monkeypatch.setattr(shell.timeline, "status", held)
    await until(running(shell))
    end_all(world)
    await about_to.wait()
    assert shell.state.phase is Phase.SUCCEEDED
    for seen in (shell.status(), shell.brief()):
        assert (seen["phase"], seen["completionTime"]) == ("Stopping", None)
    shown, before = shell.version, list(written)
    shell._dirty.set()
    await until(lambda: written != before or not publishing())
    may.set()
    status = await ended(world)
    assert status["version"] > shown
    assert written == [*before, "Succeeded"]
    assert json.loads((world.folder / "status.json").read_text()) == status


async def test_every_status_names_attempt_and_node_of_the_master_and_the_logs_of_ranks(world, monkeypatch):
    monkeypatch.setattr(shell_module, "STATUS_EVERY_S", 0.0)
    monkeypatch.setattr(world.backend, "own_node", lambda: "head")
    shell = world.master()
    await until(running(shell))
    own = {"masterNode": "head", "attempt": 1}
    assert shell.status().items() >= own.items() <= shell.brief().items()
    file = world.folder / "status.json"
    await until(file.exists)
    assert json.loads(file.read_text()).items() >= own.items()
    end_all(world)
    status = await ended(world)
    assert status.items() >= own.items() <= shell.brief().items()
    assert [row["log"] for row in status["ranks"]] == [row["log"] for row in shell.status()["ranks"]]
    role, rank = status["ranks"][-1]["role"], status["ranks"][-1]["rank"]
    assert status["ranks"][-1]["log"] == f"{shell.setup.info.dir}/logs/{role}-{rank}.log"


async def test_a_saver_that_answers_nonsense_keeps_nothing_from_its_end(world):
    class Mad(MemoryHost):
        async def flush(self, timeout_s: float, alive: bool) -> str:
            raise RuntimeError(f"not within {timeout_s:g} s, {alive}")

    shell = world.master()
    await until(running(shell))
    end_all(world)
    world.backend.hosts["01234567/saver/n1"] = Mad("01234567/saver/n1", "n1")
    status = await ended(world)
    assert (status["phase"], status["reason"]) == ("Succeeded", "Completed")


async def test_kills_come_before_what_they_make_room_for(world, shell):
    await world.backend.kill(await world.backend.lookup(FIRST))
    await until(lambda: "01234567/worker/0/2" in world.backend.hosts)
    assert "spawn 01234567/worker/0/2" in world.backend.calls
    assert sum(call == "spawn 01234567/worker/1/1" for call in world.backend.calls) == 1


async def test_kills_that_a_master_left_come_before_what_the_next_one_begins(world, monkeypatch):
    role = {"name": "worker", "entrypoint": {"class": "m.C"}, "replicas": 2, "restartPolicy": {"level": "Job"}}
    first = world.master(roles=[role])
    await until(running(first))
    monkeypatch.setattr(first.executor, "execute", lambda _: None)  # it dies before it carries anything out
    await world.backend.kill(await world.backend.lookup(FIRST))
    await until(lambda: first.state.phase is Phase.RECOVERING)
    await world.die()
    ordered: list[tuple[ac.Action, ...]] = []
    monkeypatch.setattr(Executor, "execute", lambda _, actions: ordered.append(tuple(actions)))
    second = world.master(roles=[role])
    await until(lambda: second.recovered)
    assert "01234567/worker/1/1" in world.backend.hosts
    kills = [(action.host, action.incarnation) for action in ordered[0] if isinstance(action, ac.KillHost)]
    assert (HostId("worker", 1), 1) in kills
    assert any(isinstance(action, ac.Note) for action in ordered[1])


async def test_the_last_step_of_a_short_rank_is_known_without_a_beacon(world, shell):
    world.host().report(0, 1, Outcome(ok=True, result="7", step=3, metrics=(("loss", 0.5),)))
    await until(lambda: shell.status()["progress"]["step"] == 3)
    await world.die()
    second = world.master()
    await until(lambda: second.recovered)
    assert second.status()["progress"].items() >= {"step": 3, "metrics": {"loss": 0.5}}.items()
    end_all(world, Outcome(ok=True, result="7", step=4))
    assert (await ended(world))["progress"]["step"] == 4


async def test_a_second_master_goes_on_and_restarts_nobody(world):
    first = world.master()
    await until(running(first))
    await world.die()
    second = world.master()
    await until(lambda: second.recovered)
    assert second.journal.epoch == 2
    assert sum(call.startswith("spawn 01234567/worker") for call in world.backend.calls) == 2
    end_all(world)
    none = {"inProcess": 0, "process": 0, "roleGroup": 0, "role": 0, "job": 0, "node": 0}
    assert (await ended(world))["restarts"] == {**none, "master": 1}


async def test_reservations_that_no_unit_has_any_more_are_given_back_by_the_next_master(world):
    first = world.master()
    await until(running(first))
    await world.die()
    held = dict(world.backend.groups)
    # Of an earlier place of worker/0, which was given up; of a unit that the role has dropped; and of another job.
    world.backend.groups |= {"01234567/worker/0/0": "n1", "01234567/worker/9/1": "n1", "89abcdef/worker/0/1": "n1"}
    second = world.master()
    await until(lambda: second.recovered)
    await until(lambda: len(world.backend.groups) == len(held) + 1)
    assert world.backend.groups == {**held, "89abcdef/worker/0/1": "n1"}
    del world.backend.groups["89abcdef/worker/0/1"]
    end_all(world)
    await ended(world)


async def test_a_death_that_no_master_saw_is_found_by_the_next(world):
    await until(running(world.master()))
    await world.die()
    await world.backend.kill(await world.backend.lookup(FIRST))
    world.master()
    await until(lambda: "01234567/worker/0/2" in world.backend.hosts)


@pytest.mark.parametrize(("kv", "upgraded"), [(False, False), (True, False), (False, True), (True, True)])
async def test_a_master_may_die_after_any_number_of_events(tmp_path, kv, upgraded):
    """For each n: masters that each live for n more events bring the job to the same end, each of other code, too.

    Later ones live for more: where what is placed is told after the first look at the nodes, each time, none of those
    that die of that look comes further (seen once, for 1,000 lives).
    """
    for n in (1, 2, 3, 5, 8):
        world = World(tmp_path / str(n))
        world.carried = ev.Carried(1, restarts=(("Job", 3),))
        for life in range(1000):
            more = life // 20
            world.core += "+" if upgraded else ""
            shell = world.master(kv=kv, master={"maxRestarts": 1000})
            await until(lambda s=shell: s.recovered or s.final)
            start = shell.journal._lines
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05 * (1 + more)):
                    while shell.journal._lines - start < n + more and shell.final is None:  # noqa: ASYNC110 - as above
                        await asyncio.sleep(0)
            if shell.state.phase is Phase.RUNNING:
                end_all(world)
            if shell.final is not None:
                break
            await world.die()
        status = await ended(world)
        assert (n, status["phase"], status["restarts"]["process"]) == (n, "Succeeded", 0)
        assert status["restarts"]["job"] == 3, "what the last attempt handed on counts once"
        notes = [json.loads(line)["seq"] for line in (world.folder / "events.jsonl").read_text().splitlines()]
        assert notes == list(range(1, len(notes) + 1))
        world.close()


async def test_a_master_that_goes_while_it_writes_notes_ends_its_line_before_the_next_reads(world, monkeypatch):
    """What a cancelled master handed to its file thread is in the file when it is gone, not later."""
    begun, append = threading.Event(), timeline_module._append

    def slow(path: Path, text: str) -> None:
        begun.set()
        time.sleep(0.05)  # a disk that takes its time
        append(path, text)

    monkeypatch.setattr(timeline_module, "_append", slow)
    first = world.master()
    await until(begun.is_set)
    await world.die()
    notes = (world.folder / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["seq"] for line in notes] == list(range(1, first.timeline.seq + 1))


async def test_events_are_in_the_journal_before_they_are_answered(world, shell):
    await shell.offer(ev.Commanded("id-1", "stop", "job", "me"))
    assert '"id-1"' in (world.folder / "journal" / "000001.jsonl").read_text()


async def test_a_command_is_executed_once(world, shell):
    for _ in range(3):
        await shell.offer(ev.Commanded("id-1", "restart", "worker/0", "me"))
    await until(lambda: "01234567/worker/0/2" in world.backend.hosts or world.host().orders[-1][0] == "stop")
    notes = [note["reason"] for note in shell.timeline.after(0)]
    assert notes.count("CommandAccepted") == 1


async def test_a_refused_reservation_is_given_back_and_explained(world):
    world.backend.refuse = "no room today"
    shell = world.master()
    await until(lambda: "no room today" in shell.status()["message"])
    assert world.backend.groups == {}
    world.backend.refuse = ""
    await until(running(shell))


async def test_an_error_of_ours_ends_the_job_with_it(world, shell, monkeypatch):

    def wrong(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(shell_module, "fold", wrong)
    end_all(world)
    status = await ended(world)
    assert (status["phase"], status["reason"]) == ("Failed", "MasterFailed")
    assert "ZeroDivisionError: a bug" in status["message"]


async def test_room_that_others_take_and_free_is_heard_of_while_the_job_runs(world):
    role = {"name": "worker", "type": "Elastic", "entrypoint": {"class": "m.C"}, "maxReplicas": 2}
    shell = world.master(roles=[role])
    await until(running(shell))
    there = world.backend.nodes

    async def taken() -> tuple[NodeView, ...]:
        return tuple(dataclasses.replace(node, free=()) for node in await there())

    def target(ranks: int) -> bool:
        shell._look.set()
        return shell.state.sizes["worker"].target == ranks

    await shell.offer(ev.Commanded("c", "scale", "worker", "me", 2))
    await until(lambda: target(2))
    world.backend.nodes = taken
    await until(lambda: target(0))
    world.backend.nodes = there
    await until(lambda: target(2))


async def test_all_hosts_hear_of_another_size_and_again_from_the_next_master(world):
    entry = {"entrypoint": {"class": "m.C"}}
    fleet = {"name": "fleet", **entry, "driver": False, "maxReplicas": 2}
    roles = [{"name": "worker", **entry}, fleet]
    shell = world.master(roles=roles)
    await until(running(shell))
    heard = world.host().orders
    await shell.offer(ev.Commanded("c", "scale", "fleet", "me", 2))

    def told() -> list[Any]:
        return [order.sizes for kind, order in heard if kind == "resize"]

    await until(told)
    await until(lambda: shell.state.roles["fleet"].ready_count == 2)
    assert told() == [(("fleet", 2),)]
    await world.die()
    await until(lambda: world.master(roles=roles) if len(world.masters) == 1 else len(told()) == 2)
    # A host of another version knows no such news, and lives on.
    second = world.masters[-1][0]
    await second.executor.hosts.inform(world.host().name, "unheard_of", None)
    await second.offer(ev.Commanded("d", "scale", "fleet", "me", 1))
    await until(lambda: len(told()) == 3)
    assert dict(second.state.restarts) == {"Master": 1}


async def test_a_master_that_is_fenced_stops_without_touching_anything(world):
    old = world.master()
    await until(running(old))
    world.master()
    await until(lambda: world.masters[1][0].recovered)
    calls = list(world.backend.calls)
    with pytest.raises(shell_module.FencedError):
        await asyncio.gather(world.masters[0][1], old.offer(ev.Commanded("x", "stop")))
    assert [call for call in world.backend.calls if call not in calls] == []


async def test_a_journal_of_another_plan_is_refused(world):
    await until(running(world.master()))
    await world.die()
    segment = world.folder / "journal" / "000001.jsonl"
    assert '"begin"' in segment.read_text()
    world.master(roles=[{"name": "other", "entrypoint": {"class": "m.C"}}])
    status = await ended(world)
    assert (status["phase"], status["reason"]) == ("Failed", "JournalFailed")


async def test_a_master_of_an_ended_job_only_says_so(world, shell):
    end_all(world)
    status = await ended(world)
    calls = len(world.backend.calls)
    world.master()
    again = await ended(world)
    assert (again["phase"], again["restarts"]) == (status["phase"], status["restarts"])
    assert len(world.backend.calls) == calls


@pytest.mark.parametrize(
    ("module", "limit", "most"), [(shell_module, "SNAPSHOT_EVERY", 20), (journal_module, "SNAPSHOT_BYTES", 4096)]
)
async def test_snapshots_keep_the_replay_short(world, monkeypatch, module, limit, most):
    """By records, and by bytes: a few large records are as long to read as many small ones."""
    monkeypatch.setattr(module, limit, most)
    shell = world.master()
    await until(running(shell))
    for n in range(50):
        await shell.offer(ev.Commanded(f"id-{n}", "restart", "nobody/7"))
    before = shell.state
    await world.die()
    replay = await shell_module.Journal(FileStore(world.folder / "journal")).open()
    assert replay.records[0]["k"] == "snapshot"
    assert sum(record["k"] == "event" for record in replay.records) < 25
    second = world.master()
    await until(lambda: second.recovered)
    assert second.state.commands == before.commands
    assert second.timeline.seq == shell.timeline.seq + 1


async def test_progress_is_shown_and_unknown_actors_must_end(world, shell):
    version = shell.version
    reply = shell.take_heartbeat(Heartbeat("worker", FIRST, 1, {0: (1, 42, {"loss": 0.5})}))
    assert (reply.epoch, reply.known) == (1, True)
    await until(lambda: shell.version > version)
    assert shell.status()["progress"].items() >= {"step": 42, "metrics": {"loss": 0.5}}.items()
    assert shell.status()["ranks"][0]["heartbeatAge"] < 60.0
    assert not shell.take_heartbeat(Heartbeat("worker", "01234567/worker/0/99", 1)).known


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_hosts_that_the_last_sweep_ends_are_not_told_to_end_themselves(world, shell, monkeypatch, phase):
    """One would say at the regular end of its job, on the user's console, that PrimeMaster does not know it."""
    replies, kill = dict[str, bool](), world.backend.kill

    def break_journal(*_: object) -> None:
        raise RuntimeError("a bug")

    async def kill_after_a_heartbeat(ref: Any) -> None:
        replies[ref.name] = shell.take_heartbeat(Heartbeat("worker", ref.name, 1)).known
        await kill(ref)

    monkeypatch.setattr(world.backend, "kill", kill_after_a_heartbeat)
    if phase == "Failed":
        monkeypatch.setattr(shell.journal.store, "_append", break_journal)
    end_all(world)
    assert (await ended(world))["phase"] == phase
    assert replies == {FIRST: True, "01234567/worker/1/1": True}


async def test_a_starting_rank_is_told_the_present_size_of_each_role(world, monkeypatch):
    orders: list[StartOrder] = []

    async def start(host: MemoryHost, order: StartOrder) -> None:
        orders.append(order)
        await MemoryHost_start(host, order)

    MemoryHost_start = MemoryHost.start  # noqa: N806 - the real one
    monkeypatch.setattr(MemoryHost, "start", start)
    elastic = {"type": "Elastic", "minReplicas": 1, "maxReplicas": 4, "comm": {"backend": "None"}}
    shell = world.master(roles=[{"name": "worker", "entrypoint": {"class": "m.C"}, "replicas": 2, **elastic}])
    await until(running(shell))
    assert {order.sizes for order in orders} == {(("worker", 2),)}
    larger = dataclasses.replace(orders[0], sizes=(("worker", 3),))
    info = dataclasses.replace(shell.setup.info, roles=(("worker", 2), ("other", 5)))
    assert dict(peers_of(info, larger)) == {"worker": 3, "other": 5}


async def test_a_volume_that_is_full_for_a_moment_costs_a_job_nothing(world, monkeypatch):
    """A log that is rotated, a checkpoint that is moved: the order waits, is answered, and the delay is told."""
    monkeypatch.setattr(journal_module, "FIRST_S", 0.001)
    shell = world.master()
    await until(running(shell))
    append, failures = shell.journal.store._append, [2]  # type: ignore[attr-defined]

    def full(epoch: int, data: bytes) -> None:
        if failures[0]:
            failures[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        append(epoch, data)

    monkeypatch.setattr(shell.journal.store, "_append", full)
    async with asyncio.timeout(10):
        await shell.offer(ev.Commanded("c1", "restart", "worker/0", "me", 0))
    await until(lambda: any(note["reason"] == "JournalStalled" for note in shell.timeline.after(0)))
    await until(lambda: shell.state.ranks["worker", 0].incarnation == 2)
    await until(running(shell))
    end_all(world)
    assert (await ended(world))["phase"] == "Succeeded"


async def test_heartbeats_on_a_full_volume_pile_up_no_events(world, shell, monkeypatch):
    """The state stands still: each of them tells a restarted rank's first step, or that it made up for it."""
    shell.take_heartbeat(Heartbeat("worker", FIRST, 1, {0: (1, 5, {})}))
    await shell.offer(ev.Commanded("c1", "restart", "worker/0", "me", 0))
    await until(lambda: shell.state.ranks["worker", 0].incarnation == 2)
    await until(running(shell))
    assert shell.state.ranks["worker", 0].goal == 5
    room, append = asyncio.Event(), shell.journal.store.append

    async def full(epoch: int, data: bytes) -> None:
        await room.wait()
        await append(epoch, data)

    monkeypatch.setattr(shell.journal.store, "append", full)
    for step in range(1000):
        shell.take_heartbeat(Heartbeat("worker", FIRST, 1, {0: (2, step, {})}))
        if step % 100 == 0:
            await asyncio.sleep(0)  # the loop takes what there is, and waits in its commit
    assert shell._inbox.qsize() <= 2
    room.set()
    await until(lambda: shell.state.ranks["worker", 0].goal is None)
    end_all(world)
    assert (await ended(world))["phase"] == "Succeeded"


@pytest.mark.parametrize("order_first", [True, False])
async def test_a_stop_ends_a_job_whose_journal_cannot_be_written(world, shell, monkeypatch, order_first):

    def full(epoch: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shell.journal.store, "_append", full)
    if not order_first:
        (world.folder / "large.log").write_bytes(b"x" * (3 << 20))
        version = shell.version
        await world.backend.kill(await world.backend.lookup(FIRST))
        await until(lambda: "worker/0 ended meanwhile; to free: " in shell.status().get("message", ""))
        status = shell.status()
        assert (status["reason"], status["phase"], status["version"] > version) == ("JournalStalled", "Running", True)
        assert status["message"].startswith("the journal cannot be written: No space left on device (")
        assert status["message"].endswith(f"to free: {world.folder}/large.log (3 MiB)")
    shell.stop_without_journal()
    async with asyncio.timeout(10):
        await shell.offer(ev.Commanded("c1", "stop", "job", "me", 0))
        end_all(world)
        assert (await ended(world))["phase"] == "Stopped"


async def test_a_volume_that_stays_full_ends_the_job_with_what_to_do(world, monkeypatch):
    monkeypatch.setattr(journal_module, "FIRST_S", 0.001)
    monkeypatch.setattr(journal_module, "FULL_S", 0.01)
    shell = world.master()
    await until(running(shell))

    def full(epoch: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shell.journal.store, "_append", full)
    with pytest.raises(MasterOverError, match="No space left on device"):
        await shell.offer(ev.Commanded("c1", "restart", "worker/0", "me", 0))
    status = await ended(world)
    assert (status["phase"], status["reason"]) == ("Failed", "JournalFailed")
    assert "cannot be written: No space left on device" in status["message"]
    assert "make room there" in status["message"]


@pytest.mark.parametrize("kv", [False, True])
async def test_the_journal_rolls_while_the_master_lives_and_the_next_one_goes_on(world, monkeypatch, kv):
    monkeypatch.setattr(shell_module, "SNAPSHOT_EVERY", 10)
    first = world.master(kv=kv)
    await until(running(first))
    for number in range(40):
        await first.offer(ev.Commanded(f"c{number}", "restart", "nobody", "me", 0))
    assert (first.journal.epoch, first.journal.segment > 3) == (1, True)
    if kv:
        await until(lambda: first._tidying is not None and first._tidying.done())
        segments = {key.split("/")[3] for key in world.backend.kv.values if "/journal/" in key}
        assert len(segments) <= 2, "nothing that is superseded stays but what is being put away"
    await world.die()
    second = world.master(kv=kv)
    await until(lambda: second.recovered)
    assert second.journal.epoch > first.journal.segment
    assert {f"c{number}" for number in range(40)} <= set(second.state.commands)
    assert sum(call.startswith("spawn 01234567/worker") for call in world.backend.calls) == 2
    end_all(world)
    assert (await ended(world))["restarts"]["master"] == 1


async def test_the_status_file_and_snapshots_are_made_in_threads(world, monkeypatch):
    """At 10,000 ranks they take 0.15 and 0.5 s, in which no heartbeat would be answered."""
    made_in: dict[str, set[bool]] = {"status": set(), "dumps": set(), "snapshot": set(), "rebuild": set()}

    def watched(name: str, real: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            made_in[name].add(threading.current_thread() is threading.main_thread())
            return real(*args, **more)

        return call

    monkeypatch.setattr(shell_module.snapshots, "status", watched("status", shell_module.snapshots.status))
    monkeypatch.setattr(shell_module, "snapshot_records", watched("snapshot", shell_module.snapshot_records))
    of = shell_module.Rebuilding
    monkeypatch.setattr(of, "rebuild", watched("rebuild", of.rebuild))
    monkeypatch.setattr(timeline_module, "json", SimpleNamespace(dumps=watched("dumps", json.dumps), loads=json.loads))
    shell = world.master()
    await until(running(shell))
    await until((world.folder / "status.json").exists)
    assert made_in["status"] == made_in["snapshot"] == made_in["rebuild"] == {False}
    assert False in made_in["dumps"]
    end_all(world)
    await ended(world)


async def test_a_job_whose_journal_is_gone_ends_and_does_not_begin_again(world, tmp_path):
    await until(running(world.master()))
    await world.die()
    world.backend.calls.clear()
    world.folder = tmp_path / "not-mounted"
    world.master()
    status = await ended(world)
    assert (status["phase"], status["reason"]) == ("Failed", reasons.JOURNAL_FAILED)
    assert "is empty on" in status["message"]
    assert not [call for call in world.backend.calls if call.startswith(("spawn", "reserve"))]


async def test_the_next_attempt_of_a_job_has_a_beginning_of_its_own(world, shell, tmp_path):
    info = shell.setup.info
    empty = Journal(FileStore(tmp_path / "attempt-2"))
    assert await highest_claim(empty, world.backend.kv, dataclasses.replace(info, attempt=2)) == 0
    with pytest.raises(JournalBrokenError, match="though the job has begun"):
        await highest_claim(empty, world.backend.kv, info)
