"""PyTorchJob, JobSet, TrainJob and ElasticJob: pods that form one torch world."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from tests.unit.convert.test_ray_job import job

from dljob.cli.kubernetes.runtimes import read
from dljob.convert.command import ContainerCommand, find_launcher
from dljob.convert.manifest import (
    ConvertedJob,
    ConvertOptions,
    OtherManifest,
    RefusedManifest,
    RuntimeRef,
    convert,
    find_runtime_refs,
)
from dljob.convert.report import converted_text, diff, lines
from dljob.kube.errors import NotThereError
from dljob.kube.resources import Resource
from dljob.spec.loading.load import load
from dljob.spec.model import DLJobSpec
from dljob.spec.text.emit import to_yaml

POD: dict[str, Any] = {
    "image": "example/train:1",
    "resources": {"limits": {"cpu": "8", "nvidia.com/gpu": 4}},
    "env": [{"name": "LEVEL", "value": "3"}, {"name": "NCCL_DEBUG", "valueFrom": {"configMapKeyRef": {"name": "c"}}}],
}


def pod(*words: str, name: str = "pytorch", **more: Any) -> dict[str, Any]:
    """Return a pod template of one container."""
    return {"spec": {"containers": [{"name": name, **POD, "command": list(words), **more}]}}


def pytorch(template: dict[str, Any], **spec: Any) -> str:
    """Return a PyTorchJob of a master and three workers of one template."""
    replicas = {
        "Master": {"replicas": 1, "restartPolicy": "Never", "template": template},
        "Worker": {"replicas": 3, "restartPolicy": "Never", "template": template},
    }
    return manifest("kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": replicas, **spec})


def manifest(version: str, kind: str, spec: dict[str, Any]) -> str:
    """Return a manifest as YAML."""
    return to_yaml({"apiVersion": version, "kind": kind, "metadata": {"name": "sample"}, "spec": spec})


def spec_of(text: str, given: ConvertOptions = ConvertOptions()) -> DLJobSpec:  # noqa: B008 - frozen
    """Return the spec of a converted job, of whose fields none is lost."""
    made = job(text, given)
    assert not [row for row in made.rows if row.fate.kind == "dropped"]
    return load(made.text).spec


def test_torchrun_of_a_pytorch_job_is_a_torch_world() -> None:
    """Equal templates of master and workers share a node group; each rank gets its device."""
    line = ("torchrun", "--nproc_per_node=4", "/work/train.py", "--lr", "0.1")
    text = pytorch(pod(*line), runPolicy={"backoffLimit": 5, "cleanPodPolicy": "None"})
    assert spec_of(text).roles[0].restart_policy.max_restarts == 0, "it counts no pods that never restart"
    spec = spec_of(text.replace("restartPolicy: Never", "restartPolicy: OnFailure"))
    (role,) = spec.roles
    assert (role.type, role.replicas, role.replicas_per_group, role.args) == ("Elastic", 16, 4, ("--lr", "0.1"))
    assert role.entrypoint.module == "/work/train.py"
    assert role.accelerator is not None
    assert (role.accelerator.type, role.accelerator.count, role.resources.cpu) == ("GPU", "1", "2")
    assert role.restart_policy.max_restarts == 5
    assert [(group.name, group.replicas) for group in spec.node_groups] == [("worker", 4)]
    assert [(one.name, one.value) for one in role.env] == [("LEVEL", "3")]
    assert spec.node_groups[0].template["spec"]["containers"][0]["env"][0]["name"] == "NCCL_DEBUG"
    assert spec.cleanup_policy == "Retain"


def test_a_plain_program_is_one_rank_for_each_pod() -> None:
    """It has all devices of the pod, as PyTorchJob's RANK and WORLD_SIZE say."""
    (role,) = spec_of(pytorch(pod("python", "/work/train.py", "--rank=$(RANK)"))).roles
    assert (role.replicas, role.replicas_per_group) == (4, 1)
    assert role.accelerator is not None
    assert role.accelerator.count == "4"
    assert role.entrypoint.command == ("sh", "-c", 'exec python /work/train.py "--rank=${RANK}"')


def test_pods_that_never_restart_have_no_restart_of_the_job_either() -> None:
    """With and without torchrun: a role without restarts would else have those of the job, 10 by default."""
    for words in (("python", "/work/train.py"), ("torchrun", "/work/train.py")):
        spec = spec_of(pytorch(pod(*words)))
        assert (spec.roles[0].restart_policy.max_restarts, spec.fault_tolerance.max_restarts) == (0, 0)


@pytest.mark.parametrize(("said", "ranks"), [(("--nproc_per_node=1",), 1), (("--nproc-per-node", "2"), 2), ((), 1)])
def test_ranks_of_a_pod_are_what_its_line_says(said: tuple[str, ...], ranks: int) -> None:
    """Also where it says torchrun's default; a JobSet and DLRover set no variable that says another one."""
    template = pod("torchrun", *said, "/work/train.py")
    many = {"name": "workers", "template": {"spec": {"parallelism": 2, "template": template}}}
    job_set = manifest("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": [many]})
    elastic = {"replicaSpecs": {"worker": {"replicas": 2, "template": template}}}
    for text in (job_set, manifest("elastic.iml.github.io/v1alpha1", "ElasticJob", elastic)):
        (role,) = spec_of(text).roles
        assert role.replicas == 2 * ranks
        assert role.accelerator is not None
        assert role.accelerator.count == str(4 // ranks)
    (role,) = spec_of(pytorch(template)).roles
    assert role.replicas == 4 * (ranks if said else 4), "Kubeflow's operator sets PET_NPROC_PER_NODE=auto"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("RANK", "RANK is set by dljob"),
        ("DLJOB_RANK", "DLJOB_RANK is set by dljob"),
        ("NODE_RANK", "NODE_RANK differs from pod to pod: read RANK or GROUP_RANK"),
    ],
)
def test_a_variable_of_all_pods_that_a_rank_has_by_itself_is_named(name: str, reason: str) -> None:
    template = pod("torchrun", "--nproc_per_node=1", "/work/train.py")
    elastic = {"envs": {name: {"value": "0"}}, "replicaSpecs": {"worker": {"replicas": 2, "template": template}}}
    pieces = convert(manifest("elastic.iml.github.io/v1alpha1", "ElasticJob", elastic), "job.yaml")
    assert any(reason in line for line in lines(pieces, "job.yaml"))


