"""`CollectiveGroup("weights")`: ranks of several roles in one collective group, as long as all of them live."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from dljob.errors import CollectiveAbortedError, CollectiveError, UsageError
from dljob.ray_private import create_collective_group, forget_collective_group
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
"""(group, epoch) -> how often this process formed it. All members count alike, so they agree on the name in Ray."""
_open: dict[str, CollectiveGroup] = {}
"""The group objects in use, by group."""
_lost: dict[str, CollectiveAbortedError] = {}
"""Errors of groups with `onRestart: Fail`, by group and this rank's incarnation: survivors may not form it again."""
_lock = threading.Lock()


class CollectiveGroup:
    """A group of `spec.collectives.groups`. Its constructor waits until all ranks of its roles call theirs.

    Tensors are torch tensors or NumPy arrays, as the backend accepts them. Operations return when they are complete.
    When a member is lost, all pending and later operations raise CollectiveAbortedError; then construct the group
    again. As a context manager it closes itself.

    Raises:
        UsageError: There is no such group, this rank's role is not in it, or this process is in it already.
        CollectiveError: Its backend cannot be used here, or the group can never be formed again.
        CollectiveAbortedError: It lost a member before, and `onRestart` is Fail.
        DeadlineError: Not all members arrived within `timeoutSeconds`; the message says who is missing.
    """

    def __init__(self, name: str) -> None:
        context, known = current_worker(), table()
        self.name = name
        self._spec = group_spec(name, known, context)
        self._process = f"{name}/{context.incarnation}"
        # A refusal comes before anything is created, so that nothing has to be undone.
        self._may_be_made()
        self.backend, self._cls = known.backend(self._spec.backend)
        _check_available(self._spec, self.backend, self._cls, context)
        self._group: Any = None
        self._store: Any = None
        self._meeting: Any = None
        deadline = time.monotonic() + self._spec.timeout_s
        rendezvous = RendezvousClient(
            name, context, _asking(context), lambda epoch: _rounds.get((name, epoch), 0) + 1, deadline
        )
        # Until all members arrive in one epoch: a restart meanwhile means another epoch.
        while not self._make(rendezvous):
            pass
        with _lock:
            _open[name] = self

    # -- properties

    @property
    def epoch(self) -> int:
        """A number that grows whenever a process of a member is replaced."""
        return self._assembly.epoch

    @property
    def rank(self) -> int:
        """This member's number, from 0."""
        return self._assembly.place

    @property
    def world_size(self) -> int:
        """The number of members."""
        return len(self._assembly.members)

    @property
    def members(self) -> tuple[str, ...]:
        """The members' names by number, such as "rollout/1"."""
        return tuple(f"{role}/{rank}" for role, rank, _ in self._assembly.members)

    @property
    def whole(self) -> bool:
        """Whether no member is known to be lost or to have ended, and no operation was broken off."""
        has_lost_members = self._watch.lost.is_set() or self._watch.ended
        return self._group is not None and not has_lost_members and not self._runner.broken

    @property
    def device(self) -> str:
        """The place of the backend's tensors: "cpu", "cuda", "npu", or the attribute KIND of a backend of your own."""
        return getattr(self._cls, "KIND", "cpu")

    def place(self, role: str, rank: int = 0) -> int:
        """Return the number of a rank of a role in this group. Raises UsageError if it is no member."""
        if f"{role}/{rank}" not in self.members:
            raise UsageError(f"group {self.name} has no {role}/{rank}", hint=f"its members: {', '.join(self.members)}")
        return self.members.index(f"{role}/{rank}")

    @property
    def full_name(self) -> str:
        """The group's name in Ray, new in each epoch: `ray.util.collective.allreduce(tensor, group.full_name)`."""
        return f"{self._assembly.job}/{self._assembly.epoch}.{self._assembly.round}/{self.name}"

    # -- operations

    def allreduce(self, tensor: Any, op: Op = "sum") -> None:
        """Reduce `tensor` of all members, element by element, into each of them."""
        self._run("allreduce", [tensor], self._options("AllReduceOptions", reduceOp=op))

    def reduce(self, tensor: Any, dst: int = 0, op: Op = "sum") -> None:
        """Reduce into the member `dst` alone; with dljob's backends the others' tensors stay as they are."""
        self._run("reduce", [tensor], self._options("ReduceOptions", reduceOp=op, root_rank=self._number(dst)))

    def broadcast(self, tensor: Any, src: int = 0) -> None:
        """Copy `tensor` of the member `src` into those of all members."""
        self._run("broadcast", [tensor], self._options("BroadcastOptions", root_rank=self._number(src)))

    def allgather(self, tensor: Any) -> list[Any]:
        """Return new tensors with those of all members, by number; all have the same shape."""
        outputs = [_like(tensor) for _ in range(self.world_size)]
        self._run("allgather", [outputs], [tensor], self._options("AllGatherOptions"))
        return outputs

    def reducescatter(self, parts: Sequence[Any], op: Op = "sum") -> Any:
        """Return the reduction of the parts that all members have for this one: `parts[i]` is for member i."""
        if len(parts) != self.world_size:
            raise UsageError(
                f"reducescatter: {counted(len(parts), 'part')} for {self.world_size} members of group {self.name}"
            )
        result = _like(parts[0])
        self._run("reducescatter", [result], [list(parts)], self._options("ReduceScatterOptions", reduceOp=op))
        return result

    def send(self, tensor: Any, dst: int) -> None:
        """Send `tensor` to the member `dst`, which must receive it."""
        self._run("send", [tensor], self._options("SendOptions", dst_rank=self._other_member(dst)))

    def recv(self, tensor: Any, src: int) -> None:
        """Receive into `tensor` what the member `src` sends."""
        self._run("recv", [tensor], self._options("RecvOptions", src_rank=self._other_member(src)))

    def barrier(self) -> None:
        """Wait until all members are here."""
        self._run("barrier", self._options("BarrierOptions"))

    def close(self) -> None:
        """Leave the group. Operations of members that are not done with it end with errors."""
        with _lock:
            # A later object of the same name may be in use already.
            if _open.get(self.name) is self:
                del _open[self.name]
        # First: the end of the connections must not be taken for the loss of a member.
        self._watch.close()
        self._forget()
        self._runner.end()

    def __enter__(self) -> CollectiveGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- formation

    def _may_be_made(self) -> None:
        """Refuse a group that is in use; close one that is broken, or of an earlier incarnation in this process."""
        before = _lost.get(self._process)
        if before is not None:
            raise before
        with _lock:
            old = _open.get(self.name)
        if old is None:
            return
        if old._process == self._process and not old._watch.lost.is_set() and not old._runner.broken:
            hint = "use the object that you have, or close() it in all members first"
            raise UsageError(f"this process is in group {self.name} (epoch {old.epoch}) already", hint=hint)
        old.close()

    def _make(self, rendezvous: RendezvousClient) -> bool:
        """Form the group with the other members; False if one of them was lost meanwhile."""
        assembly = self._assembly = rendezvous.assembly()
        # The first member hosts the store; its address is the offer that the others wait for.
        has_own_store = getattr(self._cls, "has_store", False)
        offer = self._opened() if has_own_store and assembly.place == 0 else ""
        address = rendezvous.meet(assembly, offer)
        if address is None:
            return False
        # All have met, so all count this round, whether or not the group is formed.
        _rounds[self.name, assembly.epoch] = assembly.round
        if has_own_store:
            self._meeting = _meet(self.full_name, address, self._spec.timeout_s)
        # From here on losses are watched: the constructor of the backend waits for all members, too.
        abortable = hasattr(self._cls, "abort")
        self._watch = MemberLossWatch(rendezvous, assembly, offer, self._break_off)
        self._runner = OperationRunner(
            self.name, assembly.epoch, self._watch, abortable=abortable, recreate=self._spec.recreate
        )
        try:
            self._runner.run(f"CollectiveGroup({self.name!r})", self._create)
        except CollectiveAbortedError as error:
            self.close()
            # A member was lost while the group was being formed: meet again in the next epoch.
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
        self._group = create_collective_group(self.backend, size, number, self.full_name)

    def _break_off(self) -> None:
        """End the operations that this member waits in; called by the watch's thread once a member is lost."""
        group = self._group or (self._meeting and self._meeting.made)
        abort = getattr(group, "abort", None)
        if abort is not None:
            abort()

    def _forget(self) -> None:
        forget_collective_group(self.full_name)
        if self._meeting is not None:
            _meetings().pop(self.full_name, None)
        group, self._group = self._group, None
        if group is None:
            self._break_off()
        # After a loss it is broken off already, and a thread may still be in an operation.
        elif not self._watch.lost.is_set():
            group.destroy_group()
        self._meeting = self._store = None

    # -- operations

    def _run(self, operation_name: str, *arguments: Any) -> None:
        group = self._group  # read once: another thread may close the group meanwhile, as after a loss
        try:
            if group is None:
                self._runner.check(operation_name)
                raise UsageError(f"{operation_name}: group {self.name} (epoch {self.epoch}) is closed")
            operation: Callable[..., None] = getattr(group, operation_name)
            self._runner.run(operation_name, partial(operation, *arguments))
        except CollectiveAbortedError as error:
            raise self._remembered(error) from error.__cause__

    def _remembered(self, error: CollectiveAbortedError) -> CollectiveAbortedError:
        # A member that ended well is no failure, so the survivors may go on.
        if not self._spec.recreate and not error.ended:
            _lost[self._process] = error
        return error

    def _options(self, kind: str, **values: Any) -> Any:
        """Return Ray's options as an object of our own; Ray sets them on the class, which all threads share."""
        from ray.util.collective import types

        options = getattr(types, kind)()
        for key, value in values.items():
            if key == "reduceOp":
                if str(value).upper() not in types.ReduceOp.__members__:
                    raise UsageError(f"op={value!r}: wanted one of sum, product, min, max")
                value = types.ReduceOp[str(value).upper()]  # noqa: PLW2901
            setattr(options, key, value)
        return options

    def _number(self, place: int) -> int:
        if not 0 <= place < self.world_size:
            raise UsageError(f"group {self.name} has members 0 to {self.world_size - 1}, not {place}")
        return place

    def _other_member(self, place: int) -> int:
        if self._number(place) == self.rank:
            raise UsageError(f"group {self.name}: member {place} is this one")
        return place


