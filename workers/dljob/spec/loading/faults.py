"""A faults file: the faults to inject into a job, their targets and times, and the incidents to expect.

    - {when: {step: 15}, target: rollout/1, fault: kill}
    - {when: {time: 60}, target: trainer, fault: oom, expect: {cause: OOMKilled, level: RoleGroup}}
    - {when: {event: Restarting, count: 2}, target: master, fault: kill}

The same file drives a real job (`dljob run --faults`, `dljob chaos`) and a simulated one (`dljob sim --faults`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, Field, JsonValue, ValidationError

from dljob.errors import Problem, SpecError, UsageError
from dljob.spec.loading.validate import details
from dljob.spec.policy import RuleReason
from dljob.spec.rules.findings import Finding
from dljob.spec.scalars import Model, refuse
from dljob.spec.text import tree
from dljob.spec.text.tree import Document, Loc
from dljob.spec.text.words import one_of, path_of
from dljob.telemetry import reasons

FaultKind = Literal["kill", "stop", "oom", "slow", "leave", "cut"]
FaultCause = Literal[RuleReason, "ImagePull", "MasterRestarted"]
FaultLevel = Literal["InProcess", "Process", "RoleGroup", "Role", "Job", "Node", "Master", "Fail"]

Seconds = Annotated[int, Field(ge=0, le=31_536_000)]
# In `reasons` the constants in capitals are names of events.
EVENTS: tuple[str, ...] = tuple(sorted(v for k, v in vars(reasons).items() if k.isupper() and isinstance(v, str)))
"""Reasons of events in a job's timeline."""
_MOMENTS = ("time", "step", "event")
_MOST = 1000


def _known_event(name: str) -> str:
    # A misspelt event would never come, and its fault would wait for ever.
    if name not in EVENTS:
        raise refuse(f"there is no event {name!r}", one_of(name, EVENTS))
    return name


class FaultTime(Model):
    """The trigger of a fault: one of time, step and event."""

    time: Seconds | None = None
    """Seconds after the job began to run; under `dljob chaos`, after the command began."""
    step: Annotated[int, Field(ge=0, le=2**53)] | None = None
    """Step that the first driver role must reach, by its last `progress()` call."""
    event: Annotated[str, Field(max_length=64), AfterValidator(_known_event)] | None = None
    """Reason of an event that must be in the job's timeline (`dljob events`); under `dljob chaos`, of a new event."""
    count: Annotated[int, Field(ge=1, le=100_000)] = 1
    """With event: the number of such events that there must be."""


class Expected(Model):
    """The incident to expect: one incident of the job must have all values given here."""

    cause: FaultCause | None = None
    """The first cause, as in `lastFault.reason`."""
    target: Annotated[str, Field(max_length=64)] | None = None
    """The restarted role, rank or node, as in `lastFault.target`."""
    level: FaultLevel | None = None
    """The level of the restart, as in `lastFault.level`."""


class FileFault(Model):
    """One fault to inject."""

    when: FaultTime
    """Trigger of the fault: one of time, step and event. The fault then waits until its target has a process."""
    target: Annotated[str, Field(max_length=128)]
    """`master`, a role, a rank as `rollout/1`, the keeper of a DataQueue as `queue/samples`, `operator`, or a node:
    `node/0` holds the plan's first unit, the next numbers follow the order of the units, nodes without units come last;
    or the beginning of a node's id in a running job. `pod/0` is the pod of that node: only on Kubernetes do they
    differ."""
    fault: FaultKind
    """kill: SIGKILL; for a node, to its raylet. stop: SIGSTOP; for a node, to all its processes. oom: SIGKILL, together
    with the log line that the kernel writes of it. slow: SIGSTOP and SIGCONT in turn. leave: the node is announced to
    be taken away, as a preempted one is; a pod is evicted. cut: nothing that the node sends arrives, for a time; nodes
    of one machine share its network, so there its processes are stopped."""
    seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    """stop: seconds until the target continues; left out: never. slow, cut: duration of the fault in seconds. leave:
    seconds from the announcement until the node's raylet gets SIGKILL; the most that an evicted pod has."""
    factor: Annotated[int, Field(ge=2, le=100)] | None = None
    """slow: factor by which the target takes longer."""
    expect: Expected | None = None
    """Incident that the job must report; otherwise the command exits with 1."""


class FaultsFile(Model):
    """A list of faults."""

    faults: Annotated[tuple[FileFault, ...], Field(max_length=_MOST)]
    """The faults; those that are due at the same time are injected in this order."""


Check = Callable[[Loc, Mapping[str, Any]], Iterable[Finding]]
"""Check of a fault beyond its schema: whether the job has the target."""


