"""Every way to die: each ends the process, breaks the sentinel or is reported, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from host_kit import HostHandle, Job, alive, eventually
from role_kit import role_plan

from dljob.master.state.views import Outcome, Reason
from dljob.runtime.process.guard import TICK_S, EndCode
from dljob.runtime.worker.thread_host import ThreadHost

pytestmark = pytest.mark.ray


@pytest.fixture
def job(ray_here, tmp_path) -> Iterator[Job]:
    made = Job(str(tmp_path))
    yield made
    made.close()


def started(job: Job, name: str, **changes) -> HostHandle:
    host = job.host(ThreadHost, role_plan("w", ("class", f"people.{name}"), **changes))
    host.start(0)
    return host


def end_of(job: Job, name: str, **changes) -> Outcome:
    return started(job, name, **changes).ends()[0].outcome


def written(file: Path) -> str:
    """What is in a file; it is there before its text is."""
    return file.read_text() if file.exists() else ""


def gone(pid: int) -> None:
    eventually(lambda: not alive(pid))


# -- the user's code ends


@pytest.mark.parametrize(("code", "ok", "said"), [(0, True, 0), (3, False, 3), (None, True, 0), ("why", False, 1)])
def test_sys_exit_is_an_exit_code(job, code, ok, said):
    outcome = end_of(job, "exits", config={"code": code})
    assert (outcome.ok, outcome.code) == (ok, said)
    if code == "why":
        assert "why" in outcome.message


def test_exception_names_the_users_frame(job):
    outcome = end_of(job, "raises")
    assert (outcome.reason, outcome.code, outcome.error_type) == (Reason.USER_ERROR, 1, "ZeroDivisionError")
    assert outcome.frame.startswith("people.py:")
    assert outcome.frame.endswith("in raises")
    assert not outcome.fatal
    assert "lifecycle.py" not in outcome.detail


def test_keyboard_interrupt_is_an_end_like_others(job):
    assert end_of(job, "interrupts_itself").code == 130


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("no_such", "ImportError", "people has no 'no_such'"),
        ("not_callable", "TypeError", "is a int, which cannot be called"),
        ("NeedsTwo", "TypeError", "takes no argument, or one"),
        ("RunNeedsOne", "TypeError", "run() is called without arguments"),
        ("BadInit", "ValueError", "no model here"),
        ("BadSetup", "LookupError", "no data here"),
    ],
)
def test_an_error_that_would_repeat_is_fatal(job, name, kind, words):
    outcome = end_of(job, name)
    assert (outcome.ok, outcome.fatal, outcome.error_type) == (False, True, kind)
    assert words in outcome.message


def test_driver_without_run_would_never_end(job):
    assert "would never end" in end_of(job, "NoRun", driver=True).message


def test_failed_import_names_the_users_line(job):
    host = job.host(ThreadHost, role_plan("w", ("class", "people_broken.main")))
    host.start(0)
    outcome = host.ends()[0].outcome
    assert (outcome.fatal, outcome.reason) == (True, Reason.IMPORT_ERROR)
    assert outcome.frame == "people_broken.py:1 in <module>"


def test_import_that_takes_signals_is_told_where_they_can_be_taken(job):
    host = job.host(ThreadHost, role_plan("w", ("class", "people_signals.main")))
    host.start(0)
    outcome = host.ends()[0].outcome
    assert (outcome.fatal, outcome.reason, outcome.error_type) == (True, Reason.USER_ERROR, "ValueError")
    assert outcome.frame == "people_signals.py:5 in <module>"
    assert outcome.message.startswith("signal only works in main thread")
    assert "look at current_worker().stopping instead of SIGTERM, or run a script" in outcome.message


def test_unserialisable_result_of_a_driver_is_refused(job):
    outcome = end_of(job, "unserialisable", driver=True)
    assert (outcome.ok, outcome.fatal, outcome.error_type) == (False, True, "ResultError")
    assert "returned a object that is no JSON" in outcome.message


def test_unserialisable_result_of_others_is_dropped_and_said_in_the_log(job, tmp_path):
    assert end_of(job, "unserialisable").ok
    assert "no JSON" in (tmp_path / "logs" / "w-0.log").read_text()


def test_ray_shutdown_in_user_code_does_no_harm(job):
    assert json.loads(end_of(job, "shuts_ray_down").result) == "went on"


def test_exit_actor_in_user_code_is_an_end_like_sys_exit(job):
    host = started(job, "leaves_through_ray")
    assert host.ends()[0].outcome.code == 0
    pid = host.hello().pid
    host.actor.leave.remote(0)
    gone(pid)


# -- the process ends


@pytest.mark.parametrize("name", ["hard_exit", "segfaults"])
def test_process_that_vanishes_breaks_the_sentinel(job, name):
    host = job.host(ThreadHost, role_plan("w", ("class", f"people.{name}")))
    pid = host.hello().pid
    sentinel = host.sentinel()
    host.order_start(0)  # the process may be gone before it has answered this
    assert sentinel.broke.wait(20)
    assert "Died" in type(sentinel.error).__name__
    gone(pid)


@pytest.mark.parametrize("how", ["SIGKILL", "ray.kill"])
def test_killed_process_breaks_the_sentinel(job, how):
    import ray

    host = started(job, "sleeps")
    pid = host.ready()[0].pid
    sentinel = host.sentinel()
    if how == "SIGKILL":
        os.kill(pid, signal.SIGKILL)
    else:
        ray.kill(host.actor)
    assert sentinel.broke.wait(20)
    gone(pid)


def test_sigterm_lets_user_code_end_and_is_no_good_end(job, tmp_path):
    host = started(job, "waits")
    pid = host.ready()[0].pid
    os.kill(pid, signal.SIGTERM)
    outcome = host.ends()[0].outcome
    assert (outcome.ok, outcome.code, outcome.reason) == (False, 143, Reason.UNKNOWN)
    assert host.sentinel().broke.wait(20)
    gone(pid)
    assert f"ends with code {int(EndCode.SIGTERM)}" in (tmp_path / "logs" / "w-0.log").read_text()


def test_sigterm_ends_user_code_that_does_not_listen(job):
    host = started(job, "sleeps")
    pid = host.ready()[0].pid
    os.kill(pid, signal.SIGTERM)
    assert host.ends()[0].outcome.code == 143
    gone(pid)


def test_sigterm_ends_an_idle_spare(job):
    host = job.host(ThreadHost, role_plan("w", ("class", "people.answer")))
    pid = host.hello().pid
    os.kill(pid, signal.SIGTERM)
    gone(pid)


def test_stop_ends_user_code_that_does_not_listen(job):
    host = started(job, "sleeps")
    pid = host.ready()[0].pid
    host.stop(0, grace_s=0.2)
    outcome = host.ends()[0].outcome
    assert "did not end within 0.2 s" in outcome.message
    gone(pid)


def test_stop_ends_a_function_that_serves_for_ever_in_order(job):
    host = started(job, "serves")
    host.ready()
    host.stop(0, grace_s=600.0)
    outcome = host.ends()[0].outcome
    assert (outcome.ok, outcome.message) == (True, "interrupted, as ordered (the test says so)")


def test_leave_answers_and_goes_although_a_call_is_pending(job):
    import ray

    host = started(job, "sleeps")
    pid = host.ready()[0].pid
    sentinel = host.sentinel()
    with suppress(ray.exceptions.ActorDiedError):  # on a busy machine it is gone before Ray has sent its answer
        assert ray.get(host.actor.leave.remote(0), timeout=20) is None
    assert sentinel.broke.wait(20)
    gone(pid)


# -- what is around it ends


def node_is_dead(node_id: str) -> bool:
    """Whether Ray has noticed, so that it starts nothing there any more."""
    import ray

    return not any(row["Alive"] for row in ray.nodes() if row["NodeID"] == node_id)


def test_raylet_that_dies_takes_its_workers_along(ray_here, job):
    node = ray_here.add_node(resources={"mortal": 1})
    try:
        role = role_plan("w", ("class", "people.sleeps"))
        host = job.host(ThreadHost, role, resources={"mortal": 0.1})
        host.start(0)
        pid = host.ready()[0].pid
        ray_here.kill_raylet(node)
        gone(pid)
    finally:
        ray_here.remove_node(node)
        eventually(lambda: node_is_dead(node.node_id))


def test_lease_that_runs_out_ends_the_process(ray_here, tmp_path):
    import ray

    job = Job(str(tmp_path), lease_s=1.0)
    try:
        host = started(job, "counts")
        pid = host.ready()[0].pid
        ray.kill(job.master)
        gone(pid)
        assert "the lease is over" in (tmp_path / "logs" / "w-0.log").read_text()
    finally:
        job.close()


def stands(pid: int) -> bool:
    """Whether all threads of a process are stopped: on a full machine they run on until one has taken the signal."""
    try:
        stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:  # a thread ended as it was looked at
        return False
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def test_thawed_process_whose_lease_ran_out_does_no_more(ray_here, tmp_path):
    import time

    job = Job(str(tmp_path), lease_s=1.5)
    try:
        host = started(job, "counts", config={"step_s": TICK_S})  # how late it may be noticed
        pid = host.ready()[0].pid
        steps = tmp_path / "steps"
        eventually(lambda: written(steps))
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: stands(pid))
        before = len(steps.read_text().split())
        end = time.monotonic() + 2.0
        eventually(lambda: time.monotonic() > end)
        os.kill(pid, signal.SIGCONT)
        gone(pid)
        assert len(steps.read_text().split()) - before <= 2
    finally:
        job.close()


def test_host_that_nobody_knows_ends_itself(job, tmp_path):
    import ray

    host = started(job, "sleeps")
    pid = host.ready()[0].pid
    ray.get(job.master.set_known.remote(False))
    gone(pid)
    assert "does not know" in (tmp_path / "logs" / "w-0.log").read_text()


# -- what is below it ends


def test_fork_left_behind_does_not_hide_the_death_of_its_parent(job, tmp_path):
    host = started(job, "forks_and_waits")
    pid = host.ready()[0].pid
    fork = eventually(lambda: written(tmp_path / "fork.pid"))
    sentinel = host.sentinel()
    os.kill(pid, signal.SIGKILL)
    assert sentinel.broke.wait(20)
    gone(int(fork))


def test_daemon_left_behind_by_a_rank_that_is_told_to_end_goes_with_its_host_without_a_word(job, tmp_path):
    import ray

    host = started(job, "leaves_a_daemon", config={"waits": True})
    daemon = int(eventually(lambda: written(tmp_path / "fork.pid")))
    host.stop(0)
    outcome = host.ends()[0].outcome
    assert (outcome.ok, outcome.message) == (True, "")
    ray.get(host.actor.leave.remote(0), timeout=20)
    gone(daemon)


def test_forked_child_that_returns_from_the_entrypoint_is_not_the_rank(job):
    host = started(job, "fork_comes_back")
    assert [json.loads(r.outcome.result) for r in host.ends()] == ["parent"]