def group_spec(name: str, known: Table, context: WorkerContext) -> Group:
    """Return a group of the spec. Raises UsageError if there is none, or if this rank's role is not in it."""
    group = known.groups.get(name)
    if group is None:
        group_names = ", ".join(sorted(known.groups)) or "none"
        raise UsageError(
            f"CollectiveGroup({name!r}): no such group", hint=f"spec.collectives.groups has: {group_names}"
        )
    if context.role not in group.roles:
        hint = f"its roles are {', '.join(group.roles)} (spec.collectives.groups)"
        raise UsageError(f"CollectiveGroup({name!r}): role {context.role} is not in it", hint=hint)
    return group


def _check_available(spec: Group, backend: str, cls: type[BaseGroup], context: WorkerContext) -> None:
    if not cls.check_backend_availability():
        raise CollectiveError(
            f"group {spec.name}: backend {backend} ({cls.__module__}.{cls.__qualname__}) is not available to "
            f"{context.name}, which has the devices {dict(context.devices) or 'none'}, by its own check",
            hint="its library or its device is missing: choose another backend for the group, or another image",
        )


def _asking(context: WorkerContext) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    def ask(question: Mapping[str, Any]) -> Mapping[str, Any]:
        return context.calls.ask("muster", (dict(question),), ASK_S).result()

    return ask


def _meet(full_name: str, address: str, timeout_s: float) -> Any:
    from dljob.runtime.collectives.torch_groups import Meeting

    meeting = _meetings()[full_name] = Meeting(address, timeout_s)
    return meeting


def _meetings() -> dict[str, Any]:
    from dljob.runtime.collectives.torch_groups import meetings

    return meetings


def _like(tensor: Any) -> Any:
    """Return an empty tensor of the same kind, shape and device."""
    if hasattr(tensor, "new_empty"):
        return tensor.new_empty(tensor.shape)
    import numpy as np

    return np.empty_like(tensor)
