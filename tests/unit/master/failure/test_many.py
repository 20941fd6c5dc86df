"""Many ranks and hosts set in one mutation: each step is the one that setting each alone gives."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import pytest
from master_kit import World, host, job

from dljob.master.persistence.changes import _differ
from dljob.master.state.state import Phase
from dljob.master.state.transaction import StateTransaction


@pytest.mark.parametrize(
    ("level", "entrypoint"),
    [
        ("InProcess", {"class": "a.B"}),
        ("Role", {"class": "a.B"}),
        ("Job", {"class": "a.B"}),
        ("Role", {"module": "train"}),
    ],
)
def test_a_world_restarts_as_it_did_rank_by_rank(level, entrypoint, monkeypatch):
    role = {"name": "w", "type": "Elastic", "replicas": 6, "replicasPerGroup": 2, "entrypoint": entrypoint}
    plan_and_spec = job({**role, "restartPolicy": {"level": level, "maxRestarts": 100}}, {"name": "other"})

    def outcome_of():
        world = World(plan_and_spec).boot()
        for index in (0, 1):
            world.kill_host(host("w", index))
        world.settle()
        while world.state.phase is Phase.RECOVERING:
            world.tick()
            world.settle()
        assert world.state.phase is Phase.RUNNING
        assert world.state.roles["w"].generation > 1
        return world.state, world.all_actions

    mutated = outcome_of()
    monkeypatch.setattr(StateTransaction, "batch_changes", lambda _: nullcontext())
    assert mutated == outcome_of()


def test_a_change_of_an_object_of_one_field_is_told():
    @dataclass(frozen=True, slots=True)
    class One:
        only: int

    One.__annotations__["only"] = int
    assert _differ(One)(One(1), One(2)) == ["d", {"only": ["v", 2]}]
    assert _differ(One)(One(1), One(1)) is None
