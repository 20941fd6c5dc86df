"""A file of manifests, document by document: which are jobs, what they become, and what happens to the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from dljob.convert.comments import END, Attached, Comment, attach, comments, target
from dljob.convert.emit import Notes, ordered, with_comments
from dljob.convert.jobset import batch_job, job_set
from dljob.convert.kubeflow import elastic_job, pytorch_job
from dljob.convert.launches import has_devices, start_of_ranks
from dljob.convert.rayjob import ray_cluster, ray_job
from dljob.convert.source import Draft, Named, SourceManifest, UnfitError, named, summarize_losses
from dljob.convert.tensorflow_job import elastic_servers, has_servers, tf_job
from dljob.convert.trainjob import train_job
from dljob.errors import Problem, SpecError, UsageError
from dljob.raycluster.acceptance import refusals
from dljob.raycluster.pod_security import Level, PodPolicy
from dljob.spec.loading.load import load
from dljob.spec.model import DLJobManifest
from dljob.spec.text import tree
from dljob.spec.text.emit import to_yaml
from dljob.spec.text.tree import Document, Loc
from dljob.spec.text.words import path_of

_CHART = re.compile(
    r"\{\{-?\s*(\.|\$|/\*|(include|if|else|end|range|with|define|template|block|toYaml|tpl|default|quote|printf)\b)"
)
_UNFILLED = re.compile(r"\$\{\w+(:?-[^}]*)?\}|\$\w+|.*\$\{\w+\}.*|<[A-Z_ -]+>")
_SECRET = ("secret", "secretlist")
_SEPARATOR = re.compile(r"---(\s|$)")


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """What flags of the command say beside the file."""

    command: tuple[str, ...] = ()
    """Program of a manifest that names none."""
    workdir: str = ""
    """Folder of the image in which the program starts."""
    runtimes: tuple[Mapping[str, Any], ...] = ()
    """Training runtimes of Kubeflow, for TrainJobs that refer to them."""
    scripts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Texts of ConfigMaps by their keys, for commands that run them."""
    level: Level = "baseline"


@dataclass(frozen=True, slots=True)
class ConvertedJob:
    """A manifest that became a DLJob."""

    kind: str
    name: str
    line: int
    text: str
    """The DLJob as YAML, with comments."""
    rows: tuple[Named, ...]
    remarks: tuple[str, ...]
    problems: tuple[str, ...]
    """Why the DLJob would be refused; empty: it validates and plans."""
    lines: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Other:
    """A document that is no job: passed on as it is, or only named."""

    kind: str
    name: str
    line: int
    text: str
    """Empty: it is not passed on."""
    reason: str
    lines: tuple[int, int]


@dataclass(frozen=True, slots=True)
class RefusedManifest:
    """A document that cannot become a DLJob."""

    kind: str
    name: str
    line: int
    message: str
    hint: str = ""
    lines: tuple[int, int] = (0, 0)


ConvertedPiece: TypeAlias = ConvertedJob | Other | RefusedManifest
Converter: TypeAlias = Callable[[Draft, ConvertOptions], None]