@pytest.mark.parametrize("line", [("torchrun", "--nproc_per_node=2", "/work/train.py"), ("python", "/work/train.py")])
@pytest.mark.parametrize("shared", [True, False], ids=["one group", "master apart"])
def test_an_elastic_job_starts_with_its_replicas(line: tuple[str, ...], *, shared: bool) -> None:
    """Of an elasticPolicy only the bounds are carried: its most pods are there once somebody scales it."""
    elastic = {"minReplicas": 2, "maxReplicas": 64, "maxRestarts": 7, "rdzvBackend": "c10d"}
    text = pytorch(pod(*line), elasticPolicy=elastic)
    spec = spec_of(text if shared else text.replace("nvidia.com/gpu: 4", "nvidia.com/gpu: 2", 1))
    each = 2 if line[0] == "torchrun" else 1
    (role,) = spec.roles
    assert (role.min_replicas, role.replicas, role.max_replicas) == (2 * each, 4 * each, 64 * each)
    assert role.restart_policy.max_restarts == 7
    groups = [(group.name, group.min_replicas, group.replicas, group.max_replicas) for group in spec.node_groups]
    assert groups == ([("worker", 2, 4, 64)] if shared else [("worker", None, 1, None), ("worker-2", 1, 3, 63)])


@pytest.mark.parametrize("standalone", ["--standalone", "PET_STANDALONE"])
def test_a_standalone_torchrun_has_one_machine_whatever_elastic_policy_says(standalone: str) -> None:
    elastic = {"minReplicas": 1, "maxReplicas": 16, "nProcPerNode": 2}
    env = [{"name": standalone, "value": "1"}] if standalone.startswith("PET") else []
    pods = pod("torchrun", *([] if env else [standalone]), "/work/train.py", env=env)
    text = manifest(
        "kubeflow.org/v1",
        "PyTorchJob",
        {"elasticPolicy": elastic, "pytorchReplicaSpecs": {"Worker": {"template": pods}}},
    )
    (piece,) = convert(text, "job.yaml")
    assert isinstance(piece, ConvertedJob)
    assert not piece.problems
    (role,) = load(piece.text).spec.roles
    assert (role.replicas, role.min_replicas, role.max_replicas) == (2, None, None)
    said = list(lines([piece], "job.yaml"))
    for field in ("minReplicas", "maxReplicas"):
        assert any(f"elasticPolicy.{field}: not carried: {standalone} is one machine" in line for line in said)
    assert not any("--nnodes" in line for line in said)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            manifest(
                "kubeflow.org/v1",
                "PyTorchJob",
                {
                    "pytorchReplicaSpecs": {
                        "Master": {"template": pod("python", "/w/a.py", "--store=sample-master-0:6379")}
                    }
                },
            ),
            {"sample-master-0"},
        ),
        (
            manifest(
                "jobset.x-k8s.io/v1alpha2",
                "JobSet",
                {
                    "replicatedJobs": [
                        {
                            "name": "a",
                            "template": {
                                "spec": {
                                    "template": pod(
                                        "python",
                                        "/w/a.py",
                                        env=[{"name": "URL", "value": "http://sample-v-0-1.sub:80/sample-1"}],
                                    )
                                }
                            },
                        }
                    ]
                },
            ),
            {"sample-v-0-1"},
        ),
        (
            manifest("batch/v1", "Job", {"template": pod("sh", "-c", "wait sample-0.sub:80; sample-2 sample-3.sub")}),
            {"sample-0", "sample-3"},
        ),
        (
            manifest(
                "kubeflow.org/v1",
                "TFJob",
                {"tfReplicaSpecs": {"Worker": {"template": pod("python", "/w/a.py", "sample-chief-0")}}},
            ),
            {"sample-chief-0"},
        ),
        (
            manifest(
                "ray.io/v1",
                "RayJob",
                {
                    "entrypoint": "python /w/a.py --redis sample-x2-head-svc.ns:6379",
                    "rayClusterSpec": {"headGroupSpec": {"rayStartParams": {}, "template": pod("sh", name="ray-head")}},
                },
            ),
            {"sample-x2-head-svc"},
        ),
        (
            manifest(
                "kubeflow.org/v1",
                "PyTorchJob",
                {
                    "pytorchReplicaSpecs": {
                        "Worker": {
                            "template": pod(
                                "torchrun",
                                "--rdzv-endpoint=sample-worker-0:29400",
                                "/w/a.py",
                                "--name=sample-worker-0x",
                                "other-sample-worker-0",
                            )
                        }
                    }
                },
            ),
            set(),
        ),
    ],
)
def test_names_of_pods_that_nobody_has_any_more_are_reported(text: str, names: set[str]) -> None:
    """A program that goes on to use one waits for an address that nothing resolves."""
    (piece,) = convert(text, "job.yaml")
    assert isinstance(piece, ConvertedJob)
    said = [line.split("no pod is called ")[1:] for line in lines([piece], "job.yaml") if ": not carried: " in line]
    assert {part.split()[0] for parts in said for part in parts} == names


