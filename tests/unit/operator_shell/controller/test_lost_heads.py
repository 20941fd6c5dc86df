"""A head that is lost, over HTTP: what it said goes on to the next one, and no id is posted twice."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from fake_cluster import FakeCluster
from shell_kit import JOB, UID, Shell, cluster_of, dljob, run_head, shell
from stub_head import StubHead

from dljob.reconcile.state.model import Submit
from dljob.reconcile.state.names import job_uid
from dljob_operator.controller.execute import ActionExecutor

WORN = {"v": 1, "restarts": {"Process": 2}}


class CrashError(Exception):
    """The operator dies."""


async def until(it: Shell, check: Callable[[], Any]) -> None:
    """Passes until something holds, as news comes from the head."""
    async with asyncio.timeout(20):
        while True:
            await it.settle()
            if check():
                return
            await asyncio.sleep(0.02)


def restarted(head: StubHead, session: str) -> None:
    """Ray is another process, and knows nothing."""
    head.session = session
    head.jobs.clear()
    head.snapshots.clear()


async def test_counts_reported_by_a_lost_head_are_handed_on_to_the_next_attempt() -> None:
    async with shell() as it:
        it.fake.put("dljobs", {**dljob(), "metadata": {"name": "hello", "uid": UID}})
        await it.settle()
        run_head(it.fake, it.head)
        await it.settle()
        first = cluster_of(it.fake)
        counts = {"process": 2, "job": 0}
        it.head.say(job_uid(UID), phase="Running", epoch=1, restarts=counts, carry=WORN, progress={"step": 7})
        await until(it, lambda: "carried" in it.status())
        it.fake.take("rayclusters", first)
        restarted(it.head, "session_2")
        await until(it, lambda: cluster_of(it.fake, attempt=2) in it.fake.names("rayclusters"))
        run_head(it.fake, it.head, attempt=2)
        await until(it, lambda: len(it.head.posted) == 2)
        data = it.fake.one("configmaps", f"{cluster_of(it.fake, attempt=2)}-spec", JOB.namespace)["data"]
        assert json.loads(data["carried.json"]) == {"job": job_uid(UID), "attempt": 1, "step": 7, "state": WORN}
        assert "--carried" in shlex.split(it.head.posted[1]["entrypoint"])
        assert it.status()["restarts"] == {"process": 2, "cluster": 1}


@pytest.mark.parametrize("after", [False, True])
async def test_a_head_that_restarts_while_the_operator_is_dead_is_posted_to_once(
    monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """It died right before, or right after the submission: nobody knows which."""
    fake, head, perform = FakeCluster(), StubHead(), ActionExecutor.perform

    async def fatal(self: ActionExecutor, key: Any, memory: Any, action: Any) -> None:
        if after or not isinstance(action, Submit):
            await perform(self, key, memory, action)
        if isinstance(action, Submit):
            raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(ActionExecutor, "perform", fatal)
        async with shell(fake, head) as it:
            fake.put("dljobs", {**dljob(), "metadata": {"name": "hello", "uid": UID}})
            await it.settle()
            run_head(fake, head)
            with pytest.raises(CrashError):
                await it.settle()
    assert len(head.posted) == after
    run_head(fake, head, container="containerd://b")
    restarted(head, "session_2")
    async with shell(fake, head) as it:
        await until(it, lambda: it.status()["attempt"] == 2)
        fault = it.status()["lastFault"]
        assert (fault["reason"], "container of pod" in fault["firstCause"]) == ("HeadLost", True), fault
        await until(it, lambda: cluster_of(fake, attempt=2) in fake.names("rayclusters"))
        run_head(fake, head, attempt=2)
        await until(it, lambda: len(head.posted) == 1 + after)
    ids = [posted["submission_id"].rpartition("-")[2] for posted in head.posted]
    assert ids == (["1", "2"] if after else ["2"])
