"""Faults that the platform itself inflicts on a job, to show that it survives them: `dljob run --faults FILE`.

    - {when: {step: 15}, target: rollout/1, fault: kill}
    - {when: {step: 35}, target: master, fault: kill}

A fault is due when the last `progress()` step of the first driver role reaches `step`; the next one waits until the job
has recovered from the one before. `kill` is SIGKILL to the process, by the pid that the master tells.
"""

from __future__ import annotations

import difflib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from dljob.errors import Problem, SpecError, UsageError
from dljob.plan.model import JobPlan
from dljob.spec import tree
from dljob.spec.tree import Document, Loc, Mark

MASTER = "master"
KINDS = ("kill",)
_KEYS = ("when", "target", "fault")


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done to whom, and when."""

    step: int
    target: str
    """master, or role/rank."""
    kind: str = "kill"


# --- the file


def load_faults(path: Path, plan: JobPlan) -> tuple[Fault, ...]:
    """The faults of a YAML file for a job, by step.

    Raises:
        UsageError: the file cannot be read.
        SpecError: with every problem, at file:line:column; targets that the job does not have among them.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    checked = _Checker(os.fspath(path), plan)
    for document in tree.read(text):
        checked.document(document)
    if checked.problems:
        raise SpecError(tuple(sorted(checked.problems, key=lambda p: (p.line, p.column))))
    return tuple(sorted(checked.faults, key=lambda f: f.step))


class _Checker:
    """Collects the faults of a file and everything that is wrong with them."""

    def __init__(self, file: str, plan: JobPlan) -> None:
        self.file = file
        self.plan = plan
        self.faults: list[Fault] = []
        self.problems: list[Problem] = []

    def document(self, document: Document) -> None:
        """One document: a list of faults."""
        for fault in document.faults:
            self._wrong(fault.mark, "", fault.message, fault.hint)
        if document.faults:
            return
        if not isinstance(document.data, list):
            self._wrong(document.start, "", "is no list of faults", "begin with - {when: {step: 15}, ...}")
            return
        for index, item in enumerate(document.data):
            self._fault(document, index, item)

    def _fault(self, document: Document, index: int, item: object) -> None:
        before = len(self.problems)
        if not isinstance(item, dict):
            self._wrong(
                document.value_mark((index,)),
                f"[{index}]",
                "is no mapping",
                "write {when: {step: 15}, target: ..., fault: kill}",
            )
            return
        fault = cast("dict[str, Any]", item)
        self._unknown(document, (index,), fault, _KEYS)
        for key in _KEYS:
            if key not in fault:
                self._wrong(document.value_mark((index,)), f"[{index}]", f"has no {key!r}", "")
        step = self._step(document, index, fault.get("when"))
        self._target(document.value_mark((index, "target")), index, fault.get("target"))
        self._kind(document.value_mark((index, "fault")), index, fault.get("fault"))
        if len(self.problems) == before and step is not None:
            self.faults.append(Fault(step, str(fault["target"]), str(fault["fault"])))

    def _step(self, document: Document, index: int, when: object) -> int | None:
        if when is None:
            return None
        loc: Loc = (index, "when")
        if not isinstance(when, dict):
            self._wrong(document.value_mark(loc), f"[{index}].when", "is no mapping", "write {step: 15}")
            return None
        given = cast("dict[str, Any]", when)
        self._unknown(document, loc, given, ("step",))
        step = given.get("step")
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            where = document.value_mark((*loc, "step"))
            self._wrong(where, f"[{index}].when.step", "must be a whole number, 0 or more", "")
            return None
        return step

    def _target(self, mark: Mark, index: int, target: object) -> None:
        if target is None or target == MASTER:
            return
        role, _, rank = str(target).partition("/")
        path = f"[{index}].target"
        if role not in self.plan.roles:
            names = [*self.plan.roles, MASTER]
            self._wrong(mark, path, f"there is no role {role!r} in job {self.plan.name}", _close(role, names))
        elif not rank.isdigit() or int(rank) >= self.plan.roles[role].replicas:
            last = self.plan.roles[role].replicas - 1
            self._wrong(mark, path, f"{target!r} is no rank of the job", f"{role}/0 to {role}/{last}")

    def _kind(self, mark: Mark, index: int, kind: object) -> None:
        if kind is not None and kind not in KINDS:
            self._wrong(mark, f"[{index}].fault", f"there is no fault {kind!r}", _close(str(kind), KINDS))

    def _unknown(self, document: Document, loc: Loc, given: Mapping[str, Any], known: Sequence[str]) -> None:
        for key in given:
            if key not in known:
                path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in (*loc, key))
                self._wrong(document.key_mark((*loc, key)), path, "unknown field", _close(key, known))

    def _wrong(self, mark: Mark, path: str, message: str, hint: str) -> None:
        self.problems.append(Problem(path, message, self.file, mark.line, mark.column, hint))