def load_file(path: str | os.PathLike[str], check: Check) -> tuple[FileFault, ...]:
    """Return the faults of a YAML or JSON file.

    Raises:
        UsageError: the file cannot be read.
        SpecError: with every problem, at file:line:column.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {os.fspath(path)}: {getattr(error, 'strerror', None) or error}") from None
    return parse(text, check, file=os.fspath(path))


def parse(text: str, check: Check, *, file: str = "<faults>") -> tuple[FileFault, ...]:
    """Return the faults of the text of a faults file. Raises SpecError with every problem."""
    faults: list[FileFault] = []
    problems: list[Problem] = []
    for document in tree.read(text):
        document_faults, wrong = _document(document, check)
        faults += document_faults
        problems += [_problem(file, document, finding) for finding in wrong]
    if problems:
        # Checks run document by document, and users read from top to bottom.
        raise SpecError(tuple(sorted(problems, key=lambda p: (p.line, p.column))))
    return tuple(faults)


def _problem(file: str, document: Document, finding: Finding) -> Problem:
    mark = document.key_mark(finding.loc) if finding.at_key else document.value_mark(finding.loc)
    return Problem(path_of(finding.loc), finding.message, file, mark.line, mark.column, finding.hint)


def _document(document: Document, check: Check) -> tuple[tuple[FileFault, ...], list[Finding]]:
    # Errors of the text come alone: further findings would be their consequences.
    if document.faults:
        return (), [Finding(fault.loc, fault.message, fault.hint) for fault in document.faults]
    if not isinstance(document.data, list):
        return (), [Finding((), "is no list of faults", "begin with - {when: {step: 15}, ...}")]
    # Before the schema, so that a file with a wrong field shows its contradictions too.
    wrong = [finding for at, item in enumerate(document.data) for finding in _between((at,), item, check)]
    try:
        # Strict mode of JSON accepts a list for a tuple, which strict mode of Python data does not.
        data = json.dumps({"faults": document.data})
        return FaultsFile.model_validate_json(data, strict=True, by_alias=True, by_name=False).faults, wrong
    except ValidationError as error:
        return (), wrong + [_inside(finding) for _, finding in details(error, FaultsFile)]


def _inside(finding: Finding) -> Finding:
    # Without the first step: the model has a field `faults` around the list, which the file does not have.
    return Finding(finding.loc[1:], finding.message, finding.hint, at_key=finding.at_key)


def _between(loc: Loc, item: JsonValue, check: Check) -> Iterator[Finding]:
    """Find contradictions between the fields of a fault; a field of the wrong type is left to the schema."""
    if not isinstance(item, dict):
        return
    yield from _moment((*loc, "when"), item.get("when"))
    yield from _manner(loc, item)
    expect = item.get("expect")
    if expect == {}:
        yield Finding((*loc, "expect"), "expects nothing", "give cause, target or level, or leave it out")
    if isinstance(item.get("target"), str):
        yield from check(loc, cast("Mapping[str, Any]", item))


def _moment(loc: Loc, when: JsonValue) -> Iterator[Finding]:
    if not isinstance(when, dict):
        return
    moment_keys = [name for name in _MOMENTS if when.get(name) is not None]
    # Nothing, or `count` alone; an unknown key is reported by the schema instead.
    if len(moment_keys) > 1 or (not moment_keys and when.keys() <= {"count"}):
        given_text = " and ".join(moment_keys) if moment_keys else "none of them"
        yield Finding(
            loc, f"one of time, step and event, not {given_text}", "write {step: 15}, {time: 60} or {event: ...}"
        )
    if "count" in when and moment_keys and moment_keys != ["event"]:
        yield Finding((*loc, "count"), "counts events", f"{moment_keys[0]} comes once", at_key=True)


def _manner(loc: Loc, item: Mapping[str, Any]) -> Iterator[Finding]:
    """Find fields that the kind of fault needs, and fields that it cannot have."""
    kind = item.get("fault")
    if kind in ("kill", "oom") and "seconds" in item:
        yield Finding((*loc, "seconds"), f"{kind} takes no time", "for stop, slow, leave and cut", at_key=True)
    if kind == "leave" and "seconds" not in item:
        yield Finding(loc, "leave needs 'seconds'", "as many as lie between announcement and end")
    if kind == "cut" and "seconds" not in item:
        yield Finding(loc, "cut needs 'seconds'", "as many as nothing that the node sends arrives")
    if kind == "slow":
        for key, hint in (("seconds", "for so many seconds"), ("factor", "so many times slower, at least 2")):
            if key not in item:
                yield Finding(loc, f"slow needs {key!r}", hint)
    elif kind in ("kill", "oom", "stop", "leave", "cut") and "factor" in item:
        yield Finding((*loc, "factor"), f"{kind} has no factor", "for slow", at_key=True)
