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

from dljob import CallError, CallTimeoutError, PeerLostError, RemoteError, RoleGroup

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


async def test_answers_come_as_they_are_completed(group):
    ranks = list(group.finish(0))
    assert sorted(ranks) == [(0, 0), (1, 10), (2, 20), (3, 30)]
    assert ranks[-1] == (0, 0)
    seen = [pair async for pair in await group.call("finish", 2)]
    assert seen[-1] == (2, 20)


def test_a_call_whose_answer_is_not_wanted_does_not_block(group, caplog):
    begin = time.monotonic()
    assert group.note("a word") is None
    assert group.note_badly() is None
    assert time.monotonic() - begin < 5
    eventually(lambda: "nobody hears it" in caplog.text)


def test_deadline_of_the_method_counts(group):
    begin = time.monotonic()
    with pytest.raises(CallTimeoutError, match=r"callee/0.hurried: no answer within 0.3 s"):
        group.hurried()
    assert time.monotonic() - begin < 4


def test_first_error_ends_the_wait_for_the_others(group):
    begin = time.monotonic()
    with pytest.raises(RemoteError, match=r"callee/2.one_fails raised ValueError: not me"):
        group.one_fails(2)
    assert time.monotonic() - begin < 10


class TestBatches:
    """The forms of DLRover's unified API."""

    def test_five_items_over_four_ranks_are_five_items(self, world):
        got = RoleGroup("callee").options(mesh="dp,tp").call_batch("lengths", 5, list("abcde"))
        assert len(got) == 5
        assert [item[0] for item in got] == list("abcde")
        assert got[-1] == got[4] == got.wait(20)[-1]
        assert got[1:4] == got.result()[1:4]
        assert [item[0] for item in reversed(got)] == list("edcba")
        assert got[::2] == [got[0], got[2], got[4]]
        for index in (5, -6):
            with pytest.raises(IndexError):
                got[index]


class TestStreams:
    def test_items_come_in_their_order(self, group):
        assert list(group.count(50)) == list(range(50))

    def test_rank_is_a_window_ahead_and_no_more(self, group):
        stream = group.count(1000)
        assert next(stream) == 0
        eventually(lambda: group.how_far() >= 4)
        assert [next(stream) for _ in range(3)] == [1, 2, 3]
        assert group.how_far() <= 8
        stream.close()
        assert group.wait_closed()
        assert list(stream) == []

    async def test_items_of_all_ranks_as_they_come(self, group):
        items = [item async for item in group.everywhere(20)]
        assert sorted(items) == [(rank, i) for rank in range(4) for i in range(20)]
        assert [i for rank, i in items if rank == 2] == list(range(20))

    def test_error_comes_after_the_items(self, group):
        stream = group.breaks()
        assert next(stream) == 1
        with pytest.raises(RemoteError, match=r"callee/0.breaks raised ValueError: out of words"):
            next(stream)
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
