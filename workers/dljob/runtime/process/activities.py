"""What a rank's process does and waits for, so that PrimeMaster can say who waits for whom.

An *activity* is something of the user's that runs here: the main thread, a call of another role, a thread. A *wait* is
a block in which an activity cannot go on before somebody else has done something:

    with Waiting("queue", "samples", "get", lambda: ()):    # about a microsecond, begin and end together
        ...

Nothing is sent for a wait. A thread looks at what is older than `OLD_S` every `EVERY_S` seconds, and writes it beside
the rank's step counter in shared memory, where the host's heartbeat or the node's agent finds it. All of it is the
rank's own word, with the line of the user's code at which each activity is: it needs no right to read other processes.
Scripts import this module in processes without ray and torch, so it imports neither.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from pathlib import Path
from statistics import median
from threading import get_ident
from time import monotonic, sleep
from types import FrameType
from typing import Any, Literal, TypeAlias

from dljob.linux import own_sockets
from dljob.linux.debuggers import is_debuggers
from dljob.runtime.process import torch_groups, wait_clocks
from dljob.runtime.process.standstill import Standstill
from dljob.runtime.process.step_counters import StepCounter, now
from dljob.runtime.process.torch_groups import GroupWait, IdleTime, TorchGroups

OLD_S = 3.0
"""Age in seconds from which on a wait or an activity is written down: younger ones are nobody's business."""
EVERY_S = 2.0
"""Seconds between two looks."""
LINES_S = 8.0
"""Least seconds between two reports that differ only in the lines at which activities are."""
STILL_S = 20.0
"""Seconds without any sign of work after which a script that asks nothing of dljob reports where it stands."""
MOST_ROWS = 32
"""Most activities, and most waits of one, in a report."""
RECENT = 32
"""Number of the last durations of a kind of wait whose median is told."""
NO_DURATIONS = [0, 0.0, 0.0]
"""What is usual of a kind of wait that has not ended yet."""
MOST_USES = 64
"""Most queues and weight channels of which a report says that the rank puts or gets."""

Target: TypeAlias = tuple[str, int, str]
"""(role, rank, id of the call there; empty where it is not known)."""
Kind = Literal["call", "queue", "weights", "group", "cut", "master"]
"""What is waited for: an answer, an item or room, a version, a collective group, a cut, PrimeMaster's answer."""

_WORK = frozenset({"call", "queue"})
"""Kinds of waits that bring an answer or an item."""


class Durations:
    """How long waits of one kind have lasted in this process."""

    __slots__ = ("count", "longest", "recent")

    def __init__(self) -> None:
        self.count = 0
        self.longest = 0.0
        self.recent: deque[float] = deque(maxlen=RECENT)

    def add(self, spent: float) -> None:
        """Add one, in seconds."""
        self.count += 1
        self.recent.append(spent)
        self.longest = max(self.longest, spent)

    def usual(self) -> list[float]:
        """Return the number, the median of the last ones, and the longest, in seconds."""
        return [self.count, round(median(list(self.recent)), 3) if self.count else 0.0, round(self.longest, 3)]


class Activity:
    """Something of the user's that runs in this process."""

    __slots__ = (
        "began",
        "caller",
        "id",
        "kind",
        "label",
        "last_finished",
        "last_step",
        "queued_for",
        "steps",
        "task",
        "thread",
    )

    def __init__(self, id: str, kind: str, label: str, thread: int, caller: str = "") -> None:  # noqa: A002 - its name
        self.id = id
        self.kind = kind
        """main, call, or thread: a thread of the user's, of which nobody knows which call it works for."""
        self.label = label
        self.caller = caller
        self.queued_for = ""
        """What a call waits for that has not begun: `setup`, or the name of a method whose `concurrency` is used up."""
        self.thread = thread
        self.task: Any = None
        """The task that runs a call of a coroutine; None: its thread runs it."""
        self.began = self.last_finished = monotonic()
        """When it began, and when it last finished something: a wait, a step, an item."""
        self.steps: Durations | None = None
        """How long its steps have lasted; None before the first."""
        self.last_step = self.began
        """When it last finished a step."""


