"""A file of manifests, document by document: which are jobs, what they become, and what happens to the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias, cast

from dljob.convert.comments import END_OF_DOCUMENT, AttachedComment, Comment, attach_comments, read_comments
from dljob.convert.emit import FieldComments, order_fields, write_with_comments
from dljob.convert.jobset import batch_job, job_set
from dljob.convert.kubeflow import elastic_job, pytorch_job
from dljob.convert.launches import find_rank_starter, has_devices
from dljob.convert.pod_names import report_pod_names
from dljob.convert.rayjob import ray_cluster, ray_job
from dljob.convert.source import (
    Draft,
    ReportRow,
    SourceManifest,
    UnfitError,
    read_documents,
    report_rows,
    summarize_losses,
)
from dljob.convert.tensorflow_job import elastic_job_with_servers, has_parameter_servers, tf_job
from dljob.convert.trainjob import train_job
from dljob.errors import Problem, SpecError, UsageError
from dljob.raycluster.acceptance import refusals
from dljob.raycluster.pod_security import Level, PodPolicy
from dljob.spec.loading.load import load
from dljob.spec.model import DLJobManifest
from dljob.spec.text import tree
from dljob.spec.text.emit import to_yaml
from dljob.spec.text.tree import Document, Loc, Position
from dljob.spec.text.words import path_of

_CHART_DIRECTIVE = re.compile(
    r"\{\{-?\s*(\.|\$|/\*|(include|if|else|end|range|with|define|template|block|toYaml|tpl|default|quote|printf)\b)"
)
_PLACEHOLDER = re.compile(r"\$\{\w+(:?-[^}]*)?\}|\$\w+|.*\$\{\w+\}.*|<[A-Z_ -]+>")
_SECRET_KINDS = ("secret", "secretlist")
_DOCUMENT_START = re.compile(r"---(\s|$)")


class LineRange(NamedTuple):
    """First and last line of a document in its file."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """What flags of the command say beside the file."""

    command: tuple[str, ...] = ()
    """Program of a manifest that names none."""
    workdir: str = ""
    """Folder of the image in which the program starts."""
    runtimes: tuple[Mapping[str, Any], ...] = ()
    """Training runtimes of Kubeflow, for TrainJobs that refer to them."""
    config_map_texts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Texts of ConfigMaps by their keys, for commands that run them."""
    pod_security_level: Level = "baseline"


@dataclass(frozen=True, slots=True)
class ConvertedJob:
    """A manifest that became a DLJob."""

    kind: str
    name: str
    line: int
    text: str
    """The DLJob as YAML, with comments."""
    rows: tuple[ReportRow, ...]
    remarks: tuple[str, ...]
    problems: tuple[str, ...]
    """Why the DLJob would be refused; empty: it validates and plans."""
    lines: LineRange


@dataclass(frozen=True, slots=True)
class OtherManifest:
    """A document that is no job: passed on as it is, or only named."""

    kind: str
    name: str
    line: int
    text: str
    """Empty: it is not passed on."""
    reason: str
    lines: LineRange


@dataclass(frozen=True, slots=True)
class RefusedManifest:
    """A document that cannot become a DLJob."""

    kind: str
    name: str
    mark: Position
    """Of the field because of which it is refused."""
    message: str
    hint: str
    lines: LineRange


ConvertedPiece: TypeAlias = ConvertedJob | OtherManifest | RefusedManifest
Converter: TypeAlias = Callable[[Draft, ConvertOptions], None]

