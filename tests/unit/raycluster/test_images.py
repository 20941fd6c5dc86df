"""Images of node groups: in the pods, and what is checked in them before Ray starts."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from plan_kit import job, machines, role

from dljob.plan.plan import plan
from dljob.raycluster.images import LOOK, MATCH_LEVEL
from dljob.raycluster.render import RenderOptions, effective, render_raycluster

IMAGE = "example/engine:1"
GROUPS = [machines("g", 1, "4"), machines("h", 1, "4", image=IMAGE, template={})]


def made(version="0.1.0", **spec):
    manifest = effective(job(role("a"), **{"nodeGroups": GROUPS, **spec}), "example/job:1", "2.60.0")
    options = RenderOptions("job-1", init_image="example/dljob:1", version=version)
    whole = render_raycluster(plan(manifest), manifest, options)["spec"]
    groups = {group["groupName"]: group["template"]["spec"] for group in whole["workerGroupSpecs"]}
    return whole["headGroupSpec"]["template"]["spec"], groups["g"], groups["h"]


def names(pod):
    return [container["name"] for container in pod["initContainers"]]


def env(pod):
    return {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}


def test_a_group_with_an_image_is_checked_before_ray_starts():
    head, plain, own = made(imagePullPolicy="Always")
    assert [pod["containers"][0]["image"] for pod in (head, plain, own)] == ["example/job:1", "example/job:1", IMAGE]
    assert (names(head), names(plain), names(own)) == (
        ["dljob-init", "dljob-image"],
        ["dljob-init"],
        ["dljob-init", "dljob-image"],
    )
    check = own["initContainers"][-1]
    assert (check["image"], check["imagePullPolicy"], check["command"][-2:]) == (
        IMAGE,
        "Always",
        ["ray=2.60.0", "dljob=0.1.0"],
    )
    assert own["initContainers"][0]["image"] == "example/dljob:1"
    # What the head's image lacks is told by the launcher.
    assert head["initContainers"][-1]["command"][-1] == "/dev/termination-log"
    assert [env(pod).get(MATCH_LEVEL) for pod in (head, plain, own)] == [None, None, "minor"]


def test_a_job_of_one_image_has_no_checks():
    head, plain, other = made(nodeGroups=[machines("g", 1, "4"), machines("h", 1, "4", image="example/job:1")])
    assert [names(pod) for pod in (head, plain, other)] == [["dljob-init"]] * 3


def test_an_image_of_a_template_is_checked_too():
    strict = {"name": MATCH_LEVEL, "value": "patch"}
    template = {"spec": {"containers": [{"name": "ray-worker", "image": "example/other:1", "env": [strict]}]}}
    _, plain, own = made("", nodeGroups=[machines("g", 1, "4"), {**GROUPS[1], "template": template}])
    assert names(plain) == ["dljob-init"]
    check = own["initContainers"][-1]
    assert (check["image"], check["command"][-1]) == ("example/other:1", "ray=2.60.0")
    assert env(own)[MATCH_LEVEL] == "patch"


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ((), 0),
        ((f"ray={version('ray')}", f"dljob={version('dljob')}"), 0),
        ((f"ray={'.'.join(version('ray').split('.')[:2])}.99",), 0),
        (("ray=1.2.0",), 1),
        (("ray=2.60.0", "dljob=9.9.0"), 1),
        (("nothing=1.0.0",), 1),
    ],
)
def test_a_check_tells_the_versions_and_refuses_others(tmp_path: Path, wanted: tuple[str, ...], code: int) -> None:
    told = tmp_path / "told"
    done = subprocess.run([sys.executable, "-c", LOOK, told, *wanted], check=False, capture_output=True)
    assert done.returncode == code, done.stderr
    assert json.loads(told.read_text()) == {
        "python": platform.python_version(),
        "ray": version("ray"),
        "dljob": version("dljob"),
    }
