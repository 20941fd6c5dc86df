"""What PrimeMaster, worker hosts and peers say to each other: plain frozen data, picklable without ray or torch.

A host is a Ray actor with these methods (both kinds of host, and spares):

    hello() -> Hello                        the first answer: it is up
    start(StartOrder) -> None               start ranks; idempotent by incarnation; a spare becomes the host it names
    watch(epoch, acked) -> tuple[Report]    long poll and sentinel in one: answers when there are reports newer than
                                            `acked`, and breaks at once when the process dies; a call with a newer
                                            epoch, or a later call of the same epoch, releases the older one with ()
    stop(StopOrder) -> None                 ask ranks to shut down, end them after the grace
    leave_group(LeaveOrder) -> None         take a rank out of its torch group; `watch` reports its end, the host stays
    leave(code) -> None                     answer, then os._exit(code); never through Ray
    invoke(Call, payload, common) -> Reply  a call from another role; arguments and result travel pickled; small ones
                                            in packed bytes, with the Call and the Reply

an agent of a node (`dljob.runtime.node.node_agent`) with:

    beat(Ask) -> Pulse                      the beacons of all hosts of the node in one; both go as packed bytes

and PrimeMaster answers hosts with:

    beacon(Beacon) -> BeaconReply           renews the lease; carries progress; while the agent of its node does not
    peers(role) -> RoleTable                who is who now
    await_peer(role, rank, after) -> Peer   parks until that rank is ready in an incarnation > `after`
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from dljob.master.state.actions import RankStart
from dljob.master.state.views import Outcome
from dljob.plan.role import RolePlan


@dataclass(frozen=True, slots=True)
class JobInfo:
    """What every process of a job knows of it."""

    uid: str
    name: str
    dir: str
    """The job's folder: journal, logs, and what user code keeps there."""
    namespace: str
    master: str
    """The actor name of PrimeMaster."""
    lease_s: float
    beacon_s: float
    code_dir: str
    """First on the path of user code, and its working directory; empty: where Ray starts each process."""
    roles: tuple[tuple[str, int], ...]
    """(role, replicas) at first, so that a group's size needs no question; `StartOrder.sizes` says what changed."""
    attempt: int = 1
    """Which attempt of the job."""
    save_on_exit: bool = True
    """Whether what is in memory alone goes to disk when its rank ends."""
    peer_copy: bool = True
    """Whether what is not on disk has a copy on a peer node."""
    save_grace_s: float = 120.0
    """How long that may take."""
    boot: str = ""
    """The boot id of the one machine that has all of the cluster, PrimeMaster included; empty: there are more."""


@dataclass(frozen=True, slots=True)
class HostSpec:
    """The constructor argument of a host: the same for all hosts and spares of a role."""

    job: JobInfo
    role: RolePlan
    epoch: int


@dataclass(frozen=True, slots=True)
class Hello:
    """A host is up. `devices`: Ray resource -> ids that Ray assigned it. `log` is where its output goes."""

    pid: int
    node: str
    ip: str
    devices: tuple[tuple[str, tuple[str, ...]], ...]
    log: str
    address: str = ""


@dataclass(frozen=True, slots=True)
class StartOrder:
    """Start these ranks of the role in this host."""

    epoch: int
    life: int
    ranks: tuple[RankStart, ...]
    world_size: int
    generation: int
    store: str
    sizes: tuple[tuple[str, int], ...] = ()
    """(role, ranks) now, of roles whose number of ranks may change."""


@dataclass(frozen=True, slots=True)
class StopOrder:
    """Shut these ranks down; SIGTERM-like, then the end after `grace_s`."""

    epoch: int
    ranks: tuple[int, ...]
    grace_s: float
    reason: str
    incarnations: tuple[int, ...] = ()
    """Of these ranks, in the same order: of a later one nothing is asked. Empty: it is meant whichever it is."""


@dataclass(frozen=True, slots=True)
class LeaveOrder:
    """Take this incarnation of a rank out of its torch group and its user code; the process stays."""

    epoch: int
    rank: int
    incarnation: int
    reason: str
    parts: bool = False
    """Its role is to have it no more: it is shut down, and its process ended by PrimeMaster."""


