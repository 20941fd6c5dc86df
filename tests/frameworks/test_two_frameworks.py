"""Two frameworks in one job, each a role of its own: what happens to one is nothing to the other."""

from __future__ import annotations

import json

import pytest
from scenes import SCRIPTS, Scene

pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(900)]


def role(scene: Scene, name: str, script: str, faults: str) -> dict[str, object]:
    """Return an Elastic role of one rank that runs a script."""
    notes = scene.folder / name
    notes.mkdir()
    env = [{"name": "NOTES", "value": str(notes)}, {"name": "FAULTS", "value": faults}]
    run = {"module": script}
    more = {"args": [str(notes / "out")], "env": env, "resources": {"cpu": "100m"}}
    return {"name": name, "type": "Elastic", "entrypoint": run, **more}


def test_a_killed_rank_of_one_framework_restarts_alone(scene: Scene) -> None:
    roles = [role(scene, "trl", "trl_sft.py", "kill:3:0"), role(scene, "lightning", "lightning_fit.py", "")]
    spec = {"code": {"workingDir": str(SCRIPTS)}, "roles": roles}
    job = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "both"}, "spec": spec}
    file = scene.folder / "dljob.json"
    file.write_text(json.dumps(job))
    scene.ends(scene.start("ours", "dljob.cli", ["run", str(file)]), "ours")
    assert scene.begun("trl") == [0, 2]
    assert scene.begun("lightning") == [0]
    assert len(scene.losses("trl")) == 8
    assert len(scene.losses("lightning")) == 8
