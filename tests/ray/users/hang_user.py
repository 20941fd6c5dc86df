"""User code of the tests of hangs: ranks that step, together or each for itself, and one that may spin."""

from __future__ import annotations

import os
import time
from pathlib import Path

import dljob

STEP_S, QUICK_S = 0.1, 0.02


def marked() -> tuple[dljob.WorkerContext, Path]:
    """This rank, and the job's folder, in which a file says that it runs."""
    me = dljob.current_worker()
    folder = Path(me.job_dir)
    (folder / f"{me.role}-{me.rank}-{me.incarnation}").write_text(str(os.getpid()))
    return me, folder


def together() -> None:
    """Steps of a torch group, until the file `go` is there; at `wait-<incarnation>` its ranks wait in a circle.

    torch's own server offers the Flight Recorder of each rank at a port of its own.
    """
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import _WorkerServer  # pyright: ignore[reportPrivateUsage] - torch's own, at one address

    dist.init_process_group("gloo")
    me, folder = marked()
    server = _WorkerServer("127.0.0.1", int(os.environ["RECORDERS"].split(",")[me.rank]))
    step, over = 0, False
    while not over:
        files = ("go", f"wait-{me.incarnation}")
        told = torch.tensor([float((folder / name).exists()) for name in files])
        dist.all_reduce(told)
        over = told[0].item() > 0
        time.sleep(STEP_S)
        dljob.progress(step := step + 1)
        if told[1].item() > 0:
            dist.recv(torch.zeros(1), src=(me.rank + 1) % me.world_size)
    server.shutdown()
    dist.destroy_process_group()


def alone() -> None:
    """Steps of a rank for itself, until `go` is there; the first process of a rank spins once `spin-<rank>` is."""
    me, folder = marked()
    step = 0
    while not (folder / "go").exists():
        time.sleep(QUICK_S)
        dljob.progress(step := step + 1)
        if me.incarnation == 1 and (folder / f"spin-{me.rank}").exists():
            spin()


class Silent(dljob.Worker):
    """A callee that does not answer before the file `go` is there."""

    @dljob.rpc
    def score(self) -> None:
        while not (Path(dljob.current_worker().job_dir) / "go").exists():
            time.sleep(STEP_S)


def asks() -> None:
    """Call a silent rank until it answers; the words of each lost call are a line of the file `lost`."""
    _, folder = marked()
    while True:
        try:
            dljob.RoleGroup("reward")[0].score()
        except dljob.PeerLostError as lost:
            with (folder / "lost").open("a") as lines:
                lines.write(f"{lost.message}\n")
        else:
            return


def spin() -> None:
    while True:
        pass


if __name__ == "__main__":
    together()