def _close(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


# --- doing it


def excused(target: str, plan: JobPlan) -> frozenset[str]:
    """Whose pid may change by a fault: the killed process and its role group."""
    if target == MASTER:
        return frozenset((MASTER,))
    role, _, rank = target.partition("/")
    size = plan.roles[role].group_size
    first = int(rank) // size * size
    return frozenset(f"{role}/{r}" for r in range(first, first + size))


def moved(before: Mapping[str, int], after: Mapping[str, int], excused: frozenset[str]) -> tuple[str, ...]:
    """Who has another process than before, beside those excused; who has ended since does not count."""
    return tuple(sorted(n for n, pid in before.items() if n not in excused and n in after and after[n] != pid))


@dataclass(slots=True)
class _Open:
    """A fault that was inflicted, until the job has recovered from it."""

    fault: Fault
    before: Mapping[str, int]


class Injector:
    """Watches the status and inflicts what is due.

    Attributes:
        pids_kept: whether no process but the killed and their groups has changed so far.
        moved: who changed though nobody touched it.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        plan: JobPlan,
        pids: Callable[[], Mapping[str, int]],
        kill: Callable[[int], None] | None = None,
    ) -> None:
        self._waiting = list(faults)
        self._plan = plan
        self._pids = pids
        self._kill = kill or _sigkill
        self._open: _Open | None = None
        self.moved: list[str] = []

    @property
    def pids_kept(self) -> bool:
        """Whether all bystanders kept their processes."""
        return not self.moved

    @property
    def pending(self) -> tuple[Fault, ...]:
        """The faults that never came."""
        return tuple(self._waiting)

    def observe(self, status: Mapping[str, Any]) -> Fault | None:
        """Look at a status; the fault that was inflicted just now, if one was."""
        if self._open is not None and not self._close_when_recovered(status):
            return None
        step = (status.get("progress") or {}).get("step")
        if not self._waiting or step is None or step < self._waiting[0].step or not healthy(status):
            return None
        before = self._pids()
        pid = before.get(self._waiting[0].target)
        if pid is None:
            return None
        fault = self._waiting.pop(0)
        self._open = _Open(fault, before)
        self._kill(pid)
        return fault

    def finish(self, status: Mapping[str, Any]) -> None:
        """The job is over: what is still open is compared with the last processes that the status names."""
        if self._open is not None:
            seen = {f"{r['role']}/{r['rank']}": r["pid"] for r in status.get("ranks", ()) if r.get("pid")}
            self._compare(seen)

    def _close_when_recovered(self, status: Mapping[str, Any]) -> bool:
        """Whether the victim has another process and everybody is there again."""
        assert self._open is not None  # noqa: S101 - asked by observe
        if not healthy(status):
            return False
        after = self._pids()
        target = self._open.fault.target
        if after.get(target) in (None, self._open.before[target]):
            return False
        self._compare(after)
        return True

    def _compare(self, after: Mapping[str, int]) -> None:
        assert self._open is not None  # noqa: S101 - asked by those above
        fault = self._open.fault
        self.moved += [
            f"{name} after {fault.target}"
            for name in moved(self._open.before, after, excused(fault.target, self._plan))
        ]
        self._open = None


def healthy(status: Mapping[str, Any]) -> bool:
    """Whether the job runs and every rank that should is ready or has ended well."""
    roles = status.get("roles") or ()
    return status.get("phase") == "Running" and all(r["ready"] + r["succeeded"] >= r["desired"] for r in roles)


def _sigkill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
