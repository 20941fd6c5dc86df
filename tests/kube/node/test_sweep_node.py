"""Three of the crash sweep's points in one life on real pods: an operator dies at each, and the job goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cluster.handle import Cluster
from operator_kit import Operator, children, found, until, with_images

sys.path.insert(0, str(Path(__file__).parents[1] / "sweep"))

from mortal import DIED

SWEEP = Path(__file__).parents[1] / "sweep"
EXAMPLE = SWEEP.parents[2] / "examples" / "hello-cpu" / "dljob.yaml"
POINTS = (
    ("POST rayclusters hello-<1> #1", "after"),
    ("Ray of hello-<1>: POST /api/jobs/ hello-1 #1", "after"),
    ("PATCH dljobs/hello/status phase=Succeeded in <1> #1", "before"),
)


def test_an_operator_that_dies_three_times_submits_once(node: Cluster, namespace: str, tmp_path: Path) -> None:
    calls, always = tmp_path / "calls", {"SWEEP_JOB": "hello", "SWEEP_STATE": str(tmp_path / "state")}
    with with_images(node, tmp_path / "operator", f"--namespace={namespace}") as operator:
        operator.kill()
        operator.program = (str(SWEEP / "mortal.py"),)
        node.kubectl("apply", "-n", namespace, "-f", str(EXAMPLE))
        for number, (call, when) in enumerate(POINTS):
            here = {"SWEEP_CALLS": f"{calls}.{number}", "SWEEP_POINTS": json.dumps([[call, when]])}
            operator.environment = {**always, **here}
            operator.start(wait=False)
            assert dies(operator) == DIED, (call, operator.log.read_text()[-2000:])
        operator.environment = {**always, "SWEEP_CALLS": f"{calls}.last"}
        operator.start()
        uid = found(node, "dljob", "hello", namespace)["metadata"]["uid"]

        def over() -> bool:
            return not [child for child in children(node, uid, namespace) if child.startswith("RayCluster/")]

        until(over, "the RayCluster is given back", 60)
    status = found(node, "dljob", "hello", namespace)["status"]
    assert (status["phase"], status["reason"], status["attempt"]) == ("Succeeded", "Completed", 1)
    assert "hello from rank 1 of 2" in found(node, "configmap", "hello-logs", namespace)["data"]["worker-1.log"]
    made = "".join(file.read_text() for file in sorted(tmp_path.glob("calls.*")))
    answers = [line for line in made.splitlines() if " < " in line]
    assert sum("POST /api/jobs/ hello-1 " in line and line.endswith(" 200") for line in answers) == 1
    assert sum("POST rayclusters " in line and line.endswith(" 201") for line in answers) == 1


def dies(operator: Operator) -> int:
    """Its exit code."""
    assert operator.process is not None
    return operator.process.wait(150)
