"""What a caller knows of a role, and when it asks again."""

from __future__ import annotations

import pytest
from life_kit import context
from rpc_threads import Threads

from dljob import RoleGroup, rpc
from dljob.runtime.process.context import install
from dljob.runtime.process.messages import DESCRIBE


class Sharded:
    """A rank on a mesh."""

    def __init__(self) -> None:
        self.mesh = {"dp": -1, "tp": 2}
        self.seen: list = []

    @rpc(dispatch="shard", collect="concat", mesh="dp")
    def double(self, batch):
        self.seen.append(batch)
        return [2 * x for x in batch]


@pytest.fixture
def calls():
    made = Threads([Sharded() for _ in range(4)])
    install(context(role="caller", peers={"talker": 4, "caller": 1}, calls=made))
    yield made
    install(None)
    made.pool.shutdown()


@pytest.fixture
def group(calls):
    calls.open()
    return RoleGroup("talker")


def test_role_that_is_on_another_mesh_since_it_restarted_is_called_so(group, calls):
    calls.incarnations["talker"] = 1
    assert group.double([1, 2, 3, 4]) == [2, 4, 6, 8]
    for one in calls.objects:
        one.mesh = {"dp": 4}
    calls.incarnations["talker"] = 2
    assert group.double([1, 2, 3, 4]) == [2, 4, 6, 8]
    assert [one.seen[-1] for one in calls.objects] == [[1], [2], [3], [4]]
    assert [call.rank for call in calls.sent if call.method == DESCRIBE] == [0, 0]


def test_role_on_a_mesh_that_was_resized_is_called_as_it_is_now(group, calls):
    for one in calls.objects:
        one.mesh = {"dp": 2, "tp": 2}
    assert group.double([1, 2]) == [2, 4]
    calls.sizes["talker"] = 2
    for one in calls.objects:
        one.mesh = {"dp": 1, "tp": 2}
    assert group.double([1, 2]) == [2, 4]
    assert [one.seen[-1] for one in calls.objects] == [[1, 2], [1, 2], [2], [2]]


def test_card_that_came_while_the_role_restarted_does_not_count_for_long(calls):
    calls.incarnations["talker"] = 1
    call = RoleGroup("talker").call("double", [1, 2])
    calls.incarnations["talker"] = 2
    calls.open()
    assert call.result(10) == [2, 4]
    assert RoleGroup("talker").double([1, 2]) == RoleGroup("talker").double([1, 2])
    assert [call.rank for call in calls.sent if call.method == DESCRIBE] == [0, 0]
