"""Model of a head and its PrimeMasters, as far as the operator sees them: submissions, snapshots, and a job that ends.

PrimeMaster's own decisions have their own simulator (`dljob.testing.world.world`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dljob.reconcile.state.context import stamp
from dljob.spec.status import TERMINAL
from dljob_operator.testing.virtual_time import Agenda

RANKS = 2
STOP_S, START_S, READY_S, HEAL_S = (0.1, 5.0), (0.5, 4.0), (0.2, 3.0), (0.2, 8.0)
EXITS = {"Succeeded": ("SUCCEEDED", 0), "Failed": ("FAILED", 1), "Suspended": ("FAILED", 3), "Stopped": ("FAILED", 6)}
"""Terminal phase of PrimeMaster -> status and exit code of its launcher, as Ray reports them."""


@dataclass(slots=True)
class Launch:
    """A submission as Ray's Job API has it."""

    id: str
    metadata: Mapping[str, str]
    status: str = "RUNNING"
    exit_code: int | None = None
    refusal: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class SimulatedMaster:
    """State of a PrimeMaster that its snapshots show."""

    submission: str
    attempt: int
    work: float
    """Seconds that the job runs."""
    well: bool
    """Whether its user code succeeds."""
    count: int
    """Restarts of processes, those of earlier attempts included."""
    saved: list[float]
    """Attempt, number of the run, step and time of the last checkpoint, as in `carry`; empty: none."""
    saves: bool
    """Whether there is a place for checkpoints."""
    phase: str = "Pending"
    reason: str = ""
    version: int = 1
    run: int = 0
    """Counts the starts of the ranks: the end of an earlier run does not end the present one."""
    ran: float = 0.0
    """Time of the first start of the ranks; 0: never."""
    epoch: int = 1
    ended: str = ""
    away: bool = False
    """Whether it restarts, and does not answer meanwhile."""
    gone_at: float = 0.0
    """Time since when it is gone for good; 0: it is not."""
    step: int = 0
    suspending: bool = False
    """Whether it stops because the job is suspended."""
    obeyed: list[str] = field(default_factory=list[str])
    left_nodes: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    """Excluded nodes, as in its snapshots."""

    def snapshot(self) -> dict[str, Any]:
        """Return the snapshot that the gateway serves."""
        over, run = self.phase in TERMINAL, self.phase == "Running"
        role = {"name": "worker", "desired": RANKS, "ready": RANKS if run else 0, "running": 0 if over else RANKS}
        carry: dict[str, Any] = {"count": self.count} if self.count else {}
        carry |= {"checkpoints": {"worker": self.saved}} if self.saved else {}
        role |= {"succeeded": RANKS if self.phase == "Succeeded" else 0, "failed": 0, "restarts": 0}
        return {
            "phase": self.phase,
            "reason": self.reason or self.phase,
            "message": "",
            "completionTime": self.ended or None,
            "attempt": self.attempt,
            "epoch": self.epoch,
            "version": self.version,
            "roles": [role],
            "restarts": {"process": self.count, "master": self.epoch - 1},
            "carry": {"v": 1, **carry} if carry else {},
            "recentFaults": [],
            "progress": {"step": self.step, "metrics": {}},
            "nodes": {
                "desired": RANKS,
                "ready": RANKS,
                "replaced": len(self.left_nodes),
                "excluded": list(self.left_nodes),
            },
            "placement": {"units": RANKS, "ready": RANKS if run else 0, "pending": 0 if run else RANKS},
        }


