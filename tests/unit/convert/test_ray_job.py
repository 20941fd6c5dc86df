"""RayJob and RayCluster: the driver, its machine, the worker groups."""

from __future__ import annotations

import pytest

from dljob.convert.manifest import ConvertedJob, ConvertOptions, RefusedManifest, convert
from dljob.convert.source import UNKNOWN_FIELD
from dljob.spec.loading.load import load

TEXT = """\
# Licence of the file
apiVersion: ray.io/v1
kind: RayJob
metadata:
  name: sample
spec:
  # runs the sample
  entrypoint: python /home/ray/sample.py --lr 0.1  # its words
  shutdownAfterJobFinishes: true
  newerField: 7
  runtimeEnvYAML: |
    env_vars: {LEVEL: 3}
  rayClusterSpec:
    rayVersion: "2.60.0"
    # the head
    headGroupSpec:
      rayStartParams: {dashboard-host: 0.0.0.0}
      template:
        spec:
          containers:
          - name: ray-head
            image: rayproject/ray:2.60.0
            ports: [{containerPort: 6379, name: gcs-server}]
            resources: {limits: {cpu: 2, memory: 4Gi}, requests: {cpu: 1}}
            volumeMounts: [{mountPath: /home/ray, name: code}]
          volumes: [{name: code, configMap: {name: code}}]
    workerGroupSpecs:
    - groupName: gpu
      replicas: 2
      template:
        spec:
          containers:
          - {name: ray-worker, image: "rayproject/ray:2.60.0", resources: {limits: {cpu: 8, nvidia.com/gpu: 4}}}
"""


def job(text: str, given: ConvertOptions = ConvertOptions()) -> ConvertedJob:  # noqa: B008 - frozen
    """Return the only piece of a text, which became a DLJob without a problem."""
    (piece,) = convert(text, "job.yaml", given)
    assert isinstance(piece, ConvertedJob), piece
    assert not piece.problems
    return piece


def test_the_driver_runs_on_a_machine_made_from_the_head() -> None:
    """A quota there, and the worker groups as node groups."""
    spec = load(job(TEXT).text).spec
    (role,) = spec.roles
    assert (role.reserve, role.node_group, role.resources.cpu) == ("Quota", "driver", "2")
    assert role.entrypoint.command == ("python", "/home/ray/sample.py", "--lr", "0.1")
    assert [(group.name, group.replicas, group.cpu) for group in spec.node_groups] == [
        ("driver", 1, "2"),
        ("gpu", 2, "8"),
    ]
    assert spec.node_groups[1].accelerator is not None
    assert spec.node_groups[1].accelerator.count == 4
    assert spec.node_groups[0].template["spec"]["volumes"] == [{"name": "code", "configMap": {"name": "code"}}]
    assert spec.runtime_env == {"env_vars": {"LEVEL": "3"}}


def test_a_driver_starts_once_where_backoff_limit_says_no_more() -> None:
    """Neither the role nor the job has a restart for it, and no new RayCluster runs it again; the report says so."""
    for text in (TEXT, TEXT.replace("  newerField: 7\n", "  backoffLimit: 0\n")):
        made = job(text)
        spec = load(made.text).spec
        policy, budgets = spec.roles[0].restart_policy, spec.fault_tolerance
        assert (policy.level, policy.max_restarts) == ("Never", 0)
        assert (budgets.max_restarts, budgets.max_cluster_restarts) == (0, 0)
        assert any("the driver starts once" in remark for remark in made.remarks)


def test_backoff_limit_is_the_number_of_further_starts() -> None:
    """Over the life of the job, whatever the error was: KubeRay has no window, and does not look at errors."""
    made = job(TEXT.replace("  newerField: 7\n", "  backoffLimit: 2\n"))
    spec = load(made.text).spec
    budgets = spec.fault_tolerance
    assert (spec.roles[0].restart_policy.level, spec.roles[0].restart_policy.max_restarts) == (None, 2)
    assert (budgets.max_restarts, budgets.max_cluster_restarts, budgets.window_seconds) == (0, 2, 2592000)
    assert [(rule.action, rule.on_reasons) for rule in budgets.rules] == [
        ("RestartProcess", ("UserError", "ImportError"))
    ]
    assert not [row for row in made.rows if row.fate.kind == "dropped"]


def test_a_field_of_a_newer_version_is_named_with_its_line() -> None:
    """Nobody took it, so it is not carried."""
    (row,) = [row for row in job(TEXT).rows if row.fate.kind == "dropped"]
    assert (row.line, row.path, row.fate.reason) == (10, "spec.newerField", UNKNOWN_FIELD)


