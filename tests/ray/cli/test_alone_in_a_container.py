"""A rank without a neighbour, killed for its memory in a container that lives on: pids of its own, a limit of its own.

The kernel's log names pids that mean nothing there, and only who counted before the kill can tell of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import ray
from cli_kit import Place
from prime_help import eventually

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
LIMIT = 2 << 30
OWN_PIDS = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
USER = '''
import json, time
from pathlib import Path
from typing import Any

import ray
from dljob import current_worker, progress

def takes_too_much():
    """The first incarnation, once the agent of its node is there; the second ends when the cause is known."""
    me = current_worker()
    progress(1)
    if me.incarnation > 1:
        enough = Path(me.job_dir, "enough")
        while not enough.exists():
            time.sleep(0.05)
        return {}
    name = f"{me.job_uid[:8]}/agent/{ray.get_runtime_context().get_node_id()[:8]}"
    while True:
        try:
            ray.get(ray.get_actor(name, "dljob").clues.remote(1))
            break
        except ValueError:
            time.sleep(0.05)
    held = []
    while True:
        held.append(bytearray(16 << 20))
'''


@pytest.fixture
def read_before() -> None:
    """Programs and libraries are charged to the group that reads them first.

    Those of a group at its limit are dropped and read again for minutes before the kernel gives up and kills.
    """
    for folder in (Path(ray.__file__).parent, Path(sys.base_prefix)):
        for file in folder.rglob("*"):
            if file.is_file() and (file.suffix in {".so", ".pyc"} or os.access(file, os.X_OK)):
                file.read_bytes()


@pytest.fixture
def group(read_before: None) -> Iterator[Path]:
    """A memory control group like a container's, where this machine lets us make one."""
    folder = Path(f"/sys/fs/cgroup/memory/dljob-alone-{os.getpid()}")
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(LIMIT))
        subprocess.run([*OWN_PIDS, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no container can be made: {error}")
    yield folder
    eventually(lambda: not (folder / "cgroup.procs").read_text(), 20, lambda: "somebody is left in the group")
    folder.rmdir()


def seen(group: Path) -> list[str]:
    """What the group holds, and who lives in it: whether the kernel killed, whom, and what the others do."""
    held = [f"{name}: {(group / f'memory.{name}').read_text()}" for name in ("usage_in_bytes", "oom_control", "stat")]
    for pid in (group / "cgroup.procs").read_text().split():
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            what = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:80]
            held.append(", ".join([what, *(line for line in lines if line.startswith(("State", "VmRSS")))]))
    return held


def test_the_agent_of_its_node_tells_of_the_kill(tmp_path: Path, group: Path) -> None:
    place = Place(tmp_path)
    (tmp_path / "user.py").write_text(USER)
    place.env["RAY_memory_monitor_refresh_ms"] = "0"  # Ray's own monitor would be first
    enter = f'echo $$ > {group}/cgroup.procs && exec {" ".join(OWN_PIDS)} "$@"'
    with place.running("run", place.job("takes_too_much"), within=("bash", "-c", enter, "_")) as run:

        def told() -> dict[str, Any]:
            fault: dict[str, Any] = (
                json.loads((place.entry()["folder"] / "status.json").read_text()).get("lastFault") or {}
            )
            return fault if fault.get("reason") == "OOMKilled" else {}

        run.until(lambda line: "step " in line)
        fault = eventually(told, 100, lambda: (run.errors, seen(group)))
        (place.entry()["folder"] / "enough").touch()
        code, _, errors = run.end()
    assert code == 0, errors
    assert fault["target"] == "worker/0"
    assert fault["firstCause"].startswith("worker/0: OOMKilled: ")
    assert "oom_kill +1, peak" in fault["firstCause"]