@pytest.mark.parametrize(
    ("kind", "nnodes", "bounds"),
    [
        ("JobSet", "1:64", (1, 2, 64)),
        ("ElasticJob", "2:16", (2, 2, 16)),
        ("PyTorchJob", "1:8", (1, 2, 8)),
        ("JobSet", "1:2", (1, 2, 2)),
    ],
)
def test_a_range_of_machines_on_the_line_gives_bounds_alone(
    kind: str, nnodes: str, bounds: tuple[int, int, int]
) -> None:
    """The job starts with the pods that its manifest has."""
    template = pod("torchrun", f"--nnodes={nnodes}", "--nproc_per_node=1", "/work/train.py")
    workers = {"replicas": 2, "template": template}
    text = {
        "JobSet": job_set(("torchrun", f"--nnodes={nnodes}", "/work/train.py"), parallelism=2, completions=2),
        "ElasticJob": manifest("elastic.iml.github.io/v1alpha1", kind, {"replicaSpecs": {"worker": workers}}),
        "PyTorchJob": manifest("kubeflow.org/v1", kind, {"pytorchReplicaSpecs": {"Worker": workers}}),
    }[kind]
    spec = spec_of(text)
    for one in (spec.roles[0], spec.node_groups[0]):
        assert (one.min_replicas, one.replicas, one.max_replicas) == bounds


def test_a_shell_keeps_what_stands_around_torchrun() -> None:
    """Variables of the rendezvous are replaced, those of the script stay."""
    text = 'export A=1\ntorchrun --nnodes=$WORLD_SIZE \\\n  --node_rank=$RANK /work/train.py --data "$DATA" | tee /log'
    jobs = {"name": "workers", "template": {"spec": {"parallelism": 2, "template": pod("bash", "-c", text)}}}
    made = job(manifest("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": [jobs]}))
    (role,) = load(made.text).spec.roles
    want = 'export A=1\npython -u /work/train.py --data "$DATA" | tee /log'
    assert role.entrypoint.command == ("bash", "-c", want)
    assert "each rank runs what stands before torchrun, and not once for each machine" in made.remarks


@pytest.mark.parametrize(
    ("words", "want"),
    [
        (("sh", "-c", 'exec "$@"', "sh", "python", "/w/a.py", "--part=a"), None),
        (("sh", "-c", "exec python /w/a.py $1", "--", "--part=a"), None),
        (("bash", "-euo", "pipefail", "-c", "/w/run.sh $0", "a"), None),
        (
            ("sh", "-ec", 'pip list; torchrun /w/a.py "$1"', "--", "a"),
            ("sh", "-ec", 'pip list; python -u /w/a.py "$1"', "--", "a"),
        ),
        (
            ("sh", "-c", 'exec "$@"', "sh", "torchrun", "/w/a.py", "--part=a b"),
            ("sh", "-c", "exec python -u /w/a.py '--part=a b'", "sh", "torchrun", "/w/a.py", "--part=a b"),
        ),
    ],
)
def test_words_behind_the_text_of_a_shell_are_carried(words: tuple[str, ...], want: tuple[str, ...] | None) -> None:
    """`$0`, `$1` and `"$@"` of the text are these words, and so is the `--` that is `$0`."""
    (role,) = spec_of(pytorch(pod(*words))).roles
    assert role.entrypoint.command == (want or words)


def test_a_doubled_dollar_is_one_as_in_kubernetes() -> None:
    """In commands and plain values; `$$(NAME)` is no reference, and what stays in the pod Kubernetes reads itself."""
    env = [{"name": "A", "value": "x$$y"}, {"name": "B", "value": "$(A)$$"}, {"name": "C", "value": "c$$"}]
    words = ("bash", "-c", "echo $$(hostname) $$$$ $(C) $$(C) $x", "$$0")
    spec = spec_of(pytorch(pod(*words, env=env)))
    assert spec.roles[0].entrypoint.command == ("bash", "-c", "echo $(hostname) $$ c$ $(C) $x", "$0")
    assert {one.name: one.value for one in spec.roles[0].env} == {"C": "c$"}
    inner = spec.node_groups[0].template["spec"]["containers"][0]["env"]
    assert {one["name"]: one["value"] for one in inner} == {"A": "x$$y", "B": "$(A)$$"}


def test_a_launcher_behind_the_text_of_a_shell_is_told() -> None:
    made = job(pytorch(pod("sh", "-c", 'exec "$@"', "sh", "accelerate", "launch", "/w/a.py")))
    assert any("accelerate launch starts ranks itself" in row.fate.reason for row in made.rows)


def job_set(words: tuple[str, ...], replicas: int = 1, env: Any = (), **fields: Any) -> str:
    """Return a JobSet of one replicated job, whose pods run a command."""
    template = pod(*words, env=list(env))
    jobs = {"name": "workers", "replicas": replicas, "template": {"spec": {"template": template, **fields}}}
    return manifest("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": [jobs]})


@pytest.mark.parametrize(
    ("said", "ranks", "fates"),
    [
        ({"parallelism": 2, "completions": 10}, 10, ["dropped", "carried"]),
        ({"parallelism": 8, "completions": 3}, 3, ["harmless", "carried"]),
        ({"parallelism": 4, "completions": 4}, 4, ["carried", "carried"]),
        ({"completions": 5}, 5, ["carried"]),
        ({"parallelism": 6, "completionMode": "NonIndexed"}, 6, ["carried"]),
    ],
)
def test_each_completion_of_a_job_has_a_rank_that_does_its_part(
    said: dict[str, Any], ranks: int, fates: list[str]
) -> None:
    """Else the parts of the other completions were never done; all run at once, which the report says."""
    made = job(job_set(("python", "/w/a.py"), **said))
    spec = load(made.text).spec
    assert (spec.roles[0].replicas, spec.node_groups[0].replicas) == (ranks, ranks)
    found = [row.fate for row in made.rows if row.loc[-1] in ("parallelism", "completions")]
    assert [fate.kind for fate in found] == fates
    at_once = said.get("parallelism", 1)
    words = [*made.remarks, *(fate.reason for fate in found)]
    assert any("at once" in one for one in words) is (at_once < ranks)


