"""`dljob run` from its start to each of its ends: nothing may be left of its Ray."""

from __future__ import annotations

import json
import os
import select
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from cli_kit import Place, Running, child, using
from host_kit import eventually

from dljob.cli.runner import SIGNALS
from dljob.runtime.backend import sweeper
from dljob.telemetry.remedies import CauseKind

pytestmark = [pytest.mark.ray, pytest.mark.timeout(150)]

NOTHING = {"inProcess": 0, "process": 0, "roleGroup": 0, "role": 0, "job": 0, "node": 0, "master": 0}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def gone(place: Place, scratch: Path) -> bool:
    return not scratch.exists() and using(scratch) == []


def gcs_of(runner: int) -> int | None:
    with suppress(ValueError):  # not yet
        return child(runner, "/gcs_server ")
    return None


def freeze_start(runner: int) -> Path:
    """Stop the GCS of a Ray that is being started; return the folder of that Ray."""
    gcs = eventually(lambda: gcs_of(runner))
    variables = Path(f"/proc/{gcs}/environ").read_text().split("\0")
    (scratch,) = (Path(line.split("=")[1]) for line in variables if line.startswith(sweeper.MARK))
    eventually(lambda: list(scratch.glob("n0/session_2*/gcs_server_port_*")))
    os.kill(gcs, signal.SIGSTOP)  # the head's thread waits for its answer, and for a minute after its end
    return scratch


def running(run: Running) -> None:
    run.until_all("Running", "step ")


def test_run_prints_the_result_of_a_job_that_succeeds(place: Place) -> None:
    done = place.dljob("run", place.job("quick", replicas=2))
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert result.pop("seconds") > 0
    assert result == {"answer": 42, "cwd": str(place.folder), "restarts": NOTHING}
    assert "Succeeded after" in done.stderr
    assert "step 1  reward 0.5" in done.stderr
    assert {"[worker/0] quick 0", "[worker/1] quick 1"} <= set(done.stderr.splitlines())
    assert "\x1b" not in done.stderr
    assert gone(place, place.scratch())
    assert place.entry()["folder"].joinpath("job.json").stat().st_mode & 0o777 == 0o600
    shown = place.dljob("status", "job", "-o", "json")
    assert json.loads(shown.stdout)["phase"] == "Succeeded"
    assert {"[worker/0] quick 0", "[worker/1] quick 1"} <= set(place.dljob("logs", "job").stdout.splitlines())


def test_an_exception_of_the_user_is_the_first_cause(place: Place) -> None:
    done = place.dljob("run", place.job("bad"), "-o", "yaml")
    assert done.returncode == 1
    assert "phase: Failed" in done.stdout
    assert "ValueError: no such data set: /data/x" in done.stdout
    assert "ValueError: no such data set: /data/x" in done.stderr
    last = done.stderr[done.stderr.index("error: job job failed") :].splitlines()
    assert last[1].startswith("worker/0 failed first, in its incarnation ")
    assert {"  Traceback (most recent call last):", "  ValueError: no such data set: /data/x"} <= set(last)
    assert any(f'File "{place.folder}/user.py", line ' in line and line.endswith("in bad") for line in last)
    assert last[-2] == "all of it: dljob logs job --role worker --rank 0"
    assert str(place.entry()["folder"]) in done.stderr
    assert gone(place, place.scratch())