_current: ContextVar[Activity | None] = ContextVar("dljob_activity", default=None)
_threads: dict[int, Activity] = {}
"""Thread -> its activity, where no context says it."""
_calls: dict[str, Activity] = {}
"""Id -> a call of another role that has arrived here and has not ended."""
_waits: dict[Waiting, None] = {}
"""The waits of now, the oldest first: a dict keeps the order of insertion."""
_durations: dict[tuple[str, str, str], Durations] = {}
_groups = TorchGroups()
_idle_time = IdleTime()
tasks_awaited: dict[int, list[Any]] = {}
"""Thread -> the task for which it stands still (`loop.settle`); an empty list until that has begun."""
_standstill: Standstill | None = None
"""Of a script that has asked nothing of dljob."""
_channel_uses: dict[str, set[str]] = {}
"""`queue:samples` -> whether this process puts into it or gets from it, or both."""


class _Totals:
    """Counts of this process."""

    finished = 0
    """Calls, steps and items that have ended; waits are counted in `_durations`."""
    last_call_ended = 0.0
    """When the last call of another role ended, or this rank began."""


def present() -> Activity:
    """Return the activity of the code that runs now."""
    activity = _current.get()
    if activity is None:
        thread = get_ident()
        activity = _threads.get(thread)
        if activity is None:
            activity = _threads[thread] = _of_thread(thread)
    return activity


def begin_main(thread: int | None = None) -> None:
    """Make a thread, by default the present one, the main thread of the user's code."""
    thread = get_ident() if thread is None else thread
    _threads[thread] = Activity("main", "main", "", thread)


def _of_thread(thread: int) -> Activity:
    if len(_threads) > 4 * MOST_ROWS:  # threads come and go
        alive = set(sys._current_frames())  # not its keys(): those would hold the frames, and this one among them
        for ended in _threads.keys() - alive:
            _threads.pop(ended, None)
    return Activity(f"thread-{thread}", "thread", threading.current_thread().name, thread)


class Waiting:
    """A wait of the present activity, for as long as a `with` block runs."""

    __slots__ = ("activity", "began", "kind", "method", "name", "targets", "thread")

    def __init__(self, kind: Kind, name: str, method: str, targets: Callable[[], Iterable[Target]]) -> None:
        """Describe a wait.

        Args:
            kind: What is waited for.
            name: The callee, as `reward/0` or `reward`; the queue; the weight channel.
            method: The method; of a queue `get` or `put`.
            targets: Called when the wait is old: the ranks that have not answered yet.
        """
        self.kind = kind
        self.name = name
        self.method = method
        self.targets = targets

    def __enter__(self) -> None:
        self.thread = thread = get_ident()
        self.activity = _current.get() or _threads.get(thread) or present()
        self.began = monotonic()
        _waits[self] = None

    def __exit__(self, error: object, _value: object, _traceback: object) -> None:
        _waits.pop(self, None)
        if error is not None:
            return  # a lost call, or a time-out: nothing came, and the next one may take as long as it likes
        ended = self.activity.last_finished = monotonic()
        key = (self.kind, self.name, self.method)
        durations = _durations.get(key)
        if durations is None:
            durations = _durations.setdefault(key, Durations())
        spent = ended - self.began
        durations.count += 1
        durations.recent.append(spent)
        if spent > durations.longest:  # noqa: PLR1730 - max() costs a tenth of the wait
            durations.longest = spent


class AwaitedTask(Waiting):
    """A wait of a coroutine: its line is found by what its task awaits, since its thread does other work."""

    __slots__ = ("task",)

    def __enter__(self) -> None:
        import asyncio

        super().__enter__()
        with suppress(RuntimeError):  # some other library's loop
            self.task = asyncio.current_task()


def use(kind: Kind, name: str, how: Literal["put", "get"]) -> None:
    """Note that this process puts into, or gets from, a queue or a weight channel."""
    key = f"{kind}:{name}"
    ways = _channel_uses.get(key)
    if ways is None and len(_channel_uses) < MOST_USES:
        ways = _channel_uses[key] = set()
    if ways is not None:
        ways.add(how)


def progressed() -> None:
    """Note that the present activity has finished a step, or an item of a stream."""
    activity, ended = present(), monotonic()
    if activity.steps is None:
        activity.steps = Durations()  # the first one ends what came before the loop, which is no step
    else:
        activity.steps.add(ended - activity.last_step)
    activity.last_step = activity.last_finished = ended
    _Totals.finished += 1


def context() -> Context:
    """Return a context for another thread that works for the present activity."""
    copy = copy_context()
    copy.run(_current.set, present())
    return copy


