"""Another raylet in place of a lost one: for ranks that need a machine, and for no others."""

from __future__ import annotations

from typing import Any

import pytest

from dljob.api.local import lost_nodes
from dljob.api.local.lost_nodes import WAIT_S, LostNodes
from dljob.errors import UnreachableError


class FakeRay:
    """An embedded Ray that lost some nodes; a start of another one fails `failures` times."""

    def __init__(self, lost: int, failures: int = 0) -> None:
        self.lost_nodes = [object()] * lost
        self.failures = failures

    def replace_lost_nodes(self) -> None:
        if self.failures:
            self.failures -= 1
            raise UnreachableError("Ray's nodes did not come up within 60 s")
        self.lost_nodes.clear()


def status(*phases: str) -> dict[str, Any]:
    return {"units": [{"name": f"worker/{k}", "phase": phase} for k, phase in enumerate(phases)]}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(lost_nodes.time, "monotonic", lambda: now[0])
    return now


def looks(ray: FakeRay, said: list[str]) -> LostNodes:
    return LostNodes(ray, said.append)  # type: ignore[arg-type]


@pytest.mark.parametrize("phase", ["Lost", "Unplaced"])
def test_a_lost_raylet_is_replaced_once_ranks_have_needed_a_machine_for_a_second(
    phase: str, clock: list[float]
) -> None:
    ray, said = FakeRay(2), list[str]()
    lost = looks(ray, said)
    assert lost.patience() == WAIT_S
    lost(status("Held", phase), [])
    clock[0] += WAIT_S / 2
    lost(status("Held", phase), [])
    assert len(ray.lost_nodes) == 2
    clock[0] += WAIT_S / 2
    lost(status("Held", phase), [])
    assert (ray.lost_nodes, lost.patience()) == ([], float("inf"))
    assert said == ["2 raylets of this Ray ended; starting as many, as ranks need a machine"]


def test_a_job_that_goes_on_elsewhere_gets_no_raylet(clock: list[float]) -> None:
    ray, said = FakeRay(1), list[str]()
    lost = looks(ray, said)
    for phase in ("Lost", "Held", "Reserving", "Lost"):  # a hot spare took over; a later loss waits its own second
        lost.look([status("Held"), status(phase)])
        clock[0] += 0.9
    assert (len(ray.lost_nodes), said) == (1, [])


def test_ranks_that_wait_for_what_no_lost_raylet_had_get_none(clock: list[float]) -> None:
    lost = looks(FakeRay(0), said := list[str]())
    for _ in range(3):
        lost.look([status("Unplaced")])
        clock[0] += WAIT_S
    assert said == []


def test_a_start_that_fails_is_told_and_tried_again(clock: list[float]) -> None:
    ray, said = FakeRay(1, failures=1), list[str]()
    lost = looks(ray, said)
    for _ in range(4):
        lost.look([status("Lost")])
        clock[0] += WAIT_S
    assert (ray.lost_nodes, said[1]) == ([], "Ray's nodes did not come up within 60 s; it is tried again")