class HeadProcess:
    """One process tree of a head. Its successor knows none of its submissions, unless the head keeps its memory."""

    def __init__(
        self, agenda: Agenda, cluster: str, pod: str, number: int, news: Callable[[HeadProcess], None]
    ) -> None:
        self.cluster = cluster
        self.pod = pod
        self.session = f"session-{number}"
        self.container = f"containerd://{number}"
        self.ended: float | None = None
        self.launches: dict[str, Launch] = {}
        self.masters: dict[str, SimulatedMaster] = {}
        self.packages: dict[str, str] = {}
        self.machines = 0
        """Worker pods that are ready."""
        self._agenda = agenda
        self._news = news

    @property
    def alive(self) -> bool:
        """Whether the process tree runs."""
        return self.ended is None

    def end(self) -> None:
        """End the process tree."""
        if self.ended is None:
            self.ended = self._agenda.now
            self._news(self)

    def again(self, pod: str, number: int) -> None:
        """Restart with its memory (GCS fault tolerance): launchers are gone, PrimeMasters live on other nodes."""
        self.pod, self.container, self.ended = pod, f"containerd://{number}", None
        self.kill_launcher()
        for master in self.masters.values():
            if master.phase == "Running":
                self._work(master)
            elif master.phase == "Stopping":
                end = self._leave if master.suspending else self._stop
                self._agenda.soon(STOP_S, lambda master=master, end=end: self._has_ended(master) or end(master))
            else:
                self._agenda.soon(HEAL_S, lambda master=master: self.look(master))
        self._news(self)

    # -- Ray's Job API

    def take(self, id_: str, metadata: Mapping[str, str], master: SimulatedMaster | None) -> bool:
        """Accept a submission; return False for a known id. Its launcher starts `master`, or fails if that is None."""
        if id_ in self.launches:
            return False
        launch = self.launches[id_] = Launch(id_, metadata)
        if master is None:
            self._agenda.soon(START_S, lambda: self._refuse(launch))
        else:
            self._agenda.soon(START_S, lambda: self._begin(launch, master))
        return True

    def _refuse(self, launch: Launch) -> None:
        launch.status, launch.exit_code = "FAILED", 2
        launch.refusal = {"reason": "RayVersionMismatch", "message": "Ray is another one", "hint": "set rayVersion"}
        self._news(self)

    def _begin(self, launch: Launch, master: SimulatedMaster) -> None:
        if self.alive and launch.status == "RUNNING" and not self._finds_master(launch, master):
            self.masters[launch.id] = master
            self._turn(master, "Scheduling")
            self._agenda.soon(READY_S, lambda: self.look(master))

    def _finds_master(self, launch: Launch, master: SimulatedMaster) -> bool:
        """Whether the launcher finds the attempt's PrimeMaster; the launcher of one that has ended ends as it did."""
        # A launcher that is submitted again has the attempt's id with a suffix `-rN`.
        earlier_master = self.masters.get(launch.id.rpartition("-r")[0])
        if earlier_master is None:
            return False
        master.count, master.saved = (
            max(master.count, earlier_master.count),
            earlier_master.saved,
        )  # a new one replays the journal
        if earlier_master.phase in EXITS:
            launch.status, launch.exit_code = EXITS[earlier_master.phase]
        return not earlier_master.gone_at

    def _exit(self, master: SimulatedMaster) -> None:
        """End its launchers with the exit code of its phase."""
        for id_, launch in self.launches.items():
            if launch.status == "RUNNING" and (id_.rpartition("-r")[0] or id_) == master.submission:
                launch.status, launch.exit_code = EXITS[master.phase]

    def kill_launcher(self) -> None:
        """Kill the launchers; PrimeMaster does not need them."""
        for launch in self.launches.values():
            if launch.status == "RUNNING":
                launch.status, launch.exit_code = "FAILED", 137
                self._news(self)

    # -- PrimeMaster

    def master(self) -> SimulatedMaster | None:
        """Return the PrimeMaster that answers at the gateway, if any."""
        last = next(reversed(self.masters.values()), None)
        return None if last is None or last.away or last.gone_at else last

    def look(self, master: SimulatedMaster) -> None:
        """Run once all worker pods are ready, and recover when one is lost."""
        if self._has_ended(master) or master.phase == "Stopping":
            return
        if self.machines < RANKS:
            if master.phase == "Running":
                master.count += 1
                self._turn(master, "Recovering")
        elif master.phase != "Running":
            self._turn(master, "Running")
            self._work(master)

    def _work(self, master: SimulatedMaster) -> None:
        """Start the ranks; other changes of the snapshot, such as an excluded node, do not stop them."""
        # master/status.py, `"version": state.version`: every event raises it, and none but its own ends a rank.
        master.run += 1
        master.ran = master.ran or self._agenda.now
        run = master.run
        self._agenda.after(master.work, lambda: self._done(master, run))

    def leave(self, node: str, until: float) -> None:
        """Exclude a node that does not answer, until then."""
        now = self._agenda.now
        for master in self.masters.values():
            if not self._has_ended(master):
                left_node = {"name": node, "reason": "NodeFrozen", "since": stamp(now), "until": stamp(until)}
                master.left_nodes.append(left_node)
                master.version += 1
                self._agenda.at(until, lambda master=master, left_node=left_node: self._admit(master, left_node))
        self._news(self)

    def _admit(self, master: SimulatedMaster, left_node: dict[str, str]) -> None:
        if not self._has_ended(master):
            master.left_nodes.remove(left_node)
            master.version += 1
            self._news(self)

    def machines_are(self, ready: int) -> None:
        """Set the number of ready worker pods."""
        if ready != self.machines:
            self.machines = ready
            for master in self.masters.values():
                self._agenda.soon(HEAL_S, lambda master=master: self.look(master))

    def _done(self, master: SimulatedMaster, run: int) -> None:
        # Otherwise the timer belongs to an earlier run of the ranks, or they are down at the moment.
        if master.run == run and master.phase == "Running" and not self._has_ended(master):
            self.finish(master, well=master.well, reason="Completed" if master.well else "UserErrorRepeats")

    def finish(self, master: SimulatedMaster, *, well: bool, reason: str) -> None:
        """End the job."""
        self._end(master, "Succeeded" if well else "Failed", reason)

    def _end(self, master: SimulatedMaster, phase: str, reason: str) -> None:
        master.ended = stamp(self._agenda.now)
        self._turn(master, phase, reason)
        self._exit(master)

    def order(self, master: SimulatedMaster, id_: str, kind: str) -> None:
        """Obey a command; one id takes effect once. A report of a cause changes nothing in this model."""
        if kind == "cause":
            return
        if id_ in master.obeyed or self._has_ended(master):
            return
        master.obeyed.append(id_)
        if kind in ("stop", "suspend"):
            self._turn(master, "Stopping")
            master.suspending = kind == "suspend"
            end = self._leave if kind == "suspend" else self._stop
            self._agenda.soon(STOP_S, lambda: self._has_ended(master) or end(master))
        elif master.phase == "Running":
            master.count += 1
            self._turn(master, "Recovering")
            self._agenda.soon(HEAL_S, lambda: self.look(master))

    def _stop(self, master: SimulatedMaster) -> None:
        self._end(master, "Stopped", "StoppedByUser")

    def _leave(self, master: SimulatedMaster) -> None:
        """End a suspended attempt, whose checkpoints are saved."""
        self._end(master, "Suspended", "JobSuspended")

    def lose(self, master: SimulatedMaster) -> None:
        """Lose PrimeMaster for good; its launcher ends."""
        master.gone_at = self._agenda.now
        self.kill_launcher()
        self._news(self)

    def restart_master(self, master: SimulatedMaster, seconds: float) -> None:
        """Restart PrimeMaster within some seconds."""
        master.away = True
        self._news(self)
        self._agenda.after(seconds, lambda: self._back(master))

    def _back(self, master: SimulatedMaster) -> None:
        master.away = False
        master.epoch += 1
        master.version += 1
        self._news(self)
        # What was under way goes on: a new master counts on from its journal.
        if master.phase == "Running":
            self._work(master)

    def _has_ended(self, master: SimulatedMaster) -> bool:
        return not self.alive or master.gone_at > 0 or master.phase in (*TERMINAL, "Suspended")

    def _turn(self, master: SimulatedMaster, phase: str, reason: str = "") -> None:
        master.phase, master.reason = phase, reason
        master.version += 1
        master.step += 1
        if master.saves and phase in ("Running", "Failed", "Stopped", "Suspended"):
            master.saved = [master.attempt, 1, master.step, 1.0]
        self._news(self)
