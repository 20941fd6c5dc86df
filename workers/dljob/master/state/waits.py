"""The wait graph as pure functions: what ranks say that they wait for -> who keeps whom waiting, and since when.

Nodes are activities (a main thread, a call), edges their waits. A wait for all of some answers ends when the last of
them is there; a wait for an item, or for a free place, ends when any of those who can bring it does. From each wait the
graph leads to a *root*: the activity that waits for nobody, or a circle, which no edge leaves.

A wait is told when its root has finished nothing for longer than a limit that the wait's own history sets. Each wait is
judged by itself: that another one of the same role goes on says nothing about this one. Times are seconds of one clock
of the caller's.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from dljob.master.state.hang import LONGEST_FACTOR, ProcessSample, busy_after, idle_after
from dljob.master.state.stalls import RootState
from dljob.master.state.state import RankKey, RankPhase

if TYPE_CHECKING:
    from dljob.spec.policy import HangPolicy

MIN_EARLIER_WAITS = 5
"""Earlier waits of a kind from which on their durations set the limit."""
TOLD_S, TOLD_FACTOR, TOLD_SHARE = 60.0, 10.0, 1 / 3
"""A wait is told after so many medians of the earlier waits, and after LONGEST_FACTOR times the longest: tails are
long, and an evaluation once in a thousand steps is no stall. TOLD_S at least, or TOLD_SHARE of `idleSeconds` where that
is shorter: else a job with short bounds would restart a rank before anybody is told. The bounds of a hang are those of
`hang`."""
LEAST_SILENCE_S = 12.0
"""Least seconds of silence after which anything but a circle is told: a report that differs from the one before only in
lines and in what was finished last is written every 8 s (`activities.LINES_S`), found by a look every 2 s, and taken to
PrimeMaster by a heartbeat."""
ENDED_WELL = "ended with code 0"
CIRCLE_TOLD_S = 10.0
"""Seconds after which a circle, or a stopped process, is told: neither ends by itself, and what is reported is some
seconds old."""
CONFIRMED_S = 5.0
"""Seconds for which a wait must have been seen before it counts: reports of two ranks are not of the same moment."""
UNHEARD_S = 6.0
"""Seconds without a heartbeat after which a rank's own reports are not believed any more."""
MOST_SHOWN = 6
"""Most waits that a sentence tells one after the other."""

Node: TypeAlias = "tuple[str, int, str]"
"""(role, rank, id of the activity)."""
WaitId: TypeAlias = "tuple[Node, str, str, str, tuple[Node, ...]]"
"""Activity, kind, name and method of a wait, and the first of its targets."""
NO_ROLE = ""
PAUSED, DEBUGGED = "its caller", "a debugger"
"""What an activity rests for that has begun: whoever uses what it makes, or somebody at a debugger's prompt."""
STALE = "weights"
"""What a call waits for that has not begun as its rank's weights are stale (`start.weights`)."""
STARTING, ENDED = RankPhase.STARTING.value, RankPhase.SUCCEEDED.value
MOST_ABSENT_RANKS = 32
"""Most ranks of a torch group that a waiting rank's edges lead to."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait of an activity, as its rank reports it."""

    kind: str
    """call, queue, weights, group, cut, master."""
    name: str
    """The callee (`reward`, `reward/0`), the queue, the weight channel."""
    method: str
    since: float
    count: int = 0
    """Number of earlier waits of this kind that have ended in the process."""
    median: float = 0.0
    longest: float = 0.0
    targets: tuple[Node, ...] = ()
    """Who has not answered yet, with the id of the call there; empty where it is not known."""
    ranks: tuple[range, ...] = ()
    """Of a wait for a torch group: its ranks, as numbers of the waiting rank's role."""


@dataclass(frozen=True, slots=True)
class Activity:
    """Something of the user's that runs in a rank, as the rank reports it."""

    id: str
    kind: str
    """main, call, thread, idle."""
    label: str
    """Of a call its method."""
    queued_for: str
    """What a call waits for that has not begun: `setup`, STALE, or the method whose places are all taken; else PAUSED,
    DEBUGGED, or nothing."""
    began_at: float
    last_finished: float
    """When it last finished something."""
    line: str
    """Where it is in the user's code, "file.py:12 in f"."""
    waits: tuple[Wait, ...] = ()
    steps: int = 0
    """Number of steps that it has finished after the first."""
    median: float = 0.0
    longest: float = 0.0
    """Seconds of a step: the median of the last ones, and the longest."""
    last_step: float = 0.0
    """When it last finished a step."""

    @property
    def is_queued(self) -> bool:
        """Whether it is a call that has not begun."""
        return self.kind == "call" and self.queued_for not in ("", PAUSED, DEBUGGED)