TRAINER = "trainer.kubeflow.org"
RUNTIMES = ("TrainingRuntime", "ClusterTrainingRuntime")
CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("ray.io", "RayJob"): lambda draft, options: ray_job(draft, options.command, options.workdir),
    ("ray.io", "RayCluster"): lambda draft, options: ray_cluster(draft, options.command, options.workdir),
    ("kubeflow.org", "PyTorchJob"): lambda draft, options: pytorch_job(draft, options.command, options.workdir),
    ("batch", "Job"): lambda draft, options: batch_job(draft, options.command, options.workdir),
    ("jobset.x-k8s.io", "JobSet"): lambda draft, options: job_set(draft, options.command, options.workdir),
    ("kubeflow.org", "TFJob"): lambda draft, options: tf_job(draft, options.command, options.workdir),
    ("elastic.iml.github.io", "ElasticJob"): lambda draft, options: (
        elastic_servers if has_servers(draft) else elastic_job
    )(draft, options.command, options.workdir),
    (TRAINER, "TrainJob"): lambda draft, options: train_job(draft, options.command, options.workdir, options.runtimes),
}
"""API group and kind -> what converts it."""
NOT_YET: Mapping[tuple[str, str], str] = {
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
_KINDS = frozenset(kind for _, kind in (*CONVERTERS, *NOT_YET))
_NO_PROGRAMS = ("ConfigMap", "Secret", "SecretList", "DLJob", "CustomResourceDefinition")
_WORKLOADS = ("Job", "Pod", "StatefulSet", "Deployment", "DaemonSet", "ReplicaSet", "CronJob")
"""Kinds of Kubernetes that run programs, and a job where these start ranks."""


def convert(text: str, file: str, options: ConvertOptions = ConvertOptions()) -> list[ConvertedPiece]:
    """Convert all documents of a text.

    Raises:
        UsageError: it is no manifest at all.
        SpecError: the text is no YAML.
    """
    documents = documents_of(text)
    if line := _chart(text, documents):
        hint = "render it first: helm template CHART | dljob convert - -o dljob.yaml"
        raise UsageError(f"{file}:{line}: a chart's template, not a manifest", hint=hint)
    if not documents:
        raise UsageError(
            f"{file}: is empty", hint="name a file with a RayJob, PyTorchJob, TrainJob, JobSet or ElasticJob"
        )
    options = replace(options, runtimes=(*options.runtimes, *runtimes(documents)), scripts=_scripts(documents))
    all_comments = comments(text) if not any(map(_syntax, documents)) else []
    pieces: list[ConvertedPiece] = []
    for document, lines in zip(documents, _ranges(text, documents), strict=True):
        if document.faults:
            raise SpecError(tuple(_problem(file, fault) for fault in document.faults))
        for item, item_lines in _items(document, lines):
            pieces.append(_piece(item, item_lines, text, all_comments, file, options))
    return pieces


def documents_of(text: str) -> list[Document]:
    """Return the documents of a text as kubectl reads them: a mode of `0400` is octal, and `yes` is true."""
    return tree.read(text, kubectl="follow")


@dataclass(frozen=True, slots=True)
class RuntimeRef:
    """The runtime that a TrainJob names."""

    kind: str
    name: str
    namespace: str


def wanted_runtimes(text: str) -> list[RuntimeRef]:
    """Return the runtimes that TrainJobs of a text name, each once."""
    references: dict[RuntimeRef, None] = {}
    for document in documents_of(text):
        for item, _ in _items(document, (0, 0)):
            source = SourceManifest(item)
            name = source.value(("spec", "runtimeRef", "name"))
            if source.value(("kind",)) == "TrainJob" and isinstance(name, str):
                kind = str(source.value(("spec", "runtimeRef", "kind")) or RUNTIMES[1])
                references[RuntimeRef(kind, name, str(source.value(("metadata", "namespace")) or ""))] = None
    return list(references)


def runtimes(documents: Sequence[Document]) -> list[Mapping[str, Any]]:
    """Return the training runtimes among documents, those of a List too."""
    items = [item for document in documents for item, _ in _items(document, (0, 0))]
    return [cast("Any", item.data) for item in items if SourceManifest(item).value(("kind",)) in RUNTIMES]


def _scripts(documents: Sequence[Document]) -> dict[str, str]:
    """Return the texts of the ConfigMaps among documents, by their keys."""
    scripts: dict[str, str] = {}
    for document in documents:
        for item, _ in _items(document, (0, 0)):
            source = SourceManifest(item)
            if source.value(("kind",)) == "ConfigMap" and isinstance(source.value(("data",)), dict):
                scripts |= {key: str(source.value(at)) for key, at in source.keys(("data",))}
    return scripts


def _chart(text: str, documents: Sequence[Document]) -> int:
    """Return the line of a chart's template; 0 without one. Alerts and ConfigMaps have such words of their own."""
    parses = all(not document.faults for document in documents)
    foreign_ranges = [
        lines
        for document, lines in zip(documents, _ranges(text, documents), strict=True)
        if parses and not any(_converts(item) for item, _ in _items(document, lines))
    ]
    for directive in _CHART.finditer(text):
        line = text.count("\n", 0, directive.start()) + 1
        if not any(first <= line <= last for first, last in foreign_ranges):
            return line
    return 0


def _converts(document: Document) -> bool:
    kind = SourceManifest(document).value(("kind",))
    return not kind or (kind in _KINDS and not _is_aside(document))


def _is_aside(document: Document) -> bool:
    """Whether a document is a Job that stands beside the training, such as one that prepares its data."""
    source = SourceManifest(document)
    is_job = (source.value(("apiVersion",)), source.value(("kind",))) == ("batch/v1", "Job")
    return is_job and not start_of_ranks(source, ())[1] and not has_devices(source)


def _syntax(document: Document) -> bool:
    return document.data is None and bool(document.faults)


def _problem(file: str, fault: tree.TextProblem) -> Problem:
    return Problem(path_of(fault.loc), fault.message, file, fault.mark.line, fault.mark.column, fault.hint)


def _ranges(text: str, documents: Sequence[Document]) -> list[tuple[int, int]]:
    """Return first and last line of each document; what stands before a document, such as a licence, is its own."""
    lines = text.split("\n")
    marks = [number for number, line in enumerate(lines, 1) if _SEPARATOR.match(line)]
    first, ranges = 1, list[tuple[int, int]]()
    for document in documents:
        behind = next((mark for mark in marks if mark > document.start.line), len(lines) + 1)
        ranges.append((first, behind - 1))
        first = behind
    return ranges


def _items(document: Document, lines: tuple[int, int]) -> list[tuple[Document, tuple[int, int]]]:
    """Return the document, or the items of a List as documents."""
    data = document.data
    items = data.get("items") if isinstance(data, dict) and data.get("kind") == "List" else None
    if not isinstance(items, list):
        return [(document, lines)]
    items_with_lines: list[tuple[Document, tuple[int, int]]] = []
    starts = [document.value_mark(("items", at)).line for at in range(len(items))]
    for at, item in enumerate(items):
        item_document = Document(item, document.value_mark(("items", at)))
        item_document.keys = {loc[2:]: mark for loc, mark in document.keys.items() if loc[:2] == ("items", at)}
        item_document.values = {loc[2:]: mark for loc, mark in document.values.items() if loc[:2] == ("items", at)}
        items_with_lines.append((item_document, (starts[at], starts[at + 1] - 1 if at + 1 < len(items) else lines[1])))
    return items_with_lines


def _piece(  # noqa: PLR0917 - all that is known of a document
    document: Document,
    lines: tuple[int, int],
    text: str,
    notes: Sequence[Comment],
    file: str,
    options: ConvertOptions,
) -> ConvertedPiece:
    source = SourceManifest(document)
    kind, name = (str(source.value(loc) or "") for loc in (("kind",), ("metadata", "name")))
    group = str(source.value(("apiVersion",)) or "").rpartition("/")[0]
    line = document.start.line
    if not kind:
        return RefusedManifest("document", "", line, "has no kind", "a manifest has apiVersion and kind", lines)
    if reason := NOT_YET.get((group, kind)):
        return RefusedManifest(kind, name, line, f"cannot be converted: {reason}", "", lines)
    converter = CONVERTERS.get((group, kind))
    if kind == "Job" and _is_aside(document):
        return _pass_on(document, kind, name, lines, text)
    if converter is None and kind in RUNTIMES:
        reason = "read for the TrainJobs of this file, and not passed on"
        return Other(kind, name, line, "", reason, lines)
    if converter is None and (known := sorted(known_group for known_group, same in CONVERTERS if same == kind)):
        message = f"group {group} has no {kind} that is known here"
        return RefusedManifest(kind, name, line, message, f"its group is {' or '.join(known)}", lines)
    starts_at, start = start_of_ranks(source, _KINDS) if converter is None and kind not in _NO_PROGRAMS else ((), "")
    if start:
        line, at = document.key_mark(starts_at).line, path_of(starts_at)
        hint = "convert the job in it" if start.startswith("holds") else "write it as a DLJob, or as a Job or a JobSet"
        return RefusedManifest(kind, name, line, f"{at}: {start}, and is no job that dljob converts", hint, lines)
    if converter is None:
        return _pass_on(document, kind, name, lines, text)
    attached = attach(notes, document, *lines)
    try:
        return _job(document, kind, lines, attached, file, (converter, options))
    except UnfitError as error:
        at = document.key_mark(error.loc)
        return RefusedManifest(
            kind, name, at.line, f"{path_of(error.loc)}: {error.message}".removeprefix(": "), error.hint, lines
        )


def _pass_on(document: Document, kind: str, name: str, lines: tuple[int, int], text: str) -> Other:
    if kind.casefold() in _SECRET:
        return Other(
            kind, name, document.start.line, "", "not passed on, since it is secret: apply it by itself", lines
        )
    source = text.split("\n")[lines[0] - 1 : lines[1]]
    body = "\n".join(line for line in source if not _SEPARATOR.fullmatch(line.rstrip())).strip("\n") + "\n"
    # An item of a List, or of JSON, is no document of its own.
    again = documents_of(body)
    if not again or again[0].data != document.data:
        body = to_yaml(document.data)
    noun = "a DLJob already" if kind == "DLJob" else "it starts no ranks" if kind in _WORKLOADS else "no job"
    return Other(kind, name, document.start.line, body, f"{noun}: passed on as it is", lines)


def _job(  # noqa: PLR0917 - all that is known of a document
    document: Document,
    kind: str,
    lines: tuple[int, int],
    attached: Sequence[Attached],
    file: str,
    by: tuple[Converter, ConvertOptions],
) -> ConvertedJob:
    converter, options = by
    draft = Draft(SourceManifest(document), scripts=options.scripts)
    converter(draft, options)
    draft.drop_lost()
    rows = tuple(named(draft.source))
    name = str(draft.get(("metadata", "name")))
    notes, lost = _notes(draft.source, attached)
    draft.remarks += unfilled(draft.source)
    body = with_comments(ordered(draft.document), notes)
    header = _header(kind, file, document.start.line, rows, lost)
    footer = "".join(f"{note.comment.text}\n" for note in lost if note.loc == END)
    return ConvertedJob(
        kind,
        name,
        document.start.line,
        header + body + footer,
        rows,
        tuple(draft.remarks),
        tuple(_check(body, options)),
        lines,
    )


def unfilled(source: SourceManifest) -> Iterator[str]:
    """Yield remarks about values that envsubst or its like was to fill in; commands have variables of their own."""
    for leaf in source.leaves():
        value = source.value(leaf)
        has_variables = {"command", "args", "env", "entrypoint", "runtimeEnvYAML"}.intersection(leaf)
        if isinstance(value, str) and not has_variables and _UNFILLED.fullmatch(value):
            yield f"line {source.line(leaf)}, {path_of(leaf)}: {value} is to be filled in first, as envsubst does"


def _notes(source: SourceManifest, attached: Sequence[Attached]) -> tuple[dict[Loc, Notes], list[Attached]]:
    """Return the comments by their places in the DLJob, and those whose fields are not in it."""
    notes: dict[Loc, Notes] = {}
    lost: list[Attached] = []
    for note in attached:
        to = target(source, note.loc)
        if not to:
            lost.append(note)
            continue
        field_notes = notes.setdefault(to, Notes())
        (field_notes.before if note.comment.has_own_line else field_notes.behind).append(note.comment.text)
    return notes, lost


def _header(kind: str, file: str, line: int, rows: Sequence[Named], lost: Sequence[Attached]) -> str:
    """Return comments about the conversion, with the comments of fields that are not carried."""
    header = [note.comment.text for note in lost if not note.loc]
    header.append(f"# {kind}, {file}:{line}, converted by dljob convert.")
    dropped = (row for row in summarize_losses(rows) if row.fate.kind == "dropped")
    header += [f"# not carried: line {row.line}, {row.path}: {row.fate.reason}" for row in dropped]
    header += [
        f"# at {path_of(note.loc)}, line {note.comment.line}: {note.comment.text}"
        for note in lost
        if note.loc and note.loc != END
    ]
    return "\n".join(header) + "\n"


def _check(text: str, options: ConvertOptions) -> list[str]:
    """Return all that is wrong with a DLJob: its spec, its pods, its plan."""

    def rules(manifest: DLJobManifest) -> Any:  # noqa: ANN401 - findings
        return refusals(manifest, PodPolicy(options.level))

    try:
        load(text, rules=rules)
    except SpecError as error:
        return [f"{fault.path}: {fault.message}{f'. {fault.hint}' if fault.hint else ''}" for fault in error.problems]
    return []
