"""Each leaf of each manifest is found again: in the DLJob, or in the report."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from tests.unit.convert.test_bad_input import MODES
from tests.unit.convert.test_corpus import CORPUS
from tests.unit.convert.test_tensorflow_jobs import replicas, tf_job
from tests.unit.convert.test_torch_kinds import POD, batch, job_set, manifest, pod, pytorch

from dljob.convert import kubeflow, pods
from dljob.convert.manifest import (
    CONVERTERS,
    ConvertedJob,
    ConvertOptions,
    LineRange,
    training_runtimes_in,
)
from dljob.convert.report import lines
from dljob.convert.source import Draft, SourceManifest, UnfitError, read_documents, report_rows
from dljob.spec.text.tree import Document, Loc

OPTIONS = ConvertOptions(command=("python", "/data/train.py"), workdir="/work")
UNKNOWN = ("notYetInvented", 7)
WORDS = (("Never", "OnFailure", "Always", "ExitCode"), ("None", "Running", "All"))
"""Words of an API, of which one stands for another."""

OWN = {
    "modes": MODES,
    "job": batch(
        ("torchrun", "--nnodes=2", "/w/a.py", "--lr=1"),
        parallelism=2,
        completions=2,
        backoffLimit=3,
        suspend=True,
        ttlSecondsAfterFinished=5,
        podFailurePolicy={"rules": []},
        maxFailedIndexes=1,
        activeDeadlineSeconds=9,
    ),
    "elastic": pytorch(
        pod(
            "bash", "-c", "A=1 torchrun /w/a.py", workingDir="/code", env=[*POD["env"], {"name": "X", "value": "$(A)"}]
        ),
        elasticPolicy={
            "minReplicas": 2,
            "maxReplicas": 9,
            "nProcPerNode": 2,
            "metrics": [],
            "rdzvConf": [{"key": "a"}],
        },
        runPolicy={
            "backoffLimit": 2,
            "cleanPodPolicy": "All",
            "activeDeadlineSeconds": 60,
            "managedBy": "a/b",
            "schedulingPolicy": {"queue": "q", "minAvailable": 3, "scheduleTimeoutSeconds": 5, "priorityClass": "p"},
        },
    ).replace("Never", "OnFailure"),
    "rivals": pytorch(
        pod("torchrun", "--nproc-per-node=2", "/w/a.py"),
        nprocPerNode="4",
        elasticPolicy={"minReplicas": 2, "maxReplicas": 5, "maxRestarts": 3, "nProcPerNode": 3},
        runPolicy={"backoffLimit": 5},
    ).replace("Never", "OnFailure", 1),
    "more rivals": pytorch(
        pod("torchrun", "/w/a.py"),
        nprocPerNode="4",
        elasticPolicy={"minReplicas": 4, "maxReplicas": 4, "maxRestarts": 7, "nProcPerNode": 2},
        runPolicy={"backoffLimit": 5},
    ).replace("Never", "OnFailure"),
    "no torchrun": pytorch(pod("python", "/w/a.py"), nprocPerNode="2"),
    "trainer without torchrun": manifest(
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {"numNodes": 2, "numProcPerNode": 3, "command": ["python", "/w/a.py"]},
        },
    ),
    "tensorflow": tf_job(
        {"runPolicy": {"backoffLimit": 4}, "successPolicy": "AllWorkers", "enableDynamicWorker": True},
        Chief=replicas(restartPolicy="Never"),
        PS=replicas(2),
        Worker=replicas(3, restartPolicy="OnFailure"),
    ),
    "set": job_set(("python", "/w/a.py"), parallelism=2, completions=3, backoffLimit=1, podReplacementPolicy="Failed"),
}
"""Manifests of kinds that the corpus has not, and with fields that it has not."""
INPUTS = {**{file.stem: file.read_text(encoding="utf-8") for file in sorted(CORPUS.glob("*.yaml"))}, **OWN}


@dataclass(frozen=True)
class Conversion:
    """A document, and what became of it."""

    draft: Draft
    report: str
    """The report with its remarks, without a line for each carried field."""

    @property
    def source(self) -> SourceManifest:
        """The document with the fates of its fields."""
        return self.draft.source


def conversion(document: Document, options: ConvertOptions) -> Conversion | None:
    """Convert a document; None where that refuses it."""
    draft = Draft(SourceManifest(document))
    group, kind = str(draft.source.value(("apiVersion",))).rpartition("/")[0], str(draft.source.value(("kind",)))
    try:
        CONVERTERS[group, kind](draft, options)
    except UnfitError:
        return None
    draft.drop_carried_but_absent()
    rows, remarks = tuple(report_rows(draft.source)), tuple(draft.remarks)
    result = ConvertedJob(kind, "job", 1, "", rows, remarks, (), LineRange(1, 1))
    _, *report = lines([result], "in.yaml")
    return Conversion(draft, "\n".join(report))


def documents(text: str) -> Iterator[tuple[Document, ConvertOptions]]:
    """Yield the jobs of a text, with the runtimes beside them."""
    return jobs_in(read_documents(text))


def jobs_in(every: list[Document]) -> Iterator[tuple[Document, ConvertOptions]]:
    """Yield the jobs of documents, with the runtimes beside them."""
    options = replace(OPTIONS, runtimes=tuple(training_runtimes_in(every)))
    for document in every:
        source = SourceManifest(document)
        group = str(source.value(("apiVersion",))).rpartition("/")[0]
        if (group, str(source.value(("kind",)))) in CONVERTERS:
            yield document, options


def lost_leaves(document: Document, options: ConvertOptions) -> list[str]:
    """Return the leaves of a document that are neither in the DLJob nor in the report."""
    result = conversion(document, options)
    assert result
    lost = untold(result)
    for leaf in result.source.leaves():
        fate, value = result.source.fate(leaf), result.source.value(leaf)
        if fate.kind != "carried" or value in (None, {}, []) or leaf in (("apiVersion",), ("kind",)):
            continue
        if str(result.draft.get(fate.to)) != str(value) and not counts(document, options, result, leaf):
            lost.append(f"{'.'.join(map(str, leaf))}: {value} is not at {'.'.join(map(str, fate.to))}")
    return lost


def untold(result: Conversion) -> list[str]:
    """Return the fields that are not carried, and that the report does not name."""
    rows = [row for row in report_rows(result.source) if row.fate.kind != "carried"]
    return [
        f"{row.path}: {row.fate.kind}, and not in the report" for row in rows if not is_told(result.report, row.path)
    ]


def is_told(report: str, path: str) -> bool:
    """Whether the report names a field, or the list that it is an item of."""
    return any(f": {name}: " in report for name in (path, re.sub(r"\[[0-9]+\]$", "", path)))


def counts(document: Document, options: ConvertOptions, result: Conversion, leaf: Loc) -> bool:
    """Whether another value of a leaf makes another DLJob or another report, or a note names it as an option."""
    value = result.source.value(leaf)
    option = str(value).partition("=")[0].replace("_", "-")
    if option.startswith("--") and option in result.report:
        return True
    for new_value in others(value):
        data = copy.deepcopy(document.data)
        place = cast("Any", data)
        for part in leaf[:-1]:
            place = place[part]
        # The fewest and the most of a number bound it.
        for key in (leaf[-1], *(("minReplicas", "maxReplicas") if leaf[-1] == "replicas" else ())):
            if key == leaf[-1] or key in place:
                place[key] = new_value
        again = conversion(replace(document, data=data), options)
        if again is None or again.draft.document != result.draft.document or again.report != result.report:
            return True
    return False


def others(value: object) -> list[object]:
    """Return other values of the same type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value + 100]
    if of_api := [word for words in WORDS if value in words for word in words if word != value]:
        return list(of_api)
    text = str(value)
    number = re.search(r"\d+(?=\D*$)", text)
    return [f"{text}x", *([f"{text[: number.start()]}{int(number[0]) + 1}{text[number.end() :]}"] if number else [])]