@pytest.mark.parametrize(("said", "ranks"), [({"backoffLimit": 2}, 2), ({"backoffLimit": 0}, 0), ({}, 6)])
@pytest.mark.parametrize("line", [("python", "/w/a.py"), ("torchrun", "/w/a.py")])
def test_restarts_of_pods_are_the_roles_and_those_of_all_jobs_the_jobs(
    said: dict[str, int], ranks: int, line: tuple[str, ...]
) -> None:
    """`backoffLimit`, which is 6 by default, and `failurePolicy.maxRestarts`, which is 0; over the life of the job."""
    text = job_set(line, **said)
    for again in (0, 3):
        budgets = spec_of(text).fault_tolerance
        assert spec_of(text).roles[0].restart_policy.max_restarts == ranks
        assert (budgets.max_restarts, budgets.window_seconds) == (again, 2592000)
        text += "  failurePolicy:\n    maxRestarts: 3\n"


def test_jobs_of_a_job_set_wait_for_each_other() -> None:
    """Each replicated job is a role; those that do not decide about success are no drivers."""
    plain = {"parallelism": 2, "template": pod("sleep", "1", readinessProbe={"exec": {"command": ["true"]}})}
    jobs = [
        {"name": "leader", "replicas": 1, "template": {"spec": plain}},
        {
            "name": "workers",
            "template": {"spec": plain},
            "dependsOn": [{"name": "leader", "status": "Ready"}],
        },
    ]
    success = {"operator": "All", "targetReplicatedJobs": ["leader"]}
    made = spec_of(manifest("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": jobs, "successPolicy": success}))
    leader, workers = made.roles
    assert (leader.driver, workers.driver, workers.depends_on[0].role) == (True, False, "leader")
    assert leader.readiness_probe is not None


def test_a_train_job_is_laid_over_its_runtime() -> None:
    """Upstream's default, or one that is given; fields of the job win."""
    trainer = {
        "numNodes": 2,
        "command": ["torchrun", "/work/train.py"],
        "resourcesPerNode": POD["resources"],
        "env": [{"name": "LEVEL", "value": "3"}],
    }
    text = manifest(
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer},
    )
    spec = spec_of(text)
    assert (spec.roles[0].replicas, spec.roles[0].replicas_per_group) == (8, 4)
    assert str(spec.image).startswith("pytorch/pytorch:")
    other = text.replace("torch-distributed", "mine")
    (piece,) = convert(other, "job.yaml")
    assert isinstance(piece, RefusedManifest)
    assert "--runtime" in piece.hint
    runtime = {
        "metadata": {"name": "mine"},
        "spec": {
            "mlPolicy": {"torch": {"numProcPerNode": 2}},
            "template": {
                "spec": {
                    "replicatedJobs": [{"name": "node", "template": {"spec": {"template": pod("x", name="node")}}}]
                }
            },
        },
    }
    spec = spec_of(other, ConvertOptions(runtimes=(runtime,)))
    assert (spec.image, spec.roles[0].replicas) == ("example/train:1", 4)
    runtime["spec"]["mlPolicy"] = {"torch": {"numProcPerNode": 2, "elasticPolicy": {"maxNodes": 4}}, "plugins": {}}
    (row,) = [row for row in job(other, ConvertOptions(runtimes=(runtime,))).rows if row.fate.kind == "dropped"]
    assert row.fate.reason.count("dljob convert does not know it") == 2


class _FakeCluster:
    """A cluster with one runtime of a namespace."""

    namespace = "here"

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str | None]] = []

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> dict[str, Any]:
        """Return the one runtime."""
        self.asked.append((resource.plural, name, namespace))
        if name != "mine":
            raise NotThereError(404, "NotFound", "not found")
        return {"kind": resource.kind, "metadata": {"name": name}}


def test_a_runtime_is_read_from_the_cluster() -> None:
    """That of the namespace, or of the cluster; one that is not there is left to the report."""
    text = "---\n".join(
        manifest("trainer.kubeflow.org/v1alpha1", "TrainJob", {"runtimeRef": ref})
        for ref in ({"name": "mine", "kind": "TrainingRuntime"}, {"name": "other"}, {"name": "other"})
    )
    wanted, cluster = find_runtime_refs(text), _FakeCluster()
    assert wanted == [RuntimeRef("TrainingRuntime", "mine", ""), RuntimeRef("ClusterTrainingRuntime", "other", "")]
    found = asyncio.run(read(cast("Any", cluster), wanted, None))
    assert [one["metadata"]["name"] for one in found] == ["mine"]
    assert cluster.asked == [("trainingruntimes", "mine", "here"), ("clustertrainingruntimes", "other", None)]


@pytest.mark.parametrize("launcher", ["torchrun --standalone", "torchrun --t 3", "dlrover-run --node-unit 1"])
@pytest.mark.parametrize("script", ["/w/train.py", "-- /w/train.py", "-m pkg.train"])
def test_words_behind_the_script_are_never_read_as_the_launcher_s(launcher: str, script: str) -> None:
    """Neither as abbreviations of several flags, nor as flags of torchrun, dlrover-run or dljob."""
    own = "--t 5 --dr --n --to x --network-check --node-unit 3 --nnodes 9"
    line = f"{launcher} --nproc_per_node=4 {script} {own}"
    name = script.rsplit(maxsplit=1)[-1]
    for words in (line.split(), ("sh", "-c", line)):
        (role,) = spec_of(manifest("batch/v1", "Job", {"template": pod(*words)})).roles
        assert (role.replicas, role.comm.pre_check) == (4, None)
        if words[0] == "sh":
            run = "python -u -m" if "-m" in script else "python -u"
            assert role.entrypoint.command == ("sh", "-c", f"{run} {name} {own}")
        else:
            assert (role.entrypoint.module, role.args) == (name, tuple(own.split()))