_DEFAULT_RUNTIME_KIND = "ClusterTrainingRuntime"
_RUNTIME_KINDS = ("TrainingRuntime", _DEFAULT_RUNTIME_KIND)
CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("ray.io", "RayJob"): lambda draft, options: ray_job(draft, options.command, options.workdir),
    ("ray.io", "RayCluster"): lambda draft, options: ray_cluster(draft, options.command, options.workdir),
    ("kubeflow.org", "PyTorchJob"): lambda draft, options: pytorch_job(draft, options.command, options.workdir),
    ("batch", "Job"): lambda draft, options: batch_job(draft, options.command, options.workdir),
    ("jobset.x-k8s.io", "JobSet"): lambda draft, options: job_set(draft, options.command, options.workdir),
    ("kubeflow.org", "TFJob"): lambda draft, options: tf_job(draft, options.command, options.workdir),
    ("elastic.iml.github.io", "ElasticJob"): lambda draft, options: (
        elastic_job_with_servers if has_parameter_servers(draft) else elastic_job
    )(draft, options.command, options.workdir),
    ("trainer.kubeflow.org", "TrainJob"): lambda draft, options: train_job(
        draft, options.command, options.workdir, options.runtimes
    ),
}
"""API group and kind -> what converts it."""
UNCONVERTIBLE: Mapping[tuple[str, str], str] = {
    ("kubeflow.org", "MPIJob"): "its ranks meet by ssh and mpirun: write the script as torchrun would start it",
    ("kubeflow.org", "XGBoostJob"): "its ranks meet by xgboost's own tracker, which dljob does not start",
    ("kubeflow.org", "PaddleJob"): "its ranks meet by paddle's launcher, which dljob does not start",
    ("kubeflow.org", "JAXJob"): "its ranks meet by jax.distributed, which dljob does not start",
    ("kubeflow.org", "MXJob"): "MXNet is retired, and its parameter servers meet by its own scheduler",
    ("ray.io", "RayService"): "it serves without end: write the engines as server roles (docs/howto/servers.md)",
    ("ray.io", "RayCronJob"): "dljob has no schedule: convert the RayJob in it",
    ("batch.volcano.sh", "Job"): "its tasks meet by Volcano's plugins: write each task as a role",
}
"""Jobs that dljob cannot run, with the reason."""
_JOB_KINDS = frozenset(kind for _, kind in (*CONVERTERS, *UNCONVERTIBLE))
_KINDS_WITHOUT_PROGRAMS = ("ConfigMap", "Secret", "SecretList", "DLJob", "CustomResourceDefinition")
_WORKLOAD_KINDS = ("Job", "Pod", "StatefulSet", "Deployment", "DaemonSet", "ReplicaSet", "CronJob")
"""Kinds of Kubernetes that run programs, which are jobs where these start ranks."""


def convert(text: str, file: str, options: ConvertOptions = ConvertOptions()) -> list[ConvertedPiece]:
    """Convert all documents of a text.

    Raises:
        UsageError: it is no manifest at all.
        SpecError: the text is no YAML.
    """
    documents = read_documents(text)
    chart_line = _find_chart_line(text, documents)
    if chart_line:
        hint = "render it first: helm template CHART | dljob convert - -o dljob.yaml"
        raise UsageError(f"{file}:{chart_line}: a chart's template, not a manifest", hint=hint)
    if not documents:
        hint = "name a file with a RayJob, PyTorchJob, TrainJob, JobSet or ElasticJob"
        raise UsageError(f"{file}: is empty", hint=hint)
    has_syntax_fault = any(document.data is None and document.faults for document in documents)
    all_comments = [] if has_syntax_fault else read_comments(text)
    runtimes = (*options.runtimes, *training_runtimes_in(documents))
    options = replace(options, runtimes=runtimes, config_map_texts=_config_map_texts_in(documents))
    pieces: list[ConvertedPiece] = []
    for document, lines in zip(documents, _line_ranges(text, documents), strict=True):
        if document.faults:
            raise SpecError(tuple(_problem_of_fault(file, fault) for fault in document.faults))
        for item, item_lines in _items_with_lines(document, lines):
            pieces.append(_convert_document(item, item_lines, text, all_comments, file, options))
    return pieces


@dataclass(frozen=True, slots=True)
class RuntimeRef:
    """The training runtime that a TrainJob names."""

    kind: str
    name: str
    namespace: str


