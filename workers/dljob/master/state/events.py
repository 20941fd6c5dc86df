"""Events: everything that can change PrimeMaster's state. Each is journaled before it is acted upon.

Hosts, spares, nodes, checkpoints, users (`Commanded`: restart, scale, stop, suspend) and the clock (`Tick`) send them.
`incarnation` counts the actors of a host and the processes of a rank, `token` the reservations of a unit: an event
whose count is not the current one is stale and changes nothing, so a late or repeated event is harmless.
"""

from __future__ import annotations

from dataclasses import dataclass

from dljob.master.state.checkpoint_ids import CheckpointId, Committed, RunId
from dljob.master.state.cuts import Cut, CutQueue
from dljob.master.state.pairing import NodeFacts, TeamFacts
from dljob.master.state.shard_table import ShardTable
from dljob.master.state.stalls import Stall
from dljob.master.state.views import Clue, HostId, NodeView, Outcome, PeerSample
from dljob.plan.model import Amount


@dataclass(frozen=True, slots=True)
class MasterStarted:
    """A PrimeMaster took over the job: epoch 1 starts it, each later epoch re-attaches to its running processes."""

    epoch: int
    cause: str = ""
    """Why the previous PrimeMaster went, if known."""
    journal: str = ""
    """Message about a journal that another version of dljob wrote; empty: this version wrote it."""
    anew: bool = False
    """Whether the journal's state could not be taken over, so that all ranks start again."""
    chosen: tuple[tuple[str, str], ...] = ()
    """(role, sentence) of resources that were chosen before the job started."""


@dataclass(frozen=True, slots=True)
class Carried:
    """State handed on by the previous attempt (`placement.previous_attempt.carried` reads it). The first one counts."""

    attempt: int
    """Number of the attempt that wrote it."""
    restarts: tuple[tuple[str, int], ...] = ()
    """(level, count of restarts)."""
    roles: tuple[tuple[str, int], ...] = ()
    """(role, count of restarts)."""
    marks: tuple[tuple[str, tuple[float, ...]], ...] = ()
    """(budget key, times of failures or restarts in unix seconds, oldest first)."""
    step: int | None = None
    """Highest step that the attempt was known to reach."""
    why: str = ""
    """Why the state cannot be used; empty: it can."""
    saves: tuple[tuple[str, Committed], ...] = ()
    """(world, last committed checkpoint)."""
    feeds: tuple[tuple[str, ShardTable], ...] = ()
    """(data set, what is done of it)."""
    memory: tuple[tuple[str, Amount], ...] = ()
    """(role, memory per rank) where an earlier attempt raised it above the spec's."""


@dataclass(frozen=True, slots=True)
class NodesSeen:
    """The list of live nodes changed since the last NodesSeen."""

    nodes: tuple[NodeView, ...]
    silent: tuple[tuple[str, float], ...] = ()
    """(node, time of its last heartbeat in unix seconds), for nodes that are gone."""


@dataclass(frozen=True, slots=True)
class NodeFrozen:
    """A node stopped answering for `silent_s` seconds; its processes may still live."""

    node: str
    silent_s: float
    why: str = ""
    """What the machine tells of its processes; empty: nothing."""


@dataclass(frozen=True, slots=True)
class PartSilent:
    """A node, Ray's head or PrimeMaster did not answer or run for `silent_s` seconds, and is waited for."""

    target: str
    """"node/<Ray's node id>", "head" or "master"."""
    silent_s: float
    why: str = ""
    """What the machine tells of it; empty: nothing."""


@dataclass(frozen=True, slots=True)
class PartAnswers:
    """A part that was reported silent answers again."""

    target: str


@dataclass(frozen=True, slots=True)
class NodeThawed:
    """A node that was frozen answers again."""

    node: str


@dataclass(frozen=True, slots=True)
class CopiesSaved:
    """The in-memory checkpoint copies are on disk, as SaveCopies asked."""

    node: str
    why: str = ""
    """Why some copies are not on disk; empty: all are."""


@dataclass(frozen=True, slots=True)
class RelaunchTold:
    """The relauncher accepted or refused a request to replace a node."""

    node: str
    trouble: str = ""
    """Why the request failed; empty: it was accepted."""


@dataclass(frozen=True, slots=True)
class UnitReserved:
    """A unit's placement group is reserved on a node. `token` counts the reservations of that unit."""

    unit: str
    token: int
    node: str


@dataclass(frozen=True, slots=True)
class UnitRefused:
    """A unit could not be reserved on the node chosen for it."""

    unit: str
    token: int
    why: str


