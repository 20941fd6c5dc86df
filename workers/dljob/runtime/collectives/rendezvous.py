"""A member's requests to PrimeMaster: the members of its group, their arrival, and, from then on, their losses."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dljob.errors import CollectiveAbortedError, CollectiveError, DeadlineError, UnreachableError
from dljob.runtime.process.worker_context import WorkerContext

ASK_S = 60.0
"""Timeout of a request, in seconds. PrimeMaster answers within 20 s, unless it is being restarted."""
AGAIN_S = 0.5
"""The pause before a request is repeated while PrimeMaster is away."""
ENDED_GRACE_S = 5.0
"""Seconds that each operation waits for data of a member that ended well: its last data may be in transit."""
LOOK_S = 1.0
"""Interval, in seconds, at which a member inside an operation asks again after another member ended well."""

Ask = Callable[[Mapping[str, Any]], Mapping[str, Any]]

log = logging.getLogger(__package__)


@dataclass(frozen=True, slots=True)
class Assembly:
    """A group about to be formed: its members and this one's place among them."""

    job: str
    """The name of the job's attempt, part of the group's name in Ray."""
    epoch: int
    """The sum of the incarnations of all ranks of the group's roles: equal epochs mean the same processes."""
    round: int
    """Number of times that this process has formed the group in this epoch, from 1."""
    members: tuple[tuple[str, int, int], ...]
    place: int
    """This member's number."""

    @property
    def me(self) -> str:
        """This member's name, as in `rollout/1`."""
        return "{}/{}".format(*self.members[self.place])

    def lost_members(self, reply: Mapping[str, Any]) -> dict[str, str]:
        """Return lost member ("rollout/1") -> why, by comparison with PrimeMaster's answer."""
        absence_reasons = {(role, rank): text for role, rank, text in reply["absent"]}
        now = {(role, rank): incarnation for role, rank, incarnation in reply["members"]}
        lost: dict[str, str] = {}
        for role, rank, incarnation in self.members:
            if (role, rank) in absence_reasons:
                lost[f"{role}/{rank}"] = absence_reasons[role, rank]
            elif (role, rank) not in now:
                lost[f"{role}/{rank}"] = "is no rank of its role any more"
            # The rank is there, but its process is another one, which knows nothing of this group.
            elif now[role, rank] != incarnation:
                lost[f"{role}/{rank}"] = "was started again"
        return lost


class RendezvousClient:
    """One member's requests about one group."""

    def __init__(self, group: str, me: WorkerContext, ask: Ask, rounds: Callable[[int], int], deadline: float) -> None:
        self.group = group
        self._me = (me.role, me.rank, me.incarnation)
        self._ask = ask
        self._rounds = rounds
        self._deadline = deadline
        """The time on the monotonic clock by which the group must be formed."""

    def assembly(self) -> Assembly:
        """Wait until all members have a process; return the group as it is now.

        Raises:
            CollectiveError: The group can never be formed again, or not by this process; the message says why.
            DeadlineError: The deadline passed; the message says who was missing.
        """
        reply: Mapping[str, Any] = {}
        while True:
            self._in_time(reply)
            reply = self.question(0, 0)
            if "over" in reply:
                raise CollectiveError(f"group {self.group}: {reply['over']}")
            # Members without a process yet are absent: the group cannot be formed before they have one.
            if "members" in reply and not reply["absent"]:
                break
        members = tuple(
            (str(role), int(rank), int(incarnation_text)) for role, rank, incarnation_text in reply["members"]
        )
        # PrimeMaster knew this process when the request came, and answered it up to 20 s later.
        if self._me not in members:
            role, rank, incarnation = self._me
            raise CollectiveError(
                f"group {self.group}: this process is no member of it any more: {role}/{rank}, whose incarnation "
                f"{incarnation} it is, was started again or removed",
                hint="a process that was replaced cannot form the group: let this error end it",
            )
        epoch = int(reply["epoch"])
        return Assembly(str(reply["job"]), epoch, self._rounds(epoch), members, members.index(self._me))

    def meet(self, assembly: Assembly, offer: str) -> str | None:
        """Wait until all members have arrived; return the first one's `offer` (its store). None: the group changed."""
        reply: Mapping[str, Any] = {}
        while "offer" not in reply:
            self._in_time(reply)
            reply = self.question(assembly.epoch, assembly.round, offer)
            # An answer with members instead of the offer: the group has changed meanwhile.
            if "members" in reply or "over" in reply:
                return None
        return str(reply["offer"])

    def question(
        self, epoch: int, number: int, offer: str = "", *, met: bool = False, busy: bool = False
    ) -> Mapping[str, Any]:
        """Send one request. The answer is {"away": ...} while PrimeMaster is away, which says nothing of members."""
        asked = {"group": self.group, "me": list(self._me), "epoch": epoch, "round": number}
        try:
            return self._ask({**asked, "offer": offer, "met": met, "busy": busy})
        except UnreachableError as error:
            # A pause, or a master that is away would be asked in a tight loop.
            time.sleep(AGAIN_S)
            return {"away": error.message}

    def _in_time(self, reply: Mapping[str, Any]) -> None:
        # Checked before each request, so that the last answer, which names the missing members, is in the error.
        if time.monotonic() < self._deadline:
            return
        absent = [f"{role}/{rank} {reason}" for role, rank, reason in reply.get("absent", ())]
        missing = [
            f"{member_name} has not called CollectiveGroup({self.group!r})" for member_name in reply.get("missing", ())
        ]
        waits = ", ".join([*absent, *missing][:8]) or str(
            reply.get("away", "PrimeMaster did not say which members are missing")
        )
        raise DeadlineError(
            f"group {self.group} was not formed in time: {waits}",
            hint="all ranks of its roles must create it; a role that others depend on (dependsOn) not in setup()",
        )


