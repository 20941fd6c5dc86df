"""Pods of several containers: which of them is the program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.unit.convert.test_ray_job import job
from tests.unit.convert.test_torch_kinds import manifest, pytorch

from dljob.convert.manifest import ConvertOptions, RefusedManifest, convert
from dljob.spec.loading.load import load
from dljob.spec.text.emit import to_yaml

GPUS = {"limits": {"nvidia.com/gpu": "4"}}
TRAINERS: list[dict[str, Any]] = [
    {"command": ["torchrun", "--nproc-per-node=4", "/w/train.py"]},
    {"command": ["sh", "-c", "cd /w && torchrun --nproc-per-node=4 train.py"], "resources": GPUS},
    {"command": ["python", "/w/train.py"], "resources": GPUS},
    {"command": ["python", "-m", "dlrover.trainer.torch.elastic_run", "--nproc-per-node=4", "/w/train.py"]},
]


def kinds_of(spec: dict[str, Any], annotations: dict[str, str]) -> Iterator[str]:
    """Yield manifests of all kinds whose pods have this spec."""
    template = {"metadata": {"annotations": annotations}, "spec": spec}
    yield pytorch(template)
    yield manifest("batch/v1", "Job", {"template": template})
    jobs = [{"name": "w", "template": {"spec": {"template": template}}}]
    yield manifest("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": jobs})
    worker = {"replicas": 1, "template": template}
    yield manifest("elastic.iml.github.io/v1alpha1", "ElasticJob", {"replicaSpecs": {"worker": worker}})
    yield manifest("kubeflow.org/v1", "TFJob", {"tfReplicaSpecs": {"Worker": worker}})


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("usual", ["pytorch", "main", "tensorflow", "shipper"])
@pytest.mark.parametrize("first", [True, False])
def test_the_program_is_the_container_that_trains_wherever_it_stands(
    trainer: dict[str, Any], usual: str, *, first: bool
) -> None:
    """And not the one that merely has the usual name; the report names it with its line where it is not the first."""
    containers = [{"name": "train", "image": "train:1", **trainer}, {"name": usual, "image": "x", "command": ["ship"]}]
    for text in kinds_of({"containers": containers if first else containers[::-1]}, {}):
        made = job(text)
        spec = load(made.text).spec
        assert spec.image == "train:1"
        assert [one["name"] for group in spec.node_groups for one in group.template["spec"]["containers"]] == [usual]
        assert "ship" not in spec.roles[0].entrypoint.model_dump_json()
        line = next(at for at, line in enumerate(text.split("\n"), 1) if "name: train" in line)
        assert any(f"line {line}, " in note and "train is the program" in note for note in made.remarks) is not first


@pytest.mark.parametrize("inner", [True, False])
def test_the_annotation_of_kubectl_names_the_program(*, inner: bool) -> None:
    """Also where another container has the devices, and whether the pods or the job have it."""
    containers = [
        {"name": "engine", "image": "engine:1", "command": ["serve"], "resources": GPUS},
        {"name": "train", "image": "train:1", "command": ["python", "/w/train.py"]},
    ]
    annotations = {"kubectl.kubernetes.io/default-container": "train"}
    for text in kinds_of({"containers": containers}, annotations if inner else {}):
        document = yaml.safe_load(text)
        document["metadata"] |= {} if inner else {"annotations": annotations}
        spec = load(job(to_yaml(document)).text).spec
        assert spec.image == "train:1"
        if inner:
            (carried,) = spec.node_groups[0].template["metadata"]["annotations"].values()
            assert carried == "ray-worker", "which has the program now"


def test_several_containers_that_may_be_the_program_are_refused_by_name() -> None:
    containers = [{"name": name, "image": "x", "command": ["torchrun", "/w/a.py"]} for name in ("one", "two")]
    for text in kinds_of({"containers": containers}, {}):
        (piece,) = convert(text, "x.yaml")
        assert isinstance(piece, RefusedManifest)
        assert piece.message.endswith("containers: one and two may each be the program")
        assert "kubectl.kubernetes.io/default-container" in piece.hint


def test_where_nothing_says_which_container_is_the_program_the_report_names_the_first() -> None:
    containers = [{"name": name, "image": "x", "command": ["python", "/w/a.py"]} for name in ("one", "two")]
    jobs = [{"name": "w", "template": {"spec": {"template": {"spec": {"containers": containers}}}}}]
    (note,) = job(manifest("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": jobs})).remarks
    assert "containers[0]: one is the program, and others run beside it: it is the first, and no annotation" in note


@pytest.mark.parametrize("first", [True, False])
def test_the_initializer_of_a_train_job_is_the_container_of_its_name(*, first: bool) -> None:
    """Init containers run one after another, so that what runs beside it is lost, and named."""
    beside = {"name": "log", "image": "log:1", "command": ["ship"]}
    step = {"name": "dataset-initializer", "image": "data:1", "command": ["fetch"]}
    jobs = [
        {"name": "dataset-initializer", "containers": [step, beside] if first else [beside, step]},
        {"name": "node", "containers": [{"name": "node", "image": "train:1", "command": ["torchrun", "/w/a.py"]}]},
    ]
    replicated = [
        {"name": one["name"], "template": {"spec": {"template": {"spec": {"containers": one["containers"]}}}}}
        for one in jobs
    ]
    runtime = {"metadata": {"name": "mine"}, "spec": {"template": {"spec": {"replicatedJobs": replicated}}}}
    text = manifest("trainer.kubeflow.org/v1alpha1", "TrainJob", {"runtimeRef": {"name": "mine"}})
    made = job(text, ConvertOptions(runtimes=(runtime,)))
    (init,) = load(made.text).spec.node_groups[0].template["spec"]["initContainers"]
    assert (init["name"], init["image"]) == ("dataset-initializer", "data:1")
    assert any("one of its 2 containers runs" in row.fate.reason for row in made.rows if row.fate.kind == "dropped")
