"""TRL on real pods, unchanged: a rank killed, one stopped, the job suspended and resumed, stopped and run again.

Part of `make test ROOM=frameworks`, not of the tier `node`: the environment of the frameworks is mounted into pods.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

FRAMEWORKS = Path(__file__).parents[2] / "frameworks"
sys.path.append(str(FRAMEWORKS))

from cluster import torch_volume  # noqa: E402 - found by the paths above and of conftest.py
from cluster.handle import Cluster  # noqa: E402
from environment import NotToBeHadError, make  # noqa: E402
from node_kit import volume  # noqa: E402
from operator_kit import found, until  # noqa: E402
from scenes import LONG, OFFLINE, SCRIPTS, STEPS, Scene  # noqa: E402

pytestmark = [pytest.mark.frameworks, pytest.mark.torch, pytest.mark.timeout(LIMIT := 1800)]

Start = Callable[..., "subprocess.Popen[bytes]"]
PAGE = Path(__file__).parents[3] / "docs" / "recipes" / "torchrun.md"
PACKAGES = "/packages"
KILLED = "kill:3:1"
FAULTS = f"{KILLED},stop:5:0,wait:7:1,wait:8:0"


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """Return a folder in which torchrun alone runs; skips where there is no environment of the frameworks."""
    try:
        return Scene(make(), tmp_path)
    except NotToBeHadError as error:
        pytest.skip(str(error))


@pytest.fixture
def notes(node: Cluster, namespace: str) -> Path:
    """Return the folder of the node behind the claim `ckpt`."""
    assert node.run is not None
    volume(node, namespace)
    return node.run / "node" / f"ckpt-{namespace}"


@pytest.fixture
def start(node: Cluster, namespace: str, tmp_path: Path) -> Iterator[Start]:
    """`dljob` as a process, in a folder with the scripts; what it says is in ours.log."""
    shutil.copytree(SCRIPTS, tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    env = {**os.environ, "KUBECONFIG": str(node.kubeconfig), "DLJOB_HOME": str(tmp_path / "home"), "NO_COLOR": "1"}
    begun: list[subprocess.Popen[bytes]] = []

    def dljob(*words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dljob.cli", *words, "-n", namespace]
        with (tmp_path / "ours.log").open("ab") as log:
            begun.append(subprocess.Popen(command, env=env, cwd=tmp_path / "scripts", stdout=log, stderr=log))
        return begun[-1]

    yield dljob
    for process in begun:
        process.kill()
        process.wait()


def mounted(node: Cluster, namespace: str, python: Path, home: str, folder: Path) -> dict[str, str]:
    """Make claims on the environment, with the interpreter of pods; claim -> where it belongs in them."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to("/usr/bin/python3")
    (folder / "lib").symlink_to(PACKAGES)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    torch_volume.claim(node, namespace, "home", folder)
    torch_volume.claim(node, namespace, "packages", python.parents[1] / "lib")
    return {"home": home, "packages": PACKAGES}


def of_the_page(mounts: Callable[[str], dict[str, str]]) -> dict[str, Any]:
    """Return the job of the recipe, for a small node: the environment is mounted, and little asked for."""
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    job = yaml.safe_load(block)
    spec = job["spec"]
    (role,), (group,) = spec["roles"], spec["nodeGroups"]
    pod = group["template"]["spec"]
    (container,) = pod["containers"]
    for claim, path in mounts(str(Path(role["python"]).parents[1])).items():
        pod["volumes"].append({"name": claim, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
        container["volumeMounts"].append({"name": claim, "mountPath": path, "readOnly": True})
    del spec["image"]
    spec.update(head={"cpu": "250m", "memory": "2Gi"}, master={"cpu": "100m", "memory": "512Mi"})
    group.update(cpu="500m", memory="3Gi")
    role.update(resources={"cpu": "200m", "memory": "2Gi"})
    env = {**OFFLINE, "NOTES": "/ckpt", "FAULTS": FAULTS, "HF_HOME": "/tmp/hf"}
    role["env"] = [{"name": name, "value": value} for name, value in env.items() if name != "CUDA_VISIBLE_DEVICES"]
    return job


@pytest.mark.usefixtures("operator")
def test_trl_goes_on_after_each_fault_and_a_suspension_with_the_losses_of_torchrun(
    node: Cluster, namespace: str, scene: Scene, notes: Path, start: Start
) -> None:
    theirs = scene.torchrun("trl_sft.py", KILLED)
    job = of_the_page(lambda home: mounted(node, namespace, scene.python, home, scene.folder / "environment"))
    (scene.folder / "scripts" / "dljob.yaml").write_text(yaml.safe_dump(job))
    name = job["metadata"]["name"]
    (scene.folder / "ours").symlink_to(notes)

    def status() -> dict[str, Any]:
        return found(node, "dljob", name, namespace).get("status", {})

    def suspend(on: bool) -> None:
        patch = json.dumps({"spec": {"suspend": on}})
        node.kubectl("patch", "dljob", name, "-n", namespace, "--type=merge", "-p", patch)

    run = start("run", "dljob.yaml")
    scene.reaches(run, "ours", "wait:7:1", LIMIT)
    suspend(True)
    until(lambda: status()["phase"] == "Suspended", "it is suspended", LONG)
    assert node.get("pods,rayclusters", "-n", namespace)["items"] == []
    assert status()["restartsTotal"] == 2
    suspend(False)
    scene.reaches(run, "ours", "wait:8:0", LIMIT)
    scene.ends(start("stop", name), "ours")
    scene.ends(run, "ours", 6)
    scene.ends(start("run", "--replace", "dljob.yaml"), "ours")

    assert scene.begun("ours") == [0, 2, 4, 6, 6], scene.said("ours")
    said = (scene.folder / "ours.log").read_text()
    assert re.search(r"Hang: .*default/0.*stopped by a signal", said), said
    # What gloo says of a lost peer has a character beyond 16 bits.
    assert "LogsLost" not in said
    scene.ends(theirs, "theirs")
    assert list(scene.losses("ours")) == STEPS
    assert scene.losses("ours") == scene.losses("theirs")
