"""Resources that were chosen before the start: the first PrimeMaster tells them as events."""

from __future__ import annotations

from master_kit import World, job

from dljob.master.state import events as ev
from dljob.telemetry import reasons


def test_first_master_tells_what_was_chosen() -> None:
    world = World(job({"name": "worker"}))
    world.send(ev.MasterStarted(1, chosen=(("worker", "resources.memory is 1Gi: why"),)))
    (note,) = world.notes(reasons.RESOURCES_CHOSEN)
    assert (note.target, note.message) == ("worker", "resources.memory is 1Gi: why")