@dataclass(frozen=True, slots=True)
class Report:
    """What happened to a rank: it became ready (`outcome` None) or ended. `seq` counts the reports of a host."""

    seq: int
    rank: int
    incarnation: int
    pid: int
    outcome: Outcome | None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A host lives. `steps`: rank -> (incarnation, last step, its metrics), only what changed since the last beacon."""

    role: str
    actor: str
    epoch: int
    steps: Mapping[int, tuple[int, int, Mapping[str, float]]] = field(default_factory=dict)
    silent_s: float = 0.0
    """From the node's agent: how long the host's own thread has not run, when that is longer than it should be."""


@dataclass(frozen=True, slots=True)
class BeaconReply:
    """`known` False: this actor is nobody's host any more and must end itself."""

    epoch: int
    known: bool


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """What PrimeMaster asks a node's agent, and what it answers to the agent's last words."""

    epoch: int
    pause_s: float
    """The answer comes after so long."""
    news_s: float
    """And as soon as there are news, but not before so long."""
    acked: int = 0
    """The number of the last answer that was heard; 0: none of this process was."""
    unknown: tuple[str, ...] = ()
    """The actors in it that are nobody's host any more."""
    may_go: str = ""
    """Of a node that is announced to go: why nobody there is worth waiting for; empty: its ranks may yet leave it."""

    def packed(self) -> bytes:
        """As bytes, which Ray passes on as they are; its own pickling would be most of what a question costs."""
        return json.dumps((self.epoch, self.pause_s, self.news_s, self.acked, self.unknown, self.may_go)).encode()

    @classmethod
    def unpacked(cls, data: bytes) -> AgentRequest:
        """What `packed` made."""
        epoch, pause_s, news_s, acked, unknown, may_go = json.loads(data)
        return cls(epoch, pause_s, news_s, acked, tuple(unknown), may_go)


@dataclass(frozen=True, slots=True)
class Pulse:
    """A node's agent answers: the node lives, and this is what its hosts have to say."""

    pid: int
    number: int
    hosts: tuple[Heartbeat, ...] = ()
    leaving: str = ""
    """Who said here that the node is to go; empty: nobody."""

    def packed(self) -> bytes:
        """As bytes, for the same reason."""
        rows = [(host.role, host.actor, host.epoch, list(host.steps.items()), host.silent_s) for host in self.hosts]
        return json.dumps((self.pid, self.number, rows, self.leaving)).encode()

    @classmethod
    def unpacked(cls, data: bytes) -> Pulse:
        """What `packed` made."""
        pid, number, rows, leaving = json.loads(data)
        return cls(pid, number, tuple(_beacon(*row) for row in rows), leaving)


def _beacon(role: str, actor: str, epoch: int, steps: list[Any], silent_s: float) -> Heartbeat:
    told = {rank: (incarnation, step, metrics) for rank, (incarnation, step, metrics) in steps}
    return Heartbeat(role, actor, epoch, told, silent_s)


@dataclass(frozen=True, slots=True)
class Peer:
    """A rank as its peers address it; `actor` is empty while it has no process."""

    role: str
    rank: int
    incarnation: int
    actor: str
    ready: bool
    gone: str = ""
    """Why it will never be back, when it will not: the rank ended, the job is stopping."""
    size: int = 0
    """How many ranks its role has now; 0: that is not said."""