def test_dlrover_run_is_a_torchrun_line() -> None:
    """Its own options are taken out; --network-check is the check of nodes."""
    line = "dlrover-run --network-check --nnodes=1:$NODE_NUM --nproc_per_node=2 --max_restarts=3 /work/train.py"
    worker = {"replicas": 4, "restartCount": 3, "template": pod("bash", "-c", line, name="main")}
    spec = {"distributionStrategy": "AllreduceStrategy", "replicaSpecs": {"worker": worker}}
    (role,) = spec_of(manifest("elastic.iml.github.io/v1alpha1", "ElasticJob", spec)).roles
    assert (role.min_replicas, role.replicas, role.comm.pre_check) == (2, 8, True)
    assert role.accelerator is not None
    assert role.accelerator.count == "2"


@pytest.mark.parametrize(
    ("version", "kind", "spec", "why"),
    [
        ("kubeflow.org/v1", "TFJob", {}, "neither chief, worker nor ps"),
        ("kubeflow.org/v1", "MXJob", {}, "MXNet is retired"),
        (
            "elastic.iml.github.io/v1alpha1",
            "ElasticJob",
            {"replicaSpecs": {"ps": {"replicas": 1}, "worker": {"replicas": 2}}},
            "has no chief",
        ),
        (
            "elastic.iml.github.io/v1alpha1",
            "ElasticJob",
            {"distributionStrategy": "ParameterServerStrategy", "replicaSpecs": {"worker": {"template": pod()}}},
            "does not fit its replicas",
        ),
        ("kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": {"Worker": {"template": pod()}}}, "no command"),
        ("ray.io/v1", "RayJob", {"entrypoint": "python a.py"}, "headGroupSpec"),
        ("ray.io/v1", "RayJob", {"submissionMode": "InteractiveMode"}, "InteractiveMode"),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", {}, "no jobs"),
    ],
)
def test_what_cannot_run_is_refused_by_name(version: str, kind: str, spec: dict[str, Any], why: str) -> None:
    """With the reason."""
    (piece,) = convert(manifest(version, kind, spec), "job.yaml")
    assert isinstance(piece, RefusedManifest)
    assert why in piece.message


def test_a_command_that_is_not_carried_is_told_once_and_not_for_each_word() -> None:
    text = pytorch(pod("torchrun", "--nproc_per_node=4", "train.py", "--lr", "0.1"))
    made = job(text)
    told = [line for line in lines([made], "job.yaml") if "WORKDIR" in line]
    assert [line.partition(".command: ")[2][:11] for line in told] == ["not carried", "not carried"]
    assert made.text.count("WORKDIR") == 2
    assert all(line.count("WORKDIR") <= 1 for line in diff(text, [made]))


TORCHRUN = "torchrun --nnodes=4 --nproc_per_node=2 --node_rank=$JOB_COMPLETION_INDEX --master_addr=t-0.t /w/a.py"


def batch(words: tuple[str, ...], **fields: Any) -> str:
    """Return a Job of Kubernetes."""
    return manifest("batch/v1", "Job", {"template": pod(*words), **fields})


def test_an_indexed_job_with_torchrun_is_a_torch_world() -> None:
    """A rank for each completion's ranks; the Job's own fields are those of a JobSet's Jobs, and of the whole job."""
    whole = {"completions": 4, "parallelism": 4, "completionMode": "Indexed", "backoffLimit": 2, "suspend": True}
    spec = spec_of(batch(("bash", "-c", TORCHRUN), **whole, ttlSecondsAfterFinished=60, activeDeadlineSeconds=600))
    (role,) = spec.roles
    assert (role.replicas, role.replicas_per_group, role.entrypoint.command) == (
        8,
        2,
        ("bash", "-c", "python -u /w/a.py"),
    )
    assert (role.restart_policy.max_restarts, spec.fault_tolerance.max_restarts) == (2, 0)
    assert (spec.suspend, spec.ttl_seconds_after_finished, spec.active_deadline_seconds) == (True, 60, 600)


@pytest.mark.parametrize(
    ("by", "managed"),
    [("kueue.x-k8s.io/multikueue", "kueue.x-k8s.io/multikueue"), ("kubernetes.io/job-controller", None)],
)
def test_a_job_with_devices_is_converted_without_torchrun_too(by: str, managed: str | None) -> None:
    """One rank for each pod, as of a JobSet."""
    spec = spec_of(batch(("python", "/w/a.py"), parallelism=2, completions=2, managedBy=by))
    assert (spec.roles[0].replicas, spec.managed_by) == (2, managed)


def test_a_job_whose_variable_names_the_launcher_is_converted():
    """A Job without devices starts ranks, although its command has the launcher's name nowhere."""
    template = pod("sh", "-c", "$LAUNCHER /w/a.py", env=[{"name": "LAUNCHER", "value": "torchrun"}])
    text = manifest("batch/v1", "Job", {"template": template})
    (piece,) = convert(text.replace("nvidia.com/gpu: 4", "memory: 1Gi"), "job.yaml")
    assert isinstance(piece, ConvertedJob), piece