class MemberLossWatch:
    """Watches for the loss of a member until it is closed. Then it sets `lost_members` and calls `break_off`, once.

    A member that ended well counts as lost only once an operation waits for it: its last data is still received, and
    operations of its other threads are not disturbed.
    """

    def __init__(
        self, rendezvous: RendezvousClient, assembly: Assembly, offer: str, break_off: Callable[[], None]
    ) -> None:
        self.lost = threading.Event()
        self.lost_members: dict[str, str] = {}
        self.end_reason = ""
        self.ended = False
        """Whether all absent members, or the job, ended well, so that the group cannot be formed again."""
        self._ended_since = 0.0
        """When exactly these members were first known to have ended (monotonic seconds)."""
        self._works: dict[object, float] = {}
        """The operations of this member in progress -> when they began."""
        self._closed = threading.Event()
        self._failure = ""
        """The error of the last request that failed, which is logged once."""
        self._break_off = break_off
        self._question = rendezvous, assembly, offer
        threading.Thread(target=self._run, name="dljob-collective-watch", daemon=True).start()

    def close(self) -> None:
        """Stop watching: the group is not used any more."""
        self._closed.set()

    @contextmanager
    def at_work(self) -> Generator[None]:
        """Mark an operation as in progress."""
        mark = object()
        # By a mark of its own: several threads may be in operations of the same group.
        self._works[mark] = time.monotonic()
        try:
            yield
        finally:
            del self._works[mark]

    def _run(self) -> None:
        """Ask PrimeMaster in a long poll, each time whether a member is lost, until one is."""
        all_ended = False
        while not self._closed.is_set():
            reply = self._ask(busy=all_ended and bool(self._works))
            if "over" in reply:
                self.end_reason, self.ended = str(reply["over"]), False
            # PrimeMaster is away, or its long poll ended without news: neither says anything of the members.
            elif "members" not in reply:
                continue
            elif all_ended := self._bears(reply):
                self._rest()
                continue
            self.lost.set()
            # Closed meanwhile: its user has left the group, and there is nothing to break off.
            if not self._closed.is_set():
                self._break_off()
            return

    def _ask(self, *, busy: bool) -> Mapping[str, Any]:
        """Send one request. Whatever it raises counts as an absence of PrimeMaster: this watch must not end of it."""
        rendezvous, assembly, offer = self._question
        try:
            return rendezvous.question(assembly.epoch, assembly.round, offer, met=True, busy=busy)
        except Exception as error:  # noqa: BLE001 - an error of PrimeMaster's own, or of the thread that carries calls
            if repr(error) != self._failure:
                self._failure = repr(error)
                log.warning(
                    "group %s: PrimeMaster cannot say who is lost, and is asked again: %r", rendezvous.group, error
                )
            self._closed.wait(AGAIN_S)
            return {"away": str(error)}

    def _bears(self, reply: Mapping[str, Any]) -> bool:
        """Whether operations may go on although a member is absent."""
        assembly, now = self._question[1], time.monotonic()
        lost_members, ended = assembly.lost_members(reply), bool(reply["ended"]) and reply["epoch"] == assembly.epoch
        if ended and lost_members.pop(assembly.me, "") and not lost_members:
            return True  # this member's own run() returned: its other threads have lost no member
        # The grace counts from when exactly these members were known to have ended.
        if not self.ended or self.lost_members != lost_members:
            self._ended_since = now
        self.lost_members, self.end_reason, self.ended = lost_members, str(reply["why"]), ended
        waits = now - max(self._ended_since, min([*self._works.values()], default=now))
        busy = any(f"{role}/{rank}" in lost_members for role, rank in reply.get("busy", ()))
        return ended and (busy or waits < ENDED_GRACE_S)

    def _rest(self) -> None:
        """Pause before the next request: for LOOK_S if an operation is in progress, else until one begins."""
        self._closed.wait(LOOK_S)
        # Without an operation in progress there is no need to know more; a new one is noticed within LOOK_S.
        while not self._works and not self._closed.wait(LOOK_S):
            pass

    def error(self, group: str, operation: str, *, recreate: bool) -> CollectiveAbortedError:
        """Return the error for this member's threads in an operation; `recreate`: the group may form again."""
        epoch = self._question[1].epoch
        lost_text = (
            ", ".join(f"{name} {reason}" for name, reason in list(self.lost_members.items())[:8]) or self.end_reason
        )
        again = f'CollectiveGroup("{group}") makes it anew once its members are back; then load what they agree on'
        never = "onRestart is Fail: let this error end the rank; new processes make the group"
        hint = "members that ended well do not come back, so the group cannot be formed again" if self.ended else ""
        return CollectiveAbortedError(
            f"{operation}: group {group} (epoch {epoch}) is broken: {lost_text}",
            group=group,
            epoch=epoch,
            lost=tuple(self.lost_members),
            ended=self.ended,
            hint=hint or (again if recreate else never),
        )
