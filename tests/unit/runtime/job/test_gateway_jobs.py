"""The gateway between callers and masters that come, go, hang and end."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from memory_backend import MemoryKeyValue
from prometheus_client.parser import text_string_to_metric_families

from dljob.errors import NotFoundError, UnreachableError, UsageError
from dljob.master.state.views import Clue
from dljob.runtime.backend.interface import ActorCallError, ActorLostError, ActorRef
from dljob.runtime.backend.masters import FIRST, SECOND, actor_name, announce
from dljob.runtime.job import gateway_jobs
from dljob.runtime.job.gateway_app import CommandRequest
from dljob.runtime.job.gateway_jobs import RayJobs, wrong
from dljob.runtime.journal.job_record import REGISTRY, JobRecord
from dljob.runtime.node import log_tails
from dljob.runtime.node.readers import Readers
from dljob.telemetry.evidence import Source

UID = "0123456789abcdef" * 2


def snapshot(phase: str = "Running", version: int = 1) -> dict[str, Any]:
    role = {"name": "a", "desired": 2, "ready": 2, "running": 2, "succeeded": 0, "failed": 0, "restarts": 0}
    return {
        "name": "j",
        "uid": UID,
        "phase": phase,
        "reason": phase,
        "message": "",
        "seconds": 1.5,
        "epoch": 1,
        "version": version,
        "roles": [role],
        "restarts": {"process": 0, "roleGroup": 0, "role": 0, "job": 0, "master": 0},
        "lastFault": None,
        "recentFaults": [],
        "progress": {"step": 3, "metrics": {}},
        "ledger": {"roles": [{"name": "a", "accounts": {"productive": 3.0}}]},
        "result": "",
        "masterNode": "m",
        "ranks": [{"role": "a", "rank": rank, "phase": "Ready", "node": "n"} for rank in range(2)],
        "units": [{"name": "a/0", "node": "n", "phase": "Held"}],
    }


class Master:
    """PrimeMaster as far as the gateway knows it."""

    def __init__(self) -> None:
        self.dead = False
        self.calls: list[tuple[Any, ...]] = []
        self.hangs = False

    async def brief(self, after: int, timeout_s: float) -> dict[str, Any]:
        return {k: v for k, v in snapshot(version=after + 1).items() if k not in ("ranks", "units")} | {
            "placement": {"units": 1, "ready": 1, "pending": 0, "notReady": []}
        }

    async def status(self, after: int, timeout_s: float) -> dict[str, Any]:
        return snapshot(version=after + 1)

    async def notes(self, after: int, timeout_s: float) -> list[dict[str, Any]]:
        return [{"seq": seq} for seq in range(after + 1, after + 4001)]

    async def endpoints(self, seen: None) -> dict[str, Any]:
        return {"engine": [{"rank": 0, "incarnation": 1, "addresses": {"http": "10.0.0.1:80"}}]}

    async def placement(self) -> dict[str, Any]:
        rows = [{"node": "n", "units": ["a/0"], "roles": ["a"], "ranks": "a/0-1"}]
        return {"version": 7, "nodes": rows, "master": {"node": "n", "pid": 7}}

    async def stacks(self, target: str) -> dict[str, str]:
        return {target: "thread"}

    async def learned(self, target: str, incarnation: int, clue: Clue) -> None:
        pass

    async def command(self, *args: Any) -> None:
        if args[2] == "a/1":
            raise ActorCallError("it raised", error_type="X", remote_traceback="")


class Cluster:
    """A backend with one job."""

    def __init__(self, folder: Path) -> None:
        self.kv = MemoryKeyValue()
        self.master: Master | None = Master()
        self.second: Master | None = None
        self.home = folder
        self.dir = folder / "jobs" / f"j-{UID[:8]}"
        self.dir.mkdir(parents=True)
        self.kv.values[REGISTRY + UID] = json.dumps(asdict(JobRecord(UID, "j", str(self.dir), 1.0))).encode()
        self.lookups = 0

    async def lookup(self, name: str) -> ActorRef | None:
        self.lookups += 1
        master = {actor_name(UID, FIRST): self.master, actor_name(UID, SECOND): self.second}.get(name)
        return ActorRef(name, master) if master else None

    async def call(self, ref: ActorRef, method: str, *args: Any) -> Any:
        master: Master = ref.native
        master.calls.append((method, *args))
        while master.hangs and not master.dead:  # noqa: ASYNC110 - tests set both
            await asyncio.sleep(0.01)
        if master.dead:
            raise ActorLostError("gone")
        return await getattr(master, method)(*args)

    def die(self) -> None:
        assert self.master
        self.master.dead, self.master = True, None

    def end(self, phase: str = "Succeeded") -> None:
        """As the master does it: the status first, then the keys, then itself."""
        (self.dir / "status.json").write_text(json.dumps(snapshot(phase, version=9)))
        (self.dir / "events.jsonl").write_text("".join(json.dumps({"seq": seq}) + "\n" for seq in range(1, 4)))
        self.kv.values.clear()
        self.die()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(gateway_jobs, "GRACE_S", 0.3)
    monkeypatch.setattr(gateway_jobs, "pods_of_nodes", lambda: {"n": "pod-1"})
    return Cluster(tmp_path)


@pytest.fixture
def jobs(cluster: Cluster) -> RayJobs:
    return RayJobs(cluster, str(cluster.home))  # type: ignore[arg-type]


async def test_the_master_of_the_latest_epoch_is_asked_though_the_first_one_is_there(cluster, jobs):
    cluster.second = Master()
    await announce(cluster.kv, UID, 2, SECOND)
    assert (await jobs.brief(UID, 4, 2.0))["version"] == 5
    assert cluster.master
    assert (len(cluster.master.calls), len(cluster.second.calls)) == (0, 1)


async def test_a_question_to_a_stopped_master_goes_on_at_its_standby_once_that_commands(cluster, jobs):
    """The gateway keeps the handle of the one that answered last, and that one answers nothing any more."""
    first = cluster.master
    assert first
    assert await jobs.status(UID, 0, 2.0)
    first.hangs, cluster.second = True, Master()
    question = asyncio.create_task(jobs.brief(UID, 4, 5.0))
    while len(first.calls) < 2:  # noqa: ASYNC110 - a few turns of the loop
        await asyncio.sleep(0)
    await announce(cluster.kv, UID, 2, SECOND)
    assert (await question)["version"] == 5
    assert [method for method, *_ in cluster.second.calls] == ["brief"]
    assert cluster.second.calls[0][2] < 5.0, "by the time that is left"


async def test_a_follower_refuses_and_the_gateway_asks_again(cluster, jobs):
    """The key of the one that commands may be read just before the other one takes over."""
    first = cluster.master
    assert first
    cluster.second = Master()
    await announce(cluster.kv, UID, 1, FIRST)
    call = cluster.call

    async def refused(ref: ActorRef, method: str, *args: Any) -> Any:
        if ref.native is first:
            first.calls.append((method, *args))
            await announce(cluster.kv, UID, 2, SECOND)
            raise ActorCallError("the other one commands", error_type="NotCommandingError", remote_traceback="")
        return await call(ref, method, *args)

    cluster.call = refused  # type: ignore[method-assign]
    assert (await jobs.brief(UID, 4, 5.0))["version"] == 5
    assert (len(first.calls), len(cluster.second.calls)) == (1, 1)


async def test_a_master_that_does_not_come_back_is_an_answer_in_time(cluster, jobs):
    cluster.die()
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="not running now"):
        await jobs.brief(UID, 0, 0.2)
    assert 0.4 < time.monotonic() - began < 2.0


async def test_a_frozen_master_does_not_hold_the_caller(cluster, jobs):
    assert cluster.master
    cluster.master.hangs = True
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="does not answer now"):
        await jobs.brief(UID, 0, 0.2)
    assert time.monotonic() - began < 2.0


async def test_a_folder_of_another_job_with_the_same_eight_digits_is_not_it(cluster, jobs):
    cluster.end()
    with pytest.raises(NotFoundError):
        await jobs.brief(UID[:8] + "f" * 24, 0, 0.0)


async def test_live_jobs_come_first_and_ended_ones_after(cluster, jobs):
    old = cluster.home / "jobs" / "old-ffffffff"
    old.mkdir()
    (old / "status.json").write_text(json.dumps(snapshot("Failed") | {"uid": "f" * 32, "name": "old"}))
    (cluster.dir / "status.json").write_text(json.dumps(snapshot()))
    assert await jobs.jobs() == [
        {"uid": UID, "name": "j", "phase": "Running"},
        {"uid": "f" * 32, "name": "old", "phase": "Failed"},
    ]


async def test_events_come_in_bounded_portions(jobs):
    assert len(await jobs.events(UID, 0, 0.0)) == gateway_jobs.EVENTS_AT_ONCE


async def test_the_endpoints_are_those_of_primemaster(jobs):
    assert (await jobs.endpoints(UID))["engine"][0]["addresses"] == {"http": "10.0.0.1:80"}


async def test_placement_names_pods_and_asks_ray_only_for_new_nodes(jobs, monkeypatch):
    placed = await jobs.placement(UID)
    (row,) = placed["nodes"]
    assert (row["node"], row["pod"], row["ranks"]) == ("n", "pod-1", "a/0-1")
    assert placed["master"] == {"node": "n", "pod": "pod-1", "pid": 7}
    monkeypatch.setattr(gateway_jobs, "pods_of_nodes", lambda: pytest.fail("asked again"))
    assert (await jobs.placement(UID))["nodes"][0]["pod"] == "pod-1"


@pytest.mark.parametrize(
    ("kind", "target", "why"),
    [
        ("restart", "job", ""),
        ("restart", "a", ""),
        ("restart", "a/1", ""),
        ("stop", "job", ""),
        ("stop", "a", "only the job can be stopped"),
        ("suspend", "job", ""),
        ("suspend", "a", "only the job can be suspended"),
        ("explode", "job", "no command 'explode'"),
        ("cause", "node/abc", "in `by` the evidence"),
        ("cause", "a/0", "a cause needs the target node/"),
        ("cause", "b/0.1", "a cause needs the target node/"),
        ("restart", "b", "has no 'b'; targets are job, a role (a)"),
        ("restart", "a/2", "has no 'a/2'"),
        ("restart", "a/", "has no 'a/'"),
        ("restart", "a/²", "has no 'a/²'"),
    ],
)
def test_a_command_is_refused_unless_its_target_fits_its_kind(kind, target, why):
    said = wrong(CommandRequest("1", kind, target, ""), snapshot())
    assert (why in said) if why else said == ""


async def test_commands_reach_the_master_or_are_refused_or_fail_in_words(cluster, jobs):
    await jobs.command(UID, CommandRequest("1", "restart", "a/0", "me"))
    assert cluster.master
    assert cluster.master.calls[-1] == ("command", "1", "restart", "a/0", "me")
    await jobs.command(UID, CommandRequest("c", "cause", "node/n1", "OOMKilled: exit code 137"))
    assert cluster.master.calls[-1] == ("learned", "node/n1", 0, Clue(Source.POD, "OOMKilled: exit code 137"))
    await jobs.command(UID, CommandRequest("c", "cause", "a/0.5", "Out of memory: Killed process 7"))
    assert cluster.master.calls[-1] == ("learned", "a/0", 5, Clue(Source.KERNEL, "Out of memory: Killed process 7"))
    with pytest.raises(UsageError, match="a cause needs the target node/"):
        await jobs.command(UID, CommandRequest("c", "cause", "a/0", "OOMKilled"))
    with pytest.raises(UsageError, match="a/7"):
        await jobs.command(UID, CommandRequest("2", "restart", "a/7", "me"))
    with pytest.raises(UnreachableError, match="it raised"):
        await jobs.command(UID, CommandRequest("3", "restart", "a/1", "me"))


async def test_stacks_come_from_the_master_of_a_job_that_lives_and_has_such_a_target(cluster, jobs):
    assert await jobs.stacks(UID, "a/0") == {"a/0": "thread"}
    with pytest.raises(NotFoundError, match="a/7"):
        await jobs.stacks(UID, "a/7")
    cluster.end()
    with pytest.raises(NotFoundError, match="is over: it has no processes"):
        await jobs.stacks(UID, "job")


def nodes_that_answer(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every node answers from this machine's files; the list grows by who was asked."""
    asked: list[str] = []

    async def on_node(node: str, function: Any, *args: Any) -> Any:
        asked.append(node)
        return function(*args)

    async def ask(_readers: Readers, *question: Any) -> Any:
        return await on_node(*question)

    monkeypatch.setattr(log_tails, "on_node", on_node)
    monkeypatch.setattr(Readers, "ask", ask)
    return asked