@pytest.mark.parametrize("variable", ["PYTHONPATH", "PYTHONHOME"])
def test_a_role_with_whose_variables_no_worker_of_ray_starts_ends_with_that(place: Place, variable: str) -> None:
    """Ray starts such a worker again and again; only its raylet's log has the error."""
    (place.folder / "hides").mkdir()
    (place.folder / "hides" / "msgpack.py").write_text("raise RuntimeError('made for another Python')\n")
    env = f", env: [{{name: {variable}, value: {place.folder / 'hides'}}}]"
    done = place.dljob("run", place.job("quick", role=env))
    assert done.returncode == 1, done.stdout + done.stderr
    why = place.dljob("why", "job").stdout
    assert f"a worker of Ray cannot start with {place.folder / 'hides'} " in why
    assert f"the role's {variable}" in why
    assert "restarts: none" in done.stdout + done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_job_goes_on_from_its_checkpoint_after_its_command_was_ended(number: signal.Signals, place: Place) -> None:
    file = place.job("saving")
    with place.running("run", file) as run:
        run.until(lambda line: line == "[worker/0] saved")
        folder, scratch = place.entry()["folder"], place.scratch()
        run.process.send_signal(number)
        code, _, errors = run.end()
    if number == signal.SIGINT:
        assert (code, errors.splitlines()[-1]) == (
            130,
            "to go on from its last checkpoint: the same command with --resume",
        )
    assert gone(place, scratch)
    done = place.dljob("run", file, "--resume")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["begun_after"] == 3
    assert f"attempt 2 of job job ({folder.name[-8:]}) goes on from step 3" in done.stderr
    assert (folder / "attempts" / "1" / "logs" / "worker-0.log").is_file()
    again = place.dljob("run", file, "--resume")
    assert (again.returncode, "has succeeded: nothing is left to go on with" in again.stderr) == (2, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_process_group_stops_the_job_in_order(number: signal.Signals, place: Place) -> None:
    with place.running("run", place.job("patient", replicas=2), within=["setsid"]) as run:
        running(run)
        scratch = place.scratch()
        os.killpg(run.process.pid, number)
        if number == signal.SIGTERM:  # as `timeout` does: to its child, and to the group
            run.process.send_signal(number)
        code, out, errors = run.end()
    assert code == 130, errors
    assert out == ""
    folder = place.entry()["folder"]
    assert f"the journal is in {folder / 'journal'}" in errors
    assert "--resume" not in errors, "it has no checkpoint"
    assert "Traceback" not in errors
    status = json.loads((folder / "status.json").read_text())
    assert (status["phase"], status["reason"]) == ("Stopped", "StoppedByUser")
    assert status["message"] == f"stopped by {SIGNALS[number.name]}"
    assert "job job Stopped after" in errors
    assert gone(place, scratch)


def test_an_interruption_while_ray_starts_waits_for_no_gcs_that_is_dead(place: Place) -> None:
    with place.running("run", place.job("patient"), within=["setsid"]) as run:
        scratch = freeze_start(run.process.pid)
        os.killpg(run.process.pid, signal.SIGINT)
        wait_for_end(os.pidfd_open(run.process.pid))
        code, _, errors = run.end()
    assert (code, errors.splitlines()[-1]) == (130, "interrupted before the job began")
    assert gone(place, scratch)


@pytest.mark.parametrize("is_detached", [False, True])
def test_a_job_that_starts_is_seen_and_stopped_from_another_terminal(place: Place, *, is_detached: bool) -> None:
    file = place.job("patient")
    with place.running("run", file, *(["--detach"] if is_detached else [])) as run:
        (start,) = eventually(lambda: list(place.home.glob("jobs/.starting-*/status.json")))
        runner = json.loads(start.with_name("job.json").read_text())["runner"]
        scratch = freeze_start(runner)
        (status,) = json.loads(place.dljob("status", "-o", "json").stdout)
        assert (status["name"], status["phase"]) == ("job", "Starting")
        assert status["message"].startswith("starting Ray")
        refused = place.dljob("run", file)
        assert (refused.returncode, "starts a job job" in refused.stderr) == (2, True), refused.stderr
        stopped = place.dljob("stop", "job")
        assert stopped.returncode == 0, stopped.stderr
        code, _, errors = run.end()
    assert (code, errors.splitlines()[-1]) == (130, "interrupted before the job began")
    assert place.dljob("status").stdout == ""
    assert not list(place.home.glob("jobs/*/job.json"))
    assert gone(place, scratch)


def test_a_job_that_is_interrupted_while_it_starts_was_stopped_and_is_not_lost(place: Place) -> None:
    with place.running("run", place.job("patient")) as run:
        run.until_all("on 1 raylet")
        run.process.send_signal(signal.SIGTERM)
        code, _, errors = run.end()
    folder = place.entry()["folder"]
    assert (code, errors.splitlines()[-1]) == (130, f"interrupted while the job started; its folder: {folder}")
    status = json.loads((folder / "status.json").read_text())
    assert (status["phase"], status["reason"]) == ("Stopped", "StoppedByUser")
    assert status["message"] == f"stopped by {SIGNALS['SIGTERM']} while it started"
    assert gone(place, place.scratch())


def test_a_runner_that_is_killed_leaves_nothing_but_its_folder(place: Place) -> None:
    with place.running("run", place.job("patient")) as run:
        running(run)
        scratch = place.scratch()
        sweeper = os.pidfd_open(child(run.process.pid, "sweeper.py"))
        run.process.kill()
        run.process.wait()
        wait_for_end(sweeper)
    assert gone(place, scratch)
    assert "Lost" in place.dljob("status", "job").stdout
    assert place.dljob("stop", "job").returncode == 3


def test_a_detached_run_of_an_init_job_goes_on_and_is_visible_to_other_commands(place: Place) -> None:
    folder = place.folder / "first"
    assert place.dljob("init", folder).returncode == 0
    begun = place.dljob("run", folder / "dljob.yaml", "--detach")
    assert begun.returncode == 0, begun.stderr
    assert json.loads(begun.stdout)["name"] == "first"
    runner, scratch = os.pidfd_open(place.entry("first")["runner"]), place.scratch("first")
    page = place.dljob("describe", "first")
    assert page.returncode == 0, page.stderr
    assert "its own at" in page.stdout
    assert "train.main" in page.stdout
    followed = place.dljob("logs", "first", "--follow")
    assert followed.returncode == 0, followed.stderr
    lines = set(followed.stdout.splitlines())
    assert {f"[worker/{rank}] rank {rank} of 2 begins after step 0" for rank in (0, 1)} <= lines
    assert "[worker/1] step 20: loss 0.0115" in lines
    shown = place.dljob("status", "first", "-o", "json")
    assert (json.loads(shown.stdout)["phase"], json.loads(shown.stdout)["progress"]["step"]) == ("Succeeded", 20)
    wait_for_end(runner)
    assert gone(place, scratch)


def wait_for_end(pidfd: int, timeout: float = 20) -> None:
    ready, _, _ = select.select([pidfd], [], [], timeout)
    os.close(pidfd)
    assert ready, "it did not end"


@pytest.mark.parametrize("victim", ["gcs_server", "raylet"])
def test_run_tells_how_its_ray_ended_and_leaves_a_final_status(victim: str, place: Place) -> None:
    with place.running("run", place.job("patient")) as run:
        running(run)
        scratch = place.scratch()
        if victim == "raylet":  # that of a node is replaced, and so is the agent for runtime environments
            agent = child(run.process.pid, "ray::RuntimeEnvAgent")
            os.kill(agent, signal.SIGKILL)
            os.kill(child(run.process.pid, "/raylet ", "/n1/raylet"), signal.SIGKILL)
            run.until_all("1 raylet of this Ray ended; starting as many", "Recovered")
            assert child(run.process.pid, "ray::RuntimeEnvAgent") != agent
        pid = child(run.process.pid, f"/{victim} ", *(["--head"] if victim == "raylet" else []))
        os.kill(pid, signal.SIGKILL)
        code, out, errors = run.end()
    assert code == 4, errors
    assert out == ""
    cause = f"the {victim} (pid {pid}) of the head was ended by SIGKILL from outside"
    assert f"Ray ended before the job: {cause}" in errors
    status = json.loads(place.dljob("status", "job", "-o", "json").stdout)
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "RayLost", cause)
    why = place.dljob("why", "job")
    assert (why.returncode, f"RayLost: {cause}" in why.stdout) == (CauseKind.NODE, True)
    assert (place.entry()["folder"] / "ray-logs" / f"head-{victim}.out").stat().st_size, "Ray's own folder is gone"
    assert gone(place, scratch)


