"""The messages between PrimeMaster, worker hosts and peers: plain frozen data, picklable without ray or torch.

A host is a Ray actor with these methods (both kinds of host, and spares):

    hello() -> Hello                        the first answer: the host is up
    start(StartOrder) -> None               start ranks; idempotent by incarnation; a spare becomes the host it names
    watch(epoch, acked) -> tuple[Report]    long poll: answers when there are reports newer than `acked`, and breaks
                                            at once when the process dies; a call with a newer epoch, or a later call
                                            of the same epoch, releases the older one with ()
    stop(StopOrder) -> None                 ask ranks to shut down, end them after the grace
    leave_group(LeaveOrder) -> None         take a rank out of its torch group; `watch` reports its end, the host stays
    resize(SizesOrder) -> None              learn the present sizes of roles: its ranks call those that are there
    load(LoadOrder) -> None                 have a rank load a version of its weights; `watch` reports how it went
    hold(HoldOrder) -> None                 keep calls of a rank waiting, or serve them again
    leave(code) -> None                     answer, then os._exit(code); never through Ray
    invoke(Call, payload, common) -> Reply  a call from another role; arguments and result travel pickled; small ones
                                            in packed bytes, with the Call and the Reply

An agent of a node (`dljob.runtime.node.node_agent`) has:

    beat(AgentRequest) -> Pulse             the heartbeats of all hosts of the node in one; both travel as packed bytes

PrimeMaster answers hosts:

    beacon(Heartbeat) -> BeaconReply        renews the lease and carries progress; used while the node's agent is silent
    peers(role) -> RoleTable                the present actor of each rank
    callees(role) -> list                   rank, incarnation, ready, gone of each rank, as plain values
    await_peer(role, rank, after) -> Peer   waits until that rank is ready in an incarnation > `after`
    ended_callers(actor, callers) -> list   which (role, rank, incarnation) have ended; waits until one has
    late_callee(callee, reason, ...) -> bool  restarts a rank that ran a call past its deadline
    hang_of(role, rank, incarnation) -> str  the hang for which that process was ended; empty: there was none
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

from dljob.errors import DLJobError
from dljob.master.state.actions import RankStart
from dljob.master.state.views import Outcome, Sighting
from dljob.plan.role import RolePlan


@dataclass(frozen=True, slots=True)
class JobInfo:
    """The facts of a job that each of its processes gets."""

    uid: str
    name: str
    dir: str
    """The job's folder: journal, logs, and files of user code."""
    namespace: str
    master: str
    """The actor name of PrimeMaster."""
    lease_s: float
    beacon_s: float
    code_dir: str
    """The working directory of user code and the first entry of its import path; empty: where Ray starts processes."""
    roles: tuple[tuple[str, int], ...]
    """(role, replicas) as planned, so that a role's size needs no question; `StartOrder.sizes` has later changes."""
    attempt: int = 1
    """The number of this attempt (RayCluster) of the job."""
    save_on_exit: bool = True
    """Whether checkpoints that are only in memory go to disk when their rank ends."""
    peer_copy: bool = True
    """Whether checkpoints that are not on disk yet are copied to a peer node."""
    save_grace_s: float = 120.0
    """Seconds for writing them to disk at the end."""
    boot: str = ""
    """The boot id of the one machine that holds the whole cluster, PrimeMaster included; empty: there are several."""
    servers: tuple[str, ...] = ()
    """The roles with ports."""
    standby: str = ""
    """The actor name of the second PrimeMaster, which may command, too; empty: the job has none."""

    @property
    def masters(self) -> tuple[str, ...]:
        """The actor names of its PrimeMasters."""
        return (self.master, self.standby) if self.standby else (self.master,)


@dataclass(frozen=True, slots=True)
class HostSpec:
    """The constructor argument of a host: the same for all hosts and spares of a role."""

    job: JobInfo
    role: RolePlan
    epoch: int