def moved_here() -> None:
    """Note that the present activity goes on in this thread, which has been started with its context."""
    present().thread = get_ident()


@contextmanager
def paused(awaited: str) -> Generator[None]:
    """Note that the present activity rests while a block runs, as it is ahead of who uses what it makes."""
    activity = present()
    activity.queued_for = awaited
    try:
        yield
    finally:
        activity.queued_for = ""
        activity.last_finished = monotonic()


class CallActivity:
    """The activity of a call from another role, from its arrival to its end."""

    __slots__ = ("_has_run", "_token", "activity")

    def __init__(self, call: str, method: str, caller: str) -> None:
        self._has_run = False
        self.activity = _calls[call] = Activity(call, "call", method, get_ident(), caller)

    def note_wait(self, awaited: str) -> None:
        """Note what the call waits for: `setup`, `weights`, or the method whose places are taken; empty: nothing."""
        self.activity.queued_for = awaited
        self.activity.last_finished = monotonic()

    def __enter__(self) -> CallActivity:
        """Run the user's method as this activity: what it calls, and the tasks that it makes, are part of it."""
        self.activity.thread = get_ident()
        self.activity.last_finished = monotonic()
        self._token = _current.set(self.activity)
        self._has_run = True
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)

    def end(self) -> None:
        """Forget a call that has ended."""
        _calls.pop(self.activity.id, None)
        _Totals.finished += self._has_run  # one that was refused is no work
        _Totals.last_call_ended = monotonic()


# -- the report


def report(offset: float) -> dict[str, Any]:
    """Return what is old here, as JSON-able data: an activity, or that there has been none for a while.

    Args:
        offset: Seconds to add to the monotonic clock, so that times mean the same in all processes of a machine.
    """
    at = monotonic()
    old_before = at - OLD_S
    _idle_time.look(at)
    new_collectives = _groups.look(at, is_idle=_idle_time.since is not None)
    waits: dict[int, list[Waiting]] = {}
    old_activities: dict[int, Activity] = {}
    for wait in list(_waits):
        if wait.began <= old_before:
            waits.setdefault(id(wait.activity), []).append(wait)
            old_activities[id(wait.activity)] = wait.activity
    calls = list(_calls.values())
    mains = [activity for activity in list(_threads.values()) if activity.kind == "main"]
    _Totals.finished += new_collectives
    for activity in (*calls, *mains):
        if new_collectives:
            activity.last_finished = at
        if activity.last_finished <= old_before or activity.began <= old_before:
            old_activities[id(activity)] = activity
    # The main thread and those that wait first: where there are too many, young running calls say least.
    ranked = sorted(
        old_activities.items(), key=lambda pair: (pair[1].kind != "main", pair[0] not in waits, pair[1].began)
    )
    rows: list[list[Any]] = []
    frames = sys._current_frames()
    try:
        if (
            not calls
            and _Totals.last_call_ended <= old_before
            and not any(_line_of(main, (), frames) for main in mains)
        ):
            began = last_finished = round(_Totals.last_call_ended + offset, 1)
            rows.append(["idle", "idle", "", "", began, last_finished, "", [], [*NO_DURATIONS, 0.0]])
        for key, activity in ranked[:MOST_ROWS]:
            row = _activity_row(activity, waits.get(key, []), frames, offset, at)
            if row is not None:
                rows.append(row)
    finally:
        # The frame of this function is among them, and holds them: a circle that would keep the locals of all threads,
        # such as a step's tensors, until a full collection.
        frames.clear()
    data: dict[str, Any] = {"rows": rows, "more": max(0, len(old_activities) - MOST_ROWS), "finished": _finished()}
    data |= _idle_row(offset, old_before) | _standstill_row(offset, data["finished"])
    _look_for_dead_links(rows)
    if _channel_uses:
        data["uses"] = {key: sorted(ways) for key, ways in list(_channel_uses.items())}
    return data


def is_behind_weights(call: str) -> bool:
    """Whether a call that did not run waits here for weights that are not stale, or has just been refused for them."""
    return (activity := _calls.get(call)) is None or activity.queued_for == "weights"


