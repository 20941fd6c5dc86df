"""A member's questions to PrimeMaster: who is in the group, whether all have come, and, all the while, who is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dljob.errors import CollectiveAbortedError, CollectiveError, DeadlineError, UnreachableError
from dljob.runtime.process.worker_context import WorkerContext

ASK_S = 60.0
"""PrimeMaster answers within 20 s, or is being made anew."""
AGAIN_S = 0.5
ENDED_GRACE_S = 5.0
"""What a member had sent that ended well may still be on its way for so long: each operation has it."""
LOOK_S = 1.0

Ask = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Assembly:
    """A group as its members are to make it: who is in it, and what the first one offers."""

    job: str
    """Names the attempt of the job."""
    epoch: int
    round: int
    members: tuple[tuple[str, int, int], ...]
    place: int
    """This member's number in it."""

    @property
    def me(self) -> str:
        """This member's name."""
        return "{}/{}".format(*self.members[self.place])

    def lost(self, said: Mapping[str, Any]) -> dict[str, str]:
        """Who of these is not in it any more, by what PrimeMaster says now: "rollout/1" -> why."""
        why = {(role, rank): text for role, rank, text in said["absent"]}
        now = {(role, rank): incarnation for role, rank, incarnation in said["members"]}
        found: dict[str, str] = {}
        for role, rank, incarnation in self.members:
            if (role, rank) in why:
                found[f"{role}/{rank}"] = why[role, rank]
            elif (role, rank) not in now:
                found[f"{role}/{rank}"] = "is no rank of its role any more"
            elif now[role, rank] != incarnation:
                found[f"{role}/{rank}"] = "was started again"
        return found


class RendezvousClient:
    """One group's questions, by one member. `offer` is made once the member knows that it is the first."""

    def __init__(self, group: str, me: WorkerContext, ask: Ask, rounds: Callable[[int], int], deadline: float) -> None:
        self._group = group
        self._me = (me.role, me.rank, me.incarnation)
        self._ask = ask
        self._rounds = rounds
        self._deadline = deadline
        """On the monotonic clock."""

    def assembly(self) -> Assembly:
        """Who is in the group, once all of them have a process.

        Raises:
            CollectiveError: The group will not be any more; it says why.
            DeadlineError: It took too long; it says for whom it waited.
        """
        said: Mapping[str, Any] = {}
        while True:
            self._in_time(said)
            said = self.question(0, 0)
            if "over" in said:
                raise CollectiveError(f"group {self._group}: {said['over']}")
            if "members" in said and not said["absent"]:
                break
        members = tuple((str(role), int(rank), int(own)) for role, rank, own in said["members"])
        epoch = int(said["epoch"])
        return Assembly(str(said["job"]), epoch, self._rounds(epoch), members, members.index(self._me))

    def meet(self, made: Assembly, offer: str) -> str | None:
        """Wait until all have come; the first one's offer. None: the group has changed meanwhile, look again."""
        said: Mapping[str, Any] = {}
        while "offer" not in said:
            self._in_time(said)
            said = self.question(made.epoch, made.round, offer)
            if "members" in said or "over" in said:
                return None
        return str(said["offer"])

    def question(
        self, epoch: int, number: int, offer: str = "", *, met: bool = False, busy: bool = False
    ) -> Mapping[str, Any]:
        """One question; {"away"} where PrimeMaster does not answer, which says nothing of the members."""
        asked = {"group": self._group, "me": list(self._me), "epoch": epoch, "round": number}
        try:
            return self._ask({**asked, "offer": offer, "met": met, "busy": busy})
        except UnreachableError as error:
            time.sleep(AGAIN_S)
            return {"away": error.message}

    def _in_time(self, said: Mapping[str, Any]) -> None:
        if time.monotonic() < self._deadline:
            return
        absent = [f"{role}/{rank} {why}" for role, rank, why in said.get("absent", ())]
        missing = [f"{each} has not called CollectiveGroup({self._group!r})" for each in said.get("missing", ())]
        waits = ", ".join([*absent, *missing][:8]) or str(said.get("away", "PrimeMaster did not say for whom"))
        raise DeadlineError(
            f"group {self._group} was not made in time: {waits}",
            hint="all ranks of its roles make it; one that another waits for (dependsOn) cannot meet it in setup()",
        )


class MemberLossWatch:
    """Looks out for the loss of a member until it is closed; `lost` is set then, and `break_off` called, once.

    A member that ended well is lost as soon as an operation waits for it: what it had sent is still received, and
    what a thread of it is still at is not disturbed.
    """

    def __init__(self, muster: RendezvousClient, made: Assembly, offer: str, break_off: Callable[[], None]) -> None:
        self.lost = threading.Event()
        self.who: dict[str, str] = {}
        self.over = ""
        self.ended = False
        """Whether the others that are absent, or the job, ended well: nobody will make the group again."""
        self._heard = 0.0
        """Since when just those are known to have ended."""
        self._works: dict[object, float] = {}
        """The operations of this member that are under way, and since when."""
        self._closed = threading.Event()
        self._break_off = break_off
        self._asked = muster, made, offer
        threading.Thread(target=self._run, name="dljob-collective-watch", daemon=True).start()

    def close(self) -> None:
        """The group is not used any more."""
        self._closed.set()

    @contextmanager
    def at_work(self) -> Generator[None]:
        """While an operation is under way."""
        mark = object()
        self._works[mark] = time.monotonic()
        try:
            yield
        finally:
            del self._works[mark]

    def _run(self) -> None:
        (muster, made, offer), told = self._asked, False
        while not self._closed.is_set():
            said = muster.question(made.epoch, made.round, offer, met=True, busy=told and bool(self._works))
            if "over" in said:
                self.over, self.ended = str(said["over"]), False
            elif "members" not in said:
                continue
            elif told := self._bears(said):
                self._rest()
                continue
            self.lost.set()
            if not self._closed.is_set():
                self._break_off()
            return

    def _bears(self, said: Mapping[str, Any]) -> bool:
        """Whether operations may go on, though somebody is absent."""
        made, now = self._asked[1], time.monotonic()
        who, ended = made.lost(said), bool(said["ended"]) and said["epoch"] == made.epoch
        if ended and who.pop(made.me, "") and not who:
            return True  # its threads outlive its run(): that is no loss to themselves
        if not self.ended or self.who != who:
            self._heard = now
        self.who, self.over, self.ended = who, str(said["why"]), ended
        waits = now - max(self._heard, min([*self._works.values()], default=now))
        busy = any(f"{role}/{rank}" in who for role, rank in said.get("busy", ()))
        return ended and (busy or waits < ENDED_GRACE_S)

    def _rest(self) -> None:
        """Until it is worth to ask again: only an operation wants to know more."""
        self._closed.wait(LOOK_S)
        while not self._works and not self._closed.wait(LOOK_S):
            pass

    def error(self, group: str, what: str, *, recreate: bool) -> CollectiveAbortedError:
        """What the threads of this member are told."""
        epoch = self._asked[1].epoch
        whom = ", ".join(f"{name} {why}" for name, why in list(self.who.items())[:8]) or self.over
        again = f'CollectiveGroup("{group}") makes it anew once its members are back; then load what they agree on'
        never = "onRestart is Fail: let this error end the rank; new processes make the group"
        hint = "who ended well does not come back: the group is not made again" if self.ended else ""
        return CollectiveAbortedError(
            f"{what}: group {group} (epoch {epoch}) is broken: {whom}",
            group=group,
            epoch=epoch,
            lost=tuple(self.who),
            ended=self.ended,
            hint=hint or (again if recreate else never),
        )
