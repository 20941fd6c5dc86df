"""Images of node groups that do not fit the job's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from reconcile_kit import World, dljob

from dljob.reconcile.state.model import ImageVersions

JOB = ImageVersions("3.11.9", "2.60.0", "0.1.0")


def told(own: ImageVersions | None, job: ImageVersions | None = JOB, world: World | None = None) -> World:
    """A job whose head and worker pods told the versions of their images."""
    world = world or World().settle().head_ready().settle().workers_ready(ready=0)
    head, worker = world.pods[world.name]
    world.pods[world.name] = [replace(head, image=job), replace(worker, image=own, group="engines")]
    world.step()
    return world


@pytest.mark.parametrize(
    ("own", "reason", "message"),
    [
        (
            replace(JOB, python="3.12.4"),
            "PythonVersionMismatch",
            (
                "the image of node group engines has Python 3.12.4, and the job's image Python 3.11.9: ranks need one"
                " minor version; name an image with Python 3.11 in nodeGroups[].image; then delete this job and apply"
                " it again"
            ),
        ),
        (replace(JOB, ray="2.60.1"), "RayVersionMismatch", "has Ray 2.60.1, and the job's image Ray 2.60.0; name an"),
        (
            replace(JOB, ray=""),
            "RayVersionMismatch",
            "engines has no Ray, and the job's image Ray 2.60.0; name",
        ),
        (replace(JOB, dljob="0.2.3"), "DLJobVersionMismatch", "has dljob 0.2.3; the operator is of version 0.1.0; let"),
        (replace(JOB, dljob=""), "DLJobVersionMismatch", "engines has no dljob; the operator is of version 0.1.0"),
    ],
)
def test_an_image_that_does_not_fit_ends_the_job_before_ranks_start(own: ImageVersions, reason: str, message: str):
    world = told(own)
    assert (world.phase, world.status["reason"]) == ("Failed", reason)
    assert message in world.status["message"]
    assert "delete RayCluster" in " ".join(world.settle().log).replace("Delete", "delete")


@pytest.mark.parametrize("own", [replace(JOB, python="3.11.2", dljob="0.1.7"), JOB, None])
def test_an_image_that_fits_lets_the_job_begin(own: ImageVersions | None):
    assert told(own).phase == "Scheduling"


def test_an_image_is_not_judged_before_the_head_told_its_own():
    assert told(replace(JOB, python="3.12.4", ray=""), job=None).phase == "Scheduling"
    assert told(replace(JOB, dljob=""), job=None).phase == "Failed"
    silent = ImageVersions("3.11.9", "", "")
    assert told(replace(JOB, ray="2.60.9"), job=silent).phase == "Scheduling"


def test_a_job_that_ran_goes_on_without_that_pod():
    world = World(dljob()).running()
    world.workers_ready(ready=0)
    assert told(replace(JOB, python="3.12.4"), world=world).phase == "Running"
