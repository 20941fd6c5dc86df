"""Waits of a thread in torch's process groups, as the process itself sees them: no other process has to be looked at.

A group counts its collectives (`ProcessGroup._get_sequence_number_for_group`). A thread waits for the other ranks if it
has stood at one line since the count last changed, in a function of `torch.distributed`, a backward pass that uses no
CPU, `wait` of a `Work`, or `get` or `wait` of a `Store`. Nothing of torch is imported: a process that has no group has
no module of them either.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from types import FrameType
from typing import Any

from dljob.linux.descendants import descendants_cpu_s

_MODULE = "torch.distributed.distributed_c10d"
_DISTRIBUTED = ("torch/distributed/", "torch/nn/parallel/")
"""Parts of the paths of files whose functions wait for other ranks."""
_BACKWARD = "torch/autograd/"
"""Files that run the autograd engine, below which DistributedDataParallel waits without a frame of its own."""
_WRAPPERS = frozenset({"wrapper", "_wrapped"})
"""Functions of torch that stand between a collective and its caller."""
_STILL_CPU = 0.1
"""Share of a CPU that a process may use and still counts as idle."""
STANDS_S = 1.0
"""Seconds for which a thread must have stood at one instruction before its names are looked at."""
RECENT = 32
"""Number of the last intervals between collectives whose median is reported."""


@dataclass(slots=True)
class _Group:
    """A process group of this process."""

    name: str
    ranks: tuple[int, ...]
    count: int
    """Collectives that this process has begun."""
    changed_at: float
    """When the count was last seen to have changed."""
    intervals: deque[float] = field(default_factory=lambda: deque[float](maxlen=RECENT))
    """Seconds a collective, of the last looks between which the count changed."""
    longest: float = 0.0
    """Longest time between two looks at which the count had changed."""

    def usual(self) -> list[float]:
        """Return the number of collectives, and the median and longest time between two, in seconds."""
        spent = round(median(self.intervals), 3) if self.intervals else 0.0
        return [self.count, spent, round(self.longest, 3)]


@dataclass(frozen=True, slots=True)
class GroupWait:
    """A wait of a thread for the other ranks of a group."""

    group: str
    """Name of the group; `the store` for a wait for a key in a store; empty: it is not known."""
    call: str
    """The function that waits: `all_reduce`, `backward`, `wait`."""
    since: float
    """When it was first seen, on the monotonic clock."""
    usual: list[float]
    """Number of earlier collectives of the group, and the median and longest time between two, in seconds."""
    ranks: list[list[int]]
    """Ranks of the group in torch's world, as [first, beyond the last, step]; empty: it is not known."""


def have_begun() -> bool:
    """Return whether this process has a process group."""
    module = sys.modules.get(_MODULE)
    return module is not None and bool(module._world.pg_names)


class IdleTime:
    """Since when this process has used next to no CPU: itself, and together with the processes that it has started."""

    def __init__(self) -> None:
        self.since: float | None = None
        """On the monotonic clock; None: it uses a CPU."""
        self.with_children: float | None = None
        """The same of it and its descendants: a compiler runs in a process of its own, and is work of the rank."""
        self._cpu_s, self._looked_at = time.process_time(), time.monotonic()
        self._children_s: float | None = None
        """CPU time of the descendants at the last look; None: it was not looked at, since this process worked."""

    def look(self, now: float) -> None:
        """Compare the CPU time with that of the last look; `now` is the monotonic clock (s)."""
        cpu_s, least = time.process_time(), _STILL_CPU * (now - self._looked_at)
        children_s, before = None, self._children_s
        if cpu_s - self._cpu_s >= least:
            self.since = self.with_children = None
        else:
            self.since = self._looked_at if self.since is None else self.since
            children_s = descendants_cpu_s()
            if before is not None and children_s - before >= least:
                self.with_children = None
            elif self.with_children is None:
                self.with_children = self._looked_at
        self._cpu_s, self._looked_at, self._children_s = cpu_s, now, children_s


