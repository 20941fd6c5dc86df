"""A replica group of torchft loses a rank, is stopped, and starts again: it goes on from its peers, with equal losses.

The lighthouse is a server role, and each replica group an Elastic role of one role group, whose world has a new store
in each life. The reference is torchrun, one for each group, without a fault: a group of two ranks does not come back
there, since its store still has the address of the manager that ended (torchft 0.2.0 with torch 2.15).
The tolerance is 0, as each step has both groups.
"""

from __future__ import annotations

import socket
import subprocess

import pytest
from scenes import SCRIPTS, Scene

pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(900)]

SCRIPT, GROUPS, STEPS = "torchft_loop.py", 2, list(range(1, 9))
JOB = """\
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {{name: ours}}
spec:
  roles:
    - name: lighthouse
      driver: false
      entrypoint:
        command: [sh, -c, "exec {bin}/torchft_lighthouse --min_replicas=2 --heartbeat_timeout_ms=2000 --bind=$DLJOB_HOST:$DLJOB_PORT_HTTP"]
      ports: [{{name: http}}]
      readinessProbe: {{httpGet: {{path: /status, port: http}}, periodSeconds: 1}}
"""  # noqa: E501 - a command of one line
GROUP = """\
    - name: group-{group}
      type: Elastic
      replicas: 2
      replicasPerGroup: 2
      env:
        - {{name: REPLICA_GROUP_ID, value: "{group}"}}
        - {{name: TORCHFT_LIGHTHOUSE, value: "http://{{{{roles.lighthouse.endpoints}}}}"}}
        - {{name: NOTES, value: "{notes}"}}
        - {{name: FAULTS, value: "{faults}"}}
      entrypoint: {{command: ["{bin}/python", {script}, "{notes}"]}}
      restartPolicy: {{level: RoleGroup}}
      dependsOn: [{{role: lighthouse}}]
"""


def written(scene: Scene, faults: str) -> str:
    """Return the file of the job, in which the second group has these faults."""
    bin_, parts = scene.python.parent, [JOB.format(bin=scene.python.parent)]
    for group in range(GROUPS):
        notes = scene.folder / f"ours-{group}"
        notes.mkdir()
        harm = faults if group == 1 else ""
        parts.append(GROUP.format(group=group, bin=bin_, notes=notes, faults=harm, script=SCRIPTS / SCRIPT))
    file = scene.folder / "dljob.yaml"
    file.write_text("".join(parts))
    return str(file)


def alone(scene: Scene) -> None:
    """Run the groups under torchrun, one command each, beside a lighthouse."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [scene.python.parent / "torchft_lighthouse", "--min_replicas=2", f"--bind={address}"]
    with subprocess.Popen(command, env=scene.env, stderr=subprocess.DEVNULL) as lighthouse:
        try:
            scene.env["TORCHFT_LIGHTHOUSE"] = f"http://{address}"
            runs = {}
            for group in range(GROUPS):
                scene.env["REPLICA_GROUP_ID"], who = str(group), f"theirs-{group}"
                words = ["--standalone", "--nproc-per-node=2", SCRIPT, str(scene.folder / who)]
                runs[who] = scene.start(who, "torch.distributed.run", words)
            for who, run in runs.items():
                scene.ends(run, who)
        finally:
            lighthouse.kill()


def test_a_replica_group_goes_on_from_its_peers_after_each_fault(scene: Scene) -> None:
    file = written(scene, "kill:3:1,stop:5:0,wait:7:1")
    run = scene.start("ours", "dljob.cli", ["run", file])
    scene.reaches(run, "ours", "../ours-1/wait:7:1")
    scene.ends(scene.start("stop", "dljob.cli", ["stop", "ours"]), "stop")
    scene.ends(run, "ours", 6)
    scene.ends(scene.start("ours", "dljob.cli", ["run", file]), "ours")
    # From its peers, in the steps 3 and 5; from its own file, of step 6, when both were stopped.
    assert scene.begun("ours-1") == [0, 3, 5, 6], scene.said("ours")
    assert scene.begun("ours-0") == [0, 6], scene.said("ours")
    (hang,) = [event for event in scene.events() if event["reason"] == "HangFound"]
    assert hang["target"] == "group-1/0"
    assert "stopped by a signal" in hang["message"]

    alone(scene)
    for group in range(GROUPS):
        assert list(scene.losses(f"ours-{group}")) == STEPS
        assert scene.losses(f"ours-{group}") == scene.losses(f"theirs-{group}")
