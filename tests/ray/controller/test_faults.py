"""One faults file, done to a real job and to the same job in the simulator: both tell the same of each fault."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_kit import Place
from prime_help import USERS

from dljob.plan.incidents import sets

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

JOB = """\
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {name: hurt}
spec:
  faultTolerance: {backoff: {initialSeconds: 0}}
  nodeGroups: [{name: o, replicas: 4, cpu: "4"}]
  roles:
  - name: driver
    entrypoint: {class: faults_user.steps}
    resources: {cpu: 100m}
    dependsOn: [{role: a}, {role: f}, {role: t}]
  - {name: a, replicas: 2, driver: false, entrypoint: {class: faults_user.steps}, resources: {cpu: 100m}}
  - name: f
    replicas: 2
    replicasPerGroup: 2
    driver: false
    entrypoint: {module: faults_user.py}
    resources: {cpu: 100m}
  - name: t
    type: Elastic
    replicas: 2
    replicasPerGroup: 2
    driver: false
    entrypoint: {module: faults_user.py}
    resources: {cpu: 100m}
"""
FAULTS = """\
- {when: {step: 20}, target: a/1, fault: kill, expect: {cause: Unknown, target: a/1, level: Process}}
- {when: {step: 50}, target: f/1, fault: kill, expect: {cause: Unknown, target: f/1, level: Process}}
- {when: {step: 80}, target: t/1, fault: kill, expect: {cause: Unknown, target: t, level: RoleGroup}}
- {when: {step: 110}, target: a/0, fault: oom, expect: {cause: OOMKilled, target: a/0, level: Process}}
- {when: {step: 140}, target: f/0, fault: oom, expect: {cause: OOMKilled, target: f/0, level: Process}}
- {when: {step: 170}, target: a/1, fault: kill}
- {when: {step: 170}, target: f/0, fault: kill}
- {when: {step: 200}, target: master, fault: kill, expect: {target: master, level: Master}}
- {when: {event: MasterRestarted}, target: f, fault: kill}
- {when: {event: Recovered, count: 9}, target: a/0, fault: stop, expect: {cause: Hang, target: a/0, level: Process}}
- {when: {event: Recovered, count: 10}, target: node/0, fault: stop, seconds: 12, expect: {cause: NodeFrozen}}
- {when: {event: Recovered, count: 14}, target: node/0, fault: leave, seconds: 4, expect: {cause: Preempted}}
- {when: {event: Recovered, count: 18}, target: node/0, fault: kill, expect: {cause: NodeLost}}
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    shutil.copy(USERS / "faults_user.py", tmp_path)
    (tmp_path / "hurt.yaml").write_text(JOB)
    (tmp_path / "faults.yaml").write_text(FAULTS)
    return made


def known_alike(told: dict[str, Any]) -> list[set[tuple[str, str, str]]]:
    """What each fault came to; of a class that is killed before its node has an agent nobody knows how it ended."""
    return [{("Killed" if cause == "Unknown" else cause, *rest) for cause, *rest in own} for own in sets(told)]


@pytest.mark.slow
def test_a_real_job_and_a_simulated_one_tell_the_same_of_the_same_faults(place: Place) -> None:
    job, faults = place.folder / "hurt.yaml", place.folder / "faults.yaml"
    simulated = place.dljob("sim", job, "--faults", faults, "-o", "json")
    assert simulated.returncode == 0, simulated.stdout
    with place.running("run", job) as run:
        run.until(lambda line: "] Running" in line, 120)
        real = place.dljob("chaos", "hurt", faults, "-o", "json", timeout=300)
        (place.entry("hurt")["folder"] / "enough").touch()
        code, _, errors = run.end(120)
    assert real.returncode == 0, real.stdout + real.stderr + errors
    told, modelled = json.loads(real.stdout), json.loads(simulated.stdout)
    assert known_alike(told) == known_alike(modelled), errors
    assert all(sets(told)), "each came to something"
    assert (told["unasked"], told["pids_kept"]) == ([], True)
    assert code == 0, errors
