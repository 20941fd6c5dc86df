"""Variables that differ between pods: a rank has them, its command sets them, or the report tells of the loss."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from tests.unit.convert.test_ray_job import job
from tests.unit.convert.test_tensorflow_jobs import replicas, tf_job
from tests.unit.convert.test_torch_kinds import job_set, manifest, pod, pytorch, spec_of

from dljob.spec.loading.load import load

INDEX = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
SHOW = 'printf "%s " "$0" "$@"'


def shown(text: str, **rank: str) -> str:
    """Return what the command of the only role prints in a rank with these variables."""
    command = spec_of(text).roles[0].entrypoint.command
    assert command
    done = subprocess.run(command, env=rank, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(("replicas", "rank", "index"), [(1, "3", "3"), (2, "5", "1")])
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize(
    "words",
    [
        ("sh", "-c", SHOW, "$(JOB_COMPLETION_INDEX)"),
        ("sh", "-c", "echo $JOB_COMPLETION_INDEX"),
        ("sh", "-c", "echo $(JOB_COMPLETION_INDEX)"),
        ("printenv", "JOB_COMPLETION_INDEX"),
    ],
)
def test_ranks_have_the_index_of_their_pod(
    words: tuple[str, ...], replicas: int, rank: str, index: str, *, listed: bool
) -> None:
    """Of its own Job, whether the manifest lists it or not: Kubernetes sets it in each pod of an Indexed Job."""
    env = [{"name": "JOB_COMPLETION_INDEX", "valueFrom": INDEX}] if listed else []
    assert (
        shown(job_set(words, replicas, env, parallelism=4, completions=4), DLJOB_RANK=rank, PATH="/bin:/usr/bin")
        == index
    )


def test_the_index_has_also_the_name_that_a_manifest_gives_it() -> None:
    env = [{"name": "SHARD", "valueFrom": INDEX}]
    text = job_set(("sh", "-c", "echo $SHARD"), 2, env, parallelism=4, completions=4)
    assert shown(text, DLJOB_RANK="6") == "2"


@pytest.mark.parametrize(
    "field",
    [
        "metadata.annotations['jobset.sigs.k8s.io/job-index']",
        "metadata.labels['jobset.sigs.k8s.io/job-global-index']",
        "metadata.labels['job-name']",
        "metadata.labels['training.kubeflow.org/replica-index']",
    ],
)
def test_a_label_that_the_controller_gives_its_pods_is_named_as_lost(field: str) -> None:
    """Pods of a RayCluster have none: each rank would read an empty text, and take the same part of the data."""
    env = [{"name": "SLICE", "valueFrom": {"fieldRef": {"fieldPath": field}}}]
    rows = job(job_set(("sh", "-c", "echo $SLICE"), 2, env, parallelism=4, completions=4)).rows
    (why,) = [row.fate.reason for row in rows if row.fate.kind == "dropped" and "env" in row.loc]
    assert why.startswith(f"pods of a RayCluster have no {'label' if 'label' in field else 'annotation'} ")
    assert field.split("'")[1] in why


COMPLETION = INDEX["fieldRef"]["fieldPath"]
JOBSET = "metadata.labels['jobset.sigs.k8s.io/job-global-index']"
KUBEFLOW = "metadata.labels['training.kubeflow.org/replica-index']"


def reads(what: str) -> dict[str, Any]:
    """Return the field of a pod that reads a variable, or a label or annotation, in this way."""
    where, _, how = what.partition(" ")
    if where == "volume":
        return {"volumes": [{"name": "v", "downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": how}}]}}]}
    if where == "affinity":
        term = {"topologyKey": "rack", "labelSelector": {"matchLabels": {how: "x"}}}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        return {"affinity": {"podAffinity": required}}
    part: dict[str, Any] = {"command": ["sh", "-c", how]}
    if how.startswith("metadata."):
        part = {"env": [{"name": "PART", "valueFrom": {"fieldRef": {"fieldPath": how}}}]}
    elif how.startswith("mount "):
        mount = {"name": "w", "mountPath": "/w", "subPathExpr": how.removeprefix("mount ")}
        part = {"volumeMounts": [mount]}
    if where == "main":
        return {"containers": [part]}
    return {where: [{"name": "beside", "image": "x", **part}]}


@pytest.mark.parametrize("name", ["JOB_COMPLETION_INDEX", "MASTER_ADDR"])
@pytest.mark.parametrize("where", ["initContainers", "containers"])
@pytest.mark.parametrize("text", ["fetch ${}", "fetch ${{{}}}", "fetch $({})", "mount $({})"])
def test_a_container_beside_the_ranks_that_reads_a_variable_of_the_rank_is_named(
    name: str, where: str, text: str
) -> None:
    """With its line; nothing is said of one that the container sets itself."""
    for field, want in ((text.format(name), [name]), (f"{name}=3; fetch ${name}", []), (f"fetch ${name}S", [])):
        assert lost_reads(reads(f"{where} {field}")) == want
    own = reads(f"{where} {text.format(name)}")
    own[where][0]["env"] = [{"name": name, "value": "3"}]
    assert lost_reads(own) == []


@pytest.mark.parametrize("field", [COMPLETION, JOBSET, KUBEFLOW])
@pytest.mark.parametrize("where", ["initContainers", "containers", "volume", "main"])
def test_whatever_reads_a_label_that_the_controller_gives_its_pods_is_named(field: str, where: str) -> None:
    if where == "main" and field == COMPLETION:
        return  # the command sets it
    kind = "annotation" if "annotation" in field else "label"
    assert lost_reads(reads(f"{where} {field}")) == [f"{kind} {field.split(chr(39))[1]}"]
    labels = {f"{kind}s": {field.split("'")[1]: "3"}}
    assert lost_reads(reads(f"{where} {field}"), **labels) == [], "the template has it"


def test_a_selector_of_a_label_that_the_controller_gives_its_pods_is_named() -> None:
    name = "jobset.sigs.k8s.io/jobset-name"
    assert lost_reads(reads(f"affinity {name}")) == [f"label {name}"]
    assert lost_reads(reads("affinity team")) == []


def test_a_mount_of_the_main_container_is_named_that_reads_the_index() -> None:
    assert lost_reads(reads("main mount $(JOB_COMPLETION_INDEX)")) == ["JOB_COMPLETION_INDEX"]


def lost_reads(fields: dict[str, Any], **metadata: Any) -> list[str]:
    """Return what a pod of an Indexed Job with these fields reads and pods of a RayCluster do not have."""
    main = pod("python", "/w/a.py", name="main")["spec"]["containers"][0]
    containers: list[dict[str, Any]] = fields.get("containers", [])
    spec: dict[str, Any] = {**fields, "containers": [main, *containers]}
    if containers and "name" not in containers[0]:
        spec["containers"] = [{**main, **containers[0]}]
    template = {"metadata": metadata, "spec": spec}
    made = job(manifest("batch/v1", "Job", {"completions": 2, "completionMode": "Indexed", "template": template}))
    rows = [row for row in made.rows if row.fate.kind == "dropped"]
    assert all(row.line > 1 for row in rows)
    return [row.fate.reason.removeprefix("pods of a RayCluster have no ").partition(";")[0] for row in rows]


def test_a_shell_reads_in_a_word_only_what_kubernetes_would_replace() -> None:
    words = ("printf", "%s|", '$(RANK)`$x "y"', "$$(RANK)", "$(NOT_THERE)$(RANK)", "a b")
    assert shown(pytorch(pod(*words)), RANK="7", x="x") == '7`$x "y"|$(RANK)|$(NOT_THERE)7|a b|'


def test_a_variable_that_stays_in_the_pod_is_read_there() -> None:
    words = ("sh", "-c", SHOW, "$(NCCL_DEBUG)", "$(LEVEL)")
    assert shown(pytorch(pod(*words)), NCCL_DEBUG="WARN") == "WARN 3"


def test_variables_of_dlrover_are_those_of_the_rank() -> None:
    worker = {"replicas": 4, "template": pod("sh", "-c", "echo $NODE_RANK of ${NODE_NUM}", name="main")}
    text = manifest("elastic.iml.github.io/v1alpha1", "ElasticJob", {"replicaSpecs": {"worker": worker}})
    assert shown(text, DLJOB_RANK="2", DLJOB_REPLICAS="4") == "2 of 4"


def test_around_torchrun_the_index_is_the_number_of_the_machine() -> None:
    """Each of its ranks runs what stands around it."""
    text = "cd /w/$JOB_COMPLETION_INDEX; torchrun --nproc-per-node=2 --node-rank=$JOB_COMPLETION_INDEX /w/a.py"
    (role,) = spec_of(job_set(("sh", "-c", text), parallelism=2, completions=2)).roles
    want = 'export JOB_COMPLETION_INDEX="$GROUP_RANK"; cd /w/$JOB_COMPLETION_INDEX; python -u /w/a.py'
    assert role.entrypoint.command == ("sh", "-c", want)
    (role,) = spec_of(pytorch(pod("torchrun", "--node-rank=$(RANK)", "/w/a.py", "--lr", "1"))).roles
    assert (role.entrypoint.module, role.args) == ("/w/a.py", ("--lr", "1"))
    (role,) = spec_of(pytorch(pod("torchrun", "/w/a.py", "--of=$(WORLD_SIZE)"))).roles
    assert role.entrypoint.command == ("sh", "-c", 'exec python -u /w/a.py "--of=${GROUP_WORLD_SIZE}"')


@pytest.mark.parametrize(
    ("words", "fate"),
    [
        (("torchrun", "/w/a.py"), "dropped"),
        (("torchrun", "--node-rank=$(JOB_COMPLETION_INDEX)", "/w/a.py"), "harmless"),
        (("sh", "-c", "echo $JOB_COMPLETION_INDEX; torchrun /w/a.py"), "harmless"),
        (("python", "/w/a.py"), "harmless"),
    ],
)
def test_a_variable_that_no_rank_has_is_told(words: tuple[str, ...], fate: str) -> None:
    """A script of torchrun reads GROUP_RANK in its place."""
    env = [{"name": "JOB_COMPLETION_INDEX", "valueFrom": INDEX}]
    made = job(job_set(words, env=env, parallelism=2, completions=2))
    (row,) = [row for row in made.rows if "env" in row.loc]
    assert row.fate.kind == fate
    assert "PrimeMaster gives it to each rank" not in row.fate.reason


def test_independent_ranks_keep_variables_of_a_rendezvous_that_have_a_value() -> None:
    """They have no rendezvous, so that nobody else gives them; what a pod alone knows is told as lost."""
    env: list[dict[str, Any]] = [{"name": "GROUP_RANK", "value": "4"}]
    (role,) = spec_of(job_set(("python", "/w/a.py"), env=env)).roles
    assert [(one.name, one.value) for one in role.env] == [("GROUP_RANK", "4")]
    made = job(
        job_set(("python", "/w/a.py"), env=[{"name": "GROUP_RANK", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}])
    )
    assert [row.fate.kind for row in made.rows if "env" in row.loc] == ["dropped"]
    worker = replicas()
    worker["template"]["spec"]["containers"][0]["env"] = [{"name": "RANK", "value": "0"}]
    assert [(one.name, one.value) for one in spec_of(tf_job(Worker=worker)).roles[0].env] == [("RANK", "0")]


def test_variables_of_torchrun_s_options_stay_beside_those_of_the_pod() -> None:
    words = ("torchrun", "--rdzv-id=123", "/w/a.py")
    env = [{"name": "LEVEL", "value": "3"}]
    (role,) = spec_of(job_set(words, env=env)).roles
    assert [(variable.name, variable.value) for variable in role.env] == [
        ("TORCHELASTIC_RUN_ID", "123"),
        ("LEVEL", "3"),
    ]
    env = [*env, {"name": "TORCHELASTIC_RUN_ID", "value": "9"}]
    converted_job = job(job_set(words, env=env))
    (lost,) = [row for row in converted_job.rows if row.fate.kind == "dropped"]
    assert lost.fate.reason == "TORCHELASTIC_RUN_ID has another value by an option of torchrun"


def test_variables_of_an_elastic_job_stay_beside_those_of_its_pods() -> None:
    """A name of both is one variable, which the pods' own value wins."""
    template = pod("torchrun", "/w/a.py", env=[{"name": "LEVEL", "value": "3"}, {"name": "SIZE", "value": "4"}])
    envs = {"LEVEL": {"value": "3"}, "SIZE": {"value": "5"}, "MODE": {"value": "fast"}}
    spec = {"replicaSpecs": {"worker": {"replicas": 2, "template": template}}, "envs": envs}
    converted_job = job(manifest("elastic.iml.github.io/v1alpha1", "ElasticJob", spec))
    assert not converted_job.problems
    (role,) = load(converted_job.text).spec.roles
    assert {variable.name: variable.value for variable in role.env} == {"LEVEL": "3", "SIZE": "4", "MODE": "fast"}
    assert [row.path for row in converted_job.rows if row.fate.kind == "dropped"] == ["spec.envs.SIZE"]