@dataclass(frozen=True, slots=True)
class RankWaits:
    """What the present process of a rank does and waits for, without what is young."""

    incarnation: int
    activities: tuple[Activity, ...] = ()
    uses: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """`queue:samples` -> put, get: what the process has done with a queue or a weight channel."""
    finished_count: int = 0
    """Number of steps, calls and items that the process has finished."""
    more: int = 0
    """Number of old activities that the report has no room for."""
    idle_since: float | None = None
    """Since when the process has used next to no CPU; None: it works."""
    silent_since: float | None = None
    """Since when the process has not even looked at what it does; None: it does look."""
    still_since: float | None = None
    """Since when a script that reports no steps has done nothing at all; None: it does something, or is none."""


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What PrimeMaster itself knows of a rank."""

    incarnation: int
    phase: str
    ready: bool
    since: float = 0.0
    """When its present process was ordered."""
    silent_s: float = 0.0
    """Seconds since its host was last heard."""
    sample: ProcessSample | None = None
    """Its process as its node saw it during this silence; None: the node was not asked, or does not answer."""
    awaited_ranks: tuple[RankKey, ...] = ()
    """The ranks of `dependsOn` that keep its process from starting."""


@dataclass(frozen=True, slots=True)
class WaitFinding:
    """A stall: a root, and the waits that it holds up."""

    name: str
    """Names the root, and so the stall; the same for a PrimeMaster that comes later."""
    sentence: str
    """In words, with `{}` where the length of the oldest wait goes."""
    since: float
    ranks: tuple[RankKey, ...]
    root: RankKey | None = None
    incarnation: int = 0
    line: str = ""
    root_state: RootState = RootState.STANDS
    is_restartable: bool = False
    """Whether the root is a process of the job that may be restarted for it."""
    silence: float = 0.0
    """Seconds for which nothing has been finished on the way to the root."""
    idle_after: float = 0.0
    busy_after: float = 0.0
    """Seconds of silence after which a root that uses no CPU, or one that does, is taken for hung."""
    finished_count: int = 0
    """Number of things that the root's process had finished."""

    @property
    def is_circle(self) -> bool:
        """Whether the ranks wait for each other."""
        return self.root_state is RootState.CIRCLE


def parse(incarnation: int, text: str, offset: float) -> RankWaits:
    """Read the report of a rank (`runtime.process.activities.report`).

    Args:
        incarnation: The process that wrote it.
        text: The report, as JSON.
        offset: Seconds to add to its times, so that they are on the caller's clock.

    Raises:
        ValueError: It is no report.
    """
    try:
        data: dict[str, Any] = json.loads(text)
        rows = data.get("rows", [])
        activities = tuple(_activity(row, offset) for row in rows)
        uses = {str(name): tuple(map(str, ways)) for name, ways in data.get("uses", {}).items()}
        counts = int(data.get("finished", 0)), int(data.get("more", 0))
        idle_since = float(data["idle"]) + offset if "idle" in data else None
        silent_since = float(data["silent"]) + offset if "silent" in data else None
        still_since = float(data["still"]) + offset if "still" in data else None
        return RankWaits(incarnation, activities, uses, *counts, idle_since, silent_since, still_since)
    except (TypeError, KeyError, IndexError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"no report of activities: {error}") from None


def _activity(row: Sequence[Any], offset: float) -> Activity:
    id_, kind, label, queued_for, began, last_finished, line, waits, (steps, median, longest, stepped) = row
    return Activity(
        *(str(id_), str(kind), str(label), str(queued_for)),
        began_at=float(began) + offset,
        last_finished=float(last_finished) + offset,
        line=str(line),
        waits=tuple(_wait(wait, offset) for wait in waits),
        steps=int(steps),
        median=float(median),
        longest=float(longest),
        last_step=float(stepped) + offset,
    )


def _wait(row: Sequence[Any], offset: float) -> Wait:
    kind, name, method, since, (count, median, longest), targets, *runs = row
    nodes = tuple((str(role), int(rank), str(call)) for role, rank, call in targets)
    ranks = tuple(range(*map(int, run)) for run in (runs[0] if runs else ()))
    times = float(since) + offset, int(count), float(median), float(longest)
    return Wait(str(kind), str(name), str(method), *times, nodes, ranks)


# -- limits


def told_after_s(wait: Wait, policy: HangPolicy, *, uses_cpu: bool) -> float:
    """Return the seconds after which a wait is told whose root finishes nothing; `uses_cpu`: whether it uses a CPU."""
    if wait.count < MIN_EARLIER_WAITS:  # nothing is known yet of how long it usually lasts: the root may compile
        return max(LEAST_SILENCE_S, policy.busy_seconds if uses_cpu else policy.idle_seconds)
    return _limit_of_history(wait.median, wait.longest, policy)


def _limit_of_history(median: float, longest: float, policy: HangPolicy) -> float:
    bound = max(LEAST_SILENCE_S, min(TOLD_S, TOLD_SHARE * policy.idle_seconds))
    return max(bound, TOLD_FACTOR * median, LONGEST_FACTOR * longest)


# -- the graph


@dataclass(slots=True)
class _Vertex:
    """A node, or an end of the graph that is no activity."""

    key: Node
    last_finished: float
    words: str
    """What it does, after the rank's name: `runs score at h.py:9`."""
    line: str = ""
    incarnation: int = 0
    edges: list[_Edge] = field(default_factory=list["_Edge"])
    is_restartable: bool = True
    can_go_on: bool = False
    """Whether it goes on by itself, and so cannot be to blame."""
    uses_cpu: bool = False
    """Whether its process uses a CPU, by its own word."""
    state: RootState = RootState.STANDS
    finished_count: int = 0
    path_last_finished: float = 0.0
    """The latest moment at which something was finished on the way to its root; settled by `_settle`."""
    leads_to_circle: bool = False
    """Whether it is in a circle, or waits for one."""
    suspect_ranks: tuple[RankKey, ...] = ()
    """Of an end that is no rank: those to look at first."""

    @property
    def rank(self) -> RankKey:
        """The rank that it belongs to."""
        return self.key[:2]


def _rank_by_liveliness(vertex: _Vertex) -> tuple[bool, float]:
    """Return what orders vertices by how soon they may go on: those on the way to a circle never will."""
    return not vertex.leads_to_circle, vertex.path_last_finished


