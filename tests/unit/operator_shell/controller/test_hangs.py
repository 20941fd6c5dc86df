"""Pods that hang before their containers are made: what their Events say, read by and by."""

from __future__ import annotations

from typing import Any

import pytest
from fake_cluster import FakeCluster
from shell_kit import JOB, cluster_of, dljob, run_head, shell
from stub_head import StubHead

from dljob.reconcile.state.context import seconds
from dljob.reconcile.state.model import Pod
from dljob_operator.controller import hangs
from dljob_operator.controller.hangs import Hang, add_pod_problems
from dljob_operator.controller.references import ClusterView


def pod(uid: str, group: str = "a", **more: Any) -> Pod:
    return Pod(
        f"pod-{uid}", uid, more.pop("head", False), group, more.pop("phase", "Pending"), False, node="n1", **more
    )


def event(uid: str, kind: str, reason: str, words: str, **times: str) -> dict[str, Any]:
    return {
        "metadata": {"name": f"{uid}.{reason}", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "involvedObject": {"uid": uid},
        "type": kind,
        "reason": reason,
        "message": words,
        **times,
    }


SCHEDULED = event("u", "Normal", "Scheduled", "on n1", eventTime="2026-01-01T00:00:05.123456Z")
MOUNT = event("u", "Warning", "FailedMount", 'configmap "code" not found ', lastTimestamp="2026-01-01T00:00:05Z")
PULLING = event("u", "Normal", "Pulling", "image x", lastTimestamp="2026-01-01T00:00:06Z")


async def look(fake: FakeCluster, pods: list[Pod], known: dict[str, Hang], now: float) -> tuple[Any, float | None]:
    seen, wait = await look_at(fake, ClusterView(pods=tuple(pods)), known, now)
    return seen.pods, wait


async def look_at(
    fake: FakeCluster, seen: ClusterView, known: dict[str, Hang], now: float
) -> tuple[ClusterView, float | None]:
    async with shell(fake) as life:
        return await add_pod_problems(life.kube, "default", seen, known, now)


def with_events(*events: dict[str, Any]) -> FakeCluster:
    fake = FakeCluster()
    for one in events:
        fake.put("events", one)
    return fake


async def test_the_last_event_of_a_pod_that_hangs_is_its_trouble_when_it_is_a_warning() -> None:
    fake, known = with_events(SCHEDULED, MOUNT), {"u": Hang(0.0)}
    (found,), wait = await look(fake, [pod("u")], known, 1.0)
    assert (found.trouble_reason, found.trouble) == (
        "ConfigMapNotFound",
        'ConfigMapNotFound: configmap "code" not found',
    )
    assert wait == hangs.EVERY
    fake.put("events", PULLING)
    (found,), _ = await look(fake, [pod("u")], known, 1.0 + hangs.EVERY)
    assert (found.trouble_reason, found.trouble) == ("", "")


async def test_a_pod_is_given_seconds_and_then_asked_less_and_less() -> None:
    fake, known = with_events(MOUNT), dict[str, Hang]()
    asked: list[float] = []
    now = 0.0
    while now < 400:
        before = len(fake.calls)
        _, wait = await look(fake, [pod("u")], known, now)
        asked += [now] if len(fake.calls) > before else []
        assert wait is not None
        now += wait
    assert asked == [5, 15, 35, 75, 135, 195, 255, 315, 375]


async def test_a_pod_that_hangs_for_days_is_looked_at_all_the_same() -> None:
    known = {"u": Hang(0.0, looks=2000)}
    (found,), wait = await look(with_events(MOUNT), [pod("u")], known, 1.0)
    assert (found.trouble_reason, wait) == ("ConfigMapNotFound", hangs.LONGEST)


async def test_one_pod_of_a_group_is_asked_and_none_that_gets_on() -> None:
    fake, known = with_events(MOUNT), {uid: Hang(0.0) for uid in ("h", "u", "v", "gone")}
    others = [
        pod("r", "r", phase="Running"),
        pod("t", "t", trouble="ErrImagePull: x"),
        pod("l", "l", leaving=True),
        Pod("p", "p", False, "p", "Pending", False),
    ]
    pods = [pod("h", "headgroup", head=True), pod("u"), pod("v"), *others]
    found, _ = await look(fake, pods, known, 1.0)
    assert len([path for method, path in fake.calls if path.endswith("/events")]) == 2
    assert [one.trouble_reason for one in found if one.uid in ("h", "u", "v")] == ["", "ConfigMapNotFound", ""]
    assert set(known) == {"h", "u"}
    many, crowd = dict[str, Hang](), [pod(f"u{n}", f"g{n}") for n in range(10)]
    await look(fake, crowd, many, 0.0)
    assert list(many) == ["u0", "u1", "u2", "u3"]
    assert await look(fake, others, many, 0.0) == (tuple(others), None)


def ended(uid: str = "u", reason: str = "Error", **more: Any) -> Pod:
    words = f"{reason}: container ray-head ended 2 times, the last time with exit code 1"
    given = {"phase": "Running", "restarts": 2, "ended_start": seconds("2026-01-01T00:00:00Z"), **more}
    return pod(uid, trouble=words, trouble_reason=reason, **given)


def killing(probe: str, at: str, container: str = "ray-head") -> dict[str, Any]:
    words = f"Container {container} failed {probe} probe, will be restarted"
    made = event("u", "Normal", "Killing", words, lastTimestamp=at)
    return {**made, "metadata": {**made["metadata"], "creationTimestamp": at}}


@pytest.mark.parametrize("probe", ["liveness", "startup"])
async def test_a_container_that_a_probe_ended_says_so_at_once(probe: str) -> None:
    """Its exit code is Ray's answer to SIGTERM, and tells nothing."""
    fake, known = with_events(SCHEDULED, killing(probe, "2026-01-01T00:02:10Z")), dict[str, Hang]()
    (found,), wait = await look(fake, [ended()], known, 1.0)
    assert found.trouble_reason == f"{probe.capitalize()}ProbeFailed"
    assert found.trouble == (
        f"{found.trouble_reason}: its {probe} probe failed, so the kubelet ended it;"
        " Error: container ray-head ended 2 times, the last time with exit code 1"
    )
    assert wait == hangs.EVERY


@pytest.mark.parametrize(
    ("events", "there"),
    [
        ([killing("liveness", "2025-12-31T23:00:00Z")], ended()),
        ([event("u", "Normal", "Killing", "Stopping container ray-head")], ended()),
        ([killing("liveness", "2026-01-01T00:02:10Z")], ended(reason="OOMKilled")),
        ([killing("liveness", "2026-01-01T00:02:10Z")], ended(leaving=True)),
        ([], ended()),
    ],
    ids=["of an earlier end", "by hand", "out of memory", "being deleted", "no Events"],
)
async def test_an_end_that_no_probe_brought_is_blamed_on_none(events: list[Any], there: Pod) -> None:
    (found,), _ = await look(with_events(*events), [there], {}, 1.0)
    assert found == there


async def test_a_containers_own_status_comes_before_its_events() -> None:
    fake = with_events(event("u", "Warning", "Failed", 'Error: secret "keys" not found'))
    (found,), wait = await look(fake, [pod("u")], {"u": Hang(0.0)}, 1.0)
    assert (found.trouble, wait) == ("", hangs.EVERY)


async def test_the_event_of_a_raycluster_refused_by_kuberay_is_read() -> None:
    words = "minimum Ray version is 2.52.0"
    fake = with_events(event("c", "Warning", "InvalidRayClusterSpec", words, lastTimestamp="2026-01-01T00:00:05Z"))
    known = {"c": Hang(0.0)}
    bare: dict[str, Any] = {"metadata": {"uid": "c"}, "spec": {}, "status": {}}
    found, wait = await look_at(fake, ClusterView(bare), known, 1.0)
    assert (found.objection, wait) == (("InvalidRayClusterSpec", words), hangs.EVERY)
    for other in (
        {**bare, "status": {"observedGeneration": 1}},
        {**bare, "spec": {"suspend": True}},
        {**bare, "metadata": {"uid": "c", "deletionTimestamp": "2026-01-01T00:00:09Z"}},
    ):
        assert await look_at(fake, ClusterView(other), {"c": Hang(0.0)}, 1.0) == (ClusterView(other), None)


async def test_events_that_may_not_be_read_hold_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    fake, known = with_events(MOUNT), {"u": Hang(0.0)}
    fake.fail("GET", "/events", 403, message="events is forbidden")
    (found,), wait = await look(fake, [pod("u")], known, 1.0)
    assert (found.trouble, wait) == ("", hangs.EVERY)
    assert "cannot read the Events of u: " in caplog.text


async def test_the_words_reach_the_status_with_no_news_of_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangs, "AFTER", 0.0)
    async with shell(head=StubHead()) as life:
        life.fake.put("dljobs", dljob())
        await life.settle()
        run_head(life.fake, life.head)
        body = life.fake.one("pods", f"{cluster_of(life.fake)}-head-x")
        cluster = life.fake.one("rayclusters", cluster_of(life.fake))
        life.fake.put("rayclusters", {**cluster, "status": {}})
        life.fake.put("pods", {**body, "status": {"phase": "Pending"}})
        life.fake.put("events", {**MOUNT, "involvedObject": {"uid": body["metadata"]["uid"]}})
        await life.settle()
        assert life.memory(JOB).look_again is not None
        said = next(one for one in life.status()["conditions"] if one["type"] == "ClusterReady")
        assert said["reason"] == "ConfigMapNotFound"
        assert 'configmap "code" not found; create what is missing' in said["message"]
