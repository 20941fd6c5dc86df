"""Versions that come to other nodes over a chain: who gets them so, who from the store, and what a lost node breaks."""

from __future__ import annotations

import itertools
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from host_kit import eventually
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from rpc_kit import World

from dljob import RoleGroup
from dljob.runtime.weights.buckets import checksum
from dljob.runtime.weights.chain import Hop, places
from dljob.runtime.weights.chain_line import connected
from dljob.runtime.weights.chain_reader import read_chain
from dljob.runtime.weights.chain_transfer import send_buffers
from dljob.runtime.weights.model import NO_MARK, Version
from dljob.runtime.weights.ray_transport import _wait_interruptibly
from dljob.runtime.weights.relay import WeightRelay

pytestmark = [pytest.mark.ray, pytest.mark.timeout(420)]
SIZE = 5 << 20
"""Numbers of 4 bytes: more than the least that goes by a chain."""
RANKS = 5
"""The publisher on the first node, a reader on the second one, two on the third one, and one on the fourth."""


def on(node: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node, soft=False)


@pytest.fixture(scope="module")
def nodes(ray_here) -> Iterator[list[str]]:
    """Return four nodes whose stores have room for a few versions."""
    made = [ray_here.add_node(object_store_memory=200 << 20) for _ in range(4)]
    yield [node.node_id for node in made]
    for node in made:
        ray_here.remove_node(node)


@pytest.fixture(scope="module")
def world(nodes, tmp_path_factory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("job"), ranks=RANKS, cls="porters.Porter")
    for rank, number in enumerate((0, 1, 2, 2, 3)):
        made.options = {"num_cpus": 0.1, "scheduling_strategy": on(nodes[number])}
        made.up(rank)
    yield made
    for row in ray.util.list_named_actors(all_namespaces=True):
        if row["name"].startswith("00000000/weights/"):
            ray.kill(ray.get_actor(row["name"], "dljob"))
    made.close()