class OutcomeError(DLJobError):
    """User code failed in a process that runs no rank; `outcome` is what PrimeMaster is to know of it."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"{outcome.error_type}: {outcome.message}")
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Hello:
    """A host is up. `devices`: Ray resource -> ids that Ray assigned to it."""

    pid: int
    node: str
    devices: tuple[tuple[str, tuple[str, ...]], ...]
    address: str = ""


@dataclass(frozen=True, slots=True)
class StartOrder:
    """An order to start ranks of the role in this host."""

    epoch: int
    incarnation: int
    ranks: tuple[RankStart, ...]
    world_size: int
    generation: int
    store: str
    sizes: tuple[tuple[str, int], ...] = ()
    """(role, present number of ranks) of roles whose number of ranks may change."""
    numbers: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """(role, numbers of its ranks) of these; empty where they are 0 to n-1."""


CUT = ":cut"
"""The name in a SizesOrder under which a rank learns the cut for which it is to save; 0: for none. No role has it."""


@dataclass(frozen=True, slots=True)
class SizesOrder:
    """The news that roles have other numbers of ranks, for the callers in this host's ranks."""

    epoch: int
    sizes: tuple[tuple[str, int], ...]
    """(role, present number of ranks) of roles whose number of ranks may change."""
    numbers: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """(role, numbers of its ranks) of these; empty where they are 0 to n-1."""


@dataclass(frozen=True, slots=True)
class StopOrder:
    """An order to shut ranks down: as SIGTERM does, and by force after `grace_s`."""

    epoch: int
    ranks: tuple[int, ...]
    grace_s: float
    reason: str
    incarnations: tuple[int, ...] = ()
    """The incarnations of `ranks`, in the same order: a later incarnation is not stopped. Empty: any incarnation is."""
    leaves: bool = False
    """Whether their role goes on without them: their calls end first, within `grace_s`."""


KNOWN_S = 1.0
"""Seconds for callers and clients to hear that a rank leaves for good; until then it takes their calls."""


@dataclass(frozen=True, slots=True)
class LeaveOrder:
    """An order to one incarnation of a rank to leave its torch group and its user code; the process stays."""

    epoch: int
    rank: int
    incarnation: int
    reason: str
    parts: bool = False
    """Whether the role shrinks below this rank: it is shut down, and PrimeMaster ends its process."""


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """An order to load the version of a rank's weights that was published at `at` (unix seconds)."""

    epoch: int
    rank: int
    incarnation: int
    version: int
    at: float


@dataclass(frozen=True, slots=True)
class HoldOrder:
    """An order to keep the calls of a rank waiting, or to serve them again (`actions.HoldCalls`)."""

    epoch: int
    rank: int
    incarnation: int
    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class NewestVersion:
    """The newest version that all channels of a role have; the fields are those of the event WeightsPublished."""

    version: int
    at: float
    since: float
    first: int
    by: tuple[tuple[str, int], ...] = ()
    learned_since: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The end of a load; the fields are those of the event WeightsLoaded."""

    version: int
    at: float
    problem: str = ""
    untouched: bool = False


@dataclass(frozen=True, slots=True)
class Serves:
    """Where a rank serves, (port name, host:port), and whether it is to get requests."""

    addresses: tuple[tuple[str, str], ...]
    ready: bool
    reason: str = ""
    cluster: str = ""
    """As in `RankServes`."""


@dataclass(frozen=True, slots=True)
class Report:
    """A rank became ready (`outcome` None), ended, or has other news. `seq` numbers the reports of a host."""

    seq: int
    rank: int
    incarnation: int
    pid: int
    outcome: Outcome | None
    serves: Serves | None = None
    """News about its readiness; `outcome` says nothing then."""
    weights: NewestVersion | LoadResult | None = None
    """News about weights; `outcome` says nothing then."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life of a host. `steps`: rank -> (incarnation, last step, its metrics), changes since the last one."""

    role: str
    actor: str
    epoch: int
    steps: Mapping[int, tuple[int, int, Mapping[str, float]]] = field(default_factory=dict)
    silent_s: float = 0.0
    """Seconds that the host's own thread has not run, if unusually many; set by the node's agent."""
    usage: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What its ranks use, for the job's samples (`worker.usage`); empty in most heartbeats."""
    activities: Mapping[int, tuple[int, float, str]] = field(default_factory=dict)
    """Rank -> (incarnation, the node's clock, report): what it does and waits for (`process.activities`), if that has
    changed. Times in the report are by the same clock."""


@dataclass(frozen=True, slots=True)
class BeaconReply:
    """PrimeMaster's answer to a heartbeat. `known` False: it has replaced this actor, which must end itself."""

    epoch: int
    known: bool


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """PrimeMaster's request to a node's agent, which is also its answer to the agent's last heartbeat."""

    epoch: int
    pause_s: float
    """The pause in seconds after which the agent answers."""
    news_s: float
    """The pause in seconds after which the agent answers if it has news."""
    acked: int = 0
    """The number of the last answer that arrived; 0: none of this agent process did."""
    unknown: tuple[str, ...] = ()
    """The actors in that answer that PrimeMaster has replaced, and which must end themselves."""
    may_go: str = ""
    """For a departing node: why its preStop hook may stop waiting; empty: its ranks may still leave in order."""

    def packed(self) -> bytes:
        """Encode as bytes, which Ray passes on as they are; Ray's own pickling would be most of a request's cost."""
        return json.dumps(_REQUEST(self)).encode()

    @classmethod
    def unpacked(cls, data: bytes) -> AgentRequest:
        """Decode the result of `packed`."""
        # JSON has no tuples, and a message must compare equal to what was sent.
        request = cls(*json.loads(data))
        return replace(request, unknown=tuple(request.unknown))


