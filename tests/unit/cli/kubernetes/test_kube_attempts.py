"""Who follows a job through its attempts: PrimeMaster's notes and the ranks' logs begin anew with each."""

from __future__ import annotations

from typing import Any

import pytest
from fake_kube import CLUSTER, HEAD, FakeKube, add_head, add_job, logs_of

from dljob.api.kubernetes import jobs
from dljob.api.kubernetes.logs import Followed
from dljob.api.kubernetes.timeline import EventFeed

Json = dict[str, Any]
RANK = ("worker", 0)


def note(seq: int, reason: str) -> Json:
    return {"seq": seq, "time": float(seq), "reason": reason, "target": "job", "message": ""}


def attempt(kube: FakeKube, number: int, *, submitted: bool = True) -> Json:
    """The job in an attempt; one that is only counted has the last one's RayCluster yet."""
    if submitted:
        cluster = {"name": CLUSTER, "headPod": f"head-{number}"}
        return kube.update("hello", attempt=number, submissionId=f"hello-{number}", rayCluster=cluster)
    return kube.update("hello", attempt=number, submissionId=None)


@pytest.fixture
def asked(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The heads that were asked, one after the other."""
    heads: list[str] = []
    real = kube.proxy_get

    async def proxy_get(pod: str, *words: Any, **more: Any) -> Any:
        heads.append(pod)
        return await real(HEAD, *words, **more)

    monkeypatch.setattr(kube, "proxy_get", proxy_get)
    add_job(kube, phase="Running")
    add_head(kube)
    return heads


@pytest.mark.parametrize(
    ("status", "number"),
    [({}, 0), ({"attempt": 2}, 0), ({"submissionId": "s"}, 1), ({"submissionId": "s", "attempt": 3}, 3)],
)
def test_an_attempt_has_begun_once_it_is_submitted(status, number):
    assert jobs.begun({"status": status}) == number


async def test_each_attempts_notes_are_shown(kube, asked):
    notes = [note(1, "JobRunning"), note(2, "Restarting"), note(3, "HeadLost")]
    kube.head["events"] = lambda query: {"events": [one for one in notes if one["seq"] > query["after"]]}
    timeline: Any = EventFeed()

    async def told(job: Json) -> list[str]:
        return [one["reason"] for one in await timeline.new_entries(kube, job)]

    assert await told(attempt(kube, 1)) == ["JobRunning", "Restarting", "HeadLost"]
    assert await told(attempt(kube, 2, submitted=False)) == [], "the last head says nothing twice"
    notes[:] = [note(1, "JobRunning")]
    assert await told(attempt(kube, 2)) == ["JobRunning"]
    assert await told(attempt(kube, 2)) == []
    assert (asked[0], asked[-1]) == ("head-1", "head-2")


async def test_an_attempt_that_is_counted_at_the_first_look_hides_no_note(kube, asked):
    notes = [note(1, "JobRunning"), note(2, "HeadLost")]
    kube.head["events"] = lambda query: {"events": [one for one in notes if one["seq"] > query["after"]]}
    timeline: Any = EventFeed()
    assert len(await timeline.new_entries(kube, attempt(kube, 2, submitted=False))) == 2
    notes[:] = [note(1, "Admitted"), note(2, "JobRunning")]
    assert [one["reason"] for one in await timeline.new_entries(kube, attempt(kube, 2))] == ["Admitted", "JobRunning"]
    assert asked[-1] == "head-2"


async def test_each_attempts_logs_are_read_from_their_beginning_however_long(kube, asked):
    texts = {RANK: "0\n1\n2\ncut o"}
    kube.head["logs"] = logs_of(texts)
    followed: Any = Followed([RANK], tail=1)

    async def heard(job: Json) -> list[str]:
        return [line.text for line in await followed.hear(kube, job)]

    assert await heard(attempt(kube, 1)) == ["2"]
    assert await heard(attempt(kube, 2, submitted=False)) == [], "the last head gives nothing twice"
    texts[RANK] = "first of the next\nlonger than what was read\n"
    assert await heard(attempt(kube, 2)) == ["cut o", "first of the next", "longer than what was read"]
    assert (asked[0], asked[-1]) == ("head-1", "head-2")
    assert [line.text for line in followed.finish({RANK: texts[RANK] + "and the end\n"})] == ["and the end"]
