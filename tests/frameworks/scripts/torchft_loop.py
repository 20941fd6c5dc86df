"""A loop with torchft's Manager: DDP within a replica group, torchft across the groups.

TORCHFT_LIGHTHOUSE=http://... REPLICA_GROUP_ID=0 torchrun --nproc-per-node=2 torchft_loop.py FOLDER

Each group saves every second step, and resumes from that; where a peer is further, from the peer. The quorum is not
asynchronous: with an asynchronous one a group that catches up adds no gradient in its first step.

Each group decides for itself whether a step counts (`should_commit`: "Different replica groups may return different
values"). Where the last allreduce fails in one group only, it misses the step, and gets its result from the peer in the
next quorum. So there is a quorum behind the last step, too: without it the group that missed it would wait for a peer
that has ended.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import tiny
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torchft import Manager, Optimizer, ProcessGroupGloo

STEPS, GROUPS = 8, 2


def main(folder: str) -> None:
    """Train for eight steps, of which each has both groups."""
    dist.init_process_group("gloo")
    group, rank, file = int(os.environ["REPLICA_GROUP_ID"]), dist.get_rank(), Path(folder, "last.pt")
    network = tiny.model()
    replicated = DistributedDataParallel(network)
    adam = torch.optim.AdamW(network.parameters(), lr=1e-2)

    def state() -> dict[str, Any]:
        return {"network": network.state_dict(), "adam": adam.state_dict()}

    def load(saved: dict[str, Any]) -> None:
        network.load_state_dict(saved["network"])
        adam.load_state_dict(saved["adam"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=20)),
        min_replica_size=GROUPS,
        load_state_dict=load,
        state_dict=state,
        replica_id=f"group_{group}",
        use_async_quorum=False,
        timeout=timedelta(seconds=60),
        quorum_timeout=timedelta(seconds=300),
        hostname=os.environ["MASTER_ADDR"],
    )
    if file.exists():
        saved = torch.load(file, weights_only=True)
        manager.load_state_dict(saved.pop("manager"))
        load(saved)
        tiny.note("loaded", str(manager.current_step()))
    optimizer, done = Optimizer(manager, adam), -1
    while (step := joined(manager, optimizer, done)) < STEPS:
        loss = averaged(manager, replicated, (step * GROUPS + group) * dist.get_world_size() + rank)
        optimizer.step()
        done = manager.current_step()
        if done == step:
            continue  # a peer is gone: the step is done again with those of the next quorum
        tiny.note_loss(done, loss.item())
        tiny.end_of_step(done)
        if rank == 0 and done % 2 == 0:
            torch.save({**state(), "manager": manager.state_dict()}, file.with_suffix(".new"))
            file.with_suffix(".new").replace(file)
    manager.allreduce(torch.zeros(1)).wait()  # a peer that missed the last step has it now
    dist.barrier()  # rank 0 has the manager of all ranks
    manager.shutdown()
    dist.destroy_process_group()


def joined(manager: Manager, optimizer: Optimizer, done: int) -> int:
    """Form the quorum of a step, in which a group that is behind gets the state of its peer; return the steps done."""
    optimizer.zero_grad()
    step = manager.current_step()
    if done < 0:
        tiny.note("begun", str(step))
    elif step > done:
        tiny.note("missed", str(step))
        tiny.end_of_step(step)
    return step


def averaged(manager: Manager, network: DistributedDataParallel, row: int) -> torch.Tensor:
    """Make the gradients of a batch, averaged within the group and across the groups; return the loss."""
    words = tiny.tokenizer()
    batch = torch.tensor([words(tiny.text(row + 16 * more))["input_ids"] for more in range(2)])
    loss = network(input_ids=batch, labels=batch).loss
    loss.backward()
    for parameter in network.parameters():
        manager.allreduce(parameter.grad).wait()
    return loss


if __name__ == "__main__":
    main(sys.argv[1])