def find_runtime_refs(text: str) -> list[RuntimeRef]:
    """Return the runtimes that TrainJobs of a text name, each once."""
    refs: list[RuntimeRef] = []
    for item in _items_in(read_documents(text)):
        source = SourceManifest(item)
        name = source.value(("spec", "runtimeRef", "name"))
        if source.value(("kind",)) == "TrainJob" and isinstance(name, str):
            kind = str(source.value(("spec", "runtimeRef", "kind")) or _DEFAULT_RUNTIME_KIND)
            refs.append(RuntimeRef(kind, name, str(source.value(("metadata", "namespace")) or "")))
    return list(dict.fromkeys(refs))


def training_runtimes_in(documents: Sequence[Document]) -> list[Mapping[str, Any]]:
    """Return the training runtimes among documents, those of a List too."""
    items = _items_in(documents)
    return [cast("Any", item.data) for item in items if SourceManifest(item).value(("kind",)) in _RUNTIME_KINDS]


def _config_map_texts_in(documents: Sequence[Document]) -> dict[str, str]:
    """Return the texts of the ConfigMaps among documents, by their keys."""
    texts: dict[str, str] = {}
    for item in _items_in(documents):
        source = SourceManifest(item)
        if source.value(("kind",)) == "ConfigMap" and isinstance(source.value(("data",)), dict):
            texts |= {key: str(source.value(at)) for key, at in source.fields(("data",))}
    return texts


def _find_chart_line(text: str, documents: Sequence[Document]) -> int:
    """Return the line of a directive of a chart's template; 0 without one, or in documents that are no jobs."""
    # Alerts and ConfigMaps have such words of their own.
    foreign_ranges: list[LineRange] = []
    if not any(document.faults for document in documents):
        for document, lines in zip(documents, _line_ranges(text, documents), strict=True):
            if not any(_is_job_or_without_kind(item) for item in _items_in([document])):
                foreign_ranges.append(lines)
    for directive in _CHART_DIRECTIVE.finditer(text):
        number = text.count("\n", 0, directive.start()) + 1
        if not any(lines.first <= number <= lines.last for lines in foreign_ranges):
            return number
    return 0


def _is_job_or_without_kind(document: Document) -> bool:
    kind = SourceManifest(document).value(("kind",))
    return not kind or (kind in _JOB_KINDS and not _is_job_beside_training(document))


def _is_job_beside_training(document: Document) -> bool:
    """Whether a document is a Job of Kubernetes without ranks and devices, such as one that prepares data."""
    source = SourceManifest(document)
    is_job = (source.value(("apiVersion",)), source.value(("kind",))) == ("batch/v1", "Job")
    return is_job and not find_rank_starter(source, job_kinds=()) and not has_devices(source)


def _problem_of_fault(file: str, fault: tree.TextProblem) -> Problem:
    return Problem(path_of(fault.loc), fault.message, file, fault.mark.line, fault.mark.column, fault.hint)


def _line_ranges(text: str, documents: Sequence[Document]) -> list[LineRange]:
    """Return the lines of each document, with those before it, such as a licence."""
    lines = text.split("\n")
    start_lines = [number for number, line in enumerate(lines, 1) if _DOCUMENT_START.match(line)]
    ranges: list[LineRange] = []
    first = 1
    for document in documents:
        next_first = next((number for number in start_lines if number > document.start.line), len(lines) + 1)
        ranges.append(LineRange(first, next_first - 1))
        first = next_first
    return ranges


def _items_in(documents: Sequence[Document]) -> list[Document]:
    """Return the documents; in place of a List its items."""
    return [item for document in documents for item, _ in _items_with_lines(document, LineRange(0, 0))]


