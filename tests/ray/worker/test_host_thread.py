"""The thread host: starts what it is told to, says how it ended, stops when it is asked to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest
from host_kit import Job, alive, eventually
from role_kit import role_plan

from dljob.master.state.views import Reason
from dljob.plan.serving import ProbePlan
from dljob.runtime.worker.thread_host import ThreadHost

pytestmark = pytest.mark.ray


@pytest.fixture
def job(ray_here, tmp_path) -> Iterator[Job]:
    made = Job(str(tmp_path))
    yield made
    made.close()


def run(job: Job, name: str, **changes):
    host = job.host(ThreadHost, role_plan("w", ("class", f"people.{name}"), **changes))
    host.start(0)
    return host


def test_function_runs_and_its_result_is_reported(job):
    outcome = run(job, "answer").ends()[0].outcome
    assert outcome.ok
    assert outcome.code == 0
    assert json.loads(outcome.result) == {"answer": 42}


def test_what_a_function_leaves_running_at_a_good_end_is_killed_and_named(job, tmp_path):
    outcome = run(job, "leaves_a_daemon").ends()[0].outcome
    pid = int((tmp_path / "fork.pid").read_text())
    words = f"1 process still ran after its end and was killed: sleep 1000 (pid {pid})"
    assert (outcome.ok, outcome.message) == (True, words)
    assert f"[dljob] {words}\n" in (tmp_path / "logs" / "w-0.log").read_text()
    assert not alive(pid)


def test_rank_knows_where_it_is(job, tmp_path):
    host = run(job, "facts", args=("--lr", "0.1"), config={"a": 1}, env=(("MY_VAR", "x"),))
    said = json.loads(host.ends()[0].outcome.result)
    assert said["name"] == "w/0"
    assert said["life"] == [3, 1, ""]
    assert said["argv"] == ["people.facts", "--lr", "0.1"]
    assert said["cwd"].endswith("usercode")
    assert said["config"] == {"a": 1}
    assert said["env"]["DLJOB_DIR"] == str(tmp_path)
    assert said["env"]["MY_VAR"] == "x"
    assert not said["torch"]
    assert said["own_kb"] < 100_000  # of its own: how much of Ray's files is mapped beside is the kernel's affair


def test_devices_of_the_order_are_what_the_rank_sees(job):
    host = job.host(ThreadHost, role_plan("w", ("class", "people.facts")))
    host.start(0, devices=(("NPU", ("2",)),))
    assert json.loads(host.ends()[0].outcome.result)["env"]["ASCEND_RT_VISIBLE_DEVICES"] == "2"


def test_hooks_run_in_order(job, tmp_path):
    host = job.host(ThreadHost, role_plan("w", ("class", "people.Hooked")))
    host.start(0, incarnation=2, reason="SIGKILL")
    outcome = host.ends()[0].outcome
    assert json.loads(outcome.result) == ["__init__", "self_check", "setup", "on_restart SIGKILL", "run", "shutdown"]
    assert "on_restart SIGKILL run shutdown" in (tmp_path / "logs" / "w-0.log").read_text()


def test_unfit_worker_is_not_the_users_error(job):
    outcome = run(job, "Hooked", config={"unfit": True}).ends()[0].outcome
    assert (outcome.ok, outcome.reason, outcome.fatal) == (False, Reason.UNKNOWN, False)
    assert "self_check() returned False" in outcome.message


def test_server_serves_until_it_is_stopped(job, tmp_path):
    host = run(job, "Server")
    assert host.ready()[0].outcome is None
    host.stop(0)
    assert host.ends()[0].outcome.ok
    assert "shutdown, because the test says so" in (tmp_path / "logs" / "w-0.log").read_text()


def test_a_class_that_serves_is_ready_by_its_probe_and_ends_by_it(job, tmp_path):
    """Its host is its process: a liveness probe that fails ends both."""
    probe = ProbePlan("http", port="http", path="/well", period_s=1)
    served = {"ports": (("http", 0),), "readiness": probe, "liveness": replace(probe, path="/alive")}
    (tmp_path / "alive").touch()
    host = run(job, "Engine", **served)
    eventually((tmp_path / "asked").exists)
    assert host.heard == []
    (tmp_path / "well").touch()
    pid = host.ready()[0].pid
    (news,) = (report.serves for report in host.heard if report.serves and report.serves.ready)
    ((name, address),) = news.addresses
    with urlopen(f"http://{address}/well") as answer:
        assert (name, answer.read()) == ("http", b"well")
    (tmp_path / "alive").unlink()
    ended = host.ends()[0]
    assert (ended.outcome.ok, ended.outcome.reason, ended.pid) == (False, Reason.UNHEALTHY, pid)
    assert "status 503, 'not well'" in ended.outcome.message
    eventually(lambda: not alive(pid))  # a thread cannot be killed


def test_progress_reaches_the_master(job):
    import ray

    host = run(job, "steps")
    assert host.ends()[0].outcome.step == 7
    eventually(lambda: ray.get(job.master.steps.remote()).get(0) == (1, 7, {"loss": 0.5}))


def test_start_is_idempotent_and_a_second_rank_is_refused(job):
    import ray

    host = run(job, "waits")
    pid = host.ready()[0].pid
    host.start(0)
    with pytest.raises(ray.exceptions.RayTaskError, match="cannot become rank 1"):
        host.start(1)
    host.stop(0)
    ended = host.ends()[0]
    assert ended.pid == pid
    assert json.loads(ended.outcome.result) == "stopped: the test says so"


def test_reports_are_kept_until_acknowledged_and_an_older_master_is_not_heard(job):
    import ray

    host = run(job, "waits")
    first = host.actor.watch.remote(1, 0)
    assert [r.outcome for r in ray.get(first, timeout=20)] == [None]
    assert [r.outcome for r in ray.get(host.actor.watch.remote(1, 0), timeout=20)] == [None]
    pending = host.actor.watch.remote(1, 1)
    newer = host.actor.watch.remote(2, 1)
    assert ray.get(pending, timeout=60) == ()
    with pytest.raises(ray.exceptions.RayTaskError, match="epoch 2 commands"):
        host.stop(0)
    host.stop(0, epoch=2)
    assert [r.outcome.ok for r in ray.get(newer, timeout=60)] == [True]


def test_log_file_is_private_and_named_after_the_rank(job, tmp_path):
    run(job, "raises").ends()
    log: Path = tmp_path / "logs" / "w-0.log"
    assert "ZeroDivisionError" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0
