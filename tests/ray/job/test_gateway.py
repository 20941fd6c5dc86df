"""A job by Ray's Job API and the gateway, as the operator runs it: nothing here is connected to Ray."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gateway_kit import Job, Ray, ask, eventually, kill, token
from prometheus_client.parser import text_string_to_metric_families

from dljob.kube.head import directly
from dljob.kube.ray_jobs import JobApi
from dljob.linux.priority import NICENESS

pytestmark = pytest.mark.ray

ACTOR = """
import os
import helper

def main():
    print("thread", helper.NAME, flush=True)
    return {"cwd": os.getcwd()}
"""
SCRIPT = """
import os, sys
import helper
print("fork", helper.NAME, os.getcwd(), sys.argv[1:], flush=True)
"""
PADDED = """
from dljob import current_worker

def main():
    print("padding", len(current_worker().config["padding"]), flush=True)
"""
LARGE = 250_000
"""Characters: twice what one argument of a process may have; a `config` takes 262,144."""


@pytest.fixture(scope="module")
def ray() -> Iterator[Ray]:
    made = Ray()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def job(ray: Ray, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    made: list[Job] = []

    def make(*roles: Any, **more: Any) -> Job:
        made.append(Job(tmp_path, *roles, **more))
        return made[-1]

    yield make
    for one in made:
        one.close(ray)


def role(name: str = "w", entry: str = "prime_user.until_told", **more: Any) -> dict[str, Any]:
    return {"name": name, "entrypoint": {"class": entry}, "resources": {"cpu": "0.5"}, **more}


def pids(seen: dict[str, Any]) -> dict[str, int]:
    return {f"{row['role']}/{row['rank']}": row["pid"] for row in seen["ranks"]}


def test_user_code_from_the_jobs_working_dir_runs_on_every_node_and_the_end_is_told(ray: Ray, job: Any) -> None:
    script = {"name": "s", "entrypoint": {"module": "script.py"}, "args": ["a"], "resources": {"cpu": "3"}}
    mine = job(role("t", "actor.main"), {**script, "driver": True}, name="code")
    code = ray.upload(actor=ACTOR, script=SCRIPT, helper="NAME = 'uploaded'\n")
    sent = ray.submit(mine, runtime_env={"working_dir": code})
    ended = ray.ended(sent)
    assert (ended["status"], ended["driver_exit_code"]) == ("SUCCEEDED", 0), ray.log(sent)
    code, seen = mine.ask(ray, "status")
    assert (code, seen["phase"], "ranks" in seen) == (200, "Succeeded", False)
    assert "/runtime_resources/working_dir_files/" in json.loads(seen["result"])["cwd"]
    logs = mine.ask(ray, "logs")[1]["logs"]
    assert "thread uploaded" in logs["t/0"]
    assert "fork uploaded" in logs["s/0"]
    assert "['a']" in logs["s/0"]
    reasons = [note["reason"] for note in mine.ask(ray, "events")[1]["events"]]
    assert reasons[-2:] == ["Completed", "Released"]
    assert mine.ask(ray, "placement") == (200, {"version": seen["version"], "nodes": []})


def test_a_launcher_that_is_killed_or_stopped_is_nobodys_loss_and_the_next_one_finds_the_job(
    ray: Ray, job: Any
) -> None:
    mine = job(role(replicas=2))
    first = ray.submit(mine)
    before = pids(mine.running(ray))
    kill(ray.driver(first))
    assert ray.ended(first)["status"] == "FAILED"
    second = ray.submit(mine)
    eventually(lambda: "exists already" in ray.log(second), 60, lambda: ray.log(second))
    ray.stop(second)
    assert ray.ended(second)["status"] == "STOPPED"
    assert "and the job goes on" in ray.log(second)
    third = ray.submit(mine)
    eventually(lambda: "exists already" in ray.log(third), 60, lambda: ray.log(third))
    after = mine.running(ray)
    assert (pids(after), after["epoch"], after["restarts"]["process"]) == (before, 1, 0)
    mine.go(ray)
    assert ray.ended(third)["status"] == "SUCCEEDED"
    fourth = ray.submit(mine)
    assert ray.ended(fourth)["driver_exit_code"] == 0, "of a job that has ended it tells the end"


def test_a_long_poll_outlives_the_master(ray: Ray, job: Any) -> None:
    mine = job(role())
    ray.submit(mine)
    seen = mine.running(ray)
    master = mine.master(ray)
    answers: list[Any] = []
    far = seen["version"] + 10**6
    poll = threading.Thread(target=lambda: answers.append(mine.ask(ray, f"status?after={far}&timeout=25")))
    poll.start()
    kill(master)
    poll.join(30)
    ((code, after),) = answers
    assert (code, after["epoch"], after["restarts"]["master"]) == (200, 2, 1)
    assert after["version"] > far
    assert pids(mine.running(ray)) == pids(seen)
    mine.go(ray)


def test_commands_restart_and_stop_once_by_id(ray: Ray, job: Any) -> None:
    mine = job(role(replicas=2))
    sent = ray.submit(mine)
    mine.running(ray)
    order = {"id": "r1", "kind": "restart", "target": "w/1", "by": "me"}
    assert [mine.ask(ray, "commands", order)[0] for _ in range(2)] == [202, 202]
    seen = mine.until(ray, lambda s: s["phase"] == "Running" and s["ranks"][1]["incarnation"] == 2)
    assert [row["incarnation"] for row in seen["ranks"]] == [1, 2]
    code, said = mine.ask(ray, "commands", {"id": "r2", "kind": "restart", "target": "nobody"})
    assert (code, "targets are job, a role (w)" in said["error"]) == (400, True)
    assert mine.ask(ray, "commands", {"id": "r3", "kind": "explode"})[0] == 400
    assert mine.ask(ray, "commands", {"id": "s1", "kind": "stop", "by": "me"}) == (202, {})
    ended = ray.ended(sent)
    assert (ended["status"], ended["driver_exit_code"]) == ("FAILED", 6)
    seen = mine.ask(ray, "status")[1]
    assert (seen["phase"], seen["reason"], seen["message"]) == ("Stopped", "StoppedByUser", "stopped by me")


def test_a_suspended_attempt_ends_and_is_no_end_of_the_job(ray: Ray, job: Any) -> None:
    mine = job(role(replicas=2))
    sent = ray.submit(mine)
    mine.running(ray)
    order = {"id": "suspend/1", "kind": "suspend", "by": "spec.suspend"}
    assert [mine.ask(ray, "commands", order)[0] for _ in range(2)] == [202, 202]
    ended = ray.ended(sent)
    assert (ended["status"], ended["driver_exit_code"]) == ("FAILED", 3)
    seen = mine.ask(ray, "status")[1]
    assert (seen["phase"], seen["reason"], seen["message"]) == (
        "Suspended",
        "JobSuspended",
        "suspended by spec.suspend",
    )
    assert mine.ask(ray, "logs")[0] == 200
    assert mine.ask(ray, "commands", {"id": "s1", "kind": "stop"}) == (202, {})
    assert mine.ask(ray, "status")[1]["phase"] == "Suspended"


def test_placement_and_logs_come_from_all_nodes_also_of_a_dead_rank_and_of_primemaster(ray: Ray, job: Any) -> None:
    apart = [{"name": "apart", "roles": ["a", "b"], "level": "Separate"}]
    mine = job(role("a"), role("b"), collocations=apart)
    ray.submit(mine)
    seen = mine.running(ray)
    placed = mine.ask(ray, "placement")[1]
    assert sorted((row["pod"], row["ranks"]) for row in placed["nodes"]) in (
        [("pod-a", "a/0"), ("pod-b", "b/0")],
        [("pod-a", "b/0"), ("pod-b", "a/0")],
    )
    assert {row["node"] for row in placed["nodes"]} == {row["node"] for row in seen["ranks"]}
    log = mine.folder(ray) / "logs" / "b-0.log"
    with log.open("a") as out:
        out.write("ä" * 300)
    tail = mine.ask(ray, "logs?bytes=1200")[1]
    assert tail["logs"].keys() == {"a/0", "b/0"}
    assert tail["logs"]["b/0"].endswith("ä" * 300)
    assert mine.ask(ray, "logs?role=b&rank=0&bytes=11") == (200, "ä" * 5)
    piece = mine.ask(ray, "logs?role=b&rank=0&follow=1&from=0")[1]
    assert (piece["offset"], piece["end"]) == (log.stat().st_size, False)
    assert mine.ask(ray, "logs?role=b&rank=9")[0] == 404
    decided = mine.ask(ray, "logs?master=1&follow=1&from=0")[1]
    entries = [json.loads(line) for line in decided["text"].splitlines()]
    assert "SpawnHost" in {name for entry in entries for name in entry.get("actions", {})}
    assert (decided["end"], decided["timed"]) == (False, True)
    late = f"logs?master=1&follow=1&since={int(time.time() * 1000)}"
    assert mine.ask(ray, late)[1]["text"] == ""
    assert mine.ask(ray, "logs?master=1&older=1")[0] == 404
    kill(pids(seen)["b/0"])
    assert mine.ask(ray, "logs?role=b&rank=0")[0] == 200
    mine.go(ray)
    mine.until(ray, lambda s: s["phase"] == "Succeeded")
    left = mine.ask(ray, "logs")[1]
    assert "ä" * 300 in left["logs"]["b/0"]
    assert decided["text"] in left["master"]
    rest = mine.ask(ray, f"logs?master=1&follow=1&from={decided['offset']}")[1]
    assert '"event": "HostLost"' in rest["text"]
    assert decided["text"] + rest["text"] == mine.ask(ray, "logs?master=1&bytes=600000")[1]
    assert rest["end"]


def test_only_who_has_the_token_is_answered_and_only_of_jobs_that_are_there(ray: Ray, job: Any) -> None:
    mine = job(role(entry="prime_user.quick"))
    sent = ray.submit(mine)
    ray.ended(sent)
    url = f"{ray.gateway}/v1/jobs/{mine.uid}/status"
    assert ask(url)[0] == 401
    assert ask(url, None, "wrong")[0] == 401
    assert ask(url, None, token())[0] == 200
    code, said = ask(f"{ray.gateway}/v1/jobs/{'f' * 32}/status?timeout=20", None, token())
    assert (code, said) == (404, {"error": f"no job {'f' * 32}"})
    assert ask(f"{ray.gateway}/healthz") == (200, "ok")
    about = ask(f"{ray.gateway}/v1/version", None, token())[1]
    assert about["session"] == ask(f"{ray.jobs_api}/api/version", None, token())[1]["session_name"]
    rows = {row["uid"]: row["phase"] for row in ask(f"{ray.gateway}/v1/jobs", None, token())[1]}
    assert rows[mine.uid] == "Succeeded"


def test_metrics_are_of_the_jobs_that_live(ray: Ray, job: Any) -> None:
    mine = job(role(), name="measured")
    sent = ray.submit(mine)
    mine.running(ray)

    def series() -> set[str]:
        text = ask(f"{ray.gateway}/metrics")[1]
        families = list(text_string_to_metric_families(text))
        return {s.labels["phase"] for f in families for s in f.samples if s.labels.get("dljob") == "measured"
                and f.name == "dljob_phase" and s.value == 1}  # fmt: skip

    assert series() == {"Running"}
    mine.go(ray)
    ray.ended(sent)
    eventually(lambda: not series(), 10, lambda: str(series()))


def test_a_refused_submission_says_so_in_its_last_line(ray: Ray, job: Any) -> None:
    mine = job(role(name="no_such-name!"))
    sent = ray.submit(mine)
    ended = ray.ended(sent)
    assert (ended["status"], ended["driver_exit_code"]) == ("FAILED", 2)
    said = json.loads(ray.log(sent).splitlines()[-1])
    assert (said["dljob"], said["reason"]) == ("refused", "InvalidSpec")
    sent = ray.submit(job(role()), ray="2.9.0")
    assert ray.ended(sent)["driver_exit_code"] == 2
    assert json.loads(ray.log(sent).splitlines()[-1])["reason"] == "RayVersionMismatch"


def niceness(*pids: int) -> set[int]:
    return {os.getpriority(os.PRIO_PROCESS, pid) for pid in pids}


def may_rise() -> bool:
    """Whether this user's processes may take a higher priority."""
    words = [sys.executable, "-c", f"import os; os.setpriority(os.PRIO_PROCESS, 0, {NICENESS})"]
    return subprocess.run(words, check=False, stderr=subprocess.DEVNULL).returncode == 0