async def test_the_record_comes_from_the_masters_node_and_after_the_end_from_the_folder_here(
    cluster, jobs, monkeypatch
):
    asked = nodes_that_answer(monkeypatch)
    (cluster.dir / "events.jsonl").write_text("one\ntwo\n")
    for _ in range(2):
        news = await jobs.record(UID, {"events.jsonl": 4})
        assert (news.files, news.parts) == ({"events.jsonl": 8}, [("events.jsonl", 4, b"two\n")])
    assert asked == ["m", "m"]
    assert cluster.master
    assert [call[0] for call in cluster.master.calls] == ["brief"], "the node is known then"

    async def silent(*_: object) -> None:
        raise OSError("the node is gone")

    monkeypatch.setattr(Readers, "ask", silent)
    with pytest.raises(UnreachableError, match="the record on node m cannot be read: the node is gone"):
        await jobs.record(UID, {})
    cluster.end()
    await jobs.brief(UID, 0, 0.0)  # as the operator asks
    assert "status.json" in (await jobs.record(UID, {})).files


async def test_the_masters_log_comes_from_its_node_also_after_the_end_and_while_it_is_away(cluster, jobs, monkeypatch):
    asked = nodes_that_answer(monkeypatch)
    (cluster.dir / "logs").mkdir()
    log = cluster.dir / "logs" / "master.log"
    with pytest.raises(NotFoundError, match=r"no log of PrimeMaster \(master.log\) on its node"):
        await jobs.master_log(UID, 0, 100)
    lines = [f'{{"time": "2026-01-01T00:00:0{n}.500Z", "message": "m{n}"}}\n' for n in (1, 3)]
    log.write_text("".join(lines))
    piece = await jobs.master_log(UID, 0, len(lines[0]))
    assert (piece.text, piece.size) == (lines[0], log.stat().st_size)
    piece = await jobs.master_log(UID, len(lines[0]), 1000)
    assert (piece.text, piece.offset, piece.end) == (lines[1], log.stat().st_size, False)
    since = await jobs.master_log(UID, None, 1000, 1767225602.0)
    assert (since.text, since.timed) == (lines[1], True)
    assert (await jobs.tails(UID, 8 * 100))["master"] == lines[1], "whole entries alone, of their share"
    log.with_name("master.log.1").write_text("old\n")
    older = await jobs.master_log(UID, 0, 100, older=True)
    assert (older.text, older.end) == ("old\n", True)
    assert set(asked) == {"m", "n"}
    cluster.die()
    assert (await jobs.master_log(UID, None, 1000)).text == "".join(lines), "it is away, and its node is known"
    with pytest.raises(UnreachableError, match="not running now"):
        await RayJobs(cluster, str(cluster.home)).master_log(UID, None, 1000)  # type: ignore[arg-type]
    cluster.master = Master()
    cluster.end()
    assert (await jobs.master_log(UID, 0, 1000)).end
    assert (await RayJobs(cluster, str(cluster.home)).master_log(UID, 0, 1000)).end  # type: ignore[arg-type]


