"""What is ordered and countermanded in one batch never comes into being."""

from __future__ import annotations

from dljob.master.persistence.superseded import lasting
from dljob.master.state.actions import (
    KillHost,
    KillSpare,
    Note,
    Release,
    Reserve,
    SpawnHost,
    SpawnSpare,
    StartRanks,
    StopRanks,
    Unreserve,
)
from dljob.master.state.views import HostId

W = HostId("w", 0)


def spawn(life):
    return SpawnHost(W, life, "w/0", 1, 120.0)


def test_an_action_that_a_later_one_ends_is_not_begun():
    start, stop = StartRanks(W, 2, "a", (), 1, 0, ""), StopRanks(W, 2, (0,), 0.0, "restart")
    kills = [KillHost(W, 1, "w/0/1"), KillHost(W, 2, "")]
    assert lasting([kills[0], spawn(2), start, stop, kills[1], spawn(3)]) == [*kills, spawn(3)]


def test_reservations_and_spares_are_countermanded_by_their_number():
    reserve, other = Reserve("u", 1, "n0", 30.0), Reserve("u", 2, "n0", 30.0)
    assert lasting([reserve, Unreserve("u", 1), other]) == [Unreserve("u", 1), other]
    made, again = SpawnSpare("w", "n0", 0, 1), SpawnSpare("w", "n0", 0, 2)
    killed = KillSpare("w", "n0", 0, 1, "")
    assert lasting([made, killed, again]) == [killed, again]


def test_all_else_stays_in_order():
    actions = [KillHost(W, 1, ""), spawn(2), Note("Restarting", "w/0", "killed"), Release()]
    assert lasting(actions) == actions
    assert lasting([]) == []
