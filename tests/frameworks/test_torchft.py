"""A replica group of torchft loses a rank, is stopped, and starts again: it goes on from its peers, with equal losses.

Its lighthouse is killed on the way, and restarts; no group does.
The lighthouse is a server role, and each replica group an Elastic role of one role group, whose world has a new store
in each life. The reference is torchrun, one for each group, without a fault: a group of two ranks does not come back
there, since its store still has the address of the manager that ended (torchft 0.2.0 with torch 2.15).
The tolerance is 0, as each step has both groups.
"""

from __future__ import annotations

import pytest
import replica_groups
from scenes import STEPS, Scene

pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(900)]


def test_a_replica_group_goes_on_from_its_peers_after_each_fault(scene: Scene) -> None:
    run = replica_groups.here(scene, "kill:3:1,hold:4:1,stop:5:0,wait:7:1")
    scene.reaches(run, "ours", "hold:4:1")
    replica_groups.end_lighthouse(scene)
    (scene.folder / "ours" / "go").touch()
    scene.reaches(run, "ours", "wait:7:1")
    scene.ends(scene.start("stop", "dljob.cli", ["stop", "ours"]), "stop")
    scene.ends(run, "ours", 6)
    scene.ends(replica_groups.here(scene), "ours")
    # From its peers, in the steps 3 and 5; from its own file, of step 6, when both were stopped.
    assert scene.begun("ours") == [0, 3, 5, 6], scene.said("ours")
    assert scene.begun("ours-0") == [0, 6], scene.said("ours")
    assert any(one["reason"] == "Recovered" and one["target"].startswith("lighthouse") for one in scene.events())
    (hang,) = [event for event in scene.events() if event["reason"] == "HangFound"]
    assert hang["target"] == "group-1/0"
    assert "stopped by a signal" in hang["message"]

    scene.ends(replica_groups.alone(scene), "theirs")
    for ours, theirs in (("ours-0", "theirs-0"), ("ours", "theirs")):
        assert list(scene.losses(ours)) == STEPS
        assert scene.losses(ours) == scene.losses(theirs)