class TorchGroups:
    """The process groups of this process, and which threads stand still in them."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._last = ""
        """The group whose count changed last."""
        self._places: dict[int, tuple[int, int, float]] = {}
        """Thread -> the frame and instruction of the user's code at which it stands, and since when."""
        self._idle = False

    def look(self, now: float, *, is_idle: bool) -> int:
        """Take in the groups' counts; return how many collectives were begun since the last look.

        Args:
            now: The monotonic clock (s).
            is_idle: Whether the process has used no CPU since the last look.
        """
        module = sys.modules.get(_MODULE)
        self._idle = is_idle
        if module is None:
            return 0
        begun, known = 0, dict[str, _Group]()
        for process_group, key in list(module._world.pg_names.items()):
            with suppress(Exception):  # it is being made or destroyed, or its backend does not count
                known[key] = group = self._updated_group(module, process_group, key, now)
                begun += group.count - (self._groups[key].count if key in self._groups else 0)
        self._groups = known
        return begun

    def _updated_group(self, module: Any, process_group: Any, key: str, now: float) -> _Group:
        count = int(process_group._get_sequence_number_for_group())
        group = self._groups.get(key)
        if group is None:
            name = getattr(process_group, "group_desc", "") or ""
            ranks = tuple(sorted(module._world.pg_group_ranks.get(process_group, {})))
            group = _Group(f"group {key}" if name in ("", "undefined") else name, ranks, count, now)
            self._last = key
            return group
        if count == group.count:
            return group
        spent = now - group.changed_at
        # The first interval ends what came before the first collective.
        intervals, longest = group.intervals.copy(), group.longest
        if group.count:
            intervals.append(spent / max(1, count - group.count))
            longest = max(longest, spent)
        self._last = key
        return _Group(group.name, group.ranks, count, now, intervals, longest)

    def wait(self, thread: int, frames: Sequence[FrameType], is_users: Callable[[FrameType], bool], now: float) -> Any:
        """Return the wait of a thread, or None: it does not wait for a group, as far as can be seen.

        Args:
            thread: The thread's identifier.
            frames: Its frames, innermost first.
            is_users: Whether a frame is the user's code.
            now: The monotonic clock (s).
        """
        if not self._groups:
            return None
        inner: list[FrameType] = []
        for frame in frames:
            if is_users(frame):
                since = self._standing_since(thread, frame, now)
                # Only of a thread that stands still: whoever reads the names of a frame copies its references.
                return self._wait_at(frame, inner, since) if since <= now - STANDS_S else None
            inner.append(frame)
        return None

    def _standing_since(self, thread: int, frame: FrameType, now: float) -> float:
        place = id(frame), frame.f_lasti
        known = self._places.get(thread)
        if known is None or known[:2] != place:
            self._places[thread] = (*place, now)
            return now
        return known[2]

    def _wait_at(self, frame: FrameType, inner: Sequence[FrameType], since: float) -> GroupWait | None:
        """Return what a line of the user's code waits for, by the frames that it has called into, innermost first."""
        torch_frames = [
            inner_frame for inner_frame in inner if any(part in inner_frame.f_code.co_filename for part in _DISTRIBUTED)
        ]
        calls = [
            inner_frame.f_code.co_name for inner_frame in torch_frames if inner_frame.f_code.co_name not in _WRAPPERS
        ]
        if calls:
            return self._of_group(self._group_of(torch_frames), calls[-1], since)
        if any(_BACKWARD in inner_frame.f_code.co_filename for inner_frame in inner):
            return self._of_group(self._last, "backward", since) if self._idle else None
        if inner:
            return None
        match _awaited_object(frame):
            case "Work", method:
                return self._of_group(self._last, method, since)
            case "Store", method:
                counts = [group.usual() for group in self._groups.values()]
                ranks = _runs(max((group.ranks for group in self._groups.values()), key=len))
                return GroupWait("the store", method, since, max(counts), ranks)
            case _:
                return None

    def _group_of(self, frames: Sequence[FrameType]) -> str:
        """Return the key of the group that functions of torch.distributed were given; by default the whole world."""
        module = sys.modules[_MODULE]
        names: Any = module._world.pg_names
        for frame in frames:
            for argument in ("group", "pg", "process_group"):
                with suppress(TypeError):  # not hashable
                    if (key := names.get(_local(frame, argument))) is not None:
                        return str(key)
        return str(names.get(module._world.default_pg, ""))

    def _of_group(self, key: str, call: str, since: float) -> GroupWait | None:
        group = self._groups.get(key)
        if group is None:
            return None
        return GroupWait(group.name, call, max(since, group.changed_at), group.usual(), _runs(group.ranks))


def _runs(ranks: Sequence[int]) -> list[list[int]]:
    """Return ascending ranks as [first, beyond the last, step], a list for each run of equal distances."""
    runs: list[list[int]] = []
    for rank in ranks:
        last = runs[-1] if runs else None
        if last is not None and len(range(*last)) == 1 and rank > last[0]:
            last[1:] = [rank + 1, rank - last[0]]
        elif last is not None and rank == range(*last)[-1] + last[2]:
            last[1] = rank + 1
        else:
            runs.append([rank, rank + 1, 1])
    return runs


def _awaited_object(frame: FrameType) -> tuple[str, str]:
    """Return the class of torch (`Work`, `Store`) whose method a frame has called, and the method; empty: neither."""
    with suppress(Exception):  # the source may be gone, and the user's objects may raise whatever they like
        call = _present_call(frame)
        if call is not None and isinstance(call.func, ast.Attribute):
            module: Any = sys.modules[_MODULE]
            owner = _value(frame, call.func.value)
            for name in ("Work", "Store"):
                if isinstance(owner, getattr(module, name)):
                    return name, call.func.attr
    return "", ""


def _present_call(frame: FrameType) -> ast.Call | None:
    """Return the call that a frame is in, by the positions that the compiler noted for its present instruction."""
    first, last, begin, end = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    if first is None or last is None or begin is None or end is None:
        return None
    lines = [linecache.getline(frame.f_code.co_filename, number).encode() for number in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    expression = ast.parse(b"".join(lines).decode(), mode="eval").body
    return expression if isinstance(expression, ast.Call) else None


def _local(frame: FrameType, name: str) -> object:
    """Return the value of a local name, None where there is none, without keeping the others alive."""
    names = frame.f_locals
    value = names.get(name)
    # Before Python 3.13 a function's frame keeps this copy of its names, and so their values, until it ends. Under a
    # debugger the copy is written back to the function.
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(names) is dict and frame.f_trace is None:
        names.clear()
    return value


def _value(frame: FrameType, expression: ast.expr) -> object:
    """Return the value of a name, or of an attribute that is stored in an object: nothing of the user's is run."""
    match expression:
        case ast.Name(id=name):
            value = _local(frame, name)
            return frame.f_globals.get(name) if value is None else value
        case ast.Attribute(value=owner, attr=name):
            return vars(_value(frame, owner)).get(name)
        case _:
            return None