@dataclass(slots=True)
class _Edge:
    """A wait: it ends when, of each group, any vertex brings what is waited for."""

    wait: Wait | None
    """None: the call waits for a free place."""
    groups: list[list[_Vertex]]

    def decisive_vertex(self) -> _Vertex:
        """Return the vertex to which the wait leads: of each group the liveliest, of all groups the one that is not."""
        ends = [max(group, key=_rank_by_liveliness) for group in self.groups]
        return min(ends, key=_rank_by_liveliness)


class WaitGraph:
    """The graph of one moment.

    Args:
        reports: Rank -> what its present process says.
        facts: Rank -> what PrimeMaster knows of it, for all ranks.
        now: The present moment.
    """

    def __init__(self, reports: Mapping[RankKey, RankWaits], facts: Mapping[RankKey, RankFacts], now: float) -> None:
        self._facts = {**facts, **_silences(reports, facts, now)}
        self._now = now
        self._reports = {
            key: report
            for key, report in reports.items()
            if key in facts and facts[key].ready and facts[key].incarnation == report.incarnation
        }
        self._starting = {
            key: report
            for key, report in reports.items()
            if key in facts and facts[key].phase == STARTING and facts[key].incarnation == report.incarnation
        }
        mains = (row for report in self._reports.values() for row in report.activities if row.kind == "main")
        self._last_step = max((main.last_step for main in mains if main.steps), default=0.0)
        """When any rank finished its last step; 0: none has made any."""
        self._last_process_start = max((rank.since for rank in facts.values()), default=0.0)
        """When the last process was ordered: what an earlier one of its rank used to bring, it has yet to bring."""
        self._users: dict[str, list[tuple[RankKey, Sequence[str]]]] = {}
        for key, report in reports.items():
            if key in self._reports or (key in facts and facts[key].phase == ENDED):
                for name, uses in report.uses.items():
                    self._users.setdefault(name, []).append((key, uses))
        self._absent_from: dict[tuple[str, str, tuple[range, ...]], list[_Vertex]] = {}
        """Role, name and ranks of a torch group -> who is not in it."""
        self._vertices: dict[Node, _Vertex] = {}
        self._activities_of: dict[RankKey, list[tuple[Activity, _Vertex]]] = {}
        for key, report in (*self._reports.items(), *self._starting.items()):
            self._add_rank(key, report)
        for key, rows in self._activities_of.items():
            for activity, vertex in rows:
                vertex.edges += self._edges(key, activity)
        self._settle()

    def _add_rank(self, key: RankKey, report: RankWaits) -> None:
        silent = self._facts[key].silent_s > UNHEARD_S
        rows = self._activities_of[key] = []
        for activity in report.activities:
            node = (*key, activity.id)
            vertex = _Vertex(
                node, activity.last_finished, _words_of_activity(activity), activity.line, report.incarnation
            )
            vertex.finished_count, vertex.uses_cpu = report.finished_count, report.idle_since is None
            vertex.can_go_on = activity.queued_for == PAUSED
            vertex.is_restartable = (
                activity.kind != "idle" and activity.queued_for not in (DEBUGGED, STALE) and not silent
            )
            self._vertices[node] = vertex
            rows.append((activity, vertex))

    def _edges(self, key: RankKey, activity: Activity) -> list[_Edge]:
        edges = [_Edge(wait, self._groups_awaited_by(key, activity, wait)) for wait in activity.waits]
        if activity.is_queued and activity.queued_for != STALE:
            edges.append(_Edge(None, [self._slot_holders(key, activity)]))
        return edges

    def _slot_holders(self, key: RankKey, queued: Activity) -> list[_Vertex]:
        """Return who keeps a call from beginning."""
        rows = self._activities_of[key]
        if queued.queued_for == "setup":
            holders = [vertex for activity, vertex in rows if activity.kind == "main"]
        else:
            running = (pair for pair in rows if pair[0].kind == "call" and not pair[0].is_queued)
            holders = [vertex for activity, vertex in running if activity.label == queued.queued_for]
        return holders or [self._leaf_of_active_rank(key)]

    def _groups_awaited_by(self, key: RankKey, activity: Activity, wait: Wait) -> list[list[_Vertex]]:
        if wait.kind == "call":
            targets = wait.targets or (_named(wait.name),)
            return [self._callee(key, wait, target) for target in targets]
        if wait.kind in ("queue", "weights"):
            return [self._suppliers(key, activity, wait)]
        if wait.kind == "group" and wait.ranks:
            return [[vertex] for vertex in self._absent(key[0], wait)]
        return [
            [
                self._leaf(
                    (NO_ROLE, 0, wait.kind), wait.since, f"{wait.name} {wait.method}".strip(), is_restartable=False
                )
            ]
        ]

    def _callee(self, caller: RankKey, wait: Wait, target: Node) -> list[_Vertex]:
        """Return what runs a call; where that is not known, whatever holds a place that it may need."""
        role, rank, call = target
        key = (role, rank)
        facts = self._facts.get(key)
        if facts is None:
            return [self._leaf(target, wait.since, "is not there any more", is_restartable=False)]
        if not facts.ready or facts.silent_s > UNHEARD_S:
            return [self._main_of_starting_rank(key) or self._leaf_of_silent_rank(key, facts)]
        rows = self._activities_of.get(key, [])
        for activity, vertex in rows:
            if call and activity.id == call:
                return [vertex]
        calls = [(activity, vertex) for activity, vertex in rows if activity.kind == "call"]
        if not call:  # the host of the calling rank has sent it, under an id of its own
            name = f"{caller[0]}/{caller[1]}"
            own_calls = [v for a, v in calls if a.label == wait.method and self._caller_of(a) == name]
            if own_calls:
                return own_calls
        running = [vertex for activity, vertex in calls if not activity.is_queued]
        if running:
            return running
        if any(activity.kind == "idle" for activity, _ in rows):
            return [self._leaf(target, wait.since, "does not have the call, and is idle", is_restartable=False)]
        return [self._leaf_of_active_rank(key)]

    @staticmethod
    def _caller_of(activity: Activity) -> str:
        """Return the rank that made a call: an id is `<role>/<rank>:<process>:<number>`."""
        return activity.id.rsplit(":", 2)[0]

    def _suppliers(self, waiter: RankKey, activity: Activity, wait: Wait) -> list[_Vertex]:
        """Return who may bring an item, room or a version: any activity of those who have done so before."""
        needed_use = "get" if (wait.kind, wait.method) == ("queue", "put") else "put"
        suppliers: list[_Vertex] = []
        ended: list[_Vertex] = []
        for key, uses in self._users.get(f"{wait.kind}:{wait.name}", ()):
            if needed_use not in uses:
                continue
            facts = self._facts[key]
            has_ended = key not in self._reports
            if has_ended:
                ended.append(self._leaf_of_ended_rank((*key, "gone"), facts.since, ENDED_WELL))
                continue
            rows = self._activities_of[key]
            others = [vertex for activity_there, vertex in rows if key != waiter or activity_there.id != activity.id]
            suppliers += others or ([] if key == waiter else [self._leaf_of_active_rank(key)])
        if suppliers or ended:
            return suppliers or ended
        words = f"no rank that runs has {_NEVER_DONE.get((wait.kind, wait.method), 'published one')}"
        since = max(wait.since, self._last_process_start)
        return [self._leaf((NO_ROLE, 0, f"{wait.kind}:{wait.name}"), since, words, is_restartable=False)]

    def _absent(self, role: str, wait: Wait) -> list[_Vertex]:
        """Return who of a torch group is not in it, those that ended first; where all are, that it does not end."""
        group = role, wait.name, wait.ranks
        if group not in self._absent_from:
            known = all(not run or {(role, run[0]), (role, run[-1])} <= self._facts.keys() for run in wait.ranks)
            members = [(role, rank) for run in wait.ranks for rank in run] if known else []
            in_group = {key: row for key in members for row in self._waits_in(key, wait)}
            absent = [self._vertex_of_member(key) for key in members if key not in in_group]
            if not in_group:  # torch's world is not this role alone
                words = f"it has other ranks than {role}"
                absent = [
                    self._leaf((NO_ROLE, 0, f"group {role} {wait.name}"), wait.since, words, is_restartable=False)
                ]
            elif not absent:
                since = max(own_wait.since for _, own_wait in in_group.values())
                words, odd_one = _words_of_full_group(in_group)
                absent = [self._leaf((NO_ROLE, 0, f"group {role} {wait.name}"), since, words, is_restartable=False)]
                absent[0].suspect_ranks = tuple((role, rank) for rank in odd_one)
            self._absent_from[group] = sorted(absent, key=lambda vertex: vertex.key[2] != "ended")[:MOST_ABSENT_RANKS]
        return self._absent_from[group]

    def _waits_in(self, key: RankKey, wait: Wait) -> Iterator[tuple[Activity, Wait]]:
        """Yield the activity and the wait of a rank for the same group as a wait."""
        for activity, _ in self._activities_of.get(key, ()):
            for own_wait in activity.waits:
                if (own_wait.kind, own_wait.name, own_wait.ranks) == (wait.kind, wait.name, wait.ranks):
                    yield activity, own_wait

    def _vertex_of_member(self, key: RankKey) -> _Vertex:
        """Return what a rank does that is not in a torch group where others wait."""
        facts = self._facts[key]
        if facts.phase == ENDED:
            return self._leaf_of_ended_rank((*key, "ended"), facts.since, f"{ENDED_WELL}: uneven data?")
        if not facts.ready or facts.silent_s > UNHEARD_S:
            return self._main_of_starting_rank(key) or self._leaf_of_silent_rank(key, facts)
        rows = [vertex for activity, vertex in self._activities_of.get(key, ()) if activity.kind in ("main", "call")]
        return rows[0] if rows else self._leaf_of_active_rank(key)

    def _leaf_of_silent_rank(self, key: RankKey, facts: RankFacts) -> _Vertex:
        """Return the end of the graph for a rank that has no process, or whose process is not heard."""
        if not facts.ready:
            words = f"is {facts.phase} (it is not ready)"
            if facts.awaited_ranks:
                words = (
                    f"is {facts.phase}: it starts after {', '.join(sorted({role for role, _ in facts.awaited_ranks}))}"
                )
            leaf = self._leaf((*key, "not ready"), facts.since, words, is_restartable=False)
            if not leaf.edges:
                leaf.edges += [_Edge(None, [[self._vertex_of_member(awaited)]]) for awaited in facts.awaited_ranks]
            return leaf
        vertex = self._leaf(
            (*key, "silent"), self._now - facts.silent_s, _words_of_silence(facts.sample), is_restartable=True
        )
        if facts.sample is not None:
            vertex.line = facts.sample.gil_line
            vertex.state = RootState.STOPPED if facts.sample.stopped else RootState.STANDS
        return vertex

    def _main_of_starting_rank(self, key: RankKey) -> _Vertex | None:
        """Return where a rank is that is heard and not ready yet, as in `setup`; None: it does not say."""
        if key not in self._starting or self._facts[key].silent_s > UNHEARD_S:
            return None
        return next((vertex for activity, vertex in self._activities_of[key] if activity.kind == "main"), None)

    def _leaf(self, key: Node, since: float, words: str, *, is_restartable: bool) -> _Vertex:
        vertex = self._vertices.get(key)
        if vertex is None:
            facts = self._facts.get(key[:2])
            vertex = self._vertices[key] = _Vertex(key, since, words, is_restartable=is_restartable)
            vertex.incarnation = 0 if facts is None else facts.incarnation
        vertex.last_finished = max(vertex.last_finished, since)
        return vertex

    def _leaf_of_ended_rank(self, key: Node, since: float, words: str) -> _Vertex:
        """Return the vertex of a rank that has ended well."""
        vertex = self._leaf(key, since, words, is_restartable=False)
        vertex.state = RootState.ENDED
        return vertex

    def _leaf_of_active_rank(self, key: RankKey) -> _Vertex:
        """Return the vertex of a rank all of whose activities are young: it goes on."""
        vertex = self._leaf((*key, "young"), self._now, "goes on", is_restartable=False)
        vertex.can_go_on = True
        return vertex

    def _settle(self) -> None:
        """Find the circles, and for each vertex when something was last finished on the way to its root."""
        # 1. Who can go on: what waits for nobody, and then whoever waits for somebody that can.
        going = {key for key, vertex in self._vertices.items() if vertex.can_go_on or not vertex.edges}
        waiting = [vertex for key, vertex in self._vertices.items() if key not in going]
        changed = True
        while changed:
            changed = False
            for vertex in waiting:
                if vertex.key not in going and any(_can_end(edge, going) for edge in vertex.edges):
                    going.add(vertex.key)
                    changed = True
        for vertex in self._vertices.values():
            vertex.leads_to_circle = vertex.key not in going
            vertex.path_last_finished = self._now if vertex.can_go_on else vertex.last_finished
        # 2. A moment at which somebody on the way finished something is one for all that wait for it.
        changed = True
        while changed:
            changed = False
            for vertex in waiting:
                ends = [edge.decisive_vertex() for edge in vertex.edges]
                path_last_finished = max(
                    [vertex.last_finished, *(end.path_last_finished for end in ends if not end.leads_to_circle)]
                )
                if path_last_finished > vertex.path_last_finished:
                    vertex.path_last_finished = path_last_finished
                    changed = True

    # -- what is told

    def findings(self, policy: HangPolicy, first_seen: Mapping[WaitId, float]) -> tuple[WaitFinding, ...]:
        """Return the stalls, the oldest first.

        Args:
            policy: The job's bounds.
            first_seen: Wait -> since when the caller has known of it.
        """
        stalls: dict[str, list[WaitFinding]] = {}
        for vertex in list(self._vertices.values()):
            for edge in vertex.edges:
                wait = edge.wait
                if wait is None or self._now - first_seen.get(_identity(vertex.key, wait), self._now) < CONFIRMED_S:
                    continue
                finding = self._judge(vertex, edge, wait, policy)
                if finding is not None:
                    stalls.setdefault(finding.name, []).append(finding)
        roots = {finding.root for findings in stalls.values() for finding in findings}
        joined = [*map(_joined, stalls.values()), *self._findings_without_steps(policy, roots)]
        stalled = {rank for finding in joined for rank in finding.ranks}
        joined += [*self._findings_of_slow_starts(policy, stalled), *self._findings_of_still_scripts(policy)]
        return tuple(sorted(joined, key=lambda finding: finding.since))

    def _findings_without_steps(self, policy: HangPolicy, roots: Container[RankKey | None]) -> Iterator[WaitFinding]:
        """Yield a finding for each role with ranks that make no step, wait for nobody, and are no stall's root.

        Ranks of a torch world wait for each other where no report shows it, so that all of them may be silent: the
        sentence tells where each of them is. Whether one hangs is judged by `master.state.hang`, from its stack.
        """
        silent: dict[str, list[tuple[int, Activity]]] = {}
        for (role, rank), rows in self._activities_of.items():
            for activity, vertex in rows:
                is_without_wait = activity.kind == "main" and not vertex.edges and (role, rank) not in roots
                limit = _limit_of_history(activity.median, activity.longest, policy)
                if (
                    is_without_wait
                    and activity.steps >= MIN_EARLIER_WAITS
                    and self._now - activity.last_finished > limit
                ):
                    silent.setdefault(role, []).append((rank, activity))
        for role, ranks in silent.items():
            usual_s = min(ranks, key=lambda pair: pair[1].last_step)[1].median
            words = f"has made no step for {{}} (usually {usual_s:.3g} s)"
            lines = [(rank, activity.line or "no line that is known") for rank, activity in ranks]
            yield self._finding_of_role(
                "steps", role, words, lines, min(activity.last_finished for _, activity in ranks)
            )

    def starting_ranks(self) -> tuple[str, ...]:
        """Return in words where the ranks are that are not ready, and what they wait for: a sentence for each role."""
        places: dict[str, list[tuple[int, str]]] = {}
        for role, rank in self._starting:
            main = self._main_of_starting_rank((role, rank))
            if main is not None:
                waits = [_words_of_wait(edge.wait) for edge in main.edges if edge.wait is not None]
                words = [f"waiting for {', '.join(waits)}"] * bool(waits) + [f"at {main.line}"] * bool(main.line)
                places.setdefault(role, []).append((rank, " ".join(words)))
        return tuple(_by_place(role, ranks) for role, ranks in sorted(places.items()))

    def _findings_of_slow_starts(self, policy: HangPolicy, stalled: Container[RankKey]) -> Iterator[WaitFinding]:
        """Yield a finding for each role with ranks that stand still before they are ready, as in a constructor.

        How long a start usually takes is not known, so it is only reported: nobody is restarted for it.
        """
        silent: dict[str, list[tuple[int, str, float]]] = {}
        for (role, rank), report in self._starting.items():
            main = next((row for row in report.activities if row.kind == "main" and row.line), None)
            facts = self._facts[role, rank]
            if main is None or facts.silent_s > UNHEARD_S or (role, rank) in stalled:
                continue
            idle_since = report.idle_since
            limit = max(LEAST_SILENCE_S, policy.busy_seconds if idle_since is None else policy.idle_seconds)
            since = max(facts.since, main.last_finished if idle_since is None else idle_since)
            if self._now - since > limit:
                silent.setdefault(role, []).append((rank, main.line, since))
        for role, ranks in silent.items():
            lines = [(rank, line) for rank, line, _ in ranks]
            words = "is not ready, and stands still for {}"
            yield self._finding_of_role("start", role, words, lines, min(since for *_, since in ranks))

    def _findings_of_still_scripts(self, policy: HangPolicy) -> Iterator[WaitFinding]:
        """Yield a finding for each role of scripts without steps, groups and calls, none of whose ranks does anything.

        While one of them works, the others may rightly wait for it: a file that it makes, say.
        """
        still: dict[str, list[tuple[int, str, float]]] = {}
        for (role, rank), report in self._reports.items():
            since = report.still_since
            if since is not None and self._now - since > policy.idle_seconds:
                main = next((row.line for row in report.activities if row.kind == "main"), "")
                still.setdefault(role, []).append((rank, main or "no line that is known", since))
        for role, ranks in still.items():
            ready = [key for key, facts in self._facts.items() if key[0] == role and facts.ready]
            starts = any(key[0] == role and facts.phase == STARTING for key, facts in self._facts.items())
            if len(ranks) == len(ready) and not starts:
                lines = [(rank, line) for rank, line, _ in ranks]
                words = "makes no progress for {}, without CPU, output and input"
                yield self._finding_of_role("standstill", role, words, lines, min(since for *_, since in ranks))

    def _finding_of_role(
        self, kind: str, role: str, words: str, lines: Sequence[tuple[int, str]], since: float
    ) -> WaitFinding:
        """Return a finding about ranks of a role that wait for nobody whom a report names."""
        ranks = tuple((role, rank) for rank, _ in lines)
        return WaitFinding(
            name=f"{kind} of {role}",
            sentence=f"role {role} {words}: {_by_place(role, [(rank, f'at {line}') for rank, line in lines])}",
            since=since,
            ranks=ranks,
            root=ranks[0] if len(ranks) == 1 else None,
            silence=self._now - since,
        )

    def silent_ranks(self, longer_than: float) -> tuple[RankKey, ...]:
        """Return the ready ranks that were not heard for more than so many seconds, though they should be."""
        return tuple(key for key, rank in self._facts.items() if rank.silent_s > longer_than and rank.ready)

    def waits(self) -> Iterator[tuple[WaitId, float]]:
        """Yield each wait, and when it began."""
        for vertex in self._vertices.values():
            for edge in vertex.edges:
                if edge.wait is not None:
                    yield _identity(vertex.key, edge.wait), edge.wait.since

    def _judge(self, vertex: _Vertex, edge: _Edge, wait: Wait, policy: HangPolicy) -> WaitFinding | None:
        end = edge.decisive_vertex()
        age = self._now - wait.since
        path = self._chain(vertex, end)
        root = path[-1]
        if end.leads_to_circle:
            silence = min(age, self._now - max(member.last_finished for member in path))
            if silence < CIRCLE_TOLD_S:
                return None
        else:
            silence = min(age, self._now - end.path_last_finished)
            is_stopped = root.state is RootState.STOPPED
            limit = CIRCLE_TOLD_S if is_stopped else told_after_s(wait, policy, uses_cpu=root.uses_cpu)
            if silence <= limit:
                return self._finding_of_starved_wait(vertex, edge, wait, policy)
        # The end of a path into a circle is on it twice: between the two is the circle.
        circle = path[path.index(root) : -1]
        sentence = self._sentence(vertex, wait, path, circle)
        ranks_of_path = (member.rank for member in path if member.key[0] != NO_ROLE)
        ranks = tuple(dict.fromkeys((*root.suspect_ranks, *ranks_of_path)))
        # Of a circle any member may be restarted: the first by name, so that each PrimeMaster chooses the same.
        root = min(circle, key=lambda member: member.key) if circle else root
        role, rank, activity_id = root.key
        name = f"{role}/{rank} {root.incarnation} {activity_id}"
        is_in_job = root.key[0] != NO_ROLE
        return WaitFinding(
            name=f"circle {name}" if circle else name,
            sentence=sentence,
            since=wait.since,
            ranks=ranks,
            root=root.rank if is_in_job else None,
            incarnation=root.incarnation,
            line=root.line,
            root_state=RootState.CIRCLE if circle else root.state,
            is_restartable=is_in_job
            and root.is_restartable
            # How long a start usually takes is not known: only a circle, which never ends, is restarted for it.
            and (bool(circle) or (root.rank not in self._starting and self._is_path_proven(path))),
            silence=silence,
            idle_after=idle_after(wait, policy),
            busy_after=busy_after(wait, policy),
            finished_count=root.finished_count,
        )

    def _finding_of_starved_wait(
        self, vertex: _Vertex, edge: _Edge, wait: Wait, policy: HangPolicy
    ) -> WaitFinding | None:
        """Return that a wait does not end, though those who could end it go on: with something else.

        Only where the job has made steps, and none since: otherwise it goes on, and some of it waits for its turn.
        """
        age = self._now - wait.since
        if wait.count < MIN_EARLIER_WAITS or age <= idle_after(wait, policy):
            return None
        if not self._last_step or self._last_step > wait.since + CONFIRMED_S:
            return None
        awaited_ranks = sorted({end.rank for group in edge.groups for end in group if end.rank[0] != NO_ROLE})
        if not awaited_ranks:
            return None
        names = ", ".join(f"{role}/{rank}" for role, rank in awaited_ranks[:MOST_SHOWN])
        names += ", ..." if len(awaited_ranks) > MOST_SHOWN else ""
        singular, plural = _OMITTED.get((wait.kind, wait.method)) or _OMITTED.get((wait.kind, ""), _OMITTED["call", ""])
        goes_on = f"goes on, and {singular}" if len(awaited_ranks) == 1 else f"go on, and {plural}"
        line = f" at {vertex.line}" if vertex.line else ""
        return WaitFinding(
            name=f"starved {wait.kind}:{wait.name} {wait.method}",
            sentence=f"{_rank_name(vertex)} has waited {{}} for {_words_of_wait(wait)}{line}; {names} {goes_on}",
            since=wait.since,
            ranks=(vertex.rank,),
            root=awaited_ranks[0] if len(awaited_ranks) == 1 else None,
            root_state=RootState.ELSEWHERE,
            silence=age,
        )

    @staticmethod
    def _is_path_proven(chain: Sequence[_Vertex]) -> bool:
        """Whether each step of a chain is known for certain: a thread of the user's may work for any call."""
        return not any(vertex.key[2].startswith("thread-") for vertex in chain)

    def _chain(self, vertex: _Vertex, end: _Vertex) -> list[_Vertex]:
        """Return the vertices from a wait to its root; of a circle the last one is there twice."""
        chain = [vertex]
        while end not in chain:
            chain.append(end)
            ends = [edge.decisive_vertex() for edge in end.edges]
            if not ends or end.can_go_on:
                return chain
            end = max(ends, key=_rank_by_liveliness)
        chain.append(end)
        return chain

    def _sentence(self, vertex: _Vertex, wait: Wait, chain: Sequence[_Vertex], members: Sequence[_Vertex]) -> str:
        if members:
            # From the first by name on, so that each report, and each PrimeMaster, tells the same circle alike.
            first = min(range(len(members)), key=lambda index: members[index].key)
            members = [*members[first:], *members[:first]]
            names = " -> ".join(dict.fromkeys(map(_name_in_circle, members)))
            report = self._reports.get(members[0].rank)
            many = len(report.activities) + report.more if report is not None else 0
            more = f"; {many} calls of {_rank_name(members[0])} wait" if many > 1 else ""
            places = dict.fromkeys(words for member in members if (words := _place_in_circle(member)))
            lines = ", ".join(list(places)[:MOST_SHOWN])
            names += f" -> {_name_in_circle(members[0])}"
            waited = "" if vertex in members else f"{_rank_name(vertex)} has waited {{}} for {_words_of_wait(wait)}: "
            lasts = "" if waited else ", for {}"
            return f"{waited}{names}: a circle{lasts}, nobody in it can go on{more}{f' ({lines})' if lines else ''}"
        root = chain[-1]
        words = f"{_rank_name(vertex)} has waited {{}} for {_words_of_wait(wait)}"
        for member in chain[1:-1][:MOST_SHOWN]:
            further = next((edge.wait for edge in member.edges if edge.wait is not None), None)
            words += f"; {_rank_name(member)} waits for {_words_of_wait(further)}" if further is not None else ""
        if not root.line and not any(edge.wait is not None and edge.wait.kind == "group" for edge in chain[-2].edges):
            # The root is nowhere in the user's code: the line of who waits for it has to do.
            words += f" at {chain[-2].line}" if chain[-2].line else ""
        if root.key[0] == NO_ROLE:
            return f"{words}: {root.words}"
        runs = f"runs {wait.method}"
        if root is chain[1] and len(wait.targets) == 1 and root.words.startswith(runs):
            return f"{words}, which runs{root.words.removeprefix(runs)}"
        return f"{words}; {_rank_name(root)} {root.words}"