def step(text: str) -> list[float]:
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return [sample.value for sample in families["dljob_step"].samples] if families else []


async def test_metrics_are_of_jobs_that_live_and_answer(cluster, jobs):
    assert step(await jobs.metrics()) == [3.0]
    master = cluster.master
    assert master
    master.hangs = True
    assert step(await jobs.metrics()) == []
    master.hangs = False
    assert step(await jobs.metrics()) == [3.0]
    cluster.end()
    assert step(await jobs.metrics()) == []


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("e=3", ""),
        ("w=3", "'w=3' cannot be scaled: it is written role=ranks, of e"),
        ("e", "'e' cannot be scaled: it is written role=ranks, of e"),
        ("e=3.5", "'e=3.5' cannot be scaled: it is written role=ranks, of e"),
        ("e=1000000", "'e=1000000' cannot be scaled: it is written role=ranks, of e"),
    ],
)
def test_only_a_role_with_bounds_is_scaled(target, why):
    roles = [{"name": "w", "desired": 1}, {"name": "e", "desired": 2, "wanted": 2}]
    assert wrong(CommandRequest("1", "scale", target, "spec"), {"roles": roles}) == why
    none = wrong(CommandRequest("1", "scale", target, "spec"), {"roles": roles[:1]})
    assert none.endswith("of no role of this job")
