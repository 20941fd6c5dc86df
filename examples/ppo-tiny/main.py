"""PPO with the roles of OpenRLHF, built in Python: `python main.py --dry-run` prints the job that it would submit."""

from __future__ import annotations

from argparse import ArgumentParser, BooleanOptionalAction, Namespace

from dljob import DLJob, RLJobBuilder, RLRoleType


def arguments(argv: list[str] | None = None) -> Namespace:
    """Return the parsed command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--actor-num-nodes", type=int, default=1)
    parser.add_argument("--actor-num-gpus-per-node", type=int, default=2)
    parser.add_argument("--critic-num-nodes", type=int, default=1)
    parser.add_argument("--critic-num-gpus-per-node", type=int, default=1)
    parser.add_argument("--vllm-num-engines", type=int, default=2, help="rollouts")
    parser.add_argument("--init-kl-coef", type=float, default=0.005, help="0: there is no reference")
    parser.add_argument("--prompts", type=int, default=256, help="in each iteration")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--job-name", default="ppo-tiny")
    parser.add_argument("--skip-node-check", action=BooleanOptionalAction, default=True)
    parser.add_argument("--dry-run", action="store_true", help="print the job, and do not submit it")
    return parser.parse_args(argv)


def build(args: Namespace) -> DLJob:
    """Return the job."""
    learned = {name: getattr(args, name) for name in ("seed", "iterations", "prompts", "init_kl_coef")}
    builder = RLJobBuilder().name(args.job_name).config(learned).global_env({"OMP_NUM_THREADS": 1})
    builder.node_num(1).device_type("GPU").device_per_node(4)

    builder.trainer("trainer.PPOTrainer").resource(cpu=0.1)
    (
        builder.actor("actor.Policy")
        .resource(accelerator=0.4, cpu=0.1)
        .nnodes(args.actor_num_nodes)
        .nproc_per_node(args.actor_num_gpus_per_node)
        .comm(backend="gloo")  # the devices are only declared: everything runs on CPUs
    )
    (
        builder.critic("critic.Critic")
        .resource(accelerator=0.4, cpu=0.1)
        .nnodes(args.critic_num_nodes)
        .nproc_per_node(args.critic_num_gpus_per_node)
        .comm(backend="gloo")
    )
    builder.rollout("rollout.Rollout").resource(accelerator=0.4, cpu=0.1).total(args.vllm_num_engines)
    judges = [RLRoleType.REWARD.name]
    if args.init_kl_coef != 0:
        builder.role(RLRoleType.REFERENCE.name).run("reference.Reference").resource(accelerator=0.4, cpu=0.1)
        judges.append(RLRoleType.REFERENCE.name)
    builder.role(RLRoleType.REWARD.name).run("rewarder.Reward").resource(accelerator=0.4, cpu=0.1)

    builder.with_collocation("actor", "critic", name="learners")  # 0.4 + 0.4 of a device
    if len(judges) > 1:
        builder.with_collocation(*judges, name="judges")
    job = builder.build()
    if args.skip_node_check:
        for workload in job.workloads.values():
            if workload.backend == "elastic":
                workload.comm_pre_check = False
    return job


def main(argv: list[str] | None = None) -> None:
    """Print the job, or submit it to the Ray in RAY_ADDRESS."""
    args = arguments(argv)
    job = build(args)
    print(job.model_dump_json(indent=2))
    if not args.dry_run:
        job.submit(args.job_name)


if __name__ == "__main__":
    main()