def _silences(
    reports: Mapping[RankKey, RankWaits], facts: Mapping[RankKey, RankFacts], now: float
) -> Mapping[RankKey, RankFacts]:
    """Return the facts of ranks that are silent though their hosts are heard: a script is a process of its own."""
    silent = {key: report for key, report in reports.items() if report.silent_since is not None and key in facts}
    return {
        key: replace(facts[key], silent_s=max(facts[key].silent_s, now - (report.silent_since or now)))
        for key, report in silent.items()
        if facts[key].incarnation == report.incarnation
    }


def _can_end(edge: _Edge, going: set[Node]) -> bool:
    """Whether a wait can end: of each group somebody can go on."""
    return all(any(vertex.key in going for vertex in group) for group in edge.groups)


def _identity(node: Node, wait: Wait) -> WaitId:
    return node, wait.kind, wait.name, wait.method, wait.targets[:1]


def _named(name: str) -> Node:
    """Return the rank that a callee's name means; of a role its first."""
    role, _, rank = name.partition("/")
    return role, int(rank) if rank.isdecimal() else 0, ""


def _joined(findings: Sequence[WaitFinding]) -> WaitFinding:
    """Return the findings with one root as one, told by the oldest wait."""
    # The longest path first, where two began together: it says most.
    oldest = min(findings, key=lambda finding: (finding.since, -len(finding.ranks), finding.ranks))
    return replace(
        oldest,
        ranks=tuple(dict.fromkeys(rank for finding in (oldest, *findings) for rank in finding.ranks)),
        is_restartable=any(finding.is_restartable for finding in findings),
        silence=max(finding.silence for finding in findings),
        idle_after=max(finding.idle_after for finding in findings),
        busy_after=max(finding.busy_after for finding in findings),
    )


