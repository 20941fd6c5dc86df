"""What an operator hears of a head: PrimeMaster's snapshots by long poll, and Ray's word when nobody answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dljob.reconcile.state import names
from dljob.reconcile.state.model import MasterView, Object, RayJobView, Watch
from dljob.reconcile.state.snapshot import digest, significant
from dljob.testing.kubernetes.api_server import RefusedError
from dljob.testing.kubernetes.heads import HeadProcess

if TYPE_CHECKING:
    from dljob.testing.kubernetes.operator_process import Operator

FIRST_BACKOFF_S, LONGEST_BACKOFF_S, STARTING_BACKOFF_S = 0.2, 5.0, 0.5
REMIND_S, REMIND_SILENT_S = 15.0, 5.0
ENDED = ("FAILED", "STOPPED", "SUCCEEDED")


@dataclass(slots=True)
class Told:
    """What the head of the job has said."""

    watch: Watch
    uid: str
    began: float
    snapshot: Object = field(default_factory=dict[str, object])
    heard: float = 0.0
    error: str = ""
    ray_job: RayJobView | None = None
    brought: float = 0.0
    failures: int = 0
    turn: int = 0
    """Counts the questions that were planned: only the last one is asked."""


class Poll:
    """The task that asks."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._told: Told | None = None

    def follow(self, watch: Watch | None, uid: str = "", submitted: str = "") -> None:
        """Ask whom the watch names; None: nobody. `submitted`: the id that Ray has just taken."""
        told = self._told
        if watch is None:
            self._told = None
            return
        if told is None or (told.watch, told.uid) != (watch, uid):
            told = self._told = Told(watch, uid, self._now)
            self._again(told, 0.0)
        if submitted:
            session = told.ray_job.session if told.ray_job else ""
            told.ray_job = RayJobView(submitted, "PENDING", session=session)

    def views(self) -> tuple[MasterView | None, RayJobView | None]:
        """What was heard, with its age."""
        told = self._told
        if told is None:
            return None, None
        if not told.heard and not told.error:
            return None, told.ray_job
        age = self._now - (told.heard or told.began)
        return MasterView(told.snapshot, (), age, told.error), told.ray_job

    def news(self) -> None:
        """Something is new at a head: a long poll ends."""
        if self._told is not None and self._told.heard and not self._told.error:
            self._again(self._told, self._operator.world.travel())

    @property
    def _now(self) -> float:
        return self._operator.world.agenda.now

    def _again(self, told: Told, delay: float) -> None:
        told.turn += 1
        turn = told.turn
        self._operator.world.agenda.after(delay, lambda: turn == told.turn and self._ask(told))

    def _ask(self, told: Told) -> None:
        if self._told is not told or not self._operator.alive:
            return
        head = self._operator.world.reach(told.watch.address)
        if told.error or not told.heard:
            self._hear_ray(told, head)
        try:
            if head is None:
                raise RefusedError(0, "cannot connect")
            snapshot = digest(head.master().snapshot())
        except RefusedError as error:
            self._missed(told, error.message)
            return
        back = bool(told.error) or not told.heard
        weighty, news = back or significant(told.snapshot, snapshot), snapshot != told.snapshot
        told.snapshot, told.heard, told.error, told.failures = snapshot, self._now, "", 0
        if weighty:
            self._operator.bring()
        elif news:
            self._remind(told, REMIND_S)

    def _missed(self, told: Told, error: str) -> None:
        if not told.error:
            self._operator.bring()
        told.error = error
        told.failures += 1
        self._remind(told, REMIND_SILENT_S)
        longest = LONGEST_BACKOFF_S if told.heard else STARTING_BACKOFF_S
        if told.ray_job is None or told.ray_job.status in (*ENDED, "MISSING", ""):
            longest = LONGEST_BACKOFF_S
        self._again(told, min(longest, FIRST_BACKOFF_S * 1.5 ** min(told.failures - 1, 20)))

    def _remind(self, told: Told, every: float) -> None:
        if self._now >= told.brought + every:
            told.brought = self._now
            self._operator.bring()
        else:
            self._operator.bring(told.brought + every - self._now)

    def _hear_ray(self, told: Told, head: HeadProcess | None) -> None:
        old = told.ray_job
        if head is None:
            new = replace(old or RayJobView(told.watch.submission, ""), error="cannot connect")
        else:
            new = self._ray_view(told.watch.submission, head)
        told.ray_job = new
        if old is None or replace(old, error="") != replace(new, error=""):
            self._operator.bring()

    def _ray_view(self, submission: str, head: HeadProcess) -> RayJobView:
        launch = head.launches.get(submission)
        if launch is None:
            return RayJobView(submission, "MISSING", session=head.session)
        return RayJobView(
            submission,
            launch.status,
            exit_code=launch.exit_code,
            spec=launch.submit.metadata[names.SPEC_HASH],
            session=head.session,
            refusal=launch.refusal,
        )