@dataclass(frozen=True, slots=True)
class RoleTable:
    """All ranks of a role, by rank; `version` grows with every change."""

    role: str
    version: int
    peers: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A call to one rank's @rpc method. `timeout_s` is what was left of the caller's deadline when it was sent.

    The arguments travel beside it as pickled `(args, kwargs)`: they are pickled once, in the caller's thread.
    """

    id: str
    rank: int
    incarnation: int
    method: str
    timeout_s: float | None
    caller: str
    again: bool = False
    """Sent before, and lost with its process, or its answer was: to be run only if the method is idempotent."""
    quiet: bool = False
    """The answer is not wanted: an empty one will do."""
    window: int = 0
    """Of a stream: how many items may be made ahead of the caller."""

    def packed(self, payload: bytes) -> bytes:
        """As bytes, with the arguments: Ray pickles an object in three times what all of this takes."""
        head = (self.id, self.rank, self.incarnation, self.method, self.timeout_s, self.caller)
        return marshal.dumps((*head, self.again, self.quiet, self.window, payload))

    @classmethod
    def unpacked(cls, data: bytes) -> tuple[Call, bytes]:
        """What `packed` made."""
        *head, payload = marshal.loads(data)  # noqa: S302 - from a process of the same job
        return cls(*head), payload


KEEPER = ":"
"""What the address of a keeper begins with, where a call has its role: `:queue:samples`."""
CARD, PULL, CLOSE = ":card", ":pull", ":close"
"""Calls to the host rather than to a method: what the role can do; the next items of a stream; no more of them."""
CANCEL = ":cancel"
"""Says that the caller of the call with this id has given up; answered with the call's `Fate`."""
GROUPS = {CARD: "ask", PULL: "pull", CLOSE: "ask", CANCEL: "cancel"}
"""The host's threads that answer them. Methods have "rpc": calls that wait for their turn may take all of those, and a
stream comes to its end, which gives the turn on, by its pulls. Pulls wait for items, and cards for `setup`, so each
have their own; a cancel waits for nothing."""


class NotRun(StrEnum):
    """Why a host did not run a call."""

    NO_METHOD = "no method"
    """Unknown, or not @rpc: it will not be there on another try."""
    ENDED = "ended"
    """That process of the rank has ended; a later incarnation may answer."""
    LATE = "late"
    """The deadline passed before it began; the message says what it waited for."""
    BAD_ARGUMENTS = "bad arguments"
    """The arguments cannot be read back in the callee's process."""
    NOT_AGAIN = "not again"
    """The call was lost with an earlier process, or its answer was, and its method is not idempotent."""
    CUT_OFF = "cut off"
    """It was run, and broken off because the rank starts again in its process: it may have had an effect, or not."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a call: a pickled value, or the callee's exception as text.

    `refused` says that the method was not run to its end, and why: the rank is not there (any more), or has no such
    method.
    """

    payload: bytes = b""
    error_type: str = ""
    message: str = ""
    traceback: str = ""
    refused: NotRun | None = None
    idempotent: bool = False
    """Whether the method is; the caller remembers it for the day when a call is lost."""

    def packed(self) -> bytes:
        """As bytes, for the same reason as a Call."""
        refused = None if self.refused is None else str(self.refused)
        return marshal.dumps((self.payload, self.error_type, self.message, self.traceback, refused, self.idempotent))

    @classmethod
    def unpacked(cls, data: bytes) -> Reply:
        """What `packed` made."""
        payload, error_type, message, traceback, refused, idempotent = marshal.loads(data)  # noqa: S302 - the same
        return cls(payload, error_type, message, traceback, None if refused is None else NotRun(refused), idempotent)


def saver_name(job: JobInfo, node: str) -> str:
    """The actor that keeps a node's saver of checkpoints; `node` is Ray's id of the node."""
    return f"{saver_prefix(job)}{node[:12]}"


def saver_prefix(job: JobInfo) -> str:
    """What the names of all savers' actors of a job begin with."""
    return f"{job.uid[:8]}/saver/"


def agent_prefix(job: JobInfo) -> str:
    """What the names of all agents of a job's nodes begin with; eight letters of the node's id follow."""
    return f"{job.uid[:8]}/agent/"


def queue_folder(job: JobInfo) -> Path:
    """Where the head has the queues of a job, gone with its attempt."""
    return Path(job.dir) / "queues" / str(job.attempt)


def is_saver(actor: str) -> bool:
    """Whether an actor's name is that of a saver's."""
    return actor.split("/")[1:2] == ["saver"] and actor.count("/") == 2