# -- words


_OMITTED = {
    ("queue", "get"): ("puts none", "put none"),
    ("queue", "put"): ("takes none", "take none"),
    ("weights", ""): ("publishes none", "publish none"),
    ("group", ""): ("is not in it", "are not in it"),
    ("call", ""): ("does not answer it", "do not answer it"),
}
"""(kind, method) of a wait -> what who goes on does not do for it, of one rank and of several."""
_NEVER_DONE = {("queue", "get"): "put anything into it", ("queue", "put"): "taken anything from it"}
"""(kind, method) of a wait -> what nobody has done for it yet."""


def _ranks(role: str, numbers: Sequence[int]) -> str:
    """Return ranks in words: `trainer/0, 2 and 17 more`."""
    shown = ", ".join(map(str, numbers[:MOST_SHOWN]))
    more = len(numbers) - MOST_SHOWN
    return f"{role}/{shown}{f' and {more} more' if more > 0 else ''}"


def _words_of_full_group(waits: Mapping[RankKey, tuple[Activity, Wait]]) -> tuple[str, list[int]]:
    """Return in words that all ranks of a torch group are in it and where, the fewest first; and who is alone there."""
    places = [
        (rank, f"in {wait.method}{f' at {activity.line}' if activity.line else ''}")
        for (_, rank), (activity, wait) in waits.items()
    ]
    ranks_at = {place: [rank for rank, rank_place in places if rank_place == place] for _, place in places}
    is_mismatch = len(ranks_at) > 1
    single_ranks = [ranks for ranks in ranks_at.values() if len(ranks) == 1]
    odd_one = single_ranks[0] if len(single_ranks) == 1 and is_mismatch else []
    cause = "a mismatch of collectives?" if is_mismatch else "a lost connection, or tensors of other sizes?"
    shown = _by_place(next(iter(waits))[0], places)
    return f"all {len(waits)} ranks of it are in it, and it does not end: {shown}: {cause}", odd_one