@dataclass(frozen=True, slots=True)
class GroupAsked:
    """A placement group that a role's own Ray driver created is pending, or is pending no longer."""

    group: str
    """Ray's id of the placement group."""
    owner: str
    """"<role>/<rank>" whose driver created it."""
    why: str
    """Its demand beside the free amounts of nodes; once it is pending no longer, its outcome."""
    waits: bool = True


@dataclass(frozen=True, slots=True)
class NoteReported:
    """A part of PrimeMaster's runtime reports what belongs into the timeline, and changes nothing else."""

    reason: str
    """Of the journal: JOURNAL_STALLED (its volume was full for a time), JOURNAL_TRIMMED (superseded parts are dropped).
    Of metrics: METRIC_SINK_FAILED. Of an outside witness: WITNESS_SAW (what it says of a rank), WITNESS_UNREADABLE (it
    cannot be asked). Of the hang watch: STACKS_UNREADABLE (whether a rank hangs is not known)."""
    message: str


@dataclass(frozen=True, slots=True)
class HostReady:
    """A host actor answered: it can start its ranks. A store host serves its torch store at `address`."""

    host: HostId
    incarnation: int
    node: str
    pid: int
    actor: str
    """Name of the Ray actor."""
    devices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(Ray resource, device ids) of all its bundles, as Ray assigned them."""
    address: str = ""
    """host:port of the store, for a store host."""
    slots: tuple[tuple[str, ...], ...] = ()
    """Device ids in the bundle of each rank, in rank order, of the role's device kind; empty for a role without."""


@dataclass(frozen=True, slots=True)
class HostLost:
    """A host's process ended, or could not be created."""

    host: HostId
    incarnation: int
    outcome: Outcome
    seen: float | None = None
    """Time of its last heartbeat (unix seconds); None: unknown."""


@dataclass(frozen=True, slots=True)
class SpareReady:
    """A process spare of a role is ready on a node."""

    role: str
    node: str
    slot: int
    incarnation: int
    actor: str
    pid: int


@dataclass(frozen=True, slots=True)
class SpareLost:
    """A process spare died, or could not be created."""

    role: str
    node: str
    slot: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class NodesChecked:
    """A round of node checks before the start of a role finished. `number` counts the rounds of that role."""

    role: str
    number: int
    nodes: tuple[NodeFacts, ...]
    teams: tuple[TeamFacts, ...]


@dataclass(frozen=True, slots=True)
class RankReady:
    """A rank is ready: its `setup()` returned, or its script was started."""

    role: str
    rank: int
    incarnation: int
    pid: int
    goal: int | None = None
    """Highest step that earlier processes of the rank reported; None: they reported none."""


@dataclass(frozen=True, slots=True)
class RankServes:
    """A rank's ports are known, or its readiness probe changed its answer."""

    role: str
    rank: int
    incarnation: int
    addresses: tuple[tuple[str, str], ...]
    """(port name, host:port)."""
    ready: bool
    """Whether it is to get requests."""
    why: str = ""
    """The last answer to its readiness probe; empty where it has none."""
    cluster: str = ""
    """Of a task of TensorFlow before it starts: CLUSTER_NOT_GIVEN_YET, or the checksum of the cluster given to it."""


@dataclass(frozen=True, slots=True)
class WeightsPublished:
    """A host of a role saw a version that all channels of the role have. Each host of the role reports it."""

    role: str
    version: int
    at: float
    """When its last channel had it (unix seconds): the order of versions, whose numbers may go back."""
    since: float = 0.0
    """When the series of versions began that it belongs to."""
    first: int = 0
    """The number with which that series began."""
    by: tuple[tuple[str, int], ...] = ()
    """(rank, its incarnation) of the publishers of all channels; empty: not known."""
    learned_since: float = 0.0
    """The earliest time of the events of sources that are new in it (unix seconds); 0: there are none."""