def _items_with_lines(document: Document, lines: LineRange) -> list[tuple[Document, LineRange]]:
    """Return the document, or the items of a List as documents, with their lines."""
    data = document.data
    items = data.get("items") if isinstance(data, dict) and data.get("kind") == "List" else None
    if not isinstance(items, list):
        return [(document, lines)]
    items_with_lines: list[tuple[Document, LineRange]] = []
    first_lines = [document.value_mark(("items", index)).line for index in range(len(items))]
    last_lines = [*(first_line - 1 for first_line in first_lines[1:]), lines.last]
    for index, item in enumerate(items):
        item_document = Document(item, document.value_mark(("items", index)))
        item_document.keys = {loc[2:]: mark for loc, mark in document.keys.items() if loc[:2] == ("items", index)}
        item_document.values = {loc[2:]: mark for loc, mark in document.values.items() if loc[:2] == ("items", index)}
        items_with_lines.append((item_document, LineRange(first_lines[index], last_lines[index])))
    return items_with_lines


def _convert_document(  # noqa: PLR0917 - all that is known of a document
    document: Document, lines: LineRange, text: str, all_comments: Sequence[Comment], file: str, options: ConvertOptions
) -> ConvertedPiece:
    """Convert a document or an item of a List, or say why it is refused or passed on; `text` is the whole file's."""
    source = SourceManifest(document)
    kind, name = str(source.value(("kind",)) or ""), str(source.value(("metadata", "name")) or "")
    api_group = str(source.value(("apiVersion",)) or "").rpartition("/")[0]
    line = document.start.line
    if not kind:
        return RefusedManifest(
            "document", "", document.start, "has no kind", "a manifest has apiVersion and kind", lines
        )
    if (api_group, kind) in UNCONVERTIBLE:
        message = f"cannot be converted: {UNCONVERTIBLE[api_group, kind]}"
        return RefusedManifest(kind, name, document.start, message, "", lines)
    if kind == "Job" and _is_job_beside_training(document):
        return _pass_on(document, kind, name, lines, text)
    converter = CONVERTERS.get((api_group, kind))
    if converter:
        attached = attach_comments(all_comments, document, lines.first, lines.last)
        draft = Draft(source, config_map_texts=options.config_map_texts)
        try:
            converter(draft, options)
        except UnfitError as error:
            message = f"{path_of(error.loc)}: {error.message}".removeprefix(": ")
            return RefusedManifest(kind, name, document.key_mark(error.loc), message, error.hint, lines)
        return _finish_job(draft, kind, lines, attached, file, options)
    if kind in _RUNTIME_KINDS:
        return OtherManifest(kind, name, line, "", "read for the TrainJobs of this file, and not passed on", lines)
    known_groups = sorted(group for group, known_kind in CONVERTERS if known_kind == kind)
    if known_groups:
        message = f"group {api_group} has no {kind} that is known here"
        return RefusedManifest(kind, name, document.start, message, f"its group is {' or '.join(known_groups)}", lines)
    starter = None if kind in _KINDS_WITHOUT_PROGRAMS else find_rank_starter(source, _JOB_KINDS)
    if starter:
        holds_job = starter.description.startswith("holds")
        hint = "convert the job in it" if holds_job else "write it as a DLJob, or as a Job or a JobSet"
        message = f"{path_of(starter.loc)}: {starter.description}, and is no job that dljob converts"
        return RefusedManifest(kind, name, document.key_mark(starter.loc), message, hint, lines)
    return _pass_on(document, kind, name, lines, text)


def _pass_on(document: Document, kind: str, name: str, lines: LineRange, text: str) -> OtherManifest:
    """Return a document that is no job as it stands in the text of its file; a Secret is only named."""
    line = document.start.line
    if kind.casefold() in _SECRET_KINDS:
        reason = "not passed on, since it is secret: apply it by itself"
        return OtherManifest(kind, name, line, "", reason, lines)
    document_lines = text.split("\n")[lines.first - 1 : lines.last]
    body_lines = [body_line for body_line in document_lines if not _DOCUMENT_START.fullmatch(body_line.rstrip())]
    body = "\n".join(body_lines).strip("\n") + "\n"
    # An item of a List, or of JSON, is no document of its own.
    reparsed = read_documents(body)
    if not reparsed or reparsed[0].data != document.data:
        body = to_yaml(document.data)
    reason = "it starts no ranks" if kind in _WORKLOAD_KINDS else "no job"
    if kind == "DLJob":
        reason = "a DLJob already"
    return OtherManifest(kind, name, line, body, f"{reason}: passed on as it is", lines)


