"""A replica group of torchft loses a rank, is stopped, and starts again: it goes on from its peers, with equal losses.

Its lighthouse is killed first, and restarts; no group does. A lighthouse that restarts counts its quorums from 1 again,
and the stores of the groups still have what was written under these numbers: process groups of such a quorum may meet
addresses of the earlier one, fail (one at once, one after its timeout), and the step is done again under the next
number. Were it killed behind a group, the quorum that heals a group could have a number that was there before.
The lighthouse is a server role, and each replica group an Elastic role of one role group, whose world has a new store
in each life. The reference is torchrun, one for each group, without a fault: a group of two ranks does not come back
there, since its store still has the address of the manager that ended (torchft 0.2.0 with torch 2.15).
The tolerance is 0, as each gradient is that of both groups.
"""

from __future__ import annotations

import pytest
import replica_groups
from scenes import STEPS, Scene

pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(900)]


def test_a_replica_group_goes_on_from_its_peers_after_each_fault(scene: Scene) -> None:
    run = replica_groups.here(scene, "hold:2:1,kill:3:1,stop:5:0,wait:7:1")
    scene.reaches(run, "ours", "hold:2:1")
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
    did = [equal_losses(scene, "ours-0", "theirs-0"), equal_losses(scene, "ours", "theirs")]
    assert sorted(did[0] | did[1]) == STEPS, "no step was missed by both"


def equal_losses(scene: Scene, ours: str, theirs: str) -> set[int]:
    """Check the losses of a group in all steps that both runs of it did; return the steps of ours.

    A group may miss a step that its peer has done: each decides for itself whether its last allreduce had an error,
    and gets the result from the other one in the next quorum. What it does next shows that it has it.
    """
    here, there = scene.losses(ours), scene.losses(theirs)
    for steps, who in ((here, ours), (there, theirs)):
        missed = scene.folder / who / "missed"
        assert sorted({*steps, *map(int, missed.read_text().split() if missed.exists() else [])}) == STEPS
    both = here.keys() & there.keys()
    assert {step: here[step] for step in both} == {step: there[step] for step in both}
    return set(here)