@dataclass(frozen=True, slots=True)
class NodeHeartbeat:
    """A node agent's answer: the node lives, with the heartbeats of its hosts."""

    pid: int
    number: int
    hosts: tuple[Heartbeat, ...] = ()
    leaving: str = ""
    """The source of an announcement, on the node, that it will go (a preStop hook); empty: there was none."""
    sightings: tuple[Sighting, ...] = ()
    """What outside witnesses have said for long enough; each heartbeat has all of it."""
    troubles: tuple[tuple[str, str], ...] = ()
    """(witness, why) of witnesses that cannot be read."""

    def packed(self) -> bytes:
        """Encode as bytes, for the same reason as AgentRequest."""
        hosts, sightings = tuple(map(_HEARTBEAT, self.hosts)), tuple(map(_SIGHTING, self.sightings))
        return marshal.dumps(_NODE_HEARTBEAT(replace(self, hosts=hosts, sightings=sightings)))

    @classmethod
    def unpacked(cls, data: bytes) -> NodeHeartbeat:
        """Decode the result of `packed`."""
        heartbeat = cls(*marshal.loads(data))  # noqa: S302 - from a process of the same job
        hosts, sightings = cast("tuple[Any, ...]", heartbeat.hosts), cast("tuple[Any, ...]", heartbeat.sightings)
        return replace(
            heartbeat,
            hosts=tuple(Heartbeat(*row) for row in hosts),
            sightings=tuple(Sighting(*row) for row in sightings),
        )


@dataclass(frozen=True, slots=True)
class Peer:
    """A rank, as its peers address it; `actor` is empty while it has no process."""

    role: str
    rank: int
    incarnation: int
    actor: str
    ready: bool
    gone_reason: str = ""
    """Why it will never be back: the rank ended, or the job is stopping. Empty: it may be back."""
    size: int = 0
    """The present number of ranks of its role; 0: unknown."""
    numbers: tuple[int, ...] = ()
    """Their numbers, where they are not 0 to n-1."""
    job_ends: bool = False
    """Whether it is gone because the job is ending."""


@dataclass(frozen=True, slots=True)
class RoleTable:
    """All ranks of a role, by rank; `version` grows with every change."""

    role: str
    version: int
    peers: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A call to one rank's @rpc method. `timeout_s`: the seconds to the caller's deadline when it was sent.

    The arguments travel beside it as pickled `(args, kwargs)`, pickled once, in the caller's thread.
    """

    id: str
    rank: int
    incarnation: int
    method: str
    timeout_s: float | None
    caller: str
    again: bool = False
    """Whether it was sent before and lost, or its answer was: it runs only if the method is idempotent."""
    quiet: bool = False
    """Whether the value is not wanted, so that an empty answer will do."""
    window: int = 0
    """For a stream: how many items may be produced ahead of the caller."""
    traced: bool = False
    """Whether the caller records it for `dljob trace`, so that the callee does, too."""
    caller_incarnation: int = 0
    """The incarnation of `caller`; 0: it is no rank, and its end is not told."""
    published: Sequence[tuple[str, tuple[int, float]]] = ()
    """As in `RankCall`."""

    def packed(self, payload: bytes) -> bytes:
        """Encode as bytes, arguments included: Ray takes three times as long to pickle one object."""
        # marshal is unsafe with foreign data and differs between Python versions; both ends are processes of one job.
        return marshal.dumps((*_CALL(self), payload))

    @classmethod
    def unpacked(cls, data: bytes) -> tuple[Call, bytes]:
        """Decode the result of `packed`."""
        *head, payload = marshal.loads(data)  # noqa: S302 - from a process of the same job
        return cls(*head), payload


KEEPER = ":"
"""The prefix of a storage actor's address, which stands where a call has its role: `:queue:samples`."""
DESCRIBE, PULL, CLOSE = ":card", ":pull", ":close"
"""Calls to the host instead of a method: describe the role's service; the next items of a stream; close a stream."""
CANCEL = ":cancel"
"""Tells the callee that the caller of this call id has given up; the answer is the call's `Fate`."""
ANSWERS = ":answers"
"""Brings the answers of the caller's calls that the callee has answered with `NotRun.RUNS`."""
BATCH = ":batch"
"""A call to one rank that holds several calls of one method, which run one after another."""
GROUPS = {DESCRIBE: "ask", PULL: "pull", CLOSE: "ask", CANCEL: "cancel", ANSWERS: "pull"}
"""The concurrency group of the host's threads that answers each. Methods have "rpc". Calls that wait for their turn may
take all of its threads, and a stream ends, which passes the turn on, only by its pulls: these need other threads. Pulls
wait for items, and descriptors for `setup`, so each has a group of its own. A cancel waits for nothing."""