@pytest.mark.parametrize(
    "text",
    [
        *(
            'echo "deepspeed runs"',
            'python a.py --note "deepspeed stage 3" strategy=deepspeed',
            'T=$(date); test "$A B"',
        ),
        *("echo '$(torchrun a.py)'", "python a.py '`torchrun a.py`'", 'echo "\\$(torchrun a.py)"'),
        *(f"cat <<{end} > note\nsee $(torchrun a.py)\nEOF\n" for end in ("'EOF'", '"EOF"', r"\EOF", "-'EOF'")),
        'x=$(echo ")" "(torchrun a.py"); python a.py',
    ],
)
def test_words_that_run_no_launcher_are_not_taken_for_one(text: str) -> None:
    assert not find_launcher(ContainerCommand(("sh", "-c"), text))


@pytest.mark.parametrize(
    "text",
    [
        *("bash -c '$(torchrun a.py)'", """echo "it's $(torchrun a.py)" """, r"echo \\$(torchrun a.py)"),
        *("cat <<EOF\nsee $(torchrun a.py)\nEOF\n", "bash <<'EOF'\nx=$(torchrun a.py)\nEOF\n"),
        *("cat <<'EOF'\nsee $(date)\nEOF\nx=$(torchrun a.py)", 'x="$(cat "a)" && "$(torchrun b.py)")"'),
    ],
)
def test_a_launcher_that_a_shell_expands_is_found(text: str) -> None:
    assert find_launcher(ContainerCommand(("sh", "-c"), text)) == "torchrun"


def test_torch_distributed_launch_with_use_env_is_torchrun():
    made = job(pytorch(pod("python", "-m", "torch.distributed.launch", "--use_env", "--nproc_per_node=2", "/w/a.py")))
    assert not [row for row in made.rows if row.fate.kind == "dropped"]


def test_a_job_that_prepares_data_is_passed_on() -> None:
    """It starts no ranks and has no devices; braces in it are no chart's."""
    words = ["kubectl", "get", "x", "-o", "go-template={{ .status }}"]
    text = batch(()).replace("nvidia.com/gpu: 4", "memory: 1Gi").replace("command: []", f"command: {words}")
    (piece,) = convert(text, "job.yaml")
    assert isinstance(piece, OtherManifest)
    assert piece.reason == "it starts no ranks: passed on as it is"
    assert "go-template" in piece.text


def _set_of(kind: str, version: str, words: tuple[str, ...]) -> str:
    return manifest(version, kind, {"replicas": 2, "template": pod(*words)})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (manifest("v1", "Pod", pod("torchrun", "/w/a.py")["spec"]), "spec.containers[0].command: runs torchrun"),
        (
            _set_of("StatefulSet", "apps/v1", ("sh", "-c", "cd /w && torchrun a.py")),
            "template.spec.containers[0].command",
        ),
        (_set_of("Deployment", "apps/v1", ("accelerate", "launch", "a.py")), "runs accelerate launch"),
        (
            _set_of(
                "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", ("python", "-m", "torch.distributed.run", "a.py")
            ),
            "runs",
        ),
        (
            manifest("v1", "Pod", pod("python", "a.py", env=[{"name": "MASTER_ADDR", "value": "a"}])["spec"]),
            "has MASTER_ADDR",
        ),
        (manifest("batch/v1", "CronJob", {"jobTemplate": {"spec": {"template": pod("mpirun", "a")}}}), "runs mpirun"),
        (
            manifest("argoproj.io/v1alpha1", "Workflow", {"templates": [{"container": {"args": "torchrun a.py"}}]}),
            "torchrun",
        ),
        (
            manifest("tekton.dev/v1", "TaskRun", {"taskSpec": {"steps": [{"script": "#!/bin/bash\ntorchrun a.py\n"}]}}),
            "spec.taskSpec.steps[0].script: runs torchrun",
        ),
        (
            manifest(
                "argoproj.io/v1alpha1", "Workflow", {"templates": [{"script": {"source": "cd /w\nmpirun -n 2 a\n"}}]}
            ),
            "spec.templates[0].script.source: runs mpirun",
        ),
        (
            manifest("example.com/v1", "Task", {"steps": [{"commands": ["cd /w", "accelerate launch a.py"]}]}),
            "spec.steps[0].commands: runs accelerate launch",
        ),
        (
            manifest(
                "workload.codeflare.dev/v1beta2",
                "AppWrapper",
                {"components": [{"template": {"apiVersion": "ray.io/v1", "kind": "RayJob", "spec": {}}}]},
            ),
            "spec.components[0].template: holds a RayJob",
        ),
        (manifest("batch.volcano.sh/v1alpha1", "Job", {}), "Volcano's plugins"),
        (manifest("kubeflow.org/v2beta1", "MPIJob", {}), "ssh and mpirun"),
    ],
)
def test_other_kinds_that_start_ranks_are_refused_by_name(text: str, why: str) -> None:
    """Passed on as no jobs, they would run on Kubernetes as before, and nobody would say that nothing was converted."""
    (piece,) = convert(text, "job.yaml")
    assert isinstance(piece, RefusedManifest)
    assert why in next(iter(lines([piece], "job.yaml")))
    assert not converted_text([piece])


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {command: torchrun a.py}\n",
        (
            "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: h}\n"
            "spec: {scaleTargetRef: {apiVersion: kubeflow.org/v1, kind: PyTorchJob, name: a}}\n"
        ),
        _set_of("Deployment", "apps/v1", ("vllm", "serve", "m")),
        manifest(
            "tekton.dev/v1",
            "TaskRun",
            {"taskSpec": {"steps": [{"script": "# torchrun is for later\npython prepare.py\n"}]}},
        ),
        to_yaml(
            {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "spec": {"roles": [{"command": ["torchrun", "a"]}]}}
        ),
    ],
)
def test_what_starts_no_ranks_is_passed_on(text: str) -> None:
    """Texts of a ConfigMap, a reference to a job, a server, a DLJob."""
    (piece,) = convert(text, "job.yaml")
    assert isinstance(piece, OtherManifest)
    assert piece.text


