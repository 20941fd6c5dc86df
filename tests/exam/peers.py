"""The same user programs under torchrun, Ray Train and plain Ray: what their last lines say of a cause.

python tests/exam/peers.py ray_train|plain_ray RANKS     # in the user's folder: runs its train.py in each rank
"""

from __future__ import annotations

import os
import re
import runpy
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from cause import Cause  # noqa: E402 - found by the path above
from grading import BROKEN, HALF, INNOCENT, RIGHT, SILENT, WRONG  # noqa: E402
from page import LAST  # noqa: E402
from running_job import RunningJob  # noqa: E402

TORCHRUN = ["torchrun", "--standalone", "--max-restarts=0"]
SCRIPTS = {"torchrun": "", "Ray Train": "ray_train", "plain Ray": "plain_ray"}
PEERS = tuple(SCRIPTS)
CPUS = 4
PROGRAM = "train.py"
ANY_RANK = re.compile(r"(?:rank\D{0,8}|\[default|\bworld_rank=)(\d+)", re.IGNORECASE)
"""How peers write the number of a rank."""
ROOT_CAUSE = "Root Cause"
TOO_BUSY = "timed out during startup"
"""What Ray prints where the machine is too busy for it."""
NOISE = re.compile(r"^\s*$|^\W+$|UserWarning|FutureWarning|Failed to query Ray Train Controller actor state")
"""The last of these is due to the dashboard, which Ray Train asks and which is not started here."""


class PeersJob(RunningJob):
    """A program under a peer instead of dljob."""

    def __init__(self, cause: Cause, peer: str) -> None:
        super().__init__(cause)
        self.peer = peer

    @property
    def command(self) -> list[str]:
        """The command of the peer."""
        if not SCRIPTS[self.peer]:
            return [*TORCHRUN, f"--nproc-per-node={self.cause.ranks}", PROGRAM]
        return [sys.executable, str(HERE / "peers.py"), SCRIPTS[self.peer], str(self.cause.ranks)]

    def pids(self, target: str) -> list[int]:
        """Return the process of a rank."""
        number = target.rpartition("/")[2]
        if SCRIPTS[self.peer]:
            return [int((self.folder / f"pid-{number}").read_text())]
        return [pid for pid, _line in self.processes() if self._is_rank(pid, number)]

    def _is_rank(self, pid: int, number: str) -> bool:
        return f"RANK={number}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")

    def has_begun(self) -> bool:
        """Whether the program runs or ran in a rank, as far as the peer's script tells."""
        return not SCRIPTS[self.peer] or any(self.folder.glob("pid-*"))

    def run(self) -> dict[str, Any]:
        """Run the program, and return what the peer printed."""
        self.prepare()
        self.start()
        begin = time.monotonic()
        threading.Thread(target=self.act, daemon=True).start()
        while not self.has_begun() and not self.ended() and time.monotonic() < begin + self.cause.starts_s:
            time.sleep(0.5)
        begin = time.monotonic()
        while not self.ended() and time.monotonic() < begin + self.cause.limit_s + 30:
            time.sleep(0.5)
        running = not self.ended()
        lines = [line for line in self.printed().replace("\r", "\n").splitlines() if not NOISE.search(line)]
        if TOO_BUSY in self.printed():
            self.broken = "the machine is too busy for a Ray"
        elif not self.has_begun():
            self.broken = f"the program did not begin under {self.peer}"
        return {"running": running, "console": lines[-LAST:], "broken": self.broken}


def grade_lines(cause: Cause, line: str, result: dict[str, Any]) -> dict[str, Any]:
    """Grade the last lines of a peer by the words that are asked of dljob: the facts, the rank, the line."""
    text = "\n".join(result["console"])
    kind = all(re.search(words, text, re.IGNORECASE) for words in cause.says)
    number = cause.whom.rpartition("/")[2]
    # torchrun lists all of its failures before the one that it holds for the first.
    ranks = ANY_RANK.findall(text.partition(ROOT_CAUSE)[2] or text)
    whom = bool(ranks) and re.fullmatch(number, ranks[0]) is not None
    name, _, row = line.partition(":")
    placed = not line or re.search(rf'{re.escape(name)}"?(?:, line |:){row}\b', text) is not None
    if result["broken"]:
        return {"grade": BROKEN, "kind": False, "whom": False}
    if result["running"]:
        # It stands still without a word of it: what its ranks printed before is no word of the peer's.
        return {"grade": SILENT, "kind": False, "whom": False}
    if ranks and not whom:
        return {"grade": INNOCENT, "kind": kind, "whom": False}
    grade = RIGHT if kind and whom and placed else HALF if kind or whom else WRONG
    return {"grade": grade, "kind": kind, "whom": whom}


def run_peer(cause: Cause, peer: str) -> dict[str, Any]:
    """Run a cause under a peer; its grade with the lines that it was given for."""
    job = PeersJob(cause, peer)
    try:
        result = job.run()
    finally:
        job.end()
        job.remove()
    return grade_lines(cause, job.marked_line(), result) | {"tail": result["console"], "broken": result["broken"]}


def work(rank: int, ranks: int, port: int, folder: str) -> None:
    """Run the user's program as this rank."""
    where = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in where.items()})
    os.chdir(folder)
    Path(f"pid-{rank}").write_text(str(os.getpid()))
    runpy.run_path(PROGRAM, run_name="__main__")


def under_ray_train(ranks: int) -> None:
    """Run the program by Ray Train v2."""
    os.environ["RAY_TRAIN_V2_ENABLED"] = "1"
    import ray
    from ray import train
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    ray.init(num_cpus=CPUS, include_dashboard=False)
    DataParallelTrainer(
        lambda config: work(train.get_context().get_world_rank(), ranks, config["port"], config["folder"]),
        train_loop_config={"port": free_port(), "folder": os.getcwd()},  # noqa: PTH109 - a text for another process
        scaling_config=train.ScalingConfig(num_workers=ranks, resources_per_worker={"CPU": 0.2}),
        run_config=train.RunConfig(storage_path=os.environ["DLJOB_HOME"]),
    ).fit()


def under_plain_ray(ranks: int) -> None:
    """Run the program in tasks of Ray."""
    import ray

    ray.init(num_cpus=CPUS, include_dashboard=False)
    port, folder = free_port(), os.getcwd()  # noqa: PTH109 - a text for another process
    task = ray.remote(num_cpus=0.2, max_retries=0)(work)
    ray.get([task.remote(rank, ranks, port, folder) for rank in range(ranks)])


def free_port() -> int:
    """Return a port for torch's store."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


if __name__ == "__main__":
    os.environ.update({"RAY_raylet_start_wait_time_s": "120"})
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    {"ray_train": under_ray_train, "plain_ray": under_plain_ray}[sys.argv[1]](int(sys.argv[2]))