@dataclass(frozen=True, slots=True)
class WeightsLoaded:
    """A rank loaded the version that was published at `at`, or failed to."""

    role: str
    rank: int
    incarnation: int
    version: int
    at: float
    why: str = ""
    """Why the load failed; empty: the rank holds the version."""
    untouched: bool = False
    """Whether a failed load ended before the rank was asked, which so holds what it held."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """A restarted rank reported its first step, or the first step beyond what its earlier processes reached.

    Other steps are no events: progress is not journaled per step (docs/adr/0002).
    """

    role: str
    rank: int
    incarnation: int
    step: int


@dataclass(frozen=True, slots=True)
class WorkBegan:
    """Processes that were heard to work for the first time: each reported a step, or served a call or an item.

    Each process once, all that were heard within a second together.
    """

    ranks: tuple[tuple[str, int, int, float], ...]
    """(role, rank, its incarnation, when that work was done in unix seconds)."""


@dataclass(frozen=True, slots=True)
class RankEnded:
    """A rank's user code ended, well or not."""

    role: str
    rank: int
    incarnation: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class HangFound:
    """A rank was found to hang, to be slow or to compute wrong results (`kind`: Hang | Straggler | SilentCorruption).

    PrimeMaster found it by steps and by what the node saw, or `by` names an accuser.
    """

    role: str
    rank: int
    incarnation: int
    kind: str
    why: str
    stacks: str = ""
    """File with the stacks of all ranks of the role; empty: none were taken."""
    whole: bool = False
    """Whether the whole role hangs and no single rank can be blamed; `rank` then is a representative."""
    silent_s: float = 0.0
    """Seconds since its last reported step."""
    by: str = ""
    """An outside witness with `act`, or a rank that called `suspect`: its word counts whatever `hang.action` says."""
    line: str = ""
    """Line of the user's code at which the rank stands, "h.py:9 in score"; empty: it is unknown, or the process is
    stopped, or no single rank can be blamed."""
    finished: int = 0
    """Number of steps, calls and items that its process had finished."""
    step: int | None = None
    """Last step that the rank reported; None: it reported none."""
    advanced: float | None = None
    """When any role of the job last reported its highest step so far (unix seconds); None: unknown."""


@dataclass(frozen=True, slots=True)
class StallsFound:
    """All stalls that stand now, the oldest first. It is sent at each change of them only, and empty with the last end.

    A stall that is missing went on by itself, unless its ranks were restarted. `failure.stalling.standing_stalls` says
    whether a list is news.
    """

    stalls: tuple[Stall, ...] = ()


@dataclass(frozen=True, slots=True)
class ProblemReported:
    """A problem stands in the job's way, or (without a message) is over. `reason` is one of `telemetry.reasons`."""

    reason: str
    target: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointCommitted:
    """All parts of a world's checkpoint are on disk. A world: an Elastic role (`trainer`) or an Actor rank (`w/3`)."""

    world: str
    mark: CheckpointId
    oldest: CheckpointId | None = None
    """The oldest checkpoint on disk to which a restore may go back, before the manifest of `mark` is written."""


@dataclass(frozen=True, slots=True)
class CheckpointDecided:
    """A run of a world restores the checkpoint `chosen`; None: it begins without one."""

    world: str
    run_id: RunId
    chosen: CheckpointId | None
    reached: int | None = None
    """Highest step that earlier processes reported; None: they reported none."""
    damaged: tuple[str, ...] = ()
    """Checkpoints and decisions on disk that were skipped as untrustworthy, each with its reason."""


@dataclass(frozen=True, slots=True)
class QueueOpened:
    """A queue of the job was opened, for the first time or by a new process."""

    name: str
    token: str = ""
    """Identifies the folder of the queue. Another one than before: the items went with the machine that held them."""


@dataclass(frozen=True, slots=True)
class DeliveriesFailed:
    """A process that failed held items of a queue, which pay for that; without any, its role pays.

    Each item: its key or number, how many ranks have failed with it, and whether it is set aside.
    """

    queue: str
    role: str
    rank: int
    incarnation: int
    items: tuple[tuple[str, int, bool], ...] = ()
    items_set_aside_in_a_row: int = 0
    """Items that were set aside before, with none acknowledged between, where the role pays."""


@dataclass(frozen=True, slots=True)
class CutsFound:
    """The cuts that an earlier attempt has left on the checkpoint volume, the newest last."""

    cuts: tuple[Cut, ...]
    damaged: tuple[tuple[int, str], ...] = ()
    """(number, why) of those that cannot be read."""
    worlds: tuple[str, ...] = ()
    """Worlds with checkpoints there. Told only where none of the cuts can be read."""
    feeds: tuple[tuple[str, ShardTable], ...] = ()
    """The positions in the data, beside the newest cut that can be read."""


@dataclass(frozen=True, slots=True)
class CutAsked:
    """A rank, or `checkpoint.everySteps`, asks for a consistent cut of the job."""

    by: str


@dataclass(frozen=True, slots=True)
class CutBegun:
    """All queues have begun a cut. `consumers`: the ranks that have got items of one."""

    number: int
    consumers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CutTaken:
    """A rank has saved its state for a cut, and sent its markers to the queues that it uses."""

    number: int
    role: str
    rank: int
    incarnation: int
    mark: CheckpointId


