"""Whatever happens, in whatever order: the laws of master_kit.check hold, and the job comes to its end."""

from __future__ import annotations

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from master_kit import DONE, KILLED, World, check, error, job, nodes

from dljob.master.state import events as ev
from dljob.master.state.views import Outcome, Reason
from dljob.master.transition import next_wake, transition

JOBS = {
    "actors": job({"name": "w", "replicas": 3}),
    "chain": job(
        {"name": "prep", "driver": False},
        {"name": "serve", "driver": False, "replicas": 2, "dependsOn": [{"role": "prep", "condition": "Complete"}]},
        {"name": "main", "dependsOn": [{"role": "serve"}]},
    ),
    "world": job(
        {"name": "t", "type": "Elastic", "replicas": 4, "replicasPerGroup": 2},
        {"name": "r", "driver": False, "replicas": 2, "restartPolicy": {"maxRestarts": 2}},
        faultTolerance={"spares": {"processesPerNode": 1}, "maxRestarts": 2},
    ),
    "stays": job(
        {"name": "t", "type": "Elastic", "replicas": 3, "replicasPerGroup": 3, "restartPolicy": {"level": "InProcess"}},
        {"name": "r", "driver": False},
        faultTolerance={"spares": {"processesPerNode": 1}, "maxRestarts": 2, "backoff": {"initialSeconds": 0}},
    ),
    "fork": job(
        {"name": "t", "type": "Elastic", "replicas": 2, "replicasPerGroup": 2, "entrypoint": {"module": "train"}},
        {"name": "a", "replicas": 4, "replicasPerGroup": 2, "entrypoint": {"command": ["x"]}},
        faultTolerance={
            "rules": [
                {"name": "two", "onExitCodes": [2], "action": "RestartRoleGroup", "maxAttempts": 1},
                {"name": "three", "onExitCodes": [3], "action": "Ignore"},
                {"name": "four", "onExitCodes": [4], "action": "ReplaceNode", "maxAttempts": 2},
            ]
        },
    ),
}
OUTCOMES = (
    DONE,
    KILLED,
    error(step=1),
    error(step=5),
    Outcome(ok=False, reason=Reason.UNKNOWN, code=2),
    Outcome(ok=False, reason=Reason.UNKNOWN, code=3),
    Outcome(ok=False, reason=Reason.UNKNOWN, code=4),
)


class Surroundings(RuleBasedStateMachine):
    @initialize(name=st.sampled_from(sorted(JOBS)), count=st.integers(2, 3))
    def begin(self, name, count):
        self.world = World(JOBS[name], views=nodes(count, cpus=6))
        self.spare_nodes = 4
        self.world.send(ev.MasterStarted(1))
        self.world.pending.append(ev.NodesSeen(self.world.views))

    @precondition(lambda self: self.world.pending)
    @rule(data=st.data(), more=st.integers(1, 12))
    def answers_arrive(self, data, more):
        for _ in range(min(more, len(self.world.pending))):
            self.world.deliver(data.draw(st.integers(0, len(self.world.pending) - 1)) if self.world.pending else 0)

    @rule()
    def all_answers_arrive(self):
        self.world.settle()

    @rule(rank=st.integers(0, 2))
    def a_rank_does_not_let_itself_be_called_back(self, rank):
        self.world.deaf ^= {("t", rank)}

    @precondition(lambda self: self.world.told)
    @rule(data=st.data())
    def an_event_comes_twice(self, data):
        told = [e for e in self.world.told if not isinstance(e, ev.NodesSeen | ev.Tick)]
        event = data.draw(st.sampled_from(told))
        before = self.world.state
        if event is self.world.told[-1]:
            assert transition(before, event, self.world.now).state == before
        self.world.send(event)

    @rule(seconds=st.sampled_from([0.0, 0.3, 4.0, 700.0]))
    def time_passes(self, seconds):
        self.world.now += seconds
        self.world.send(ev.Tick())

    @precondition(lambda self: next_wake(self.world.state) is not None)
    @rule()
    def a_timer_is_due(self):
        self.world.tick()

    @precondition(lambda self: any(p.alive for p in self.world.hosts.values()))
    @rule(data=st.data())
    def a_host_dies(self, data):
        alive = sorted({h for (h, _), p in self.world.hosts.items() if p.alive}, key=str)
        self.world.kill_host(data.draw(st.sampled_from(alive)))

    @precondition(lambda self: any(self.world.ranks.values()))
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES))
    def a_rank_ends(self, data, outcome):
        live = sorted(key for key, where in self.world.ranks.items() if where)
        self.world.end(*data.draw(st.sampled_from(live)), outcome)

    @precondition(lambda self: self.world.views)
    @rule(data=st.data())
    def a_node_goes(self, data):
        self.world.lose_node(data.draw(st.sampled_from([v.id for v in self.world.views])))

    @precondition(lambda self: {v.id for v in self.world.views} - set(self.world.frozen))
    @rule(data=st.data())
    def a_node_freezes(self, data):
        awake = [v.id for v in self.world.views if v.id not in self.world.frozen]
        self.world.freeze_node(data.draw(st.sampled_from(awake)))

    @precondition(lambda self: self.world.frozen)
    @rule(data=st.data())
    def a_frozen_node_goes_on(self, data):
        self.world.thaw_node(data.draw(st.sampled_from(sorted(self.world.frozen))))

    @precondition(lambda self: self.spare_nodes)
    @rule()
    def a_node_joins(self):
        self.spare_nodes -= 1
        fresh = nodes(10, cpus=6)[9 - self.spare_nodes]
        if all(view.id != fresh.id for view in self.world.views):
            self.world.add_node(fresh)

    @precondition(lambda self: self.world.spares)
    @rule(data=st.data())
    def a_spare_dies(self, data):
        key = data.draw(st.sampled_from(sorted(self.world.spares)))
        self.world.pending.append(ev.SpareLost(*key, self.world.spares.pop(key)))

    @rule(data=st.data())
    def somebody_restarts(self, data):
        roles = self.world.plan.roles
        targets = ["job", *roles, *(f"{name}/0" for name in roles), "nobody", "w/99"]
        self.world.send(ev.Commanded(f"c{len(self.world.told)}", "restart", data.draw(st.sampled_from(targets)), "me"))

    @rule(really=st.integers(0, 9))
    def somebody_stops(self, really):
        if not really:
            self.world.send(ev.Commanded("stop", "stop"))

    @rule()
    def the_master_dies(self):
        self.world.crash_master()

    @invariant()
    def laws(self):
        if hasattr(self, "world"):
            check(self.world)

    def teardown(self):
        if not hasattr(self, "world"):
            return
        world = self.world
        for node in sorted(world.frozen):
            world.thaw_node(node)
        if not world.views:
            world.add_node(nodes(10, cpus=64)[9])
        for _ in range(400):
            world.settle()
            if world.state.phase.final:
                break
            for key in sorted(key for key, where in world.ranks.items() if where):
                world.end(*key)
            if not world.pending and world.seen() != world.state.nodes:
                world.send(ev.NodesSeen(world.seen()))
            if not world.pending:
                world.tick()
        assert world.state.phase.final, (world.state.phase, world.state.search)
        assert world.finished
        assert not any(p.alive for p in world.hosts.values())
        assert not world.held
        assert next_wake(world.state) is None


TestSurroundings = Surroundings.TestCase
TestSurroundings.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    # Explaining traces every line: minutes for a machine of this size.
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