def test_two_runs_at_once_have_a_ray_each(place: Place) -> None:
    with (
        place.running("run", place.job("patient", name="one")) as one,
        place.running("run", place.job("patient", name="two")) as two,
    ):
        running(one)
        running(two)
        assert place.entry("one")["address"] != place.entry("two")["address"]
        for name in ("one", "two"):
            (place.entry(name)["folder"] / "enough").touch()
        ends = [run.end() for run in (one, two)]
    assert [code for code, _, _ in ends] == [0, 0]
    assert all(json.loads(out)["steps"] > 0 for _, out, _ in ends)
    assert gone(place, place.scratch("one"))
    assert gone(place, place.scratch("two"))


def test_pretended_devices_are_dealt_out_and_cpus_that_are_not_there_are_said_once(place: Place) -> None:
    machines = '  nodeGroups: [{name: npu, replicas: 2, cpu: "500", accelerator: {type: NPU, count: 2}}]\n'
    file = place.job("devices", replicas=4, extra=machines, role=", accelerator: {type: NPU}")
    refused = place.dljob("run", file)
    assert refused.returncode == 2
    assert "4 NPU in all, this machine has 0" in refused.stderr
    done = place.dljob("run", file, "--pretend", "NPU=2")
    assert done.returncode == 0, done.stderr
    seen = [f.read_text() for f in place.entry()["folder"].glob("devices-*")]
    assert sorted(seen) == ["0", "0", "1", "1"]
    assert done.stderr.count("1000 CPUs are planned") == 1


def test_faults_are_inflicted_and_bystanders_keep_their_processes(place: Place) -> None:
    faults = place.folder / "faults.yaml"
    faults.write_text(
        "- {when: {step: 5}, target: worker/1, fault: kill}\n- {when: {step: 10}, target: master, fault: kill}\n"
    )
    with place.running("run", place.job("patient", replicas=3), "--faults", faults) as run:
        # In either order: a rank that has no process yet when it is to be killed is killed once it has one.
        run.until_all("MasterRestarted", "Recovered worker/1")
        (place.entry()["folder"] / "enough").touch()
        code, out, errors = run.end()
    assert code == 0, errors
    result = json.loads(out)
    assert result["restarts"] == {**NOTHING, "process": 1, "master": 1}
    assert result["pids_kept"] is True
    assert errors.index("fault: kill worker/1") < errors.index("Restarting worker/1 [Process]")
    assert "Recovered worker/1 [Process] in" in errors
    assert "never injected" not in errors


def test_run_refuses_a_home_that_cannot_be_written(place: Place) -> None:
    place.home.write_text("")
    done = place.dljob("run", place.job("quick"))
    assert done.returncode == 4
    assert "set DLJOB_HOME to a folder that you may write to" in done.stderr
