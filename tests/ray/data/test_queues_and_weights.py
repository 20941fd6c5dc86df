"""DataQueue and WeightChannel between processes of Ray: whoever is killed, what was put and published is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import ray
from datasystem_kit import Datasystem
from host_kit import eventually
from role_kit import role_plan
from rpc_kit import World

from dljob import DataQueue, RoleGroup, WeightChannel
from dljob.runtime.weights.buckets import checksum
from dljob.runtime.weights.model import NO_MARK
from dljob.runtime.worker.fork_host import ForkHost

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def world(ray_here, tmp_path_factory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("job"), ranks=2, cls="porters.Porter")
    made.options = {"num_cpus": 0.1}  # not on the head, where this process is
    made.up(0)
    made.up(1)
    yield made
    for kind in ("queue", "weights"):
        for name in keepers(kind):
            ray.kill(ray.get_actor(name, "dljob"))
    made.close()


def keepers(kind: str) -> list[str]:
    rows: Any = ray.util.list_named_actors(all_namespaces=True)
    return [row["name"] for row in rows if row["name"].startswith(f"00000000/{kind}/")]


def kill_keeper(kind: str, name: str) -> None:
    keeper = ray.get_actor(f"00000000/{kind}/{name}", "dljob")
    os.kill(ray.get(keeper.pid.remote(), timeout=60), signal.SIGKILL)


def kill_rank(world: World, rank: int, incarnation: int) -> None:
    """SIGKILL, and its next process."""
    os.kill(RoleGroup("callee")[rank].call("pid").result(60), signal.SIGKILL)
    world.up(rank, incarnation)


def test_a_queue_outlives_its_keeper_and_its_producer(world):
    porter, queue = RoleGroup("callee")[0], DataQueue("samples")
    porter.call("put", "samples", ["a", b"b" * 300_000, "c"]).result(60)
    kill_rank(world, 0, 2)
    kill_keeper("queue", "samples")  # both are dead before anybody asks
    assert queue.get(60) == "a"
    kill_keeper("queue", "samples")
    assert queue.get(60) == b"b" * 300_000
    got: list[Any] = []
    getter = threading.Thread(target=lambda: got.append(queue.get_batch(2, 60)))
    getter.start()
    kill_keeper("queue", "samples")
    RoleGroup("callee")[1].call("put", "samples", ["d"]).result(60)
    getter.join(60)
    assert got == [["c", "d"]]
    queue.close()


def test_an_item_held_by_a_killed_rank_goes_to_its_next_process(world):
    DataQueue("tasks").put("first")
    DataQueue("tasks").put("second")
    assert RoleGroup("callee")[1].call("get", "tasks").result(60) == "first"
    kill_rank(world, 1, 2)
    assert RoleGroup("callee")[1].call("get", "tasks").result(60) == "first"
    assert DataQueue("tasks").get(60) == "second"


def test_a_late_reader_gets_the_newest_version_though_its_publisher_is_dead(world):
    porter, channel = RoleGroup("callee")[0], WeightChannel("policy")
    porter.call("publish", "policy", 1, 1.5).result(60)
    assert RoleGroup("callee")[1].call("receive", "policy").result(60) == (1, 1.5, 1.5, False)
    porter.call("publish", "policy", 2, 2.5).result(60)
    keeper = ray.get_actor("00000000/weights/policy", "dljob")
    eventually(lambda: ray.get(keeper.newer.remote(NO_MARK, 1.0)).copied, 60)
    kill_rank(world, 0, 3)
    version, state = channel.receive(60)
    assert (version, state["step"]) == (2, 2)
    assert np.array_equal(state["w"], np.full(1 << 16, 2.5, dtype=np.float32))
    with pytest.raises(TimeoutError, match="nothing new"):
        channel.receive(0)
    porter.call("publish", "policy", 1, 3.5).result(60)  # its next process may begin where it will
    assert channel.receive(60)[0] == 1


def test_a_channel_goes_on_after_its_keeper_died(world):
    channel, got = WeightChannel("lonely"), list[Any]()
    porter = RoleGroup("callee")[0]
    porter.call("publish", "lonely", 1, 1.0).result(60)
    assert channel.receive(60)[0] == 1
    reader = threading.Thread(target=lambda: got.append(channel.receive(60)))
    reader.start()
    kill_keeper("weights", "lonely")
    porter.call("publish", "lonely", 2, 2.0).result(60)
    reader.join(60)
    assert got[0][0] == 2
    assert channel.latest() == 2


def test_a_bucket_from_another_node_is_checked_and_fetched_again_when_damaged(world, monkeypatch):
    from dljob.runtime.weights import transport

    here, seen = ray.get_runtime_context().get_node_id(), list[int]()

    def damaged_once(bucket: Any) -> int:
        seen.append(checksum(bucket) + (not seen))
        return seen[-1]

    monkeypatch.setattr(transport, "checksum", damaged_once)
    RoleGroup("callee")[0].call("publish", "far", 1, 1.0).result(60)
    keeper = ray.get_actor("00000000/weights/far", "dljob")
    version = ray.get(keeper.newer.remote(NO_MARK, 1.0))
    assert version.node != here
    assert WeightChannel("far").receive(60)[1]["w"].max() == 1.0
    assert len(seen) == 2


def test_a_script_without_ray_has_queues_and_weight_channels(world):
    host = world.job.host(ForkHost, role_plan("caller", ("module", "porters.py")))
    DataQueue("forked-in").put({"n": 1})
    sent = WeightChannel("to-fork")
    sent.publish(4, {"w": np.arange(100_000)})
    host.start(0)
    assert [report.outcome.ok for report in host.ends()] == [True]
    assert DataQueue("forked-out").get(60) == [{"n": 1}, False]
    version, state = WeightChannel("from-fork").receive(60)
    assert version == 5
    assert np.array_equal(state["w"], np.arange(100_000) * 2)


def client(datasystem: Datasystem, words: str) -> str:
    """What a client of the datasystem says, in a process of its own: one that outlives it takes most of a core."""
    boot = "import os; from yr.datasystem import KVClient as K; e = os.environ; "
    boot += "kv = K(e['DATASYSTEM_HOST'], int(e['DATASYSTEM_PORT'])); kv.init(); "
    env = {**os.environ, **datasystem.environment}
    done = subprocess.run(
        [sys.executable, "-c", boot + words], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    return (done.stdout + done.stderr).strip()


@pytest.mark.slow
def test_weights_travel_by_a_real_openyuanrong_datasystem(world):
    """A version comes by it though its publisher is dead, is deleted there when replaced, and else is in the store."""
    porter, reader = RoleGroup("callee")[0], RoleGroup("callee")[1]
    keeper_name = "00000000/weights/shared"

    def receive(number: int, fill: float) -> str:
        """Receive a version; return the transport by which it came."""
        assert reader.call("receive", "shared", 60, "yr").result(60) == (number, fill, fill, False)
        return reader.call("came_by", "shared").result(60)

    def newest() -> Any:
        return ray.get(ray.get_actor(keeper_name, "dljob").newer.remote(NO_MARK, 1.0), timeout=60)

    with Datasystem() as datasystem:
        for rank in (porter, reader):
            rank.call("environ", datasystem.environment).result(60)
        porter.call("publish", "shared", 1, 1.5, 17 << 20, "yr").result(60)
        assert receive(1, 1.5) == "yr"
        eventually(lambda: newest().copied, 60)
        for rank in (0, 1):  # both who have it are dead
            kill_rank(world, rank, 10 + rank)
            RoleGroup("callee")[rank].call("environ", datasystem.environment).result(60)
        assert receive(1, 1.5) == "yr"
        assert client(datasystem, f"print(len(kv.get(['{newest().address}-0'])[0]))") == str(68 << 20)
        addresses = []
        for number in (2, 3, 4):
            porter.call("publish", "shared", number, 2.5, 1 << 10, "yr").result(60)
            addresses.append(newest().address)
        assert "Key not found" in client(datasystem, f"kv.get(['{addresses[0]}-0'])")
        assert receive(4, 2.5) == "yr"
        porter.call("publish", "shared", 5, 3.5, 1 << 10, "yr").result(60)
        assert client(datasystem, f"kv.delete(['{newest().address}-0'])") == ""
        assert receive(5, 3.5) == "store"
        for rank in (0, 1):
            kill_rank(world, rank, 12 + rank)
