"""Passes: their order and their failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
from shell_kit import JOB, UID, cluster_of, dljob, run_head, shell

from dljob.kube.api import ApiError
from dljob.reconcile.state.model import (
    Annotate,
    Command,
    Create,
    Event,
    MasterView,
    Observed,
    ReconcileResult,
    Settings,
    Trouble,
)
from dljob.reconcile.state.names import ATTEMPT, LABEL_NAME, LABEL_UID, cluster_name, logs_map
from dljob_operator.controller import controller, poller
from dljob_operator.controller.turns import Turns
from dljob_operator.watch.workqueue import Key


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAUSE", "FIRST_BACKOFF", "STARTING_BACKOFF"):
        monkeypatch.setattr(poller, name, 0.005)


def deciding(
    *outcomes: ReconcileResult,
) -> tuple[Callable[[Observed, Settings, float], ReconcileResult], list[Observed]]:
    """A `reconcile` that says these things in turn, and then nothing; and what it saw."""
    seen: list[Observed] = []

    def decide(observed: Observed, settings: Settings, now: float) -> ReconcileResult:
        seen.append(observed)
        return outcomes[len(seen) - 1] if len(seen) <= len(outcomes) else ReconcileResult("rest")

    return decide, seen


def config_map(name: str) -> Create:
    return Create("ConfigMap", {"metadata": {"name": name}})


async def test_events_come_before_actions_before_the_status() -> None:
    event = Event("Normal", "Made", "it is made")
    decide, _ = deciding(ReconcileResult("go", (config_map("a"), config_map("b")), (event,), {"phase": "Pending"}))
    async with shell(decide=decide) as it:
        it.fake.put("dljobs", dljob())
        assert await it.settle() == 2
        assert [path.split("/")[-1] for _, path in it.fake.writes] == ["events", "configmaps", "configmaps", "status"]
        assert it.status() == {"phase": "Pending"}


async def test_the_log_says_why_and_what_was_done(caplog: pytest.LogCaptureFixture) -> None:
    decide, _ = deciding(ReconcileResult("go", (config_map("a"), config_map("b"))), ReconcileResult("rest"))
    async with shell(decide=decide) as it:
        it.fake.put("dljobs", dljob())
        it.fake.fail("POST", "configmaps", 403, times=1, message="quota")
        it.sync()
        with caplog.at_level(logging.INFO, "dljob_operator.controller"):
            await it.controller.step(JOB)
            await it.controller.step(JOB)
    done = [f"{JOB}: CreateConfigMap failed (1 in a row): quota", f"{JOB}: rest"]
    assert [record.getMessage() for record in caplog.records] == [f"{JOB}: go", *done]
    assert caplog.records[0].__dict__["fields"] == {"dljob": str(JOB)}


async def test_each_action_that_was_done_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    decide, _ = deciding(ReconcileResult("go", (config_map("a"),)))
    async with shell(decide=decide) as it:
        it.fake.put("dljobs", dljob())
        it.sync()
        with caplog.at_level(logging.INFO, "dljob_operator.controller"):
            await it.controller.step(JOB)
    assert [record.getMessage() for record in caplog.records] == [f"{JOB}: go", f"{JOB}: CreateConfigMap is done"]
    assert caplog.records[1].__dict__["fields"] == {"dljob": str(JOB), "action": "CreateConfigMap"}


async def test_after_a_failed_action_the_rest_waits_and_the_failure_is_observed() -> None:
    both = (config_map("a"), config_map("b"))
    decide, seen = deciding(
        ReconcileResult("go", both, (), {"phase": "Pending"}), ReconcileResult("go", both), ReconcileResult("go", both)
    )
    async with shell(decide=decide) as it:
        it.fake.put("dljobs", dljob())
        it.fake.fail("POST", "configmaps", 403, times=2, message="quota")
        it.sync()
        for _ in range(3):
            await it.controller.step(JOB)
        assert seen[0].troubles == ()
        (first,), (second,) = seen[1].troubles, seen[2].troubles
        assert first == Trouble("CreateConfigMap", 403, "quota", 1, since=first.since)
        assert second == Trouble("CreateConfigMap", 403, "quota", 2, since=first.since)
        assert first.since > 0
        assert it.memory().troubles == {}
        assert it.fake.names("configmaps") == ["a", "b"]
        assert it.status() == {"phase": "Pending"}


async def test_troubles_do_not_outlive_their_attempt() -> None:
    decide, seen = deciding(ReconcileResult("go", (config_map("a"),)), ReconcileResult("next", (), (), {"attempt": 2}))
    async with shell(decide=decide) as it:
        it.fake.put("dljobs", dljob())
        it.fake.fail("POST", "configmaps", 403)
        it.sync()
        for _ in range(3):
            await it.controller.step(JOB)
        assert [len(observed.troubles) for observed in seen] == [0, 1, 0]


async def test_a_stale_status_is_decided_again() -> None:
    decide, seen = deciding(ReconcileResult("go", (), (), {"phase": "Pending"}))
    async with shell(decide=decide) as it:
        it.fake.put("dljobs", dljob())
        it.sync()
        it.fake.put("dljobs", {**dljob(), "metadata": {**it.fake.one("dljobs", "hello")["metadata"]}, "spec": {"x": 1}})
        key = it.queue.take()
        assert key == JOB
        await it.controller.step(JOB)
        it.queue.done(JOB)
        assert it.status() == {}
        assert it.queue.take() == JOB
        await it.controller.step(JOB)
        assert seen[1].job["spec"] == {"x": 1}


async def test_a_decision_from_a_stale_view_is_made_again_and_is_no_trouble() -> None:
    name = cluster_name("hello", UID, 1)
    decide, seen = deciding(ReconcileResult("go", (Create("RayCluster", {"metadata": {"name": name}}),)))
    async with shell(decide=decide) as it:
        it.fake.put("dljobs", {**dljob(), "metadata": {"name": "hello", "uid": UID}})
        it.sync()
        it.fake.put("dljobs", {**dljob(), "metadata": {"name": "hello", "uid": UID}, "status": {"attempt": 2}})
        await it.controller.step(JOB)
        await it.controller.step(JOB)
        assert [(observed.job.get("status"), observed.troubles) for observed in seen] == [
            (None, ()),
            ({"attempt": 2}, ()),
        ]
        assert it.fake.names("rayclusters") == []


async def test_a_job_that_is_gone_is_forgotten() -> None:
    decide, seen = deciding(ReconcileResult("go", (), (), {"phase": "Pending"}, requeue=3600))
    async with shell(decide=decide) as it:
        it.fake.put("dljobs", dljob())
        await it.settle()
        it.fake.take("dljobs", "hello")
        await it.settle()
        assert len(seen) == 2
        assert it.queue._due == {}
        assert it.controller._logged == {}
        assert it.observer._memories == {}


async def test_a_status_that_cannot_be_written_for_other_reasons_is_an_error() -> None:
    decide, _ = deciding(ReconcileResult("go", (), (), {"phase": "Pending"}))
    async with shell(decide=decide) as it:
        it.fake.put("dljobs", dljob())
        it.fake.fail("PATCH", "status", 422, message="status.phase: unsupported value")
        it.sync()
        with pytest.raises(ApiError, match="unsupported value"):
            await it.controller.step(JOB)


async def test_a_status_that_is_refused_for_what_the_head_reports_is_decided_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Observed] = []

    def decide(observed: Observed, _settings: Settings, _now: float) -> ReconcileResult:
        seen.append(observed)
        assert observed.master is not None
        ends = ReconcileResult("it ends", (), (), {"phase": "Stopped"})
        return replace(ends, status={"phase": "Stopped", "bad": 1}) if observed.master.snapshot else ends

    async with shell(decide=decide) as it:
        monkeypatch.setattr(it.pollers, "views", lambda _key: (MasterView({"epoch": 1}), None))
        it.fake.put("dljobs", dljob())
        it.fake.fail("PATCH", "status", 422, message="status.bad: unsupported value")
        it.sync()
        await it.controller.step(JOB)
        assert it.status() == {"phase": "Stopped"}
        head = seen[1].master
        assert head is not None
        assert (len(seen), head.snapshot, head.misbehaves) == (2, {}, True)
        assert "status.bad: unsupported value" in head.error


async def test_a_decision_that_never_rests_is_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "RESTLESS", 3)
    outcome = ReconcileResult("again", (Annotate("DLJob", "hello", {"a": "b"}),))
    decide, seen = deciding(*[outcome] * 100)
    async with shell(decide=decide) as it:
        it.fake.put("dljobs", dljob())
        await it.settle()
        assert len(seen) == 4


async def test_a_long_piece_of_work_is_no_loop_while_less_of_it_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "RESTLESS", 3)

    def piece(left: int) -> ReconcileResult:
        return ReconcileResult("more", (Annotate("DLJob", "hello", {"a": str(left)}),), requeue=0.0, postponed=left)

    decide, seen = deciding(*(piece(left) for left in range(30, -1, -1)))
    async with shell(decide=decide) as it:
        it.fake.put("dljobs", dljob())
        await it.settle()
        assert len(seen) == 32
    decide, seen = deciding(*[piece(30)] * 100)
    async with shell(decide=decide) as it:
        it.fake.put("dljobs", dljob())
        await it.settle()
        assert len(seen) == 4


async def test_a_pass_that_failed_is_slow_to_come_again_even_when_it_was_in_a_hurry() -> None:
    decide, seen = deciding(
        *[ReconcileResult("more", (Annotate("DLJob", "hello", {"a": "b"}),), requeue=0.0, postponed=5)] * 9
    )
    async with shell(decide=decide) as it:
        it.fake.put("dljobs", dljob())
        it.fake.fail("PATCH", "dljobs/hello", 403, times=9)
        await it.settle()
        assert len(seen) == 1


async def test_a_server_that_drops_what_is_written_is_not_written_to_again_at_once() -> None:
    """As with the CRD of an older version, which lacks a field of the status."""
    decide, seen = deciding(*[ReconcileResult("go", status={"phase": "Pending", "carried": {"attempt": 1}})] * 9)
    async with shell(decide=decide) as it:
        it.fake.pruned = ("carried",)
        it.fake.put("dljobs", dljob())
        await it.settle()
        assert len(seen) == 2
        assert it.status() == {"phase": "Pending"}


async def test_a_ray_cluster_that_no_watch_knows_is_looked_for_before_it_counts_as_gone() -> None:
    async with shell() as it:
        it.fake.put("dljobs", dljob())
        await it.settle()
        run_head(it.fake, it.head)
        await it.settle()
        assert it.status()["rayCluster"]["uid"]
        name = cluster_of(it.fake)
        it.cache.clusters.entries.clear()
        await it.controller.step(JOB)
        assert it.status()["attempt"] == 1
        assert it.cache.clusters.get(Key("default", name)) is not None
        it.fake.take("rayclusters", name)
        it.cache.clusters.entries.clear()
        await it.controller.step(JOB)
        assert it.status()["attempt"] == 2


async def test_pods_of_the_last_attempt_that_no_watch_knows_are_looked_for_before_the_next_begins() -> None:
    async with shell() as it:
        it.fake.put("dljobs", dljob())
        await it.settle()
        run_head(it.fake, it.head)
        await it.settle()
        name = cluster_of(it.fake)
        pod = it.fake.one("pods", f"{name}-head-x")
        it.fake.take("rayclusters", name)
        it.fake.put("pods", pod)  # the garbage collector takes its time
        it.sync()
        await it.controller.step(JOB)
        assert it.status()["attempt"] == 2
        it.cache.pods.entries.clear()
        it.cache._pods_of.clear()
        await it.controller.step(JOB)
        assert it.fake.names("rayclusters") == []
        it.fake.take("pods", f"{name}-head-x")
        await it.settle()
        assert it.fake.names("rayclusters") == [cluster_of(it.fake, attempt=2)]


async def test_logs_that_another_operator_saves_meanwhile_are_looked_for_again() -> None:
    async with shell() as it:
        status = {"completionTime": "2026-01-01T00:00:00Z", "attempt": 2}
        job = it.fake.put("dljobs", {**dljob(), "status": status})
        it.sync()

        async def are_saved() -> bool:
            looked = await it.observer.observe(JOB)
            assert looked is not None
            return looked[0].logs_saved

        assert not await are_saved()
        owner = {"kind": "DLJob", "name": "hello", "uid": job["metadata"]["uid"]}
        for attempt, is_last in (("1", False), ("2", True)):
            meta = {"name": logs_map("hello"), "labels": {ATTEMPT: attempt}, "ownerReferences": [owner]}
            it.fake.put("configmaps", {"metadata": meta})
            assert await are_saved() == is_last, "those of an earlier attempt are not the job's last"


async def test_a_removed_ttl_keeps_an_ended_job_before_the_watch_tells_of_it() -> None:
    async with shell() as it:
        over = {"completionTime": "2026-01-01T00:00:00Z", "conditions": [{"type": "Complete", "status": "True"}]}
        job = it.fake.put("dljobs", {**dljob(ttlSecondsAfterFinished=2), "status": over})
        await it.controller.step(JOB)
        it.sync()
        it.fake.put("dljobs", {**job, "spec": dljob()["spec"]})
        assert await it.controller.step(JOB) == "error"
        assert it.memory().troubles == {}
        await it.controller.step(JOB)
        assert it.fake.names("dljobs") == ["hello"]
        it.fake.put("dljobs", job)
        await it.settle()
        assert it.fake.names("dljobs") == []


async def test_an_event_that_the_server_dropped_is_told_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    event = Event("Warning", "Odd", "strange")
    decide, _ = deciding(*[ReconcileResult("go", (), (event,))] * 4)
    monkeypatch.setattr("dljob_operator.controller.events.COUNT_SECONDS", 0.0)
    async with shell(decide=decide) as it:
        it.fake.put("dljobs", dljob())
        it.sync()
        await it.controller.step(JOB)
        (name,) = it.fake.names("events")
        it.fake.take("events", name)
        it.fake.fail("POST", "events", 500)
        for _ in range(3):
            await it.controller.step(JOB)
        (again,) = it.fake.names("events")
        assert again != name
        assert it.fake.one("events", again)["series"]["count"] == 2


async def test_equal_events_are_one_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from dljob_operator.controller import events

    event = Event("Warning", "Odd", "strange")
    decide, _ = deciding(*[ReconcileResult("go", (), (event,))] * 3)
    async with shell(decide=decide) as it:
        it.fake.put("dljobs", dljob())
        it.sync()
        await it.controller.step(JOB)
        await it.controller.step(JOB)
        assert it.fake.writes == [("POST", "/apis/events.k8s.io/v1/namespaces/default/events")]
        monkeypatch.setattr(events, "COUNT_SECONDS", 0.0)
        await it.controller.step(JOB)
        (name,) = it.fake.names("events")
        made = it.fake.one("events", name)
        assert made["series"]["count"] == 3
        assert (made["type"], made["reason"], made["note"], made["action"]) == (
            "Warning",
            "Odd",
            "strange",
            "Reconcile",
        )
        assert made["regarding"]["name"] == "hello"
        assert made["reportingController"] == "dljob.io/operator"


async def test_an_event_that_cannot_be_told_holds_nothing_up() -> None:
    decide, _ = deciding(ReconcileResult("go", (), (Event("Normal", "Made", ""),), {"phase": "Pending"}))
    async with shell(decide=decide) as it:
        it.fake.put("dljobs", dljob())
        it.fake.fail("POST", "events", 403)
        await it.settle()
        assert it.status() == {"phase": "Pending"}


async def test_workers_survive_what_a_pass_raises() -> None:
    passes: list[str] = []
    twice = asyncio.Event()

    def decide(observed: Observed, settings: Settings, now: float) -> ReconcileResult:
        passes.append(observed.job["metadata"]["name"])
        if len(passes) == 1:
            raise ValueError("a bug")
        twice.set()
        return ReconcileResult("rest")

    async with shell(decide=decide) as it:
        it.fake.put("dljobs", dljob())
        it.sync()
        workers = asyncio.create_task(it.controller.run(it.turns))
        await asyncio.wait_for(twice.wait(), 5)
        workers.cancel()
        await asyncio.gather(workers, return_exceptions=True)
        assert it.controller.since == {}


async def test_a_silent_head_keeps_no_other_job_waiting() -> None:
    """More jobs than there are turns ask heads that take the question and say nothing; another job's news counts."""
    order = Command("stop/1", "c", "10.0.0.1", "stop", "job", "somebody")
    asked, decided = asyncio.Semaphore(0), asyncio.Event()

    def decide(observed: Observed, settings: Settings, now: float) -> ReconcileResult:
        if observed.job["metadata"]["name"] == "good":
            decided.set()
            return ReconcileResult("news")
        return ReconcileResult("order", (order,))

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.release()
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(swallow, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    async with silent, shell(decide=decide, head_url=lambda _host, _port: address) as it:
        for number in range(5):
            it.fake.put("dljobs", dljob(f"bad{number}"))
        it.sync()
        passes = asyncio.create_task(it.controller.run(it.turns))
        async with asyncio.timeout(3):
            for _ in range(5):
                await asked.acquire()
            it.fake.put("dljobs", dljob("good"))
            it.sync()
            await decided.wait()
        assert {key.name for key in it.queue.busy} >= {f"bad{number}" for number in range(5)}
        passes.cancel()
        await asyncio.gather(passes, return_exceptions=True)
        assert (it.queue.busy, it.controller.since) == (frozenset(), {})


async def test_passes_that_are_cancelled_before_they_began_leave_their_keys() -> None:
    """The queue outlives this time of leading: whoever leads next takes the same keys."""
    async with shell(decide=lambda *_: ReconcileResult("rest")) as it:
        turns, taken = Turns(1), asyncio.Queue[float]()
        it.queue.waited = taken.put_nowait
        for name in ("a", "b"):
            it.queue.add(Key("default", name))
        await turns.take()
        passes = asyncio.create_task(it.controller.run(turns))
        await asyncio.wait_for(taken.get(), 5)
        passes.cancel()
        await asyncio.gather(passes, return_exceptions=True)
        assert it.queue.busy == frozenset()
        turns.give()
        passes = asyncio.create_task(it.controller.run(turns))
        await asyncio.wait_for(taken.get(), 5)
        passes.cancel()
        await asyncio.gather(passes, return_exceptions=True)
        assert it.queue.busy == frozenset()


async def test_pods_that_outlive_an_earlier_attempt_are_observed() -> None:
    async with shell() as it:
        meta = {"name": "hello", "uid": UID}
        it.fake.put("dljobs", {**dljob(), "metadata": meta, "status": {"attempt": 2}})
        labels = {LABEL_UID: UID, LABEL_NAME: "hello", "ray.io/cluster": cluster_of(it.fake, "hello", 1)}
        it.fake.put("pods", {"metadata": {"name": "lost", "labels": labels}, "spec": {}, "status": {}})
        it.sync()
        seen, _ = await it.observer.observe(JOB) or pytest.fail("the job is gone")
        assert [pod.name for pod in seen.earlier] == ["lost"]
        assert "lost" not in [pod.name for pod in seen.pods]
        assert seen.strays == ()
        # A RayCluster of that name came late, or is somebody else's: its pods go with it.
        it.fake.put("rayclusters", {"metadata": {"name": cluster_of(it.fake, "hello", 1)}, "spec": {}})
        it.sync()
        seen, _ = await it.observer.observe(JOB) or pytest.fail("the job is gone")
        assert seen.earlier == ()
        assert [each["metadata"]["name"] for each in seen.strays] == [cluster_of(it.fake, "hello", 1)]
