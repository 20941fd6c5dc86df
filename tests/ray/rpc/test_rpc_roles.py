"""Calls of whole roles: what goes where, what comes back, streams, and a restart on the way."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from host_kit import eventually
from prime_help import Job
from rpc_kit import World
from tensordict import TensorDict

from dljob import CallError, CallTimeoutError, PeerLostError, RoleGroup

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def world(ray_here, tmp_path_factory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("job"), ranks=4, cls="talkers.Talker")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(made.up, range(4)))
    yield made
    made.close()


@pytest.fixture
def group(world) -> RoleGroup:
    found = RoleGroup("callee")
    found.what_was_seen()
    return found


def test_shards_of_a_mesh_are_split_and_joined(group):
    assert group.double([1, 2, 3, 4, 5]) == [2, 4, 6, 8, 10]
    assert group.what_was_seen() == [[[1, 2, 3]], [[1, 2, 3]], [[4, 5]], [[4, 5]]]
    assert group.double(np.arange(5), factor=3).tolist() == [0, 3, 6, 9, 12]
    assert group.double(torch.arange(3)).tolist() == [0, 2, 4]
    assert group.double(TensorDict({"x": torch.arange(3)}, batch_size=[3]))["x"].tolist() == [0, 2, 4]


def test_large_arguments_that_all_get_come_whole_beside_the_shards(group):
    table = os.urandom(300_000)
    got = group.options(collect="list").call_batch("lengths", 4, [1, 2, 3, 4], table=table).result(30)
    assert got == [(n, n, "", table) for n in (1, 2, 3, 4)]


def test_deadline_of_the_method_counts(group):
    begin = time.monotonic()
    with pytest.raises(CallTimeoutError, match=r"callee/0.hurried: no answer within 0.3 s"):
        group.hurried()
    assert time.monotonic() - begin < 4


class TestStreams:
    def test_rank_is_a_window_ahead_and_no_more(self, group):
        stream = group.count(1000)
        assert next(stream) == 0
        eventually(lambda: group.how_far() >= 4)
        assert [next(stream) for _ in range(3)] == [1, 2, 3]
        assert group.how_far() <= 8
        stream.close()
        assert group.wait_closed()
        assert list(stream) == []

    def test_more_callers_than_a_rank_has_threads_have_their_turns(self, group):
        streams = [group.narrow(5) for _ in range(72)]
        with ThreadPoolExecutor(len(streams)) as callers:
            assert list(callers.map(list, streams)) == [list(range(5))] * len(streams)


def test_handles_outlive_a_restart_and_streams_do_not(world, group):
    pid = group[0].incarnation()[1]
    stream = group.count(1000)
    assert next(stream) == 0
    sentinel = world.hosts[0].sentinel()
    os.kill(pid, signal.SIGKILL)
    assert sentinel.broke.wait(20)
    threading.Thread(target=world.up, args=(0, 2)).start()
    with pytest.raises(PeerLostError):
        list(stream)
    again = group.options(idempotent=True)
    assert again.double([1, 2, 3]) == [2, 4, 6]
    assert [number for number, _ in again.incarnation()] == [2, 1, 1, 1]
    assert group._target.descriptor_version == (4, 2)


def test_role_that_was_resized_is_called_as_it_is_now(ray_here, tmp_path):
    world = World(tmp_path, ranks=2, cls="talkers.Talker")
    try:
        first = world.up(0, size=1)
        group = RoleGroup("callee")
        assert [number for number, _ in group.incarnation()] == [1]
        assert len(group) == 1
        sentinel = first.sentinel()
        os.kill(group[0].incarnation()[1], signal.SIGKILL)
        assert sentinel.broke.wait(20)
        world.up(0, 2, size=2)
        world.up(1, size=2)
        again = group.options(idempotent=True)
        with pytest.raises(CallError, match="callee has 2 ranks now, and the call was made for 1"):
            again.incarnation()
        assert [number for number, _ in again.incarnation()] == [2, 1]
    finally:
        world.close()


def test_a_role_orders_the_restart_of_another_role_and_calls_it_again(ray_here, tmp_path):
    job = Job(tmp_path)

    def talkers(name: str, **more: object) -> dict[str, object]:
        small = {"replicas": 2, "driver": False, "resources": {"cpu": "0.2"}}
        return {"name": name, "entrypoint": {"class": "usercode.talkers.Talker"}, **small, **more}

    try:
        job.start(
            job.role("boss", "usercode.talkers.Boss", dependsOn=[{"role": "listener"}]),
            talkers("talker", replicasPerGroup=2, minReplicas=2, maxReplicas=4, restartPolicy={"with": ["listener"]}),
            talkers("listener", dependsOn=[{"role": "talker"}]),
        )
        status = job.connection.wait(90)
        assert status["phase"] == "Succeeded", status
        assert '"restarted": [1, 2]' in status["result"]
        assert '"before": [0, 2, 4, 6, 8], "phase": "Running"' in status["result"]
        assert '"coupled": ["RestartedWith", "RestartedWith"]' in status["result"]
        assert '"sizes": [[2, 2, 1, 1], [2, 2], [2, 2]]' in status["result"]
        assert '"after": [2, 4, 6], "streamed": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]' in status["result"]
        assert status["restarts"]["role"] == 1
    finally:
        job.close()


def test_stream_of_a_killed_caller_is_closed_and_rank_that_returned_cannot_be_called(ray_here, tmp_path):
    job = Job(tmp_path)
    try:
        job.start(
            job.role("insister", "usercode.talkers.Insister"),
            job.role("talker", "usercode.talkers.Talker", driver=False),
            job.role("passing", "usercode.talkers.Passing", driver=False),
        )
        status = job.connection.wait(60)
        assert (status["phase"], status["result"]) == ("Succeeded", '"passing/0.add: it ended"')
    finally:
        job.close()


def test_rank_ends_its_job(ray_here, tmp_path):
    job = Job(tmp_path)
    try:
        job.start(job.role("ender", "usercode.talkers.Ender"))
        status = job.connection.wait(60)
        assert (status["phase"], status["reason"]) == ("Stopped", "StoppedByUser")
        assert "ender/0" in status["message"]
    finally:
        job.close()
