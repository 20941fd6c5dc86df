"""Labelled faults played to the core: events with their times, and the first causes that the core names."""

from __future__ import annotations

from master_kit import World, job, nodes

from dljob.master.state import events as ev
from dljob.master.state.views import Clue, HostId, Outcome, Reason
from dljob.runtime.process.outcome import with_log


class Story:
    """A case of tests/unit/master/causes in its own world."""

    def __init__(self, case):
        self.case = case
        shape = case.get("nodes", {"count": 3})
        made = job(*case["roles"], **case.get("spec", {}))
        self.world = World(made, views=nodes(shape["count"], cpus=shape.get("cpus", 64)), hold=True).boot()
        self.before = self.world.state

    def tell(self):
        """Play all events; returns the first causes in the order of their faults."""
        self.world.pending.clear()
        for line in self.case["timeline"]:
            self.world.now += line.get("after", 0.0)
            self.world.send(self._event(line))
        faults = self.world.state.faults
        return [
            {"first": f.rank, "reason": f.reason, "secondary": {other.rank for other in f.consequences}}
            for f in faults
            if not f.root_number and f.rank
        ]

    def _event(self, line):
        clues = tuple(Clue(source, text) for source, text in line.get("clues", ()))
        if "rank" in line:
            role, rank = _name(line["rank"])
            return ev.RankEnded(role, rank, self.before.ranks[role, rank].incarnation, _outcome(line["ended"], clues))
        if "host" in line:
            role, rank = _name(line["host"])
            host = self.before.job.roles[role].host_of(rank)
            return ev.HostLost(host, self.before.hosts[host].incarnation, _outcome(line["lost"], clues))
        if "node_of" in line:
            gone = self._node(line["node_of"])
            return ev.NodesSeen(tuple(view for view in self.world.views if view.id != gone))
        if "learned" not in line and "learned_of_node_of" not in line:
            return ev.Tick()
        if "learned" in line:
            return ev.CauseLearned(line["learned"], clues)
        return ev.CauseLearned(f"node/{self._node(line['learned_of_node_of'])}", clues)

    def _node(self, target):
        role, rank = _name(target)
        index = self.before.job.roles[role].host_of(rank).index
        return self.before.hosts[HostId(role, index)].node


def _name(target):
    role, _, rank = target.partition("/")
    return role, int(rank)


def _outcome(fields, clues):
    outcome = Outcome(ok=False, clues=clues, **{**fields, "reason": Reason(fields["reason"])})
    # As its host reports the end of a process that said nothing itself: with what its log tells.
    return outcome if outcome.error_type else with_log(outcome, outcome.detail, "")
