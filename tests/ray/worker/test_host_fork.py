"""The fork host: a role group's ranks as children of one actor."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_kit import Job, alive, eventually, parent_of
from role_kit import role_plan

from dljob.master.failure.policy import describe_failure
from dljob.master.state.causes import classify, describe_root_cause, outcome_of_cause
from dljob.master.state.views import Reason
from dljob.plan.serving import DrainPlan, ProbePlan
from dljob.runtime.worker.fork_host import ForkHost

pytestmark = pytest.mark.ray


@pytest.fixture
def job(ray_here, tmp_path) -> Iterator[Job]:
    made = Job(str(tmp_path), (("w", 2), ("other", 1)))
    yield made
    made.close()


def forked(job: Job, *args: str, script: str = "forked.py", **changes):
    changes = {"replicas": 2, "group_size": 2, **changes}
    return job.host(ForkHost, role_plan("w", ("module", script), args=args, **changes))


def test_ranks_know_where_they_are(job, tmp_path):
    host = forked(job, "facts", elastic=True, config={"lr": 1})
    host.start(0, 1, incarnation=2, reason="SIGKILL", store="")
    assert [r.outcome.ok for r in host.ends(2)] == [True, True]
    said = [json.loads((tmp_path / f"facts-{rank}.json").read_text()) for rank in (0, 1)]
    assert [s["name"] for s in said] == ["w/0", "w/1"]
    assert [s["local"] for s in said] == [0, 1]
    assert said[1]["env"] == {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    assert said[0]["config"] == {"lr": 1}
    assert said[0]["peers"] == {"w": 2, "other": 1}
    assert (said[0]["attempt"], said[0]["incarnation"], said[0]["reason"]) == (3, 2, "SIGKILL")
    assert not said[0]["ray"]
    assert not said[0]["torch"]


def test_ready_then_ended_with_the_true_code(job):
    host = forked(job, "exit", "3")
    host.start(0)
    reports = host.ready() + host.ends()
    assert reports[0].pid == reports[1].pid
    outcome = reports[1].outcome
    assert (outcome.ok, outcome.code, outcome.reason) == (False, 3, Reason.USER_ERROR)


def test_sigkill_of_one_rank_leaves_the_other_and_it_can_start_again(job, tmp_path):
    host = forked(job, "stay")
    host.start(0, 1)
    pids = {r.rank: r.pid for r in host.ready(2)}
    eventually(lambda: "armed" in (tmp_path / "logs" / "w-0.log").read_text())
    os.kill(pids[0], signal.SIGKILL)
    outcome = host.ends()[0].outcome
    assert (outcome.code, outcome.reason) == (137, Reason.UNKNOWN)
    assert "SIGKILL" in outcome.message
    assert "armed" in outcome.detail
    host.start(0, incarnation=2)
    assert host.ready()[0].incarnation == 2
    assert alive(pids[1])


def test_newer_incarnation_replaces_a_living_one(job):
    host = forked(job, "stay")
    host.start(0)
    old = host.ready()[0].pid
    host.start(0, incarnation=2)
    assert host.ready()[0].incarnation == 2
    assert not alive(old)


def test_progress_reaches_the_master(job):
    import ray

    host = forked(job, "progress")
    host.start(0)
    eventually(lambda: ray.get(job.master.steps.remote()).get(0) == (1, 4, {"loss": 0.25}))


def test_stop_is_heard_and_the_script_ends_in_its_own_way(job, tmp_path):
    host = forked(job, "stopping")
    host.start(0)
    host.ready()
    eventually(lambda: "armed" in (tmp_path / "logs" / "w-0.log").read_text())
    host.stop(0)
    assert host.ends()[0].outcome.code == 6
    assert "stopping, because the test says so" in (tmp_path / "logs" / "w-0.log").read_text()


@pytest.mark.parametrize("python", ["", sys.executable], ids=["forked", "an interpreter of the role"])
def test_torch_ranks_meet_on_a_store_and_again_in_a_new_generation(job, tmp_path, python):
    from dljob.runtime.worker.elastic_master import ElasticMaster

    changes = {"elastic": True, "comm_backend": "gloo", "init_process_group": True, "python": python}
    store = job.host(ElasticMaster, role_plan("w", ("module", "forked_torch.py"), **changes))
    host = forked(job, script="forked_torch.py", **{**changes, "replicas": 4, "group_size": 4})
    address = store.hello().address
    host.start(0, 1, 2, 3, store=address)
    assert {r.outcome.code for r in host.ends(4, timeout=60)} == {137}
    host.start(0, 1, 2, 3, incarnation=2, store=address, generation=1)
    assert [r.outcome.ok for r in host.ends(4, timeout=60)] == [True] * 4
    assert {(tmp_path / f"sum-{rank}-2").read_text() for rank in range(4)} == {"10.0"}


def template_of(pid: int) -> int:
    """Return the template at the root of a process; 0 where there is none."""
    above = 0
    while True:
        command = Path(f"/proc/{(pid := parent_of(pid))}/cmdline").read_text()
        if "forked_workers/server.py" in command:
            above = pid
        elif not command.startswith("dljob: supervisor of "):
            return above


def test_store_and_ranks_of_two_roles_have_torch_from_one_template(job, tmp_path):
    from dljob.runtime.worker.elastic_master import ElasticMaster

    changes = {"elastic": True, "comm_backend": "gloo"}
    store = job.host(ElasticMaster, role_plan("w", ("module", "forked.py"), **changes))
    found = []
    for name, rank in (("w", 0), ("w", 1), ("other", 0)):
        host = job.host(ForkHost, role_plan(name, ("module", "forked.py"), args=("stay",), replicas=2, **changes))
        host.start(rank, store=store.hello().address, generation=1)
        pid = host.ready()[0].pid
        template = template_of(pid)
        assert template
        # Its last word is the pid of its raylet.
        found.append((Path(f"/proc/{template}/cmdline").read_text().split("\0")[-2], template))
        assert "libtorch" in Path(f"/proc/{pid}/maps").read_text()
        assert "libtorch" not in Path(f"/proc/{host.hello().pid}/maps").read_text()
    assert len(set(found)) == len({raylet for raylet, _ in found})
    assert "libtorch" not in Path(f"/proc/{store.hello().pid}/maps").read_text()


def test_host_that_goes_takes_its_ranks_along(job):
    import ray

    host = forked(job, "stay")
    host.start(0, 1)
    pids = [r.pid for r in host.ready(2)]
    ray.kill(host.actor)
    eventually(lambda: not any(alive(pid) for pid in pids))


def test_killed_fork_server_is_reported_and_ends_the_host(job):
    host = forked(job, "stay")
    host.start(0)
    hello = host.hello()
    rank = host.ready()[0].pid
    os.kill(parent_of(parent_of(rank)), signal.SIGKILL)
    outcome = host.ends()[0].outcome
    cause = outcome_of_cause(outcome, classify(outcome))
    assert describe_failure("w/0", cause) == "w/0: Killed: its fork server was killed, exit code 137"
    eventually(lambda: not alive(hello.pid))
    assert not alive(rank)


def test_nothing_is_left_of_the_socket_of_a_killed_host(job, tmp_path):
    host = forked(job, "socket")
    host.start(0)
    assert host.ends()[0].outcome.ok
    name = (tmp_path / "socket").read_text()
    assert name.startswith("@dljob-")
    assert name in Path("/proc/net/unix").read_text()
    os.kill(host.hello().pid, signal.SIGKILL)
    eventually(lambda: name not in Path("/proc/net/unix").read_text())


def test_a_server_is_probed_keeps_its_port_and_is_drained(job, tmp_path):
    served = {
        "ports": (("http", 0),),
        "readiness": ProbePlan("http", port="http", path="/health", period_s=1),
        "liveness": ProbePlan("http", port="http", path="/health", period_s=1, failures=2, delay_s=5),
        "drain": DrainPlan(20, post=ProbePlan("post", port="http", path="/drain", timeout_s=20)),
    }
    host = forked(job, "serve", **served)
    host.start(0, 1)
    log = tmp_path / "logs" / "w-0.log"
    eventually(lambda: "GET /health" in log.read_text())
    assert host.heard == []
    (tmp_path / "well").touch()
    pids = {report.rank: report.pid for report in host.ready(2)}
    (port,) = listening(pids[0])
    os.kill(pids[0], signal.SIGKILL)
    host.ends()
    host.start(0, incarnation=2)
    assert listening(host.ready()[0].pid) == [port], "the same port, as nobody took it"
    host.stop(1)
    host.ends()
    assert (tmp_path / "drained-1").exists(), "it finished its requests before SIGTERM"
    late = forked(job, "serve", **{**served, "ports": (("http", port),)})
    late.start(0, incarnation=1)
    said = late.ends()[0].outcome
    assert said.error_type == "PortTakenError"
    assert f"port {port} (http) is taken by pid " in said.message
    (tmp_path / "ill").touch()
    ill = host.ends()[0].outcome
    assert ill.reason is Reason.UNHEALTHY
    assert "status 503, 'not well'" in ill.message


def listening(pid: int) -> list[int]:
    """Return the TCP ports on which a process listens."""
    found = {str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in found]


@pytest.mark.slow
def test_imports_are_done_before_the_fork_only_where_they_leave_nothing_behind(job, tmp_path):
    site, code = tmp_path / "site-packages", tmp_path / "code"
    site.mkdir()
    code.mkdir()
    # Under names of packages that may be imported before a fork.
    (site / "einops.py").write_text("import os\nPID = os.getpid()\n")
    (site / "tqdm.py").write_text("")
    (site / "regex.py").write_text("import threading, time\nthreading.Thread(target=time.sleep, args=(1,)).start()\n")
    (site / "evaluate.py").write_text("raise ValueError('no such device')\n")
    (site / "rich.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    say = "import os, sys\nopen(sys.argv[1], 'a').write('ranks\\n' if einops.PID == os.getpid() else 'servers\\n')\n"
    env, hosts = (("PYTHONPATH", str(site)),), {}
    for name in ("tqdm", "regex", "evaluate", "rich"):
        (code / f"{name}_run.py").write_text(f"import einops\nimport {name}\n{say}")
        script, args = str(code / f"{name}_run.py"), (str(tmp_path / name),)
        hosts[name] = job.host(ForkHost, role_plan("w", ("module", script), args=args, env=env, python=sys.executable))
        hosts[name].start(0)
    for name, importer in (("tqdm", "servers"), ("regex", "ranks")):
        assert hosts[name].ends()[0].outcome.ok
        assert (tmp_path / name).read_text() == f"{importer}\n", name
    assert hosts["evaluate"].ends()[0].outcome.error_type == "ValueError"
    crash = hosts["rich"].ends()[0].outcome
    assert (crash.code, "rich_run.py:2" in crash.frame) == (139, True)
    assert "before that, importing rich ended the fork server by SIGSEGV" in describe_root_cause(crash)

    host, script, said = hosts["tqdm"], code / "tqdm_run.py", tmp_path / "tqdm"
    script.write_text(f"import os\nos.environ['HF_HUB_OFFLINE'] = '1'\nimport einops\n{say}")
    host.start(0, incarnation=2)
    assert host.ends()[0].outcome.ok
    assert said.read_text() == "servers\nranks\n", "the edited script imports behind what it does first"
    again = "import sys, os\nif 'AGAIN' not in os.environ:\n    os.environ['AGAIN'] = '1'\n"
    again += "    os.execv(sys.executable, [sys.executable, *sys.argv])\n"
    script.write_text(f"import einops\n{again}{say}")
    host.start(0, incarnation=3)
    assert host.ends()[0].outcome.ok
    assert said.read_text() == "servers\nranks\nranks\n", "a program that replaces itself has nothing imported"
