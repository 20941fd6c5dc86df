"""verl's single controller, used as its trainers use it: a pool, a group of workers, and calls with their dispatch.

It knows nothing of dljob.
"""

import json
import os
import socket
from pathlib import Path

import ray
import torch
from verl import DataProto
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, Execute, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup


@ray.remote
class ActorRollout(Worker):
    """A rank of the group."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> dict:
        torch.distributed.init_process_group("gloo")
        total = torch.tensor([float(self.rank + 1)])
        torch.distributed.all_reduce(total)
        return {"rank": self.rank, "world_size": self.world_size, "total": total.item(), "pid": os.getpid()}

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def generate(self, prompts: DataProto) -> DataProto:
        prompts.batch["x"] = prompts.batch["x"] * self.scale + 1000 * self.rank
        return prompts

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def save(self) -> int:
        return self.rank


def main() -> None:
    ray.init(namespace=os.environ["RAY_NAMESPACE"])
    with socket.socket() as probe:  # else verl asks a task of its own, which imports torch once more
        probe.bind(("", 0))
        port = str(probe.getsockname()[1])
    pool = RayResourcePool([2], use_gpu=False, max_colocate_count=1, name_prefix="global_pool", detached=True)
    group = RayWorkerGroup(
        resource_pool=pool,
        ray_cls_with_init=RayClassWithInitArgs(ActorRollout, scale=2.0),
        name_prefix="actor_rollout",
        detached=True,
        master_addr=ray.util.get_node_ip_address(),
        master_port=port,
        worker_env={"GLOO_SOCKET_IFNAME": "lo"},
    )
    ranks = group.init_model()
    batch = DataProto.from_single_dict({"x": torch.arange(4.0)})
    said = {"ranks": ranks, "made": group.generate(batch).batch["x"].tolist(), "saved": group.save()}
    Path(os.environ["DLJOB_DIR"], "said").write_text(json.dumps({**said, "names": group.worker_names}))


if __name__ == "__main__":
    main()