def _by_place(role: str, places: Iterable[tuple[int, str]]) -> str:
    """Return ranks in words with the place of each, the fewest first: of a world they keep the others waiting."""
    ranks: dict[str, list[int]] = {}
    for rank, place in sorted(places):
        ranks.setdefault(place, []).append(rank)
    shown = sorted(ranks.items(), key=lambda pair: len(pair[1]))[:MOST_SHOWN]
    return "; ".join(f"{_ranks(role, numbers)} {place}" for place, numbers in shown)


def _words_of_activity(activity: Activity) -> str:
    at_line = f" at {activity.line}" if activity.line else ""
    if activity.queued_for == DEBUGGED:
        return f"is in a debugger{at_line}"
    match activity.kind:
        case "call" if activity.queued_for == "setup":
            return f"has not begun {activity.label}: it is still in setup()"
        case "call" if activity.queued_for == STALE:
            return f"has not begun {activity.label}: its weights are stale"
        case "call" if activity.is_queued:
            return f"has not begun {activity.label}: all of its places are taken"
        case "call":
            return f"runs {activity.label}{at_line}"
        case "idle":
            return "is idle: nobody calls it"
        case "main":
            return f"is{at_line or ' in its own code'}"
        case _:
            return f"is{at_line} in thread {activity.label}"


