"""A rank's life, phase by phase, without Ray: what is fatal, what may be tried again, what user code gets."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
from life_kit import Life

from dljob import CallError, CallTimeoutError, JobEndingError, PeerLostError, RemoteError, Worker, current_worker
from dljob.errors import ErrorOrigin
from dljob.master.state.views import Reason


class Recorder(Worker):
    def __init__(self):
        self.steps = ["__init__"]

    def self_check(self):
        self.steps.append("self_check")
        return True

    def setup(self):
        self.steps.append("setup")

    def on_restart(self, reason):
        self.steps.append(f"on_restart:{reason}")

    def run(self):
        self.steps.append("run")
        return self.steps


def test_hooks_run_in_order():
    assert json.loads(Life(Recorder).live().result) == ["__init__", "self_check", "setup", "run"]


def test_on_restart_comes_after_setup_with_the_reason():
    steps = json.loads(Life(Recorder, restart_reason="NodeLost").live().result)
    assert steps == ["__init__", "self_check", "setup", "on_restart:NodeLost", "run"]


def test_process_group_is_joined_before_init_and_left_after_a_good_end():
    steps = []

    class Joined:
        def __init__(self):
            steps.append("init")

        def run(self):
            steps.append("run")

    Life(Joined, join=lambda: steps.append("join"), leave=lambda: steps.append("leave")).live()
    assert steps == ["join", "init", "run", "leave"]


def test_process_group_is_not_left_after_a_bad_end():
    steps = []

    def bad():
        raise RuntimeError

    Life(bad, join=lambda: None, leave=lambda: steps.append("leave")).live()
    assert steps == []


def test_bad_import_is_found_before_the_group_is_waited_for():
    joined = []
    life = Life(3, join=lambda: joined.append(1))
    assert life.live().fatal
    assert joined == []


@pytest.mark.parametrize("phase", ["__init__", "setup"])
@pytest.mark.parametrize(
    ("error", "fatal"),
    [
        (ValueError("x"), True),
        (RuntimeError("shapes differ"), True),
        (ConnectionError("x"), False),
        (TimeoutError("x"), False),
        (MemoryError(), False),
        (CallTimeoutError("x", role="r", rank=0), False),
    ],
)
def test_only_an_error_that_must_repeat_is_fatal(phase, error, fatal):
    class Bad(Worker):
        def __init__(self):
            if phase == "__init__":
                raise error

        def setup(self):
            raise error

    outcome = Life(Bad).live()
    assert (outcome.ok, outcome.fatal) == (False, fatal)
    assert outcome.message.endswith(f"(in {phase})")


@pytest.mark.parametrize(("joined", "fatal"), [(True, False), (False, True)])
def test_a_peer_that_died_while_we_set_up_is_not_our_fault(joined, fatal):
    class Bad(Worker):
        def setup(self):
            raise RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:1234")

    assert Life(Bad, join=(lambda: None) if joined else None).live().fatal is fatal


def test_exception_in_run_or_on_restart_may_be_tried_again():
    class Bad(Worker):
        def run(self):
            raise ValueError

    class BadRestart(Worker):
        def on_restart(self, reason):
            raise ValueError

    assert not Life(Bad).live().fatal
    assert not Life(BadRestart, restart_reason="x").live().fatal


@pytest.mark.parametrize(
    "words", ["signal only works in main thread of the main interpreter", "set_wakeup_fd only works in main thread"]
)
@pytest.mark.parametrize("kind", [ValueError, RuntimeError])
def test_a_handler_of_a_signal_is_refused_with_what_to_do_instead(kind, words):
    class Handles(Worker):
        def setup(self):
            raise kind(words)

    outcome = Life(Handles).live()
    assert outcome.message.startswith(f"{words} (in setup); a class or function runs in a thread beside Ray")
    assert "current_worker().stopping instead of SIGTERM" in outcome.message


def test_sys_exit_in_setup_is_an_exit_code_and_not_fatal():
    class Quits(Worker):
        def setup(self):
            sys.exit(4)

    outcome = Life(Quits).live()
    assert (outcome.ok, outcome.code, outcome.fatal) == (False, 4, False)


def test_an_unfit_worker_ends_its_rank_and_may_be_tried_again():
    class Unfit(Worker):
        def self_check(self):
            return False

    outcome = Life(Unfit).live()
    assert (outcome.reason, outcome.fatal, outcome.detail) == (Reason.UNKNOWN, False, "")


def test_context_is_handed_to_who_asks_for_it():
    assert json.loads(Life(lambda worker: worker.name).live().result) == "w/0"

    class Asks:
        def __init__(self, worker):
            self.worker = worker

        def run(self):
            return self.worker is current_worker()

    assert json.loads(Life(Asks).live().result) is True


def test_class_without_run_serves_until_it_is_stopped():
    class Serves:
        pass

    life = Life(Serves)
    life.context.stopping.order("enough")
    assert life.live().ok
    assert life.steps == ["ready"]


def test_a_mesh_that_some_size_of_a_fleet_does_not_fit_is_refused():
    class Meshed(Worker):
        def setup(self):
            self.mesh = {"dp": -1, "tp": 2}

        def run(self):
            pass

    bounds = {"min_replicas": 2, "max_replicas": 4}
    life = Life(Meshed, **bounds)
    ended = life.live()
    assert (ended.ok, ended.fatal, ended.error_type) == (False, True, "MeshError")
    assert "set replicasPerGroup: 2" in ended.message
    assert "ready" not in life.steps
    assert Life(Meshed, **bounds, group_size=2).live().ok
    assert Life(Meshed, **bounds, elastic=True).live().ok, "a world starts anew, with a mesh of its new size"
    assert Life(Meshed).live().ok


def test_driver_must_be_able_to_end():
    assert "would never end" in Life(Worker, driver=True).live().message
    assert Life(Recorder, driver=True).live().ok


def test_coroutines_are_awaited():
    class Async(Worker):
        async def setup(self):
            await asyncio.sleep(0)
            self.there = True

        async def run(self):
            return self.there

    assert json.loads(Life(Async).live().result) is True


class Endings:
    """What a call raises in a rank whose job is ending."""

    there = JobEndingError("reward/0.score: the job is ending: Succeeded", role="reward", rank=0)
    origin = ErrorOrigin("reward/0", 1, "JobEndingError", "judge/0.judge: the job is ending: Succeeded", "")
    beyond = RemoteError(
        "reward/0.score raised JobEndingError", role="reward", rank=0, remote_traceback="", origin=origin
    )
    lost = PeerLostError("reward/0.score", role="reward", rank=0, incarnation=1)


@pytest.mark.parametrize("error", [Endings.there, Endings.beyond], ids=["its call", "a call of its callee"])
@pytest.mark.parametrize("wraps", [False, True])
def test_job_that_ends_leaves_no_traceback_of_a_call(capsys, error, wraps):
    def work():
        if not wraps:
            raise error
        try:
            raise error
        except CallError as cause:
            raise RuntimeError("no reward") from cause

    ended = Life(work).live()
    assert (ended.ok, ended.message) == (True, "its call found that the job is ending")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("is_stopping", [False, True])
def test_loss_of_a_callee_is_printed_unless_the_rank_is_to_stop(capsys, is_stopping):
    def work():
        if is_stopping:
            current_worker().stopping.order("the job ends")
        raise Endings.lost

    assert not Life(work).live().ok
    assert ("PeerLostError" in capsys.readouterr().out) is not is_stopping


def test_shutdown_is_called_once_and_its_error_is_told_with_the_result(capsys):
    calls = []

    class Bad(Worker):
        def run(self):
            return 1

        def shutdown(self):
            calls.append(1)
            raise ValueError("in shutdown")

    life = Life(Bad)
    ended = life.live()
    assert (ended.ok, ended.code, ended.result) == (True, 0, "1")
    assert (ended.error_type, ended.message) == ("ValueError", "in shutdown (in shutdown)")
    assert ended.frame.endswith("in shutdown")
    life.lifecycle.shutdown()
    assert calls == [1]
    assert "in shutdown" in capsys.readouterr().err


def test_a_class_may_serve_calls_after_its_run():
    class Serves(Recorder):
        serves_after_run = True

    assert [Life(kind, driver=True).live().serves for kind in (Recorder, Serves)] == [False, True]


@pytest.mark.parametrize(("driver", "rank", "ok"), [(True, 0, False), (True, 1, True), (False, 0, True)])
def test_only_the_jobs_own_result_must_be_json(driver, rank, ok):
    outcome = Life(lambda: {1, 2}, driver=driver, rank=rank).live()
    assert outcome.ok is ok
    assert outcome.result == ""


def test_result_that_is_too_large_says_where_to_put_it():
    outcome = Life(lambda: "x" * 9000, driver=True).live()
    assert "job_dir" in outcome.message
    assert outcome.fatal