@pytest.mark.parametrize("name", sorted(INPUTS))
def test_each_leaf_is_in_the_dljob_or_in_the_report(name: str) -> None:
    """Carried is what stands at its place with its value, or what makes another DLJob where it is another value."""
    assert [lost for document, options in documents(INPUTS[name]) for lost in lost_leaves(document, options)] == []


@pytest.mark.parametrize("name", sorted(INPUTS))
def test_a_key_that_nobody_knows_is_in_the_dljob_or_in_the_report_wherever_it_stands(name: str) -> None:
    """In each mapping of the file: one of a pod's own mappings keeps it, and all others name it."""
    for document, options in documents(INPUTS[name]):
        more = replace(document, data=with_unknown_keys(document.data))
        if result := conversion(more, options):
            for leaf in result.source.leaves():
                fate = result.source.fate(leaf)
                if leaf[-1] == UNKNOWN[0] and fate.kind == "carried":
                    assert str(result.draft.get(fate.to)) == str(UNKNOWN[1]), leaf
            assert untold(result) == []


def with_unknown_keys(value: Any) -> Any:
    """Return a copy with one more key in each mapping."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {**{key: with_unknown_keys(inner) for key, inner in fields.items()}, UNKNOWN[0]: UNKNOWN[1]}
    return [with_unknown_keys(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


def _carries_no_mounts(conversion: Any, loc: Loc) -> None:
    conversion.draft.source.mark_carried(loc, (*conversion.pod_spec_loc, "containers", 0, "volumeMounts"))


def _carries_no_number(draft: Draft, loc: Loc, to: Loc, reason: str = "") -> None:
    draft.source.mark_carried(loc, to, reason)


def _keep_all(draft: Draft) -> None:
    assert draft.document


def _drops_in_silence(self: SourceManifest, loc: Loc, reason: str) -> None:
    assert reason
    self.mark_carried(loc, ("spec", "roles", 0, "restartPolicy"))


@pytest.mark.parametrize(
    ("name", "plant", "lost"),
    [
        (
            "modes",
            lambda patch: patch.setitem(pods.CONTAINER_FIELD_CONVERTERS, "volumeMounts", _carries_no_mounts),
            "volumeMounts",
        ),
        (
            "elastic",
            lambda patch: patch.setattr(kubeflow, "carry_number_or_switch", _carries_no_number),
            "activeDeadlineSeconds",
        ),
        ("job", lambda patch: patch.setattr(SourceManifest, "mark_dropped", _drops_in_silence), "maxFailedIndexes"),
    ],
    ids=["a list", "a number", "a drop"],
)
def test_a_field_that_is_lost_in_silence_is_found(
    name: str, plant: Callable[[pytest.MonkeyPatch], None], lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three are planted: a list and a number that are said to be carried, and a drop of which nothing is said."""
    monkeypatch.setattr(Draft, "drop_carried_but_absent", _keep_all)
    text = OWN[name].replace("resources: {limits: {cpu: 1}}", "volumeMounts: [{name: sh, mountPath: /sh}]")
    ((document, options),) = documents(text)
    plant(monkeypatch)
    assert any(lost in leaf for leaf in lost_leaves(document, options))


