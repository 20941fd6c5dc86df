"""`CollectiveGroup("weights")`: ranks of several roles in one group of collectives, as long as all of them live."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from dljob.errors import CollectiveAbortedError, CollectiveError, UsageError
from dljob.runtime import ray_private
from dljob.runtime.collectives.rendezvous import ASK_S, MemberLossWatch, RendezvousClient
from dljob.runtime.collectives.runner import OperationRunner
from dljob.runtime.collectives.table import Group, Table, table
from dljob.runtime.process.context import current_worker
from dljob.runtime.process.worker_context import WorkerContext
from dljob.telemetry.wording import counted

if TYPE_CHECKING:
    from ray.util.collective.collective_group.base_collective_group import BaseGroup

Op: TypeAlias = Literal["sum", "product", "min", "max"]

_rounds: dict[tuple[str, int], int] = {}
"""How often this process made a group in an epoch: all members count alike."""
_open: dict[str, CollectiveGroup] = {}
_lost: dict[str, CollectiveAbortedError] = {}
"""Of groups that are not made anew by who lived through a loss; by group and this rank's incarnation."""
_lock = threading.Lock()


class CollectiveGroup:
    """A group of `spec.collectives.groups`; making it waits until all ranks of its roles make it.

    Tensors are torch tensors or NumPy arrays, as the backend takes them. Operations return when they are done. When a
    member is lost, all pending and later ones raise CollectiveAbortedError; make the group again then. `with` closes
    it.

    Raises:
        UsageError: There is no such group, this rank's role is not in it, or this process is in it already.
        CollectiveError: Its backend cannot be used here, or the group will not be any more.
        CollectiveAbortedError: It lost a member before, and `onRestart` is Fail.
        DeadlineError: Not all members came within `timeoutSeconds`; it says who is missing.
    """

    def __init__(self, name: str) -> None:
        context, known = current_worker(), table()
        self.name = name
        self._spec = group_spec(name, known, context)
        self._life = f"{name}/{context.incarnation}"
        self._may_be_made()
        self.backend, self._cls = known.backend(self._spec.backend)
        _check_available(self._spec, self.backend, self._cls, context)
        self._group: Any = None
        self._store: Any = None
        self._meeting: Any = None
        deadline = time.monotonic() + self._spec.timeout_s
        muster = RendezvousClient(
            name, context, _asking(context), lambda epoch: _rounds.get((name, epoch), 0) + 1, deadline
        )
        while not self._make(muster):
            pass
        with _lock:
            _open[name] = self

    # -- what it is

    @property
    def epoch(self) -> int:
        """Grows whenever a process of a member is another one."""
        return self._made.epoch

    @property
    def rank(self) -> int:
        """This member's number."""
        return self._made.place

    @property
    def world_size(self) -> int:
        """How many members."""
        return len(self._made.members)

    @property
    def members(self) -> tuple[str, ...]:
        """Their names by number, such as "rollout/1"."""
        return tuple(f"{role}/{rank}" for role, rank, _ in self._made.members)

    @property
    def whole(self) -> bool:
        """Whether no member is known to be lost or to have ended, and no operation was cut off."""
        gone = self._watch.lost.is_set() or self._watch.ended
        return self._group is not None and not gone and not self._runner.broken

    @property
    def device(self) -> str:
        """Where its backend's tensors are: "cpu", "cuda", "npu", or what the attribute KIND of your own says."""
        return getattr(self._cls, "KIND", "cpu")

    def place(self, role: str, rank: int = 0) -> int:
        """The number of a rank of a role in this group. Raises UsageError where it is not in it."""
        if f"{role}/{rank}" not in self.members:
            raise UsageError(f"group {self.name} has no {role}/{rank}", hint=f"its members: {', '.join(self.members)}")
        return self.members.index(f"{role}/{rank}")

    @property
    def full_name(self) -> str:
        """What Ray calls it, another name in each epoch: `ray.util.collective.allreduce(tensor, group.full_name)`."""
        return f"{self._made.job}/{self._made.epoch}.{self._made.round}/{self.name}"

    # -- operations

    def allreduce(self, tensor: Any, op: Op = "sum") -> None:
        """Make `tensor` of each member the sum (product, min, max) of all of them, element by element."""
        self._run("allreduce", [tensor], self._options("AllReduceOptions", reduceOp=op))

    def reduce(self, tensor: Any, dst: int = 0, op: Op = "sum") -> None:
        """The same for the member `dst` alone; the others' tensors stay as they are with our own backends."""
        self._run("reduce", [tensor], self._options("ReduceOptions", reduceOp=op, root_rank=self._number(dst)))

    def broadcast(self, tensor: Any, src: int = 0) -> None:
        """Make `tensor` of each member that of the member `src`."""
        self._run("broadcast", [tensor], self._options("BroadcastOptions", root_rank=self._number(src)))

    def allgather(self, tensor: Any) -> list[Any]:
        """The tensors of all members, by number, new ones; all have the same shape."""
        outputs = [_like(tensor) for _ in range(self.world_size)]
        self._run("allgather", [outputs], [tensor], self._options("AllGatherOptions"))
        return outputs

    def reducescatter(self, parts: Sequence[Any], op: Op = "sum") -> Any:
        """The sum of the parts that all members have for this one: `parts[i]` is for member i."""
        if len(parts) != self.world_size:
            raise UsageError(
                f"reducescatter: {counted(len(parts), 'part')} for {self.world_size} members of group {self.name}"
            )
        made = _like(parts[0])
        self._run("reducescatter", [made], [list(parts)], self._options("ReduceScatterOptions", reduceOp=op))
        return made

    def send(self, tensor: Any, dst: int) -> None:
        """Send `tensor` to the member `dst`, which receives it."""
        self._run("send", [tensor], self._options("SendOptions", dst_rank=self._other(dst)))

    def recv(self, tensor: Any, src: int) -> None:
        """Make `tensor` what the member `src` sends."""
        self._run("recv", [tensor], self._options("RecvOptions", src_rank=self._other(src)))

    def barrier(self) -> None:
        """Wait until all members are here."""
        self._run("barrier", self._options("BarrierOptions"))

    def close(self) -> None:
        """Leave the group; the others' operations end with errors, unless they are done with it too."""
        with _lock:
            if _open.get(self.name) is self:
                del _open[self.name]
        self._watch.close()
        self._forget()
        self._runner.end()

    def __enter__(self) -> CollectiveGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- making it

    def _may_be_made(self) -> None:
        """Refuse a group that is open; close one that is broken, or of an earlier incarnation in this process."""
        before = _lost.get(self._life)
        if before is not None:
            raise before
        with _lock:
            old = _open.get(self.name)
        if old is None:
            return
        if old._life == self._life and not old._watch.lost.is_set() and not old._runner.broken:
            hint = "use the object that you have, or close() it in all members first"
            raise UsageError(f"this process is in group {self.name} (epoch {old.epoch}) already", hint=hint)
        old.close()

    def _make(self, muster: RendezvousClient) -> bool:
        """Meet the others and make the group with them; False when somebody was lost on the way."""
        made = self._made = muster.assembly()
        ours = getattr(self._cls, "has_store", False)
        offer = self._opened() if ours and made.place == 0 else ""
        address = muster.meet(made, offer)
        if address is None:
            return False
        _rounds[self.name, made.epoch] = made.round
        if ours:
            self._meeting = _meet(self.full_name, address, self._spec.timeout_s)
        abortable = hasattr(self._cls, "abort")
        self._watch = MemberLossWatch(muster, made, offer, self._break_off)
        self._runner = OperationRunner(
            self.name, made.epoch, self._watch, abortable=abortable, recreate=self._spec.recreate
        )
        try:
            self._runner.run(f"CollectiveGroup({self.name!r})", self._create)
        except CollectiveAbortedError as error:
            self.close()
            if self._spec.recreate and error.lost:
                return False
            raise self._remembered(error) from error
        except BaseException:
            self.close()
            raise
        return True

    def _opened(self) -> str:
        from dljob.runtime.collectives.torch_groups import open_store

        address, self._store = open_store()
        return address

    def _create(self) -> None:
        size, number = self.world_size, self.rank
        self._group = ray_private.create_collective_group(self.backend, size, number, self.full_name)

    def _break_off(self) -> None:
        """A member is lost: end what this one waits in. The thread of the watch calls it."""
        group = self._group or (self._meeting and self._meeting.made)
        abort = getattr(group, "abort", None)
        if abort is not None:
            abort()

    def _forget(self) -> None:
        ray_private.forget_collective_group(self.full_name)
        if self._meeting is not None:
            _meetings().pop(self.full_name, None)
        group, self._group = self._group, None
        if group is None:
            self._break_off()
        elif not self._watch.lost.is_set():
            group.destroy_group()
        self._meeting = self._store = None

    # -- running an operation

    def _run(self, what: str, *arguments: Any) -> None:
        group = self._group  # read once: another thread may close it in between, as for a loss
        try:
            if group is None:
                self._runner.check(what)
                raise UsageError(f"{what}: group {self.name} (epoch {self.epoch}) is closed")
            operation: Callable[..., None] = getattr(group, what)
            self._runner.run(what, partial(operation, *arguments))
        except CollectiveAbortedError as error:
            raise self._remembered(error) from error.__cause__

    def _remembered(self, error: CollectiveAbortedError) -> CollectiveAbortedError:
        if not self._spec.recreate and not error.ended:
            _lost[self._life] = error
        return error

    def _options(self, kind: str, **values: Any) -> Any:
        """Ray's options: an object of their own, as Ray changes the class, for all threads."""
        from ray.util.collective import types

        made = getattr(types, kind)()
        for key, value in values.items():
            if key == "reduceOp":
                if str(value).upper() not in types.ReduceOp.__members__:
                    raise UsageError(f"op={value!r}: wanted one of sum, product, min, max")
                value = types.ReduceOp[str(value).upper()]  # noqa: PLW2901
            setattr(made, key, value)
        return made

    def _number(self, place: int) -> int:
        if not 0 <= place < self.world_size:
            raise UsageError(f"group {self.name} has members 0 to {self.world_size - 1}, not {place}")
        return place

    def _other(self, place: int) -> int:
        if self._number(place) == self.rank:
            raise UsageError(f"group {self.name}: member {place} is this one")
        return place