@dataclass(frozen=True, slots=True)
class CutSealed:
    """The files of all queues of a cut are on disk."""

    number: int
    queues: tuple[CutQueue, ...] = ()
    place: str = ""
    """The folder of the job's checkpoints and cuts."""


@dataclass(frozen=True, slots=True)
class CutGivenUp:
    """A cut cannot be completed."""

    number: int
    why: str


@dataclass(frozen=True, slots=True)
class CutDamaged:
    """A part of a committed cut is damaged or missing."""

    number: int
    why: str


@dataclass(frozen=True, slots=True)
class ShardsTold:
    """A rank's process reports the shards of a data set that it finished, and how many leases it wants to hold."""

    name: str
    size: int
    shard: int
    epochs: int
    world: str
    role: str
    rank: int
    incarnation: int
    run_id: RunId
    saves: bool = False
    """Whether the process saves or loads checkpoints."""
    done: tuple[tuple[int, int, int | None, int], ...] = ()
    """(start, end, step saved last at the time, its revision). The step is -1 before any is saved, None where the
    process saves no checkpoints; the revision is 0 for both."""
    want: int = 0
    """Number of shards, or of partitions of a source, that the process wants to hold, with those that it holds."""
    partitions: tuple[tuple[str, int], ...] = ()
    """(name, first offset to read) of partitions of a source that the process sees; empty for a data set."""
    lost: tuple[tuple[int, int], ...] = ()
    """Positions leased to it that the source has no longer."""
    news: tuple[str, ...] = ()
    """What its source did that users should know: a partition that is gone, went back, or does not answer."""
    undone: tuple[tuple[int, int], ...] | None = None
    """What the process did that is not in the checkpoint which it loaded again, its leases included; None: no load."""
    order: str = ""
    """`ShardTable.order` as the process has it."""


@dataclass(frozen=True, slots=True)
class CauseLearned:
    """Evidence about a failure that arrived apart from it, for instance from the kernel, a pod or Kubernetes.

    `target` is "<role>/<rank>" or "node/<Ray's node id>".
    """

    target: str
    clues: tuple[Clue, ...]
    incarnation: int = 0
    """Incarnation of the rank that the evidence is about; 0: its latest."""
    end: Outcome | None = None
    """How its process ended, where the exit status came after the report of its loss."""
    host: HostId | None = None
    """The host that the evidence is about, where it is not known which of its ranks the fault names."""


@dataclass(frozen=True, slots=True)
class PeersSeen:
    """Living ranks of a torch world were looked at, because others have reported the loss of a peer."""

    role: str
    peers: tuple[PeerSample, ...]


@dataclass(frozen=True, slots=True)
class Commanded:
    """A user or the operator gave a command. A command with a known `id` is ignored, so it may be sent again."""

    id: str
    kind: str
    """restart | scale | checkpoint | stop | suspend."""
    target: str = "job"
    """"job", a role, or a rank as "<role>/<rank>"."""
    by: str = ""
    count: int = 0
    """For scale: the wanted number of ranks."""
    calls: tuple[tuple[int, int], ...] = ()
    """For scale: (rank, calls and connections of clients there), as far as they are known."""


@dataclass(frozen=True, slots=True)
class LoadSeen:
    """The load of a role that scales itself asks for another number of ranks."""

    role: str
    count: int
    why: str
    """The load in words."""
    calls: tuple[tuple[int, int], ...] = ()
    """(rank, calls and connections of clients there), as far as they are known."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A timer may be due; nothing else happened."""


@dataclass(frozen=True, slots=True)
class Released:
    """The release finished: no actor and no placement group of the job is left."""


Event = (
    MasterStarted
    | Carried
    | NodesSeen
    | NodeFrozen
    | PartSilent
    | PartAnswers
    | NodeThawed
    | CopiesSaved
    | RelaunchTold
    | UnitReserved
    | UnitRefused
    | GroupAsked
    | NoteReported
    | HostReady
    | HostLost
    | SpareReady
    | SpareLost
    | NodesChecked
    | RankReady
    | RankServes
    | WeightsPublished
    | WeightsLoaded
    | Stepped
    | WorkBegan
    | RankEnded
    | ProblemReported
    | CheckpointCommitted
    | CheckpointDecided
    | QueueOpened
    | DeliveriesFailed
    | CutsFound
    | CutAsked
    | CutBegun
    | CutTaken
    | CutSealed
    | CutGivenUp
    | CutDamaged
    | ShardsTold
    | HangFound
    | StallsFound
    | CauseLearned
    | PeersSeen
    | Commanded
    | LoadSeen
    | Tick
    | Released
)