class Channel:
    """A channel of the porters."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ranks = RoleGroup("callee")

    def receive(self, *readers: int) -> list[Any]:
        """Let readers wait for a version; their nodes are known to the keeper when it returns."""
        return [self.ranks[reader].call("receive", self.name) for reader in readers]

    def publish(self, version: int) -> None:
        self.ranks[0].call("publish", self.name, version, float(version), SIZE).result(60)

    def came_by(self, *readers: int) -> list[str]:
        return [self.ranks[reader].call("came_by", self.name).result(60) for reader in readers]

    @property
    def keeper(self) -> Any:
        return ray.get_actor(f"00000000/weights/{self.name}", "dljob")

    def relay(self, node: str) -> Any:
        newest = ray.get(self.keeper.newer.remote(NO_MARK, 1.0))
        return ray.get(self.keeper.relay.remote(newest.nonce, node))

    def first(self) -> int:
        """Publish until all readers have a version by the chain, whose relays begin with the first one; return it."""
        version = 0
        while version < 2 or self.came_by(1, 2, 3, 4) != ["chain"] * 4:
            version += 1
            assert version < 9, self.came_by(1, 2, 3, 4)
            # Nobody waits for the first one: the keeper begins with it, on the publisher's node.
            waiting = self.receive(1, 2, 3, 4) if version > 1 else []
            self.publish(version)
            assert [each.result(60) for each in waiting or self.receive(1, 2, 3, 4)] == [right(version)] * 4
        return version


def right(version: int) -> tuple[Any, ...]:
    return (version, float(version), float(version), False)


def test_version_comes_by_a_chain_to_each_other_node_and_once_to_two_readers_of_one(world, nodes):
    channel = Channel("chained")
    version = channel.first() + 1
    waiting = channel.receive(1, 2, 3)
    channel.publish(version)
    assert [each.result(60) for each in waiting] == [right(version)] * 3
    late = channel.receive(4)[0].result(60)  # its node has had the version, though nobody waited there
    assert late == right(version)
    assert channel.came_by(1, 2, 3, 4) == ["chain"] * 4

    def mapped_once_a_node() -> bool:
        maps = [channel.ranks[reader].call("mapped").result(60) for reader in (1, 2, 3, 4)]
        return maps[1] == maps[2] and len({inode for each in maps for inode in each}) == 3

    eventually(mapped_once_a_node, 60)  # a reader lets go of an earlier version some time after it has the next
    pid = ray.get(channel.relay(nodes[1]).pid.remote())
    versions = itertools.count(version + 1)

    def published() -> bool:
        channel.publish(next(versions))  # one that comes while a chain is under way has none
        return held(pid) == 2

    eventually(published, 60)
    os.kill(ray.get(channel.keeper.pid.remote()), signal.SIGKILL)  # its relays end with it, and their memory with them
    eventually(lambda: not held(pid), 60)


def held(pid: int) -> int:
    """Versions that a process has in its memory."""
    try:
        found = {str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return 0
    return sum("memfd:dljob-weights" in each for each in found)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_node_without_its_relay_has_the_version_from_the_store_and_the_others_by_the_chain(world, nodes, how):
    channel = Channel(f"lost-{how.name}")
    version = channel.first() + 1
    pid = ray.get(channel.relay(nodes[2]).pid.remote())
    waiting = channel.receive(1, 2, 3, 4)
    os.kill(pid, how)
    try:
        channel.publish(version)
        assert [each.result(60) for each in waiting] == [right(version)] * 4
        by = channel.came_by(1, 2, 3, 4)
        assert (by[0], by[3]) == ("chain", "chain")
        if how is signal.SIGSTOP:
            assert by[1:3] == ["store", "store"]
    finally:
        if how is signal.SIGSTOP:
            os.kill(pid, signal.SIGKILL)


class Chain:
    """Three relays whose first one is fed by the test."""

    def __init__(self, nodes: list[str]) -> None:
        self.state = [np.arange(6 << 20, dtype=np.uint8), np.ones(20 << 20, dtype=np.uint8)]
        buckets = [[memoryview(each)] for each in self.state]
        self.sizes = tuple(tuple(view.nbytes for view in bucket) for bucket in buckets)
        sums = tuple(checksum(bucket) for bucket in buckets)
        self.version = Version(secrets.token_hex(8), 1, b"", sizes=self.sizes, sums=sums)
        self.size = places(self.sizes)[1]
        remote: Any = ray.remote
        made = remote(num_cpus=0)(WeightRelay)
        self.relays = [made.options(scheduling_strategy=on(node), max_concurrency=100).remote() for node in nodes]
        secret = secrets.token_bytes(32)
        nonce = self.version.nonce
        at = ray.get([relay.prepare.remote(nonce, secret, self.size) for relay in self.relays], timeout=60)
        after = zip(self.relays, [*at[1:], None], strict=True)
        self.hops = [relay.forward.remote(nonce, secret, to) for relay, to in after]
        self.line = connected(at[0], secret)

    def take(self, number: int) -> Any:
        return read_chain(self.relays[number], self.version, _wait_interruptibly, "test", verify=True)

    def until_filled(self, number: int, least: int) -> None:
        relay, nonce = self.relays[number], self.version.nonce
        eventually(lambda: ray.get(relay.filled.remote(nonce, least, 1.0), timeout=60).bytes >= least, 60)


@pytest.fixture
def chained(world, nodes) -> Iterator[Chain]:
    made = Chain(nodes[1:])
    yield made
    made.line.close()
    for relay in made.relays:
        ray.kill(relay)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_node_lost_in_the_middle_ends_those_after_it_only(chained, how):
    half = memoryview(chained.state[0])
    chained.line.sendall(half)
    chained.until_filled(2, half.nbytes)
    pid = ray.get(chained.relays[1].pid.remote(), timeout=60)
    os.kill(pid, how)
    try:
        assert send_buffers(chained.line, [memoryview(chained.state[1])], chained.size)
        assert ray.get(chained.hops[0], timeout=60).received
        assert ray.get(chained.hops[2], timeout=60) == Hop(received=False)
        assert [bytes(view) for (view,) in chained.take(0)] == [each.tobytes() for each in chained.state]
        assert chained.take(1) is None
        assert chained.take(2) is None
    finally:
        if how is signal.SIGSTOP:
            os.kill(pid, signal.SIGKILL)


def test_flipped_byte_is_found_at_each_node_after_it(chained, caplog):
    chained.state[1][12345] ^= 4
    assert send_buffers(chained.line, [memoryview(each) for each in chained.state], chained.size)
    assert ray.get(chained.hops, timeout=60) == [Hop(received=True)] * 3
    assert [chained.take(number) for number in range(3)] == [None] * 3
    assert "version 1 arrived damaged; fetching it from the store" in caplog.text