def group_spec(name: str, known: Table, context: WorkerContext) -> Group:
    """A group of the spec. Raises UsageError where there is none of that name, or this rank's role is not in it."""
    found = known.groups.get(name)
    if found is None:
        there = ", ".join(sorted(known.groups)) or "none"
        raise UsageError(f"CollectiveGroup({name!r}): no such group", hint=f"spec.collectives.groups has: {there}")
    if context.role not in found.roles:
        hint = f"its roles are {', '.join(found.roles)} (spec.collectives.groups)"
        raise UsageError(f"CollectiveGroup({name!r}): role {context.role} is not in it", hint=hint)
    return found


def _check_available(spec: Group, backend: str, cls: type[BaseGroup], context: WorkerContext) -> None:
    if not cls.check_backend_availability():
        raise CollectiveError(
            f"group {spec.name}: backend {backend} ({cls.__module__}.{cls.__qualname__}) is not available to "
            f"{context.name}, which has the devices {dict(context.devices) or 'none'}: it says so itself",
            hint="its library or its device is missing here; another backend for the group, or another image",
        )


def _asking(context: WorkerContext) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    def ask(question: Mapping[str, Any]) -> Mapping[str, Any]:
        return context.calls.ask("muster", (dict(question),), ASK_S).result()

    return ask


def _meet(full_name: str, address: str, timeout_s: float) -> Any:
    from dljob.runtime.collectives.torch_groups import Meeting

    made = _meetings()[full_name] = Meeting(address, timeout_s)
    return made


def _meetings() -> dict[str, Any]:
    from dljob.runtime.collectives.torch_groups import meetings

    return meetings


def _like(tensor: Any) -> Any:
    """An empty tensor of the same kind, shape and place."""
    if hasattr(tensor, "new_empty"):
        return tensor.new_empty(tensor.shape)
    import numpy as np

    return np.empty_like(tensor)
