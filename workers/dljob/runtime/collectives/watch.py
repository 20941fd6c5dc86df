"""A member's questions to PrimeMaster: who is in the group, whether all have come, and, all the while, who is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dljob.errors import CollectiveAbortedError, CollectiveError, DeadlineError, UnreachableError
from dljob.runtime.context import WorkerContext

ASK_S = 60.0
"""PrimeMaster answers within 20 s, or is being made anew."""
AGAIN_S = 0.5
ENDED_GRACE_S = 5.0
"""What a member had sent that ended well may still be on its way for so long."""

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


class Muster:
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

    def question(self, epoch: int, number: int, offer: str = "", *, met: bool = False) -> Mapping[str, Any]:
        """One question; {"away"} where PrimeMaster does not answer, which says nothing of the members."""
        asked = {"group": self._group, "me": list(self._me), "epoch": epoch, "round": number}
        try:
            return self._ask({**asked, "offer": offer, "met": met})
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


class Watch:
    """Looks out for the loss of a member until it is closed; `lost` is set then, and `break_off` called, once."""

    def __init__(self, muster: Muster, made: Assembly, offer: str, break_off: Callable[[], None]) -> None:
        self.lost = threading.Event()
        self.who: dict[str, str] = {}
        self.over = ""
        self._closed = threading.Event()
        self._break_off = break_off
        self._asked = muster, made, offer
        threading.Thread(target=self._run, name="dljob-collective-watch", daemon=True).start()

    def close(self) -> None:
        """The group is not used any more."""
        self._closed.set()

    def _run(self) -> None:
        muster, made, offer = self._asked
        while not self._closed.is_set():
            said = muster.question(made.epoch, made.round, offer, met=True)
            if "over" in said:
                self.over = str(said["over"])
            elif "members" in said:
                self.who, self.over = made.lost(said), str(said["why"])
                if said["ended"] and self._closed.wait(ENDED_GRACE_S):
                    return
            else:
                continue
            self.lost.set()
            if not self._closed.is_set():
                self._break_off()
            return

    def error(self, group: str, what: str, *, recreate: bool) -> CollectiveAbortedError:
        """What the threads of this member are told."""
        epoch = self._asked[1].epoch
        whom = ", ".join(f"{name} {why}" for name, why in list(self.who.items())[:8]) or self.over
        again = f'CollectiveGroup("{group}") makes it anew once its members are back; then load what they agree on'
        never = "onRestart is Fail: let this error end the rank; new processes make the group"
        return CollectiveAbortedError(
            f"{what}: group {group} (epoch {epoch}) is broken: {whom}",
            group=group,
            epoch=epoch,
            lost=tuple(self.who),
            hint=again if recreate else never,
        )