@pytest.mark.parametrize(
    ("words", "want"),
    [
        (("env", "A=1", "torchrun", "/w/a.py", "-x"), ("env", "A=1", "python", "-u", "/w/a.py")),
        (
            ("numactl", "-N", "0", "python3", "-m", "torch.distributed.run", "-m", "a.b"),
            ("numactl", "-N", "0", "python", "-u", "-m", "a.b"),
        ),
        (("uv", "run", "--no-sync", "torchrun", "/w/a.py"), ("uv", "run", "--no-sync", "python", "-u", "/w/a.py")),
        (("sh", "-c", "A=1 B=$C torchrun /w/a.py"), ("sh", "-c", "A=1 B=$C python -u /w/a.py")),
        (("sh", "-c", "timeout 9 torchrun /w/a.py 2>&1"), ("sh", "-c", "timeout 9 python -u /w/a.py 2>&1")),
        (("sh", "-c", "nohup python -m torch.distributed.run /w/a.py &"), ("sh", "-c", "nohup python -u /w/a.py &")),
    ],
)
def test_what_stands_before_torchrun_in_its_own_command_is_carried(
    words: tuple[str, ...], want: tuple[str, ...]
) -> None:
    """Variables and wrappers; python's own options were those of torchrun's agent."""
    (role,) = spec_of(pytorch(pod(*words))).roles
    assert (role.type, role.entrypoint.command) == ("Elastic", want)
    assert role.replicas == 16


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("sh", "-c", "if true; then torchrun /w/a.py; fi"), "torchrun starts ranks itself"),
        (("python", "/w/wrap.py", "torchrun", "/w/a.py"), "torchrun starts ranks itself"),
        (("sh", "-c", "torchrun /w/a.py && torchrun /w/b.py"), "torchrun stands behind torchrun: each rank"),
        (("sh", "-c", "torchrun /w/a.py; accelerate launch /w/b.py"), "accelerate launch stands behind torchrun"),
        (("sh", "-c", "torchrun /w/a.py 2>&1 | tee /log"), "'| tee /log' stands behind torchrun: each rank runs it"),
        (("sh", "-c", "torchrun /w/a.py && echo done"), "'&& echo done' stands behind torchrun"),
        (("sh", "-c", "torchrun /w/a.py; /w/upload.sh"), "'; /w/upload.sh' stands behind torchrun"),
        (("sh", "-c", "torchrun /w/a.py > out.txt 2>&1"), "'> out.txt' stands behind torchrun"),
        (("sh", "-c", "torchrun /w/a.py\ncp -r out /nfs\n"), "'cp -r out /nfs' stands behind torchrun"),
        (("sh", "-c", '"$@" || sleep 9', "sh", "torchrun", "/w/a.py"), "'|| sleep 9' stands behind torchrun"),
        (("bash", "-c", 'L="torchrun --nnodes 4"; $L /w/a.py'), "torchrun starts ranks itself"),
        (("bash", "-c", "export A=1 L=deepspeed && $L /w/a.py"), "deepspeed starts ranks itself"),
        (("bash", "-c", 'L=(accelerate launch); "${L[@]}" /w/a.py'), "accelerate launch starts ranks itself"),
        (("bash", "-c", "$LAUNCHER /w/a.py"), "mpirun starts ranks itself"),
        (("bash", "-c", "eval 'deepspeed /w/a.py'"), "deepspeed starts ranks itself"),
        (("sh", "-c", 'bash -c "$(echo torchrun) /w/a.py"'), "torchrun starts ranks itself"),
        (("sh", "-c", "N=`torchrun /w/a.py | wc -l`"), "torchrun starts ranks itself"),
        (("env", "bash", "-c", "L=torchrun; $L /w/a.py"), "torchrun starts ranks itself"),
        (("python", "-m", "torch.distributed.launch", "/w/a.py"), "launch gives --local-rank=N to the script"),
        (("sh", "-c", "python -m torch.distributed.launch /w/a.py"), "launch gives --local-rank=N to the script"),
        (("bash", "/scripts/run.sh"), "/scripts/run.sh starts ranks by torchrun"),
        (("sh", "-c", "cd /scripts && exec ./run.sh --x"), "./run.sh starts ranks by torchrun"),
        (("torchrun", "--nnodes=$NUM_NODES", "/w/a.py"), "--nnodes=$NUM_NODES: its value is not in the manifest"),
        (("sh", "-c", "torchrun --nproc-per-node ${N} /w/a.py"), "--nproc-per-node=${N}: its value is not in the"),
        (("sh", "-c", "torchrun --nnodes $(cat n | wc -l) /w/a.py"), "--nnodes=$(cat n | wc -l): its value is not in"),
        (("sh", "-c", "torchrun --nnodes=`cat n; id` /w/a.py"), "--nnodes=`cat n; id`: its value is not in the"),
        (("torchrun", "--nnodes=8", "/w/a.py"), "--nnodes=8, and there are 4 pods: they form one world"),
    ],
)
def test_ranks_that_dljob_would_not_start_as_the_manifest_says_are_told(words: tuple[str, ...], why: str) -> None:
    """Torchrun behind a program of its own or a script of a ConfigMap, a second one, numbers that are not the pods'."""
    script = manifest("v1", "ConfigMap", {}).replace("spec: {}", 'data:\n  run.sh: "cd /w\\nuv run torchrun a.py\\n"')
    env = [{"name": "LAUNCHER", "value": "mpirun -np 8"}]
    made, _ = convert(f"{pytorch(pod(*words, env=env))}---\n{script}", "job.yaml")
    (first, *_) = [line for line in lines([made], "job.yaml") if why in line]
    assert "containers[0].command: not carried: " in first