class NotRun(StrEnum):
    """The reason why a host did not run a call, or not to its end, or keeps its answer."""

    NO_METHOD = "no method"
    """The method is unknown, or not @rpc; another try will not find it either."""
    ENDED = "ended"
    """That process of the rank has ended; a later incarnation may answer."""
    LATE = "late"
    """The deadline passed before the method began; the message says what the call waited for."""
    BAD_ARGUMENTS = "bad arguments"
    """The arguments cannot be unpickled in the callee's process."""
    NOT_AGAIN = "not again"
    """The call, or its answer, was lost with an earlier process, and its method is not idempotent."""
    OTHER_VERSION = "other version"
    """A stream that goes on asks for another version of weights or code than the callee has."""
    CUT_OFF = "cut off"
    """The call was broken off because the rank restarts in its process: it may have had an effect, or not."""
    BY_RAY = "by Ray"
    """It ran, and its answer is too large for a line: it is kept for the same call by Ray."""
    RUNS = "runs"
    """It runs, or waits for its turn, without a thread: its answer is to be fetched (`rpc.kept_answers`)."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Reply:
    """The answer to a call: a pickled value, or the callee's exception as text.

    `refused` says why the method did not run to its end.
    """

    payload: bytes = b""
    error_type: str = ""
    message: str = ""
    traceback: str = ""
    refused: NotRun | None = None
    idempotent: bool = False
    """Whether the method is idempotent; the caller remembers it, in case it has to send a lost call again."""
    origin: tuple[str, int, str, str, str] | None = None
    """The values of the `ErrorOrigin` of an exception of the callee's code."""

    def packed(self) -> bytes:
        """Encode as bytes, for the same reason as a Call."""
        # `marshal` takes no enum.
        plain = self if self.refused is None else replace(self, refused=self.refused.value)  # type: ignore[arg-type]
        return marshal.dumps(_REPLY(plain))

    @classmethod
    def unpacked(cls, data: bytes) -> Reply:
        """Decode the result of `packed`."""
        reply = cls(*marshal.loads(data))  # noqa: S302 - from a process of the same job
        return reply if reply.refused is None else replace(reply, refused=NotRun(reply.refused))


def _values(kind: type) -> attrgetter[tuple[Any, ...]]:
    """Return a getter of all fields of a message in their order: what travels packed is a tuple of them."""
    return attrgetter(*(field_info.name for field_info in fields(kind)))


_REQUEST, _HEARTBEAT, _NODE_HEARTBEAT = _values(AgentRequest), _values(Heartbeat), _values(NodeHeartbeat)
_SIGHTING = _values(Sighting)
_CALL, _REPLY = _values(Call), _values(Reply)


def saver_name(job: JobInfo, node: str) -> str:
    """Return the name of the actor that keeps a node's checkpoint saver; `node` is Ray's id of the node."""
    return f"{saver_prefix(job)}{node[:12]}"


def saver_prefix(job: JobInfo) -> str:
    """Return the prefix of the names of all saver actors of a job."""
    return f"{job.uid[:8]}/saver/"


def agent_prefix(job: JobInfo) -> str:
    """Return the prefix of the names of all node agents of a job; eight letters of the node's id follow."""
    return f"{job.uid[:8]}/agent/"


def queue_folder(job: JobInfo) -> Path:
    """Return the folder on the head for the queues of this attempt; it goes with the attempt."""
    return Path(job.dir) / "queues" / str(job.attempt)


def is_saver(actor: str) -> bool:
    """Whether an actor's name is that of a saver."""
    # Both: a role of the user may be called saver, and its hosts have more parts in their names.
    return actor.split("/")[1:2] == ["saver"] and actor.count("/") == 2
