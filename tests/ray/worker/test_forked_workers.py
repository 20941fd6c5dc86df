"""Workers of a real Ray that are forked: what a rank is, and what happens when the processes around it are killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import ray
from patience import patience
from prime_help import Job, eventually
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

pytestmark = pytest.mark.ray


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def server_of(pid: int) -> int:
    """Return the server that forked a worker."""
    found = parent(pid)
    assert "forked_workers/server.py" in command(found)
    return found


def starters(server: int) -> list[int]:
    """Return the starters that wait for a server's workers."""
    raylet = command(server).split()[-1]
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if _says(pid, "forked_workers/starter.py") and str(parent(pid)) == raylet]


def _says(pid: int, word: str) -> bool:
    try:
        return word in command(pid)
    except OSError:
        return False


def asks(starter: int) -> bool:
    """Whether a starter has sent its start to a server, and sleeps until the answer."""
    try:
        sleeps = Path(f"/proc/{starter}/stat").read_text().rpartition(")")[2].split()[0] == "S"
        files = [str(file.readlink()) for file in Path(f"/proc/{starter}/fd").iterdir()]
    except OSError:  # it has closed one meanwhile, so it is no further than its imports
        return False
    return sleeps and any(file.startswith("socket:") for file in files)


def test_ranks_master_and_agents_are_forks_of_one_server_for_a_raylet(job: Job) -> None:
    job.start(job.role("worker", "prime_user.until_told", replicas=2))
    pids = job.running("worker/0", "worker/1")
    servers = {name: server_of(pid) for name, pid in pids.items()}
    assert all(os.getsid(pid) == pid for pid in pids.values())
    os.kill(pids["worker/1"], signal.SIGKILL)
    after = job.running("worker/0", "worker/1", incarnation={"worker/1": 2})
    assert server_of(after["worker/1"]) in servers.values()
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded"
    job.nothing_left()


SCRIPT = """
import os, pathlib, time
folder = pathlib.Path(os.environ["DLJOB_DIR"])
mark = folder / f"{os.environ['DLJOB_ROLE']}-{os.environ['DLJOB_RANK']}-1"
mark.with_suffix(".new").write_text(str(os.getpid()))
mark.with_suffix(".new").rename(mark)
(folder / f"said-{os.environ['DLJOB_ROLE']}").write_text(os.environ.get("NCCL_DEBUG", ""))
while not (folder / "go").exists():
    time.sleep(0.05)
"""


def test_scripts_with_variables_of_their_own_need_no_server_of_their_own(job: Job, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    said = {"a": "INFO", "b": "WARN", "c": ""}
    roles = [
        {
            "name": name,
            "entrypoint": {"module": "script.py"},
            "resources": {"cpu": "0.5"},
            "env": [{"name": "NCCL_DEBUG", "value": value}] if value else [],
        }
        for name, value in said.items()
    ]
    job.start(*roles, code=tmp_path)
    job.running("a/0", "b/0", "c/0")
    assert {name: (job.folder / f"said-{name}").read_text() for name in said} == said
    servers = {server_of(pid) for pid in hosts_of(job)}
    # A raylet's pid is the last word of its server's command.
    assert len(servers) == len({command(server).split()[-1] for server in servers})
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded"


def hosts_of(job: Job) -> list[int]:
    """Return the processes of a job's living actors."""
    from ray._private.state import state

    rows = [row for row in state.actor_table(None).values() if row["Name"].startswith(job.uid[:8])]
    return [row["Pid"] for row in rows if row["State"] == "ALIVE"]


def test_killed_server_takes_no_rank_with_it_and_the_next_rank_gets_another(job: Job) -> None:
    job.start(job.role("worker", "prime_user.until_told", replicas=2))
    before = job.running("worker/0", "worker/1")
    servers = {server_of(pid) for pid in before.values()}
    for pid in servers:
        os.kill(pid, signal.SIGKILL)
    os.kill(before["worker/1"], signal.SIGKILL)
    after = job.running("worker/0", "worker/1", incarnation={"worker/1": 2})
    assert after["worker/0"] == before["worker/0"]
    assert after["master"] == before["master"]
    assert server_of(after["worker/1"]) not in servers
    job.go()
    status = job.connection.wait(60)
    assert (status["phase"], status["restarts"]["process"], status["restarts"]["master"]) == ("Succeeded", 1, 0)


def test_starters_that_are_killed_end_their_workers_and_the_ranks_come_back(job: Job) -> None:
    job.start(job.role("worker", "prime_user.until_told"))
    before = job.running("worker/0")
    # One of the agent's may be starting. Before it has asked a server nobody but Ray can know its worker: after 60 s.
    for pid in filter(asks, starters(server_of(before["worker/0"]))):
        os.kill(pid, signal.SIGKILL)
    after = job.running("worker/0", incarnation={"worker/0": 2})
    assert after["worker/0"] != before["worker/0"]
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded"


@pytest.fixture
def actor(ray_here: Any) -> Any:
    """A function that makes an actor of a user's in this Ray."""

    @ray.remote
    class Own:
        def threads(self) -> tuple[str | None, int]:
            return os.environ.get("OMP_NUM_THREADS"), os.getppid()

        def node(self) -> str:
            return ray.get_runtime_context().get_node_id()

        def drawn(self) -> tuple[float, bytes]:
            import numpy as np

            return float(np.random.random()), ray.put(1).binary()

    return Own


def test_actors_of_users_are_workers_like_any_other(actor: Any) -> None:
    made = [actor.options(num_cpus=0.1).remote() for _ in range(3)]
    found = ray.get([one.drawn.remote() for one in made], timeout=patience(60))
    assert len({number for number, _ in found}) == len({name for _, name in found}) == 3
    (omp, above) = ray.get(made[0].threads.remote(), timeout=patience(60))
    assert omp == "1"
    assert "forked_workers/server.py" in command(above)


def test_starter_that_is_killed_before_its_worker_registers_holds_up_no_actor(actor: Any) -> None:
    """A raylet misses such a worker after 60 s, and gives the next one that registers to the actor that waits longest.

    Source: src/ray/raylet/worker_pool.cc, 2.60, MonitorPopWorkerRequestForRegistration and PushWorker.
    """
    first = actor.options(num_cpus=0.1).remote()
    (_, server), node = ray.get([first.threads.remote(), first.node.remote()], timeout=patience(60))
    there = set(starters(server))
    here = actor.options(num_cpus=0.1, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
    os.kill(server, signal.SIGSTOP)
    try:
        second = here.remote()
        new = eventually(
            lambda: [pid for pid in starters(server) if pid not in there and asks(pid)], 60, lambda: server
        )
        for pid in new:
            os.kill(pid, signal.SIGKILL)
    finally:
        os.kill(server, signal.SIGCONT)
    third = here.remote()
    # Ray's own 60 s begin before these; 45 are far more than a start takes.
    assert ray.get([second.node.remote(), third.node.remote()], timeout=45) == [node, node]