@pytest.mark.parametrize("text", ["torchrun /w/a.py 2>&1 ;\n", "torchrun /w/a.py '| tee' # && echo done"])
def test_nothing_is_told_of_a_line_with_nothing_behind_torchrun(text: str) -> None:
    """The end of the line, a comment, quoted words, and a stream that joins another."""
    assert spec_of(pytorch(pod("sh", "-c", text))).roles[0].type == "Elastic"


def test_several_pods_that_are_a_world_each_are_refused() -> None:
    (piece,) = convert(pytorch(pod("torchrun", "--standalone", "/w/a.py")), "job.yaml")
    assert isinstance(piece, RefusedManifest)
    assert "--standalone is one machine" in piece.message


@pytest.mark.parametrize(
    "words",
    [
        ("torchrun", "--nnodes=$(WORLD_SIZE)", "--node_rank=$(RANK)", "/w/a.py"),
        ("torchrun", "--nnodes=4", "/w/a.py"),
        ("sh", "-c", "torchrun --nnodes=$(WORLD_SIZE) --node_rank=$(RANK) /w/a.py"),
        ("sh", "-c", "torchrun --nnodes ${PET_NNODES} --nproc-per-node $PET_NPROC_PER_NODE /w/a.py"),
        ("sh", "-c", "torchrun --nnodes=1:$WORLD_SIZE /w/a.py"),
    ],
)
def test_a_number_of_machines_that_is_that_of_the_pods_is_carried(words: tuple[str, ...]) -> None:
    """Also where Kubernetes or the shell puts in what Kubeflow sets in each pod."""
    (role,) = spec_of(pytorch(pod(*words))).roles
    assert (role.replicas, role.replicas_per_group) == (16, 4)


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (("bash", "-eu", "train", "x"), "train is not read: worker is one rank for each pod"),
        (("/w/entry.sh",), "/w/entry.sh is not read: worker is one rank for each pod"),
        (("sh", "-c", "cd /w; . ./env.sh; python /w/a.py"), "./env.sh is not read"),
    ],
)
def test_a_script_that_is_not_in_the_file_is_told(words: tuple[str, ...], note: str) -> None:
    """It may start torchrun."""
    (told,) = [one for one in job(pytorch(pod(*words))).remarks if "is not read" in one]
    assert told.startswith(note)


def test_where_torchrun_would_form_several_worlds_a_note_says_that_there_is_one() -> None:
    """Pods of a JobSet are not told how many they are; those of Kubeflow are."""
    noted = [
        sum("form one world" in one for one in job(text).remarks)
        for text in (job_set(("torchrun", "/w/a.py"), parallelism=2), pytorch(pod("torchrun", "/w/a.py")))
    ]
    assert noted == [1, 0]
    fixed = job(pytorch(pod("torchrun", "--nnodes=4", "/w/a.py"), elasticPolicy={"minReplicas": 1, "maxReplicas": 8}))
    assert "--nnodes=4 is not elastic as elasticPolicy is: worker gets the bounds of elasticPolicy" in fixed.remarks
    line = pod("sh", "-c", "torchrun --nnodes=$PET_NNODES /w/a.py")
    assert not job(pytorch(line, elasticPolicy={"minReplicas": 1, "maxReplicas": 8})).remarks


def test_pods_of_two_templates_are_machines_of_two_groups() -> None:
    text = pytorch(pod("torchrun", "/w/a.py")).replace('cpu: "8"', 'cpu: "4"', 1)
    shown = [line for line in diff(text, [job(text)]) if " replicas: " in line]
    assert [line.split()[-1] for line in shown[:2]] == [f"spec.nodeGroups[{at}].replicas" for at in (0, 1)]


def test_the_folder_of_a_container_is_carried() -> None:
    """Unless another one is given; one role has one folder."""
    text = pytorch(pod("torchrun", "train.py", workingDir="/code"))
    (role,) = spec_of(text).roles
    assert role.entrypoint.command == ("sh", "-c", 'cd "$0" && exec "$@"', "/code", "python", "-u", "train.py")
    (role,) = spec_of(text, ConvertOptions(workdir="/mine")).roles
    assert role.entrypoint.command[3] == "/mine"
    made = job(text.replace("workingDir: /code", "workingDir: /other", 1))
    assert [row.path[-10:] for row in made.rows if row.fate.kind == "dropped"] == ["workingDir"]


def test_restarts_by_exit_code_and_policies_that_differ_are_told() -> None:
    """A role restarts its ranks, or does not."""
    text = pytorch(pod("torchrun", "/w/a.py")).replace("restartPolicy: Never", "restartPolicy: ExitCode", 1)
    dropped = [row for row in job(text).rows if row.fate.kind == "dropped"]
    assert [row.fate.reason[:40] for row in dropped] == [
        "ranks restart after any exit code: write",
        "ranks of one role have one policy, here ",
    ]
    assert sum("restart 10 times: with ExitCode there was no limit" in one for one in job(text).remarks) == 1


def test_a_value_of_the_wrong_type_is_not_said_to_be_carried() -> None:
    """Nor one that is to be filled in, as of a template for envsubst."""
    text = pytorch(pod("torchrun", "/w/a.py"), elasticPolicy={"maxRestarts": "many", "nProcPerNode": ["2"]})
    text = text.replace("replicas: 3", "replicas: ${WORKERS}").replace("example/train:1", "$IMAGE")
    (made,) = convert(text, "job.yaml")
    assert isinstance(made, ConvertedJob)
    assert [problem.partition(":")[0] for problem in made.problems] == ["spec.image"]
    assert [row.path for row in made.rows if row.fate.kind == "dropped"] == [
        "spec.pytorchReplicaSpecs.Worker.replicas",
        "spec.elasticPolicy.maxRestarts",
        "spec.elasticPolicy.nProcPerNode",
    ]
    assert sum("is to be filled in first" in one for one in made.remarks) == 3
