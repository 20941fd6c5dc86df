"""What the API server says against a DLJob, in its own words, with the place in the file where there is one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dljob.api.kubernetes.jobs import items, part
from dljob.errors import DLJobError, Problem, SpecError, UnreachableError, UsageError
from dljob.spec import tree
from dljob.spec.validate import is_another

INSTALL = "is dljob installed there? `helm install` its chart, then `dljob doctor`"
OLDER = "its CRD on this cluster is another version's: see `dljob doctor`"

_UNKNOWN = re.compile(r'(?:unknown|duplicate) field "([^"]+)"')
_PART = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_NOT_SERVED = "could not find the requested resource"


@dataclass(frozen=True, slots=True)
class Source:
    """The file that a job was read from."""

    file: str
    document: tree.Document

    @staticmethod
    def read(file: str, text: str) -> Source | None:
        """The one DLJob of a text, beside other objects; None when it has another number of them."""
        documents = [document for document in tree.read(text) if not is_another(document.data)]
        return Source(file, documents[0]) if len(documents) == 1 else None

    def mark(self, path: str) -> tree.Mark:
        """Where a field stands that the server calls `spec.roles[0].replicas`."""
        return self.document.value_mark(loc_of(path))


def loc_of(path: str) -> tree.Loc:
    """spec.roles[0].name as ("spec", "roles", 0, "name")."""
    return tuple(int(number) if number else word for word, number in _PART.findall(path))


def refusal(status: int, body: bytes, job: str, namespace: str, source: Source | None) -> DLJobError:
    """The error that the server's answer to a new DLJob means."""
    from dljob.kube.errors import from_answer, status_object

    answer = status_object(body)
    message = str(answer.get("message") or "")
    if status == 409:
        from dljob.api.kubernetes.submit import namesake

        return namesake(job, namespace)
    if status == 404 and (not answer or _NOT_SERVED in message):  # a group that is not served answers no Status
        return UnreachableError("this cluster does not serve DLJobs", hint=INSTALL)
    problems = _problems(status, answer, source)
    if problems:
        return SpecError(problems, hint=OLDER if status == 400 else "")
    if status == 403 and "exceeded quota" in message:
        return UnreachableError(message, hint=f"kubectl describe quota -n {namespace}")
    if "admission webhook" in message:
        return UsageError(message, hint="a policy of this cluster refused it; its owners know why")
    return from_answer(status, body, f"create dljob {job}")


def _problems(status: int, answer: Mapping[str, Any], source: Source | None) -> tuple[Problem, ...]:
    """The faults of the spec that an answer names."""
    message = str(answer.get("message") or "")
    if status == 400:
        return tuple(_problem(path, "unknown to the API server", source) for path in _UNKNOWN.findall(message))
    if status != 422:
        return ()
    causes = items(part(answer, "details"), "causes")
    found = [_problem(_field(cause), str(cause.get("message") or ""), source) for cause in causes]
    return tuple(sorted(found, key=lambda p: (p.line, p.column))) or (_problem("", message, source),)


def _field(cause: Mapping[str, Any]) -> str:
    field = str(cause.get("field") or "")
    return "" if field == "<nil>" else field


_SAYS_THE_VALUE = re.compile(r'^Invalid value: "(?:object|array)": ')


def _problem(path: str, message: str, source: Source | None) -> Problem:
    said = _SAYS_THE_VALUE.sub("", message)
    if source is None or not path:
        return Problem(path, said)
    mark = source.mark(path)
    return Problem(path, said, file=source.file, line=mark.line, column=mark.column)
