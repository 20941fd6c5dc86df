"""RLJobBuilder: the roles of PPO, GRPO and DPO in one call, beside any others."""

from __future__ import annotations

import pytest

from dljob.api.builder import DLJobBuilder
from dljob.api.rl import RLJobBuilder
from dljob.errors import UsageError
from dljob.plan.plan import plan

PPO = {name: f"ppo.{name.title()}" for name in ("trainer", "actor", "critic", "rollout", "reward", "reference")}


def test_ppo_declares_six_roles_led_by_the_trainer() -> None:
    job = RLJobBuilder().ppo(**PPO).build()
    roles = job.workloads
    assert {name: role.entrypoint["class"] for name, role in roles.items()} == PPO
    assert [name for name, role in roles.items() if role.driver] == ["trainer"]
    assert [name for name, role in roles.items() if role.type == "Elastic"] == ["actor", "critic"]
    assert roles["trainer"].depends_on == dict.fromkeys(sorted(PPO.keys() - {"trainer"}), "Ready")
    assert plan(job.manifest("ppo")).roles


def test_a_role_of_a_preset_is_gone_on_with_by_its_name() -> None:
    builder = RLJobBuilder().ppo(**PPO)
    builder.actor().nnodes(2).resource(accelerator=0.4)
    builder.actor().nproc_per_node(8).end().rollout().total(4).critic().resource(accelerator=0.4)
    roles = builder.build().workloads
    assert (roles["actor"].replicas, roles["actor"].replicas_per_group, roles["actor"].accelerator) == (16, 8, "0.4")
    assert roles["rollout"].replicas == 4
    assert roles["critic"].accelerator == "0.4"


def test_grpo_has_no_critic_and_needs_neither_reward_nor_reference() -> None:
    least = RLJobBuilder().grpo(trainer="g.Trainer", actor="g.Actor", rollout="g.Rollout").build().workloads
    assert sorted(least) == ["actor", "rollout", "trainer"]
    assert least["trainer"].depends_on == {"actor": "Ready", "rollout": "Ready"}
    more = RLJobBuilder().grpo(trainer="g.T", actor="g.A", rollout="g.R", reward="g.J", reference="g.F").build()
    assert sorted(more.workloads) == ["actor", "reference", "reward", "rollout", "trainer"]


def test_dpo_is_led_by_its_actor_or_by_a_trainer() -> None:
    alone = RLJobBuilder().dpo(actor="d.Actor", reference="d.Reference").build().workloads
    assert alone["actor"].driver
    assert alone["actor"].depends_on == {"reference": "Ready"}
    assert not alone["reference"].driver
    led = RLJobBuilder().dpo(actor="d.Actor", reference="d.Reference", trainer="d.Trainer").build().workloads
    assert [name for name, role in led.items() if role.driver] == ["trainer"]
    assert led["trainer"].depends_on == {"actor": "Ready", "reference": "Ready"}


def test_roles_of_any_other_name_stand_beside_a_preset() -> None:
    builder = RLJobBuilder().grpo(trainer="g.T", actor="g.A", rollout="g.R")
    builder.role("judge").run("mine.Judge").not_driver().end().trainer().depends_on("judge")
    roles = builder.build().workloads
    assert sorted(roles["trainer"].depends_on) == ["actor", "judge", "rollout"]
    assert not roles["judge"].driver


def test_a_role_that_is_not_declared_cannot_be_gone_on_with() -> None:
    with pytest.raises(UsageError, match=r"\.critic\(\) goes on with role 'critic', which is not declared") as refused:
        RLJobBuilder().grpo(trainer="g.T", actor="g.A", rollout="g.R").critic()
    assert refused.value.hint == '.critic("module.Class")'


def test_a_preset_over_a_role_that_is_declared_is_refused() -> None:
    with pytest.raises(UsageError, match="there is such a role already"):
        RLJobBuilder().actor("mine.Actor").end().ppo(**PPO)


def test_node_checks_and_process_groups_are_switched_off_for_all_torch_ranks_whenever_declared() -> None:
    builder = DLJobBuilder().skip_node_check().no_setup_process_group()
    roles = builder.role("torch").train("m.A").role("plain").run("m.B").build().workloads
    assert roles["torch"].comm == {"preCheck": False, "initProcessGroup": False}
    assert roles["plain"].comm == {}
    assert builder.role("later").train("m.C").build().workloads["later"].comm_pre_check is False
