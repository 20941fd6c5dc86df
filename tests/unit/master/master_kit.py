"""A model of the core's surroundings: nodes, processes, spares, pending answers; and the invariants of every state."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from ledger_kit import check_ledger

from dljob.master.persistence.codec import event_record, replay
from dljob.master.placement.reissue import leftovers, live_hosts, ready_spares, reissue
from dljob.master.start.assign import would_be_nodes
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state.memory_overrides import overrides_of_unit, unit_with_memory
from dljob.master.state.pairing import NodeFacts, TeamFacts
from dljob.master.state.state import HostPhase, JobState, Phase, RankPhase, UnitPhase
from dljob.master.state.views import HostId, NodeView, Outcome, Reason
from dljob.master.transition import initial, next_wake, transition
from dljob.plan.model import GRAIN
from dljob.plan.plan import plan
from dljob.spec.model import DLJobManifest

UID = "c0ffee" + "0" * 26
KILLED = Outcome(ok=False, reason=Reason.UNKNOWN)
DONE = Outcome(ok=True)


def job(*roles, name="job", **spec):
    """Return plan and spec of roles given as dicts; missing fields are filled in."""
    full = [{"entrypoint": {"class": "pkg.Class"}, **role} for role in roles]
    manifest = DLJobManifest.model_validate({"metadata": {"name": name}, "spec": {"roles": full, **spec}})
    return plan(manifest), manifest.spec


def error(error_type="ValueError", frame="train.py:7 in step", *, step=None, message="boom", **more):
    return Outcome(
        ok=False, reason=Reason.USER_ERROR, error_type=error_type, frame=frame, step=step, message=message, **more
    )


def nodes(count, cpus=64, **devices):
    """Return nodes n0, n1, ... with this capacity each."""
    total = tuple(sorted({"CPU": cpus * GRAIN, **{k: v * GRAIN for k, v in devices.items()}}.items()))
    return tuple(NodeView(f"n{i}", total, total, (("dljob.io/node-group", "any"),)) for i in range(count))


@dataclass
class Process:
    node: str
    unit: str
    actor: str
    alive: bool = True
    ready: bool = False
    reports: list = field(default_factory=list)
    """All its rank reports; kept because results are kept until acknowledged."""


class World:
    """The core, driven by a model of its surroundings. `pending` holds answers that have not arrived yet."""

    def __init__(self, made, *, count=None, views=None, hold=False, own_nodes=False):
        self.plan, self.spec = made
        self.now = 1000.0
        self.start = self.now
        self.state: JobState = initial(self.plan, self.spec, UID, self.start, own_nodes=own_nodes)
        self.views = views if views is not None else (would_be_nodes(self.plan) if count is None else nodes(count))
        self.pending: list = []
        self.journal: list = []
        self.told: list = []
        self.all_actions: list = []
        self.held: dict = {}
        self.granted: dict = {}
        """(unit, token) -> memory beyond the plan's in the reservation request."""
        self.hosts: dict = {}
        self.killed: set = set()
        self.frozen: dict = {}
        """Frozen node -> actions on its processes, which take effect when it thaws."""
        self.ranks: dict = {}
        self.spares: dict = {}
        self.was_ready: set = set()
        self.deaf: set = set()
        """Ranks whose user code cannot be interrupted."""
        self.bad_loads: dict = {}
        """Rank -> why its loads fail, and whether before it was asked."""
        self.finished: list = []
        self.released = False
        self.hold = hold
        self.bad: dict = {}
        """Node -> trouble that a node check finds there; "": its all-reduce fails."""

    # -- the core ------------------------------------------------------------------------------------------------

    def send(self, event, *, after=0.0):
        """Give the core an event; returns its actions, which the model has carried out."""
        self.now += after
        self.journal.append(event_record(event, self.now))
        self.told.append(event)
        step = transition(self.state, event, self.now)
        again = transition(self.state, event, self.now)
        assert again.state == step.state
        assert again.actions == step.actions
        self.state = step.state
        self._remember_ready()
        if isinstance(event, ev.NodeFrozen) and event.node not in self.frozen:
            self.pending.append(ev.NodeThawed(event.node))  # The node answers, so the next pass reports it thawed.
        for action in step.actions:
            self.carry_out(action)
        if not self.hold:
            check(self)
        return step.actions

    def _remember_ready(self):
        for name, role in self.state.roles.items():
            if role.waiting_count == role.starting_count == role.stopping_count == 0:
                self.was_ready.add(name)

    def carry_out(self, action):
        self.all_actions.append(action)
        _EXECUTE[type(action)](self, action)

    def deliver(self, index=0):
        return self.send(self.pending.pop(index))

    def settle(self, limit=5000):
        """Deliver all pending answers in order."""
        while self.pending:
            limit -= 1
            assert limit, "answers make answers for ever"
            self.deliver()

    def boot(self):
        """Start the job and run it until all ranks of the first roles are ready."""
        self.send(ev.MasterStarted(1))
        self.send(ev.NodesSeen(self.seen()))
        self.settle()
        return self

    def tick(self):
        """Advance time to the core's next timer and send a tick."""
        wake = next_wake(self.state)
        assert wake is not None
        self.now = max(self.now, wake)
        actions = self.send(ev.Tick())
        for _ in range(3):
            # Due timers must be handled by one tick: a shell that sleeps until the next timer must not spin.
            if (wake := next_wake(self.state)) is not None and wake <= self.now:
                actions = (*actions, *self.send(ev.Tick()))
        assert wake is None or wake > self.now
        return actions

    def notes(self, reason=None):
        return [a for a in self.all_actions if isinstance(a, act.Note) and reason in (None, a.reason)]

    def of(self, kind, since=0):
        return [a for a in self.all_actions[since:] if isinstance(a, kind)]

    # -- what happens outside ------------------------------------------------------------------------------------

    def key_host(self, role, rank):
        return self.state.job.roles[role].host_of(rank)

    def live_process(self, host):
        host_incarnations = [
            host_incarnation for (h, host_incarnation), p in self.hosts.items() if h == host and p.alive
        ]
        return max(host_incarnations) if host_incarnations else None

    def kill(self, role, rank, outcome=KILLED):
        """Kill a rank's host process with SIGKILL."""
        self.kill_host(self.key_host(role, rank), outcome)

    def kill_host(self, host, outcome=KILLED):
        host_incarnation = self.live_process(host)
        if host_incarnation is not None:
            self._die(host, host_incarnation)
            self.pending.append(ev.HostLost(host, host_incarnation, outcome))

    def _die(self, host, host_incarnation):
        process = self.hosts[host, host_incarnation]
        if process.node in self.frozen:
            self.frozen[process.node].append((host, host_incarnation))
        else:
            process.alive = False
        # Frozen processes do not count as running incarnations: after a thaw they end before they do anything.
        for where in self.ranks.values():
            for incarnation in [i for i, at in where.items() if at == (host, host_incarnation)]:
                del where[incarnation]

    def end(self, role, rank, outcome=DONE):
        """End a rank's user code by itself with an outcome."""
        for incarnation, (host, host_incarnation) in list(self.ranks.get((role, rank), {}).items()):
            del self.ranks[role, rank][incarnation]
            event = ev.RankEnded(role, rank, incarnation, outcome)
            self.hosts[host, host_incarnation].reports.append(event)
            self.pending.append(event)

    def end_role(self, role, outcome=DONE):
        for rank in range(self.plan.roles[role].replicas):
            self.end(role, rank, outcome)

    def lose_node(self, node):
        """Lose a machine with its processes; only the cluster's node list reports it."""
        self.views = tuple(view for view in self.views if view.id != node)
        self.frozen.pop(node, None)
        for (host, host_incarnation), process in self.hosts.items():
            if process.node == node and process.alive:
                self._die(host, host_incarnation)
        for key in [key for key in self.spares if key[1] == node]:
            del self.spares[key]
        for unit, tokens in self.held.items():
            self.held[unit] = {token: at for token, at in tokens.items() if at != node}
        self.pending.append(ev.NodesSeen(self.seen()))

    def freeze_node(self, node):
        """Freeze a machine: its processes neither answer nor end, and the cluster still lists it."""
        self.frozen[node] = []
        self.pending.append(ev.NodeFrozen(node, 3.0))

    def thaw_node(self, node):
        """Thaw a machine: processes that were killed meanwhile end."""
        for host, host_incarnation in self.frozen.pop(node):
            self.hosts[host, host_incarnation].alive = False
            # Calls to it break only now: a master that started meanwhile could not know of the kill.
            self.pending.append(ev.HostLost(host, host_incarnation, KILLED))
        self.pending.append(ev.NodeThawed(node))
        self.pending.append(ev.NodesSeen(self.seen()))

    def drain_node(self, node, by=0.0):
        """Drain a node: it accepts nothing more and is gone at time `by`."""
        self.views = tuple(replace(view, leaving=by) if view.id == node else view for view in self.views)
        self.pending.append(ev.NodesSeen(self.seen()))

    def seen(self):
        """Return the nodes as the backend reports them; `free` excludes reservations."""
        free = {view.id: dict(view.free) for view in self.views}
        for unit, tokens in self.held.items():
            for token, node in tokens.items():
                for name, amount in unit_with_memory(self.plan.widest, unit, self.granted[unit, token]).demand:
                    free[node][name] -= amount
        return tuple(replace(v, free=tuple(sorted((k, a) for k, a in free[v.id].items() if a))) for v in self.views)

    def add_node(self, view):
        self.views = (*self.views, view)
        self.pending.append(ev.NodesSeen(self.seen()))

    def crash_master(self):
        """Kill PrimeMaster: pending answers are lost; the next one replays, re-attaches and orders again."""
        self.pending.clear()
        rebuilt = replay(self.plan, self.spec, UID, json.loads(json.dumps(self.journal)), start=self.start)
        assert rebuilt == self.state
        self.state = rebuilt
        self.send(ev.MasterStarted(self.state.epoch + 1, "killed"))
        held = [(unit, token) for unit, tokens in self.held.items() for token in tokens]
        for action in (*reissue(self.state, self.now), *leftovers(self.state, held)):
            self.carry_out(action)
        for host, own in live_hosts(self.state):
            process = self.hosts.get((host, own.incarnation)) or self._adopt(host, own.incarnation, own.actor)
            self.pending.extend(process.reports)
            if not process.alive:
                self.pending.append(ev.HostLost(host, own.incarnation, KILLED))
        for (role, node, slot), own in ready_spares(self.state):
            if self.spares.get((role, node, slot)) != own.incarnation:
                self.pending.append(ev.SpareLost(role, node, slot, own.incarnation))
        self.pending.append(ev.NodesSeen(self.seen()))
        self._listen()

    def _listen(self):
        """Let a new master find out which nodes answer."""
        self.pending.extend(ev.NodeFrozen(node, 3.0) for node in sorted(self.frozen))
        silent = (node for node, own in sorted(self.state.exclusions.items()) if own.silent)
        self.pending.extend(ev.NodeThawed(node) for node in silent if node not in self.frozen)

    # -- the executor --------------------------------------------------------------------------------------------

    def _node_alive(self, node):
        return any(view.id == node for view in self.views)

    def _reserve(self, a):
        if self._node_alive(a.node):
            self.held.setdefault(a.unit, {})[a.token] = a.node
            assert self.granted.setdefault((a.unit, a.token), a.memory) == a.memory
            self.pending.append(ev.UnitReserved(a.unit, a.token, a.node))
        else:
            self.pending.append(ev.UnitRefused(a.unit, a.token, f"node {a.node} is gone"))

    def _unreserve(self, a):
        self.held.get(a.unit, {}).pop(a.token, None)
        for (host, host_incarnation), process in self.hosts.items():
            if process.alive and process.unit == (a.unit, a.token):
                self._die(host, host_incarnation)

    def _spawn_host(self, a):
        assert len(self.held) >= self.state.job.unit_count, "a host before the gang was admitted"
        old = [
            host_incarnation
            for (h, host_incarnation), p in self.hosts.items()
            if h == a.host and p.alive and host_incarnation < a.incarnation and p.node not in self.frozen
        ]
        assert not old, f"{a.host} is spawned while process {old} lives"
        known = self.hosts.get((a.host, a.incarnation))
        if known is None:
            node = self.held[a.unit].get(a.token)
            if node is None:
                self.pending.append(ev.HostLost(a.host, a.incarnation, KILLED))
                return
            assert node not in self.state.exclusions, f"{a.host} on {node}, which is excluded"
            known = self.hosts[a.host, a.incarnation] = Process(node, (a.unit, a.token), f"{a.host}/{a.incarnation}")
        if known.alive:
            self.pending.append(self._hello(a.host, a.incarnation))
        else:
            self.pending.append(ev.HostLost(a.host, a.incarnation, KILLED))

    def _hello(self, host, host_incarnation):
        process = self.hosts[host, host_incarnation]
        facts = self.state.job.roles[host.role]
        slots = tuple((str(rank),) for rank in facts.ranks_of(host.index)) if facts.plan.accelerator else ()
        devices = (("GPU", tuple(i for ids in slots for i in ids) or (str(host.index),)),)
        address = f"{process.node}:{2000 + host_incarnation}" if host.index < 0 else ""
        return ev.HostReady(
            host, host_incarnation, process.node, 100 + host_incarnation, process.actor, devices, address, slots
        )

    def _adopt(self, host, host_incarnation, actor):
        """Turn a spare into a host, unless it has died unnoticed."""
        spare = next((key for key, own in self.spares.items() if f"spare {key} {own}" == actor), None)
        node = "" if spare is None else spare[1]
        self.spares.pop(spare, None)
        self.hosts[host, host_incarnation] = Process(node, None, actor, alive=spare is not None)
        return self.hosts[host, host_incarnation]

    def _start_ranks(self, a):
        process = self.hosts.get((a.host, a.incarnation))
        if process is None:
            process = self._adopt(a.host, a.incarnation, a.actor)
        assert process.actor == a.actor
        for dependency, kind in self.plan.roles[a.host.role].depends_on:
            assert dependency in self.was_ready, f"{a.host} starts before {dependency} was {kind}"
        if not process.alive:
            self.pending.append(ev.HostLost(a.host, a.incarnation, KILLED))
            return
        for start in a.ranks:
            self._start(a, process, start)

    def _start(self, a, process, start):
        where = self.ranks.setdefault((a.host.role, start.rank), {})
        said = [e for e in process.reports if (e.rank, e.incarnation) == (start.rank, start.incarnation)]
        if said:
            self.pending.extend(said)
            return
        assert not where, f"{a.host.role}/{start.rank} starts while incarnation {list(where)} lives"
        where[start.incarnation] = (a.host, a.incarnation)
        event = ev.RankReady(a.host.role, start.rank, start.incarnation, 1000 + start.incarnation)
        process.reports.append(event)
        self.pending.append(event)

    def _stop_ranks(self, a):
        for rank in a.ranks:
            for at in list(self.ranks.get((a.host.role, rank), {}).values()):
                if at == (a.host, a.host_incarnation):
                    self.end(a.host.role, rank, DONE)

    def _leave_group(self, a):
        """End the rank and keep its process; a rank that was not started yet is never started."""
        process = self.hosts.get((a.host, a.host_incarnation))
        if process is None or not process.alive or (a.host.role, a.rank) in self.deaf:
            return
        where = self.ranks.setdefault((a.host.role, a.rank), {})
        said = [e for e in process.reports if isinstance(e, ev.RankEnded) and e.incarnation == a.incarnation]
        assert not said or a.incarnation not in where
        where.pop(a.incarnation, None)
        event = said[0] if said else ev.RankEnded(a.host.role, a.rank, a.incarnation, DONE)
        process.reports.extend(() if said else (event,))
        self.pending.append(event)

    def _load_weights(self, a):
        """Load, unless the rank is one of `bad_loads`, which say why they do not."""
        why, untouched = self.bad_loads.get((a.host.role, a.rank), ("", False))
        loaded = ev.WeightsLoaded(a.host.role, a.rank, a.incarnation, a.version, a.at, why, untouched)
        self.pending.append(loaded)

    def _kill_host(self, a):
        """Kill by the actor's name if the order has one, which may be of an earlier process than the order's."""
        mine = {host_incarnation: process for (host, host_incarnation), process in self.hosts.items() if host == a.host}
        named = (host_incarnation for host_incarnation, process in mine.items() if a.actor and process.actor == a.actor)
        host_incarnation = next(named, a.incarnation)
        process = mine.get(host_incarnation)
        if process is None:
            self._adopt(a.host, a.incarnation, a.actor).alive = False
        elif a.actor not in ("", process.actor):
            self.spares = {key: own for key, own in self.spares.items() if f"spare {key} {own}" != a.actor}
        elif process.alive:
            self._die(a.host, host_incarnation)
            self.pending.append(ev.HostLost(a.host, host_incarnation, KILLED))

    def _spawn_spare(self, a):
        if self._node_alive(a.node):
            key = (a.role, a.node, a.slot)
            self.spares[key] = a.incarnation
            self.pending.append(ev.SpareReady(*key, a.incarnation, f"spare {key} {a.incarnation}", 7))

    def _check_nodes(self, a):
        places = {place.node: place for place in a.places}
        for place in a.places:
            assert self.held[place.unit].get(place.token, place.node) == place.node
        facts = tuple(NodeFacts(node, "cpu", 10.0, trouble=self.bad.get(node, "")) for node in places)
        fit = [team for team in a.teams if not any(self.bad.get(node) for node in team)]
        teams = tuple(
            TeamFacts(t, trouble="it did not end") if any(n in self.bad for n in t) else TeamFacts(t, 9.0) for t in fit
        )
        self.pending += [ev.NodesSeen(self.seen()), ev.NodesChecked(a.role, a.number, facts, teams)]

    def _save_copies(self, a):
        self.pending += [ev.NodesSeen(self.seen()), ev.CopiesSaved(a.node)]

    def _relaunch(self, a):
        self.pending.append(ev.RelaunchTold(a.node))

    def _kill_spare(self, a):
        if self.spares.get((a.role, a.node, a.slot)) == a.incarnation:
            del self.spares[a.role, a.node, a.slot]

    def _note(self, a):
        assert a.reason
        assert a.target

    def _release(self, a):
        for (host, host_incarnation), process in self.hosts.items():
            if process.alive:
                self._die(host, host_incarnation)
        self.spares.clear()
        self.held.clear()
        self.pending.append(ev.Released())
        self.released = True

    def _finish(self, a):
        assert self.released
        self.finished.append(a)


