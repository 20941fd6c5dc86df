"""A Ray program in the style of verl's main and RayWorkerGroup. It knows nothing of dljob."""

import json
import os
import signal
import time
from pathlib import Path

import framework_help
import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

FOLDER = Path(os.environ["DLJOB_DIR"])
LIFE = 2 if (FOLDER / "said-1").exists() else 1

ray.init(
    "auto" if LIFE == 2 else None,
    namespace=os.environ["RAY_NAMESPACE"],
    runtime_env={"env_vars": {"TOKENIZERS_PARALLELISM": "true"}},
)


@ray.remote
class WorkerDict:
    """One rank of a worker group."""

    def seen(self) -> dict:
        return {
            "rank": os.environ["RANK"],
            "tokenizers": os.environ["TOKENIZERS_PARALLELISM"],
            "devices": ray.get_runtime_context().get_accelerator_ids().get("NPU", []),
            "visible": os.environ.get("ASCEND_RT_VISIBLE_DEVICES"),
            "doubled": framework_help.doubled(int(os.environ["RANK"])),
        }


@ray.remote(num_cpus=0.1)
def task(x: int) -> int:
    return framework_help.doubled(x)


class RayWorkerGroup:
    """Named actors on the bundles of a placement group, all of which outlive this process if it does not end well."""

    def __init__(self, prefix: str, world_size: int) -> None:
        bundles = [{"CPU": 0.5, "NPU": 1}] * world_size
        self.pg = placement_group(bundles, strategy="STRICT_PACK", name=f"{prefix}verl_group_2:0", lifetime="detached")
        ray.get(self.pg.ready(), timeout=120)
        self.workers = [
            WorkerDict.options(
                name=f"{prefix}WorkerDict_0:{rank}",
                lifetime="detached",
                num_cpus=0.5,
                resources={"NPU": 1},
                scheduling_strategy=PlacementGroupSchedulingStrategy(self.pg, placement_group_bundle_index=rank),
                runtime_env={"env_vars": {"WORLD_SIZE": str(world_size), "RANK": str(rank)}},
            ).remote()
            for rank in range(world_size)
        ]


def main() -> None:
    group = RayWorkerGroup("global_pool", 2)
    unnamed = WorkerDict.options(lifetime="detached", num_cpus=0, runtime_env={"env_vars": {"RANK": "7"}}).remote()
    ray.get(unnamed.seen.remote())
    said = {
        "workers": ray.get([worker.seen.remote() for worker in group.workers]),
        "tasks": ray.get([task.remote(x) for x in range(3)]),
        "namespace": ray.get_runtime_context().namespace,
        "captured": ray.util.get_current_placement_group() is not None,
        "visible": os.environ.get("ASCEND_RT_VISIBLE_DEVICES"),
    }
    (FOLDER / "new").write_text(json.dumps(said))
    (FOLDER / "new").rename(FOLDER / f"said-{LIFE}")
    if LIFE == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    more = placement_group([{"NPU": 3, "CPU": 1}], strategy="STRICT_PACK", name="rollout_pool")
    alone = WorkerDict.options(name="alone", num_cpus=0, resources={"NPU": 3}).remote()
    (FOLDER / "asked.new").write_text(str(time.time()))
    (FOLDER / "asked.new").rename(FOLDER / "asked")
    while not (FOLDER / "go").exists():
        time.sleep(0.05)
    assert placement_group_table(more)["state"] == "PENDING"
    remove_placement_group(more)
    ray.kill(alone)


if __name__ == "__main__":
    main()