def _finish_job(  # noqa: PLR0917 - all that is known of a document
    draft: Draft, kind: str, lines: LineRange, attached: Sequence[AttachedComment], file: str, options: ConvertOptions
) -> ConvertedJob:
    """Write a converted draft as YAML, with the comments of its source and with its losses, and check it."""
    source = draft.source
    draft.drop_carried_but_absent()
    report_pod_names(draft, kind)
    rows = tuple(report_rows(source))
    comments, unplaced_comments = _place_comments(source, attached)
    draft.remarks += placeholder_remarks(source)
    body = write_with_comments(order_fields(draft.document), comments)
    line = source.document.start.line
    header = _header(kind, file, line, rows, unplaced_comments)
    footer_comments = [item.comment for item in unplaced_comments if item.field_loc == END_OF_DOCUMENT]
    footer = "".join(f"{comment.text}\n" for comment in footer_comments)
    name = str(draft.get(("metadata", "name")))
    problems = tuple(_find_problems(body, options.pod_security_level))
    return ConvertedJob(kind, name, line, header + body + footer, rows, tuple(draft.remarks), problems, lines)


def placeholder_remarks(source: SourceManifest) -> Iterator[str]:
    """Yield remarks about values that envsubst or its like was to fill in; commands have variables of their own."""
    for leaf in source.leaves():
        value = source.value(leaf)
        has_variables = {"command", "args", "env", "entrypoint", "runtimeEnvYAML"}.intersection(leaf)
        if isinstance(value, str) and not has_variables and _PLACEHOLDER.fullmatch(value):
            yield f"line {source.line(leaf)}, {path_of(leaf)}: {value} is to be filled in first, as envsubst does"


def _place_comments(
    source: SourceManifest, attached_comments: Sequence[AttachedComment]
) -> tuple[dict[Loc, FieldComments], list[AttachedComment]]:
    """Return the comments by their places in the DLJob, and those whose fields have no place there."""
    placed: dict[Loc, FieldComments] = {}
    unplaced: list[AttachedComment] = []
    for attached in attached_comments:
        target_loc, comment = source.target_loc(attached.field_loc), attached.comment
        if not target_loc:
            unplaced.append(attached)
        elif comment.has_own_line:
            placed.setdefault(target_loc, FieldComments()).above.append(comment.text)
        else:
            placed.setdefault(target_loc, FieldComments()).at_line_end.append(comment.text)
    return placed, unplaced


def _header(
    kind: str, file: str, line: int, rows: Sequence[ReportRow], unplaced_comments: Sequence[AttachedComment]
) -> str:
    """Return comments about the conversion, with the comments of fields that are not carried."""
    header = [attached.comment.text for attached in unplaced_comments if not attached.field_loc]
    header.append(f"# {kind}, {file}:{line}, converted by dljob convert.")
    dropped_rows = (row for row in summarize_losses(rows) if row.fate.kind == "dropped")
    header += [f"# not carried: line {row.line}, {row.path}: {row.fate.reason}" for row in dropped_rows]
    header += [
        f"# at {path_of(attached.field_loc)}, line {attached.comment.line}: {attached.comment.text}"
        for attached in unplaced_comments
        if attached.field_loc and attached.field_loc != END_OF_DOCUMENT
    ]
    return "\n".join(header) + "\n"


def _find_problems(text: str, pod_security_level: Level) -> list[str]:
    """Return all that is wrong with a DLJob: its spec, its pods, its plan."""

    def rules(manifest: DLJobManifest) -> Any:  # noqa: ANN401 - findings
        return refusals(manifest, PodPolicy(pod_security_level))

    try:
        load(text, rules=rules)
    except SpecError as error:
        return [f"{fault.path}: {fault.message}{f'. {fault.hint}' if fault.hint else ''}" for fault in error.problems]
    return []