def line_of_call(call: str) -> str:
    """Return the line of the user's code at which a call is, or what keeps it from beginning; empty: it is unknown."""
    activity, holders = _calls.get(call), list(_calls.values())
    if activity is not None and not activity.queued_for:
        holders = [activity]
    elif activity is not None and activity.queued_for == "setup":
        holders = [main for main in list(_threads.values()) if main.kind == "main"]
    else:  # one that has not come yet waits for a place among all calls
        method = "" if activity is None else activity.queued_for
        holders = [holder for holder in holders if not holder.queued_for and method in ("", holder.label)]
    if not holders:
        return ""
    oldest = min(holders, key=lambda holder: holder.began)
    return _line_of(oldest, [wait for wait in list(_waits) if wait.activity is oldest], sys._current_frames())


def user_lines() -> list[str]:
    """Return the lines of the user's code at which this process's threads are, each once."""
    frames = sys._current_frames()
    try:
        return list(dict.fromkeys(line for frame in frames.values() if (line := _line(_chain(frame)))))
    finally:
        frames.clear()  # as in `report`


def _idle_row(offset: float, before: float) -> dict[str, float]:
    since = _idle_time.with_children
    return {"idle": round(since + offset, 1)} if since is not None and since <= before else {}


def _standstill_row(offset: float, finished: int) -> dict[str, float]:
    """Return since when a script stands still that reports nothing by which its progress could be told."""
    since = None if _standstill is None else _standstill.since
    return {} if since is None or finished or torch_groups.have_begun() else {"still": round(since + offset, 1)}


def _look_for_dead_links(rows: Sequence[Sequence[Any]]) -> None:
    """While a thread waits for a torch group, look whether its connections are dead: its error will not tell."""
    if any(wait[0] == "group" for row in rows for wait in row[7]):
        with suppress(OSError):
            own_sockets.look_for_dead_links()


def _activity_row(
    activity: Activity, waits: Sequence[Waiting], frames: dict[int, FrameType], offset: float, at: float
) -> list[Any] | None:
    """Return the row of an activity; None for a main thread that only serves calls, or has ended."""
    line = _line_of(activity, waits, frames)
    if activity.kind == "main" and not line and not waits:
        return None
    wait_rows = [_wait_row(wait, offset) for wait in waits[:MOST_ROWS]]
    group_wait = None if waits else _groups.wait(activity.thread, _chain(frames.get(activity.thread)), _is_users, at)
    if group_wait is not None and group_wait.since <= at - OLD_S:
        wait_rows.append(_group_row(group_wait, offset))
    times = [round(moment + offset, 1) for moment in (activity.began, activity.last_finished)]
    usual = activity.steps.usual() if activity.steps is not None else NO_DURATIONS
    stepped = round(activity.last_step + offset, 1)
    rests_for = activity.queued_for
    if not waits and not rests_for and _in_debugger(_chain(frames.get(activity.thread))):
        rests_for = "a debugger"
    head = [activity.id, activity.kind, activity.label, rests_for, *times, line]
    return [*head, wait_rows, [*usual, stepped]]


def _finished() -> int:
    """Return the number of steps, calls and items: two processes that do the same work have the same one."""
    done = (durations.count for (kind, *_), durations in list(_durations.items()) if kind in _WORK)
    return _Totals.finished + sum(done)


def _wait_row(wait: Waiting, offset: float) -> list[Any]:
    durations = _durations.get((wait.kind, wait.name, wait.method))
    usual = NO_DURATIONS if durations is None else durations.usual()
    targets: list[Target] = []
    with suppress(Exception):  # the call may end while it is looked at
        targets = list(wait.targets())[:MOST_ROWS]
    return [
        wait.kind,
        wait.name,
        wait.method,
        round(wait.began + offset, 1),
        usual,
        [list(target) for target in targets],
    ]


def _group_row(wait: GroupWait, offset: float) -> list[Any]:
    return ["group", wait.group, wait.call, round(wait.since + offset, 1), wait.usual, [], wait.ranks]


def _line_of(activity: Activity, waits: Sequence[Waiting], frames: dict[int, FrameType]) -> str:
    """Return the innermost line of the user's code at which an activity is; empty where there is none."""
    for task in (*(getattr(wait, "task", None) for wait in waits), activity.task):
        if task is not None and (line := _line(_awaited(task.get_coro()))):
            return line
    thread = waits[0].thread if waits else activity.thread
    for task in tuple(tasks_awaited.get(thread, ())):
        if line := _line(_awaited(task.get_coro())):
            return line
    return _line(_chain(frames.get(thread)))