def test_roles_wait_for_those_of_depends_on_and_of_the_order_of_start() -> None:
    def replicated_job(name: str, **fields: Any) -> dict[str, Any]:
        return {"name": name, "template": {"spec": {"template": pod("python", "/w/a.py")}}, **fields}

    jobs = [
        replicated_job("a"),
        replicated_job("b"),
        replicated_job("c", dependsOn=[{"name": "a", "status": "Complete"}]),
    ]
    spec = {"replicatedJobs": jobs, "startupPolicy": {"startupPolicyOrder": "InOrder"}}
    *_, last_role = spec_of(manifest("jobset.x-k8s.io/v1alpha2", "JobSet", spec)).roles
    assert [(entry.role, entry.condition) for entry in last_role.depends_on] == [("a", "Complete"), ("b", "Ready")]


def test_the_head_tolerates_what_pods_of_each_role_do() -> None:
    def replicated_job(name: str, label: str) -> dict[str, Any]:
        template = pod("python", "/w/a.py")
        template["spec"] |= {"nodeSelector": {label: "arm64"}, "tolerations": [{"key": name, "operator": "Exists"}]}
        return {"name": name, "template": {"spec": {"template": template}}}

    jobs = [replicated_job("a", "kubernetes.io/arch"), replicated_job("b", "beta.kubernetes.io/arch")]
    head = spec_of(manifest("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": jobs})).head
    assert [toleration["key"] for toleration in head.template["spec"]["tolerations"]] == ["a", "b"]


def test_rules_of_torchrun_stay_beside_the_budget_of_a_plain_role() -> None:
    jobs = [
        {"name": name, "template": {"spec": {"backoffLimit": 0, "template": pod(*words)}}}
        for name, words in (("plain", ("python", "/w/a.py")), ("world", ("torchrun", "/w/a.py")))
    ]
    for ordered_jobs in (jobs, jobs[::-1]):
        spec = spec_of(manifest("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": ordered_jobs}))
        assert [rule.name for rule in spec.fault_tolerance.rules] == ["lost-nodes", "torchrun"]
