"""verl on CPUs, by its public registries: a platform, and rollout servers over transformers.

verl imports this package where `VERL_USE_EXTERNAL_MODULES` names it, and three more by its configuration:
`actor_rollout_ref.model.external_lib` (`verl_cpu.group`), `checkpoint_engine.custom_backend_module` (`verl_cpu.store`),
and the file of `custom_reward_function` (`reward.py`). Nothing of verl is changed.
"""

from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

from verl_cpu import device as device  # first of all: the next imports ask for the device


def _replica() -> type[RolloutReplica]:
    from verl_cpu.rollout import TransformersReplica

    return TransformersReplica


RolloutReplicaRegistry.register("transformers", _replica)