@pytest.mark.parametrize(
    ("fields", "policy", "lost_lines"),
    [
        ("onSuccess: {policy: DeleteNone}, onFailure: {policy: DeleteNone}", "Retain", 0),
        ("onSuccess: {policy: DeleteCluster}, onFailure: {policy: DeleteCluster}", "DeleteCluster", 0),
        ("onSuccess: {policy: DeleteCluster}, onFailure: {policy: DeleteNone}", "DeleteCluster", 2),
        ("onSuccess: {policy: DeleteWorkers}, onFailure: {policy: DeleteSelf}", "DeleteCluster", 2),
        ("deletionRules: [{policy: DeleteCluster, condition: {jobStatus: SUCCEEDED}}]", "DeleteCluster", 1),
        ("deletionRules: [{policy: DeleteNone, condition: {jobStatus: FAILED}}]", "Retain", 0),
    ],
)
def test_what_kuberay_would_keep_is_kept_or_named(fields: str, policy: str, lost_lines: int) -> None:
    """`cleanupPolicy` is the same after any end: what is deleted after one end, or in part, is named with its line."""
    made = job(TEXT.replace("shutdownAfterJobFinishes: true", f"deletionStrategy: {{{fields}}}").replace("newerF", "f"))
    assert load(made.text).spec.cleanup_policy == policy
    lost = [row for row in made.rows if row.fate.kind == "dropped" and "deletionStrategy" in row.loc]
    assert [row.line for row in lost] == [9] * lost_lines


def test_a_note_says_that_kuberay_would_keep_the_cluster() -> None:
    """KubeRay deletes it only where a field says so."""
    assert not [remark for remark in job(TEXT).remarks if "KubeRay keeps" in remark]
    assert [remark for remark in job(TEXT.replace("  shutdownAfter", "  # ")).remarks if "KubeRay keeps" in remark]


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("  newerField: 7", "  ttlSecondsAfterFinished: 60"),
        ("  newerField: 7", "  entrypointResources: '{\"big\": 1}'"),
        ("  newerField: 7", "  managedBy: example.com/another"),
        ("      rayStartParams: {dashboard-host: 0.0.0.0}", "      serviceType: LoadBalancer"),
        ("      replicas: 2", "      suspend: true"),
        ("      replicas: 2", "      rayStartParams: {num-cpus: '0'}"),
        ("            image: rayproject/ray:2.60.0", "            args: [pip install x]"),
        (
            "            image: rayproject/ray:2.60.0",
            "            lifecycle: {preStop: {exec: {command: [sh, -c, ray stop; up]}}}",
        ),
    ],
)
def test_a_field_that_changes_what_runs_or_stays_is_not_called_harmless(line: str, field: str) -> None:
    text = TEXT.replace("  newerField: 7\n", "" if "newer" not in line else "  newerField: 7\n").replace(line, field, 1)
    (row,) = [row for row in job(text).rows if row.fate.kind == "dropped"]
    assert text.splitlines()[row.line - 1].strip().startswith(field.split(":", maxsplit=1)[0].strip()), row


def test_a_suspended_cluster_makes_a_suspended_job_and_its_folder_is_the_drivers() -> None:
    text = TEXT.replace("    rayVersion", "    suspend: true\n    rayVersion").replace("  newerField: 7\n", "")
    made = job(text.replace("            image: ray", "            workingDir: /code\n            image: ray"))
    spec = load(made.text).spec
    assert spec.suspend
    assert "/code" in (spec.roles[0].entrypoint.command or ())
    assert not [row for row in made.rows if row.fate.kind == "dropped"]


def test_comments_stay_with_their_fields() -> None:
    """Before the field, or at the end of its line."""
    lines = job(TEXT).text.splitlines()
    assert lines[0] == "# Licence of the file"
    command = lines.index("      command:  # its words")
    assert lines[command - 1] == "      # runs the sample"
    assert lines[lines.index("  - name: driver") - 1] == "  # the head"


def test_a_cluster_alone_needs_a_command() -> None:
    """It runs nothing by itself."""
    cluster = TEXT.split("  rayClusterSpec:\n")[1].replace("\n  ", "\n")
    text = f"apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {{name: c}}\nspec:\n{cluster[2:]}"
    (piece,) = convert(text, "job.yaml")
    assert isinstance(piece, RefusedManifest)
    assert piece.hint.startswith("add --command")
    made = load(job(text, ConvertOptions(command=("python", "/a.py"))).text)
    assert made.spec.roles[0].entrypoint.command == ("python", "/a.py")