def _words_of_silence(sample: ProcessSample | None) -> str:
    """Return in words why a process is silent, as far as its node can see it."""
    if sample is not None and sample.stopped:
        return f"does not answer: {sample.stopped}"
    if sample is not None and sample.gil_line:
        return f"does not answer: C code that it called at {sample.gil_line} holds the GIL"
    return "does not answer: it is stopped, or C code of it holds the GIL"


def _words_of_wait(wait: Wait) -> str:
    match wait.kind:
        case "queue":
            return f"{'room in' if wait.method == 'put' else 'an item of'} queue {wait.name}"
        case "weights":
            return f"a version of weights {wait.name}"
        case "group" if wait.name == "the store":
            return f"a key of torch's store, in {wait.method}"
        case "group":
            return f"the others in {wait.method} ({wait.name})"
        case "call" if len(wait.targets) == 1:
            role, rank, _ = wait.targets[0]
            return f"{role}/{rank}.{wait.method}"
        case "call" if wait.targets:
            ranks = ", ".join(f"{role}/{rank}" for role, rank, _ in wait.targets[:MOST_SHOWN])
            return f"{wait.name}.{wait.method} ({ranks}{', ...' if len(wait.targets) > MOST_SHOWN else ''})"
        case _:
            return f"{wait.name}.{wait.method}".strip(".")


def _place_in_circle(member: _Vertex) -> str:
    """Return in words what a member of a circle waits for, unless its name says so, and where; empty: not known."""
    waits = [edge.wait for edge in member.edges if edge.wait is not None and edge.wait.kind != "call"]
    words = f" waits for {_words_of_wait(waits[0])}" if waits else ""
    words += f" at {member.line}" if member.line else ""
    if member.key[2] == "not ready":
        words = f" {member.words}"
    return f"{_rank_name(member)}{words}" if words else ""


def _rank_name(vertex: _Vertex) -> str:
    return f"{vertex.key[0]}/{vertex.key[1]}"


def _name_in_circle(vertex: _Vertex) -> str:
    """Return the name of a member of a circle; a call with its method."""
    method = vertex.words.removeprefix("runs ").partition(" at ")[0] if vertex.words.startswith("runs ") else ""
    return f"{_rank_name(vertex)}.{method}" if method else _rank_name(vertex)
