"""User code in DLRover's words: the forms of its tutorials, a torch role that is killed once, and their submission."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from dlrover.python.unified.api.builder import DLJobBuilder
from dlrover.python.unified.api.runtime import (
    DataQueue,
    PrimeMasterApi,
    RoleGroup,
    create_rpc_proxy,
    current_worker,
    export_rpc_instance,
    export_rpc_method,
    rpc,
)

import dljob


class Service:
    """An object that is exported by name."""

    @rpc()
    def hello(self, name: str) -> str:
        return f"Hello, {name}!"

    @rpc()
    async def later(self) -> int:
        return 5


@rpc(export=True)
def top() -> str:
    return "top"


def stub(rows: list[int], scale: int) -> list[int]:
    """The signature of a remote call, as in a module `remote_call`."""
    raise NotImplementedError


class Actor:
    """Serves until the trainer says that the job ends."""

    def __init__(self) -> None:
        self.end = threading.Event()
        export_rpc_instance("service", Service())
        export_rpc_method("plain", lambda: "plain")

    @rpc(stub)
    def scaled(self, rows: list[int], scale: int) -> list[int]:
        return [row * scale for row in rows]

    @rpc()
    def bad(self) -> None:
        raise KeyError("no such thing")

    @rpc()
    def job_end(self) -> None:
        self.end.set()

    def run(self) -> None:
        queue: DataQueue[str] = DataQueue("words")
        queue.put(f"from {current_worker().actor_info.rank}")
        self.end.wait()


class Helper:
    """Answers calls after its `run` has returned."""

    @rpc()
    def ping(self) -> str:
        return "pong"

    def run(self) -> None:
        """Set up what calls need: nothing."""


class Trainer:
    """Calls the others in each way that DLRover has."""

    def run(self) -> None:
        queue: DataQueue[str] = DataQueue("words", is_master=True, size=10)
        me, group = current_worker(), RoleGroup("ACTOR_rollout")
        words = queue.get(1)
        while len(words) < 2:
            words += queue.get(2)
        batch = group.call_batch(stub, 5, [1, 2, 3, 4, 5], scale=2)
        service = create_rpc_proxy(group[1].name, "service", Service)
        try:
            group.call_rank0("bad").result()
        except KeyError as error:
            caught = str(error)
        said = {
            "job": me.job_info.name,
            "role": me.actor_info.role,
            "config": me.job_info.user_config.lr.value,
            "call": group.call("top").result() + group.call("plain").result(),
            "scatter": group.call(stub, [[1], [2]], [3, 4], _scatter=True).result(),
            "batch": [*batch.wait(), batch[-1], len(batch)],
            "proxy": [service.hello("you"), asyncio.run(self.later(service))],
            "error": caught,
            "queue": [sorted(words), list(queue.get_nowait(3))],
            "stage": PrimeMasterApi.get_status().stage.value,
            "roles": {role: len(ranks) for role, ranks in PrimeMasterApi.get_all_roles().items()},
            "nobody": RoleGroup("nobody", optional=True).call("top").result(),
            "ended": self.call_after_end("helper"),
        }
        Path(me.job_info.user_config.out).write_text(json.dumps(said))
        group.call("job_end").result()

    @staticmethod
    def call_after_end(role: str) -> list[str]:
        """Call a role once its rank has succeeded."""
        job = dljob.current_worker().job
        while not any(row["role"] == role and row["phase"] == "Succeeded" for row in job.status()["ranks"]):
            time.sleep(0.05)
        return RoleGroup(role).call("ping").result()

    @staticmethod
    async def later(service: Service) -> int:
        return await service.later()


def train() -> None:
    """Five steps from the last checkpoint; rank 1 kills itself once, behind step 3."""
    # Here, so that the other roles start without torch.
    import torch
    from dlrover.trainer.torch.elastic.sampler import ElasticDistributedSampler
    from dlrover.trainer.torch.elastic.trainer import ElasticTrainer
    from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType

    config = current_worker().job_info.user_config
    rank = int(os.environ["RANK"])
    sampler = ElasticDistributedSampler(list(range(20)), shuffle=False)
    model = torch.nn.Linear(1, 1)
    trainer = ElasticTrainer(model)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    saver = DdpCheckpointer(config.folder)
    state = saver.load_checkpoint()
    begun = step = state.get("step", 0)
    if state:
        sampler.load_state_dict(state["sampler"])
        model.load_state_dict(state["model"])
    seen = []
    for row in sampler:
        with trainer.step():
            total = torch.tensor(float(row))
            torch.distributed.all_reduce(total)
            model(total.reshape(1, 1)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        seen.append(row)
        state = {"step": step, "model": model.state_dict(), "sampler": sampler.state_dict(step, 1)}
        saver.save_checkpoint(step, state, storage_type=StorageType.DISK if step == 2 else StorageType.MEMORY)
        if step == 3 and rank == 1 and not begun:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 5:
            break
    Path(config.folder, f"rank-{rank}").write_text(json.dumps([begun, seen, trainer.num_steps]))


def main(out: str) -> int:
    """Submit the job of all roles."""
    builder = DLJobBuilder().config({"lr": {"value": 3}, "out": out, "folder": f"{out}.d"}).device_type("CPU")
    builder.role("actor_rollout").run("dlrover_user.Actor").total(2).resource(cpu=0.1).not_driver()
    builder.role("helper").run("dlrover_user.Helper").resource(cpu=0.1)
    builder.role("TRAINER").run("dlrover_user.Trainer").resource(cpu=0.1).end()
    builder.role("ELASTIC").train("dlrover_user.train").nnodes(1).nproc_per_node(2).resource(cpu=0.1)
    return builder.build().submit(job_name="Their_Job", master_cpu=1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
