"""Refusals of the API server: its own words about a DLJob, with the position in the file when it is known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dljob.api.kubernetes.jobs import INSTALL, entries, nested
from dljob.errors import DLJobError, Problem, SpecError, UnreachableError, UsageError
from dljob.spec.loading.validate import is_another
from dljob.spec.text import tree

OLDER = "its CRD on this cluster is another version's: see `dljob doctor`"

_UNKNOWN = re.compile(r'(?:unknown|duplicate) field "([^"]+)"')
_PART = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_NOT_SERVED = "could not find the requested resource"


@dataclass(frozen=True, slots=True)
class JobFile:
    """The file from which a job was read."""

    file: str
    document: tree.Document

    @staticmethod
    def read(file: str, text: str) -> JobFile | None:
        """Find the one DLJob in a text, beside other objects; None when there are none or several."""
        # A file may hold other objects beside the job, such as a ConfigMap.
        documents = [document for document in tree.read(text) if not is_another(document.data)]
        return JobFile(file, documents[0]) if len(documents) == 1 else None

    def mark(self, path: str) -> tree.Position:
        """Return the position of a field that the server calls, for example, `spec.roles[0].replicas`."""
        return self.document.value_mark(loc_of(path))


def loc_of(path: str) -> tree.Loc:
    """Convert spec.roles[0].name to ("spec", "roles", 0, "name")."""
    return tuple(int(number) if number else word for word, number in _PART.findall(path))


def refusal(status: int, body: bytes, job: str, namespace: str, source: JobFile | None) -> DLJobError:
    """Convert the server's answer to a new DLJob into an error."""
    from dljob.kube.errors import from_answer, status_object

    answer = status_object(body)
    message = str(answer.get("message") or "")
    # The name was taken after `submit` had looked.
    if status == 409:
        return namesake(job, namespace)
    # A group that is not served is answered without a Status; a missing namespace with one, which names it.
    if status == 404 and (not answer or _NOT_SERVED in message):
        return UnreachableError("this cluster does not serve DLJobs", hint=INSTALL)
    problems = _problems(status, answer, source)
    if problems:
        return SpecError(problems, hint=OLDER if status == 400 else "")
    if status == 403 and "exceeded quota" in message:
        return UnreachableError(message, hint=f"kubectl describe quota -n {namespace}")
    if "admission webhook" in message:
        return UsageError(message, hint="a policy of this cluster refused it; its owners know why")
    return from_answer(status, body, f"create dljob {job}")


def _problems(status: int, answer: Mapping[str, Any], source: JobFile | None) -> tuple[Problem, ...]:
    """Return the problems of the spec that an answer names."""
    message = str(answer.get("message") or "")
    # Strict validation of fields; the message is the only place that lists them.
    if status == 400:
        return tuple(_problem(path, "unknown to the API server", source) for path in _UNKNOWN.findall(message))
    if status != 422:
        return ()
    causes = entries(nested(answer, "details"), "causes")
    # Sorted below: in the order of the file they are easier to fix.
    problems = [_problem(_field(cause), str(cause.get("message") or ""), source) for cause in causes]
    return tuple(sorted(problems, key=lambda p: (p.line, p.column))) or (_problem("", message, source),)


def _field(cause: Mapping[str, Any]) -> str:
    field = str(cause.get("field") or "")
    # Kubernetes prints the path of a rule about the whole object as "<nil>".
    return "" if field == "<nil>" else field


# Kubernetes puts the value's type before the message of a CEL rule, which tells the user nothing.
_SAYS_THE_VALUE = re.compile(r'^Invalid value: "(?:object|array)": ')


def _problem(path: str, message: str, source: JobFile | None) -> Problem:
    text = _SAYS_THE_VALUE.sub("", message)
    if source is None or not path:
        return Problem(path, text)
    mark = source.mark(path)
    return Problem(path, text, file=source.file, line=mark.line, column=mark.column)


def namesake(job: str, namespace: str, phase: str = "") -> UsageError:
    """Return the error for a taken name."""
    going_on = "go on with it (--resume, or resume=True), " if phase in ("Stopped", "Failed") else ""
    delete = f"kubectl delete dljob {job} -n {namespace}"
    hint = f"{going_on}replace it (--replace, or replace=True), take another name, or {delete}"
    return UsageError(f"there is a job {job} in namespace {namespace}{f', {phase}' if phase else ''}", hint=hint)