def test_a_gateway_that_is_killed_comes_back_at_its_port(ray: Ray, job: Any) -> None:
    mine = job(role())
    sent = ray.submit(mine)
    mine.running(ray)
    gateway = ray.actor("Gateway")
    kill(gateway)
    again = mine.running(ray, 30)
    assert ray.actor("Gateway") != gateway
    rss = int(Path(f"/proc/{ray.actor('Gateway')}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert rss < 200 << 20, f"{rss >> 20} MiB"
    (computes,) = niceness(pids(again)["w/0"])
    assert niceness(ray.actor("Gateway"), mine.master(ray)) == {NICENESS if may_rise() else computes}
    mine.go(ray)
    ray.ended(sent)


def test_a_later_attempt_on_the_same_ray_begins_anew_and_keeps_the_folder_of_the_last(ray: Ray, job: Any) -> None:
    mine = job(role(entry="prime_user.fails"), faultTolerance={"maxRestarts": 0})
    assert ray.ended(ray.submit(mine))["driver_exit_code"] == 1
    first = mine.ask(ray, "status")[1]
    assert ray.ended(ray.submit(mine, attempt=1))["driver_exit_code"] == 1
    second = mine.ask(ray, "status")[1]
    assert second["startTime"] > first["startTime"]
    assert (mine.folder(ray).with_name(f"{mine.folder(ray).name}.0") / "status.json").is_file()


def keep(ray: Ray, name: str, content: bytes) -> float:
    """Give it to Ray as the operator does; the seconds that took."""

    async def go() -> float:
        async with aiohttp.ClientSession() as session:
            jobs = JobApi(directly(session, ray.jobs_api, token()))
            began = time.monotonic()
            await jobs.keep(name, content)
            took = time.monotonic() - began
            await jobs.keep(name, b"not this")
            return took

    return asyncio.run(go())


def test_a_large_spec_reaches_the_launcher_beside_the_users_working_dir(ray: Ray, job: Any) -> None:
    mine = job(role(entry="there.main"), name="kept", config={"padding": "x" * LARGE})
    text = mine.spec.read_bytes()
    mine.spec.unlink()
    took = keep(ray, "dljob-kept.json", text)
    code = ray.upload(there=PADDED)
    sent = ray.submit(mine, spec="gcs://dljob-kept.json", runtime_env={"working_dir": code})
    ended = ray.ended(sent)
    assert ended["status"] == "SUCCEEDED", ray.log(sent)
    assert f"padding {LARGE}" in (mine.folder(ray) / "logs" / "w-0.log").read_text()
    print(f"kept {len(text)} bytes in {took:.3f} s")


def test_a_spec_that_ray_does_not_keep_is_refused_with_a_reason(ray: Ray, job: Any) -> None:
    sent = ray.submit(job(role(entry="there.main")), spec="gcs://nobody.json")
    ended = ray.ended(sent)
    assert (ended["status"], ended["driver_exit_code"]) == ("FAILED", 2)
    assert '"InvalidSpec"' in ray.log(sent)
    assert "does not keep gcs://nobody.json" in ray.log(sent)