def _chain(frame: FrameType | None) -> list[FrameType]:
    """Return a frame and those that have called it, innermost first."""
    chain: list[FrameType] = []
    while frame is not None:
        chain.append(frame)
        frame = frame.f_back
    return chain


def _awaited(coroutine: Coroutine[Any, Any, Any] | Any) -> list[FrameType]:
    """Return the frames of a suspended coroutine and of those that it awaits, innermost first."""
    frames: list[FrameType] = []
    while coroutine is not None and len(frames) < MOST_ROWS:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            frames.append(frame)
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return frames[::-1]


def _is_users(frame: FrameType) -> bool:
    from dljob.runtime.process.outcome import is_users

    return is_users(frame.f_code.co_filename, "")


def _in_debugger(frames: Iterable[FrameType]) -> bool:
    """Return whether the user's code has come to a debugger's prompt: the debugger's frames are within its own."""
    for frame in frames:
        if is_debuggers(frame.f_code.co_filename):
            return True
        if _is_users(frame):
            return False
    return False


def _line(frames: Iterable[FrameType]) -> str:
    for frame in frames:
        code = frame.f_code
        if _is_users(frame):
            return f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"
    return ""


# -- the thread that reports


class Reporter:
    """Writes the report of this process beside its rank's step counter."""

    def __init__(self, slot: StepCounter, rank: int, incarnation: int) -> None:
        self._slot = slot
        self._process = rank, incarnation
        self._written: dict[str, Any] = {}
        self._written_at = 0.0

    def look(self) -> None:
        """Write the report if it has changed."""
        at = monotonic()
        self._slot.count_report()
        data = report(now() - at)
        if data == self._written:
            return
        if at - self._written_at < LINES_S and _without_lines(data) == _without_lines(self._written):
            return
        self._written, self._written_at = data, at
        while not self._slot.put_activities(*self._process, data):
            # Too long: the youngest activities are left out.
            data = {**data, "rows": data["rows"][: len(data["rows"]) // 2]}


def _without_lines(data: dict[str, Any]) -> list[Any]:
    waits = [[row[:5], [wait[:4] for wait in row[7]]] for row in data.get("rows", [])]
    return [data.get("uses"), data.get("still"), waits]


_reporter: Reporter | None = None
_pid = 0


def report_to(slot: StepCounter, rank: int, incarnation: int) -> None:
    """Report what this process does as a rank, from now on; a restart in process changes the incarnation."""
    global _reporter, _pid  # noqa: PLW0603 - one rank per process
    _forget()
    _Totals.last_call_ended = monotonic()
    _reporter = Reporter(slot, rank, incarnation)
    # At once, not at the first look: this process may hold the GIL by then, and is to be known as the silent one.
    slot.put_activities(rank, incarnation, {"rows": []})
    slot.count_report()
    if _pid != os.getpid():
        _pid = os.getpid()
        with suppress(RuntimeError):  # no thread is left: waits are not told, and all else works
            threading.Thread(target=_run, name="dljob-activities", daemon=True).start()


def report_script(connect: Callable[[], object]) -> None:
    """Report the waits of a script that asks nothing of dljob, from its first process group or long standstill on.

    Args:
        connect: Connects this process to its host as a rank, which calls `report_to`.
    """
    pid = os.getpid()

    def run() -> None:
        global _standstill  # noqa: PLW0603 - one rank per process
        with suppress(Exception):  # it only explains: the rank must not suffer
            _standstill = standstill = Standstill()
            while _reporter is None and os.getpid() == pid:
                sleep(EVERY_S)
                standstill.look()
                if torch_groups.have_begun() or standstill.lasts(STILL_S):
                    connect()
                    standstill.skip()
                    return

    threading.Thread(target=run, name="dljob-groups", daemon=True).start()


def _run() -> None:
    while True:
        sleep(EVERY_S)
        with suppress(Exception):  # it only explains: the rank must not suffer
            if _standstill is not None:
                _standstill.look()
            if _reporter is not None:
                _reporter.look()
                wait_clocks.note_present()


def _forget() -> None:
    global _groups, _idle_time
    _groups, _idle_time = TorchGroups(), IdleTime()
    for table in (_threads, _calls, _waits, _durations, _channel_uses):
        table.clear()


def _forget_after_fork() -> None:
    global _reporter, _pid, _standstill
    _forget()
    _reporter, _pid, _standstill = None, 0, None


os.register_at_fork(after_in_child=_forget_after_fork)
