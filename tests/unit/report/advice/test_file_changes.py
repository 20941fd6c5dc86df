"""Advice written into a job's file: values change, everything else stays."""

from __future__ import annotations

import pytest

from dljob.errors import SpecError, UsageError
from dljob.report.advice.file_changes import with_proposals
from dljob.report.advice.proposals import Gain, Proposal

JOB = """\
# a licence
apiVersion: v1
kind: ConfigMap
metadata: {name: code}
---
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {name: j}  # the job
spec:
  roles:
    - name: driver
      entrypoint: {class: m.D}
    # who works
    - name: worker
      entrypoint: {class: m.W}
      resources:
        cpu: "4"  # guessed
  checkpoint:
    everySteps: 5 # often
"""


def proposal(*field: str, value: str | int | None) -> Proposal:
    return Proposal(field, ".".join(field), "", "", value, "", Gain("cpu", 0.5, 0.1))


def test_values_are_set_by_the_name_of_their_role() -> None:
    made = with_proposals(
        JOB,
        "j.yaml",
        [
            proposal("roles", "worker", "resources", "cpu", value="2"),
            proposal("roles", "worker", "resources", "memory", value="1Gi"),
            proposal("roles", "driver", "resources", "memory", value="512Mi"),
            proposal("checkpoint", "everySteps", value=40),
            proposal(value=None),
        ],
    )
    assert made == JOB.replace('cpu: "4"', 'cpu: "2"').replace("everySteps: 5", "everySteps: 40").replace(
        "# guessed\n", "# guessed\n        memory: 1Gi\n"
    ).replace("- name: driver\n", "- name: driver\n      resources:\n        memory: 512Mi\n")


def test_file_of_another_job_is_refused() -> None:
    with pytest.raises(UsageError, match=r"j\.yaml has no role trainer"):
        with_proposals(JOB, "j.yaml", [proposal("roles", "trainer", "resources", "cpu", value="2")])


def test_file_that_would_be_wrong_is_refused() -> None:
    with pytest.raises(SpecError):
        with_proposals(JOB, "j.yaml", [proposal("roles", "worker", "resources", "cpu", value="many")])
    with pytest.raises(SpecError):
        with_proposals("a: 1\n", "j.yaml", [])
