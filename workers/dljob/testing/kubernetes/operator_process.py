"""One operator: what `dljob_operator` does around `reconcile`, as far as its promises go, one call after the other.

A pass is a generator that stops wherever the real one waits: time passes there, others act, and it may go on no more.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from dljob.reconcile import reconcile
from dljob.reconcile.state.fields import part
from dljob.reconcile.state.model import Object, Observed, ReconcileResult, Submit, Trouble, label
from dljob.testing.kubernetes import execute as calls
from dljob.testing.kubernetes import observe
from dljob.testing.kubernetes.api_server import Body, RefusedError
from dljob.testing.kubernetes.poll import Poll

if TYPE_CHECKING:
    from dljob.testing.kubernetes.world import StoryState

T = TypeVar("T")
Steps: TypeAlias = Generator[float, None, T]
"""Yields the seconds until it goes on."""

RESTLESS = 25
RELIST_S = (240.0, 360.0)
FIRST_RETRY_S, LONGEST_RETRY_S = 0.05, 60.0


@dataclass(slots=True)
class Memory:
    """What an operator remembers of the job and nobody else does."""

    uid: str
    attempt: int
    troubles: dict[str, Trouble] = field(default_factory=dict[str, Trouble])
    commands: tuple[str, ...] = ()
    logs_saved: bool = False
    unrest: int = 0
    left: int = 0


class Operator:
    """An operator from its start to its end."""

    def __init__(self, world: StoryState, number: int, skew: float, behind: int = 0, lag: float = 0.0) -> None:
        self.world = world
        self.number = number
        self.skew = skew
        """Seconds that its clock is ahead."""
        self.alive = True
        self.cache: dict[tuple[str, str], Body] = {}
        self.memory: Memory | None = None
        self.poll = Poll(self)
        self.loses = ""
        """The kind of which it is not told the next deletion."""
        self.late: dict[str, float] = {}
        """Kind -> until when nothing is told of it."""
        self._told_at: dict[str, float] = {}
        self._due = float("inf")
        self._failures = 0
        self._busy = self._again = False
        self._first(behind, lag)

    @property
    def now(self) -> float:
        """Its clock."""
        return self.world.agenda.now + self.skew

    def end(self) -> None:
        """It dies, wherever it stands."""
        self.alive = False
        self.poll.follow(None)

    # -- what it is told

    def _first(self, behind: int, lag: float) -> None:
        """Its first list is of so many changes ago, and the rest is told so late: its API server lags."""
        there, since = self.world.past(behind)
        for (kind, name), body in there.items():
            if self._seen(kind, name):
                self._put(kind, name, body, gone=False)
        if since:
            self.late = dict.fromkeys(("DLJob", "RayCluster", "Pod"), self.world.agenda.now + lag)
        for kind, name, body, gone in since:
            self.hear(kind, name, body, gone)
        self.world.agenda.soon(RELIST_S, self.relist)
        self.bring()

    def relist(self) -> None:
        """Compare everything with what is known."""
        if not self.alive:
            return
        there = {key: body for key, body in self.world.server.objects.items() if self._seen(*key)}
        for key in [key for key in self.cache if key not in there]:
            self._put(*key, self.cache[key], gone=True)
        for (kind, name), body in there.items():
            self._put(kind, name, body, gone=False)
        self.world.agenda.soon(RELIST_S, self.relist)

    def hear(self, kind: str, name: str, body: Body, gone: bool) -> None:  # noqa: FBT001 - as the server tells
        """The API server has changed: its watch says so in a while, in order."""
        if not self.alive or not self._seen(kind, name):
            return
        if gone and self.loses == kind:
            self.loses = ""
            return
        agenda = self.world.agenda
        at = max(agenda.now + 0.001 + 0.05 * agenda.rng.random() ** 3, self._told_at.get(kind, 0.0))
        self._told_at[kind] = max(at, self.late.get(kind, 0.0))
        agenda.at(self._told_at[kind], lambda: self._put(kind, name, body, gone=gone))

    def keep(self, kind: str, body: Body) -> None:
        """What the answer to a call says."""
        self._put(kind, body["metadata"]["name"], body, gone=False)

    def forget(self, kind: str, name: str, uid: str) -> None:
        """What a deletion's answer says."""
        known = self.cache.get((kind, name))
        if known is not None and known["metadata"]["uid"] == uid:
            del self.cache[kind, name]
            self.bring()

    def _put(self, kind: str, name: str, body: Body, *, gone: bool) -> None:
        """A cache never goes back."""
        if not self.alive:
            return
        known = self.cache.get((kind, name))
        if gone:
            self.forget(kind, name, body["metadata"]["uid"])
        elif known is None or _version(known) < _version(body) or known["metadata"]["uid"] != body["metadata"]["uid"]:
            self.cache[kind, name] = body
            self.bring()

    def _seen(self, kind: str, name: str) -> bool:
        """No watch tells of a RayCluster that is not ours, nor of its pods."""
        if kind == "DLJob":
            return True
        return kind in ("RayCluster", "Pod") and not name.startswith(self.world.shared or "\n")

    # -- when it works

    def bring(self, delay: float = 0.0) -> None:
        """A pass is to be made in so many seconds."""
        if self._busy and delay <= 0:
            self._again = True
            return
        at = self.world.agenda.now + delay
        if at < self._due:
            self._due = at
            self.world.agenda.at(at, lambda: self._start(at))

    def _start(self, at: float) -> None:
        if not self.alive or self._due != at:
            return
        self._due = float("inf")
        if self._busy:
            self._again = True
            return
        self._busy, self._again = True, False
        self._go_on(self._pass())

    def _go_on(self, steps: Steps[None]) -> None:
        """Let a pass go on to its next stop."""
        if not self.alive:
            return
        try:
            wait = next(steps)
        except StopIteration:
            self._rest()
        except RefusedError:
            self._retry()
            self._rest()
        else:
            self.world.agenda.after(wait, lambda: self._go_on(steps))

    def _rest(self) -> None:
        self._busy = False
        if self._again:
            self.bring()

    def _retry(self) -> None:
        self._failures += 1
        self._busy = False
        self.bring(min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(self._failures - 1, 30)))
        self._busy = True

    # -- a pass

    def _pass(self) -> Steps[None]:
        job = self.cache.get(("DLJob", self.world.name))
        if job is None:
            self.memory = None
            self.poll.follow(None)
            return
        memory = self._memory(job)
        seen = yield from observe.observe(self, memory, job)
        outcome = self._decide(seen)
        self.world.decided(self, seen, outcome)
        for _ in outcome.events:
            yield from self.call(lambda: None, writes=False)
        written: Object | None = seen.job
        if outcome.written_first:
            written = yield from self._write(seen.job, outcome.status)
            if written is None:
                self._next(memory, outcome, failed=False, news=True)
                return
        failed = yield from self._act(memory, outcome)
        submitted = "" if failed else next((a.id for a in outcome.actions if isinstance(a, Submit)), "")
        self.poll.follow(outcome.watch, memory.uid, submitted)
        if not outcome.written_first:
            written = yield from self._write(seen.job, outcome.status)
        news = written is None or written.get("status") != seen.job.get("status")
        self._next(memory, outcome, failed=failed, news=news or bool(outcome.actions))

    def _decide(self, seen: Observed) -> ReconcileResult:
        try:
            return reconcile.reconcile(seen, self.world.settings, self.now)
        except Exception as error:  # noqa: BLE001 - whatever a decision cannot bear is a broken law
            self.world.broken(f"raised: {type(error).__name__}: {error}")
            return ReconcileResult("nothing")

    def _memory(self, job: Body) -> Memory:
        uid, attempt = job["metadata"]["uid"], part(job, "status").get("attempt") or 1
        if self.memory is None or self.memory.uid != uid:
            self.memory = Memory(uid, attempt)
        if self.memory.attempt != attempt:
            self.memory.attempt, self.memory.logs_saved = attempt, False
            self.memory.troubles.clear()
        return self.memory

    def _act(self, memory: Memory, outcome: ReconcileResult) -> Steps[bool]:
        """Make the actions come true until one fails; returns whether one did."""
        for action in outcome.actions:
            what = label(action)
            try:
                yield from calls.perform(self, memory, action)
            except RefusedError as error:
                count, since = (b.count, b.since) if (b := memory.troubles.get(what)) else (0, self.now)
                memory.troubles[what] = Trouble(what, error.status, error.message, count + 1, since)
                return True
            memory.troubles.pop(what, None)
        return False

    def _write(self, seen: Object, status: Object | None) -> Steps[Object | None]:
        """Write the status, if it is to be; returns the DLJob as it is then, None when it had changed."""
        if status is None:
            return seen
        name, server = self.world.name, self.world.server
        latest = self.cache.get(("DLJob", name))
        version: str = seen["metadata"]["resourceVersion"]
        if latest is not None and _state(latest) == _state(seen):
            version = latest["metadata"]["resourceVersion"]
        try:
            made = yield from self.call(lambda: server.write_status("DLJob", name, status, version), writes=True)
        except RefusedError as error:
            if error.status not in (404, 409):
                raise
            found = yield from self.call(lambda: server.find("DLJob", name))
            if found is None:
                self.forget("DLJob", name, seen["metadata"]["uid"])
            else:
                self.keep("DLJob", found)
            return None
        self.keep("DLJob", made)
        return made

    def _next(self, memory: Memory, outcome: ReconcileResult, *, failed: bool, news: bool) -> None:
        if not 0 < memory.left > outcome.left:
            memory.unrest += 1
        if failed or not news:
            memory.unrest = 0
        memory.left = outcome.left
        if failed or memory.unrest > RESTLESS:
            if not failed:
                self.world.broken(f"restless: {memory.unrest} passes in a row: {outcome.reason}")
            self._retry()
            return
        self._failures = 0
        if outcome.requeue is not None:
            self._busy = False
            self.bring(max(outcome.requeue, 0.001))
            self._busy = True
        self._again = self._again or news

    # -- calls

    def call(self, do: Callable[[], T], *, writes: bool = False) -> Steps[T]:
        """A call to the API server. Raises RefusedError: it refused, or nobody answered."""
        world = self.world
        yield world.travel()
        trouble = world.trouble()
        if trouble is not None and not trouble.done:
            yield trouble.seconds
            raise RefusedError(trouble.status, "no such luck")
        if writes:
            world.wrote(self)
        answer = do()
        if trouble is not None:
            yield trouble.seconds
            raise RefusedError(trouble.status, "the answer is lost")
        yield world.travel()
        return answer


def _version(body: Body) -> int:
    return int(body["metadata"]["resourceVersion"])


def _state(body: Object) -> tuple[Any, ...]:
    meta = body["metadata"]
    return meta["uid"], meta.get("generation"), meta.get("deletionTimestamp"), body.get("status")