_EXECUTE = {
    act.Reserve: World._reserve,
    act.Unreserve: World._unreserve,
    act.SpawnHost: World._spawn_host,
    act.StartRanks: World._start_ranks,
    act.StopRanks: World._stop_ranks,
    act.LeaveGroup: World._leave_group,
    act.LoadWeights: World._load_weights,
    act.HoldCalls: lambda _world, _action: None,
    act.KillHost: World._kill_host,
    act.SpawnSpare: World._spawn_spare,
    act.CheckNodes: World._check_nodes,
    act.SaveCopies: World._save_copies,
    act.RelaunchNode: World._relaunch,
    act.Note: World._note,
    act.Release: World._release,
    act.Finish: World._finish,
    act.KillSpare: World._kill_spare,
}


def check(world: World):
    """Assert the invariants of every state."""
    state = world.state
    live = 0
    for name, role in state.roles.items():
        phases = [own.phase for (of, _), own in state.ranks.items() if of == name]
        assert len(phases) - role.absent_count == state.job.roles[name].plan.replicas
        for phase in RankPhase:
            assert getattr(role, f"{phase.value.lower()}_count") == phases.count(phase), (name, phase)
        live += sum(phase.live for phase in phases)
        ready = [
            h for h, own in state.hosts.items() if h.role == name and h.index >= 0 and own.phase is HostPhase.READY
        ]
        assert role.ready_host_count == len(ready)
        held_back = [
            i for i in state.incidents.values() if not i.is_backoff_over and any(r == name for r, _ in i.members)
        ]
        assert role.incidents_in_backoff == len(held_back) or state.verdict is not None
    assert state.live_rank_count == live
    check_grants(world)
    for number, incident in state.incidents.items():
        members = [key for key in incident.members if state.ranks[key].incident == number]
        assert incident.unready_count == len(members) > 0
    for key, rank in state.ranks.items():
        assert rank.incident in state.incidents or rank.incident == 0 or state.verdict is not None
        assert len(world.ranks.get(key, {})) <= 1
    window = world.spec.fault_tolerance.window_seconds
    for key, marks in state.marks.items():
        recent = [mark for mark in marks if mark.at > world.now - window]
        if key == "job":
            assert len(recent) <= world.spec.fault_tolerance.max_restarts
        elif key in world.plan.roles:
            assert len(recent) <= world.plan.roles[key].max_restarts
    assert len(world.finished) == (1 if state.phase.final else 0) or state.epoch > 1
    if state.phase is Phase.RUNNING:
        assert not state.incidents
    check_ledger(state, world.now)
    wake, times = next_wake(state), timer_times(state)
    assert not times or (wake is not None and wake <= min(times))


def check_grants(world: World):
    """Assert that each unit is held with the memory that PrimeMaster believes it has."""
    for unit, own in world.state.units.items():
        if own.phase is UnitPhase.HELD:
            assert world.granted[unit, own.token] == overrides_of_unit(world.state.memory_overrides, unit)


def timer_times(state):
    from dljob.master.placement.timers import earliest_timer

    at = earliest_timer(state)
    return [] if at is None else [at]


def host(role, index):
    return HostId(role, index)