def test_what_is_recorded_as_carried_and_is_not_in_the_dljob_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field of no place in the DLJob, and the one of two fields whose number another one's replaces."""
    monkeypatch.setattr(kubeflow, "carry_number_or_switch", _carries_no_number)
    ((document, options),) = documents(OWN["elastic"])
    report = cast("Conversion", conversion(document, options)).report
    assert "activeDeadlineSeconds: not carried: the DLJob has no spec.activeDeadlineSeconds" in report
    for name, lost, winner in (
        ("rivals", "elasticPolicy.maxRestarts", "runPolicy.backoffLimit"),
        ("more rivals", "runPolicy.backoffLimit", "elasticPolicy.maxRestarts"),
        ("more rivals", "nprocPerNode", "elasticPolicy.nProcPerNode"),
    ):
        ((document, options),) = documents(OWN[name])
        report = cast("Conversion", conversion(document, options)).report
        row = next(line for line in report.splitlines() if f": spec.{lost}: not carried: " in line)
        assert row.endswith(f"as spec.{winner} says")


def nodes(value: object, loc: Loc = ()) -> Iterator[Loc]:
    """Yield the places of all values within a value."""
    fields = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    items = cast("list[object]", value) if isinstance(value, list) else []
    for part, inner in (*fields.items(), *enumerate(items)):
        yield (*loc, part)
        yield from nodes(inner, (*loc, part))


def test_no_value_of_another_type_ends_in_a_traceback() -> None:
    """Of the outer half of all values some have a text, a number, a list or null in their place."""
    inputs = [*OWN, "train-job-05-multi-step", "ray-cluster-fluentbit", "elastic-job-mnist-chaos-test-job"]
    for name in inputs:
        texts = read_documents(INPUTS[name])
        cases = [(index, loc) for index, document in enumerate(texts) for loc in nodes(document.data)]
        for index, loc in sorted(cases, key=lambda case: len(case[1]))[: len(cases) // 2 : len(cases) // 24 + 1]:
            for value in ("InOrder", 7, ["x"], None):
                data = copy.deepcopy([document.data for document in texts])
                place = cast("Any", data[index])
                for part in loc[:-1]:
                    place = place[part]
                place[loc[-1]] = value
                changed = [replace(document, data=fields) for document, fields in zip(texts, data, strict=True)]
                for document, options in jobs_in(changed):
                    conversion(document, options)
