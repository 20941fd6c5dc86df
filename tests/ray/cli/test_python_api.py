"""A program that starts, finds, orders about and leaves jobs on this machine, where no Ray runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_kit import Place, using
from patience import patience

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

PROGRAM = """
import asyncio, json, sys
import dljob
from dljob import DLJobBuilder

def make(entrypoint):
    return DLJobBuilder().role("worker").run(entrypoint).resource(cpu="100m").end().build()

async def look(job):
    status = await job.aio.status()
    try:
        await asyncio.wait_for(job.aio.wait(), 0.1)
    except TimeoutError:
        return status["phase"], len(await job.aio.events()) > 0

with dljob.local():
    long = make("user.patient").submit("long", blocking=False)
    quick = make("user.quick").submit("quick", blocking=False)
    said = {"answer": quick.result["answer"], "code": quick.wait_code()}
    try:
        make("user.quick").submit("long")
    except dljob.UsageError as error:
        said["refused"] = str(error)
    found = dljob.job("long")
    while found.status()["phase"] != "Running":
        pass
    said["looked"] = asyncio.run(look(found))
    found.restart("worker/0")
    while found.status()["restarts"]["process"] != 1:
        pass
    said["jobs"] = [(one.name, one.status()["phase"] in ("Running", "Recovering")) for one in dljob.jobs()]
said["left"] = [long.wait()["phase"], long.status()["reason"]]
kept = make("user.quick").submit("kept", blocking=False, detach=True)
said["ray"] = "ray" in sys.modules
print(json.dumps(said))
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_listing_of_the_readme_runs_as_it_is_pasted(place: Place) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    (listing,) = [block for block in blocks if "hello_rl.Trainer" in block]
    script = place.folder / "hello_rl.py"
    script.write_text(listing)
    done = subprocess.run(
        [sys.executable, os.fspath(script)],
        env=place.env,
        capture_output=True,
        text=True,
        timeout=patience(100),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "[trainer/0] step 3: four, said rank 1" in done.stdout.splitlines()
    assert " ends with code " not in done.stdout, "its processes end as they should"
    assert done.stdout.splitlines()[-1] == "{'samples': 4}"
    assert done.stderr == ""


def test_a_program_has_its_jobs_on_a_ray_of_its_own(place: Place) -> None:
    script = place.folder / "program.py"
    script.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, os.fspath(script)],
        env=place.env,
        capture_output=True,
        text=True,
        timeout=patience(150),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["answer"], said["code"]) == (42, 0)
    assert "a job long (" in said["refused"]
    assert "replace=True" in said["refused"]
    assert said["looked"] == ["Running", True]
    assert said["jobs"] == [["long", True], ["quick", False]]
    assert said["left"][1] == "StoppedByUser"
    assert not said["ray"]
    told = [line for line in done.stderr.splitlines() if " still runs and ends with " in line]
    assert len(told) == 1
    assert told[0].startswith("job long (")
    kept = place.dljob("logs", "kept", "--follow")
    assert "quick 0" in kept.stdout
    assert json.loads(place.dljob("status", "kept", "-o", "json").stdout)["phase"] == "Succeeded"
    for name in ("long", "kept"):
        scratch = place.scratch(name)
        with_end = subprocess.run(
            ["timeout", "20", "sh", "-c", f"while test -e {scratch}; do sleep 0.1; done"], check=False
        )
        assert with_end.returncode == 0
        assert using(scratch) == []
