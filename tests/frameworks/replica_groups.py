"""Two replica groups of torchft, as a job for `dljob run`, and under torchrun alone: one command for each group.

Group 1, which has the faults, writes its notes to the folder of the command (`ours`, `theirs`), group 0 beside it.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress

import psutil
from scenes import SCRIPTS, Scene

SCRIPT, GROUPS = SCRIPTS / "torchft_loop.py", 2
JOB = """\
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {{name: ours}}
spec:{machines}
  roles:
    - name: lighthouse
      driver: false{still}
      entrypoint:
        command: [sh, -c, "exec {bin}/torchft_lighthouse --min_replicas=2 --heartbeat_timeout_ms=2000 --bind=$DLJOB_HOST:$DLJOB_PORT_HTTP"]
      ports: [{{name: http}}]
      readinessProbe: {{httpGet: {{path: /status, port: http}}, periodSeconds: 1}}
"""  # noqa: E501 - a command of one line
GROUP = """\
    - name: group-{group}
      type: Elastic{where}
      replicas: 2
      replicasPerGroup: 2
      env:
        - {{name: TORCHFT_QUORUM_RETRIES, value: "{retries}"}}
        - {{name: REPLICA_GROUP_ID, value: "{group}"}}
        - {{name: TORCHFT_LIGHTHOUSE, value: "http://{{{{roles.lighthouse.endpoints}}}}"}}
        - {{name: NOTES, value: "{notes}"}}
        - {{name: FAULTS, value: "{faults}"}}
      entrypoint: {{command: ["{bin}/python", "{script}", "{notes}"]}}
      restartPolicy: {{level: RoleGroup}}
      dependsOn: [{{role: lighthouse}}]
"""
MACHINES = """
  nodeGroups: [{name: still, replicas: 1, cpu: "4"}, {name: machine, replicas: 2, cpu: "2"}]"""
"""The lighthouse and group 0 have one; group 1 another one of two."""
RETRIES = 99
"""A manager asks its lighthouse again every 300 s / (RETRIES + 1): without them it ends with the lighthouse."""
ALONE = """\
trap 'kill $(jobs -p); exit 143' TERM
{bin}/torchft_lighthouse --min_replicas=2 --heartbeat_timeout_ms=2000 --bind={address} 2>/dev/null &
lighthouse=$!
export TORCHFT_LIGHTHOUSE=http://{address} TORCHFT_QUORUM_RETRIES={retries}
run="{bin}/python -m torch.distributed.run --standalone --nproc-per-node=2 --max-restarts=3 {script}"
REPLICA_GROUP_ID=0 NOTES="$NOTES-0" FAULTS= $run "$NOTES-0" & other=$!
REPLICA_GROUP_ID=1 $run "$NOTES" & this=$!
wait $this; code=$?
[ $code = 0 ] || kill $other  # it would wait for its peer
wait $other; kill $lighthouse
exit $code
"""


def folders(scene: Scene, who: str) -> list[str]:
    """Return the names of the folders of both groups' notes, and make them."""
    names = [f"{who}-0", who]
    for name in names:
        (scene.folder / name).mkdir(exist_ok=True)
    return names


def here(scene: Scene, faults: str = "", *, machines: bool = False) -> subprocess.Popen[bytes]:
    """Start the job; with `machines`, group 1 has one that can be lost, and another one is free."""
    bin_ = scene.python.parent
    on = {name: f"\n      nodeGroup: {name}" if machines else "" for name in ("still", "machine")}
    parts = [JOB.format(bin=bin_, machines=MACHINES if machines else "", still=on["still"])]
    for group, name in enumerate(folders(scene, "ours")):
        what = {"group": group, "notes": scene.folder / name, "faults": faults if group else "", "retries": RETRIES}
        parts.append(GROUP.format(bin=bin_, script=SCRIPT, where=on["machine" if group else "still"], **what))
    file = scene.folder / "dljob.yaml"
    file.write_text("".join(parts))
    return scene.start("ours", "dljob.cli", ["run", str(file)])


def of_group(scene: Scene, group: int) -> list[psutil.Process]:
    """Return the processes of a group: its ranks, and its torchrun where there is one."""
    return [one for one, env in _processes(scene) if env.get("REPLICA_GROUP_ID") == str(group)]


def end_lighthouse(scene: Scene) -> None:
    """Kill the lighthouse."""
    found = [one for one, _ in _processes(scene) if any(word.endswith("/torchft_lighthouse") for word in one.cmdline())]
    for process in found:
        process.kill()
    assert found


def _processes(scene: Scene) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """Yield all processes of a scene with their variables, of which they inherit this one."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            env = process.environ()
            if env.get("HF_HOME") == scene.env["HF_HOME"]:
                yield process, env


def alone(scene: Scene, faults: str = "") -> subprocess.Popen[bytes]:
    """Start a lighthouse and both groups under torchrun; the command ends as group 1 does."""
    folders(scene, "theirs")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    env = {**scene.env, "NOTES": str(scene.folder / "theirs"), "FAULTS": faults}
    command = ALONE.format(bin=scene.python.parent, address=address, script=SCRIPT, retries=RETRIES)
    with (scene.folder / "theirs.log").open("ab") as log:
        return subprocess.Popen(["bash", "-c", command], cwd=SCRIPTS, env=env, stdout=log, stderr=log)
