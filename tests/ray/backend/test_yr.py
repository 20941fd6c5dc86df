"""The backend yr outside pytest's own process: the real datasystem has its keys, and `dljob run` runs a job on it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from datasystem_kit import Datasystem
from prime_help import eventually

from dljob.runtime.yr.keys import connected

WAIT_S = 120.0
DLJOB = str(Path(sys.executable).parent / "dljob")
TRAIN = """
import os, pathlib, sys, time, dljob
me = dljob.current_worker()
called = pathlib.Path(os.environ["DLJOB_DIR"], "called")
print("hello from", me.name, "of", me.world_size, "start", me.incarnation, os.environ["MARK"], flush=True)
dljob.progress(me.incarnation, loss=0.5)
if "call" in sys.argv:
    try:
        dljob.RoleGroup("w").call("x").result(30)
    except dljob.errors.CallError as error:
        print(error, flush=True)
    called.touch()
# The job ends with its driver role, and takes along whoever is not done: so its last process waits for the call.
while (me.role, me.incarnation) == ("w", 2) and not called.exists():
    time.sleep(0.05)
sys.exit(3 if (me.rank, me.incarnation) == (1, 1) else 0)
"""


# -- keys on the real datasystem


OTHER = """
import asyncio
from dljob.runtime.yr.keys import connected
kv = connected()
async def main():
    print(await kv.get("t/spec"), await kv.keys("t/"), await kv.put_if_absent("t/lock", b"theirs"))
    await kv.put("t/from/them", b"")
asyncio.run(main())
"""


def python(*args: str, env: Mapping[str, str] = os.environ) -> str:
    """What a Python says in the end."""
    done = subprocess.run([sys.executable, *args], env=env, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


async def carries_keys_between_processes() -> None:
    kv, big = connected(), os.urandom(1 << 20)
    await kv.put("t/spec", b"{}")
    await kv.put("t/a.b/ü", big)
    assert await kv.put_if_absent("t/lock", b"ours")
    assert await asyncio.to_thread(python, "-c", OTHER) == "b'{}' ('t/a.b/ü', 't/lock', 't/spec') False"
    assert await kv.get("t/a.b/ü") == big
    assert await kv.get("t/lock") == b"ours"
    assert await kv.get("t/from/them") == b""
    assert await kv.keys("t/from") == ("t/from/them",)
    assert await kv.delete("t/") == 4
    assert await kv.keys("t/") == ()
    assert await kv.get("t/spec") is None
    assert await kv.put_if_absent("t/lock", b"again")
    assert await kv.delete("t/") == 1


async def one_of_many_clients_writes_first() -> None:
    clients = [connected() for _ in range(4)]
    won = await asyncio.gather(*(client.put_if_absent("r/epoch", b"%d" % i) for i, client in enumerate(clients)))
    assert sum(won) == 1
    assert await clients[0].get("r/epoch") == b"%d" % won.index(True)
    assert await clients[-1].delete("r/") == 1


def test_the_datasystem_carries_keys_between_processes_and_of_many_clients_one_writes_first() -> None:
    # In a process of its own: a client whose datasystem has ended takes most of a core until its process ends.
    with Datasystem(megabytes=128) as datasystem:
        path = os.pathsep.join(filter(None, sys.path))
        python(__file__, env={**os.environ, **datasystem.environment, "PYTHONPATH": path})


# -- a job


class Run:
    """`DISTRIBUTED_BACKEND=yr dljob run`, with its lines as they come."""

    def __init__(self, folder: Path, *roles: str, **spec: Any) -> None:
        (folder / "train.py").write_text(TRAIN)
        file = folder / "job.yaml"
        body = json.dumps({"roles": [json.loads(role) for role in roles], **spec})
        file.write_text(
            f'{{"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {{"name": "j"}}, "spec": {body}}}'
        )
        self.home = folder / "home"
        env = {**os.environ, "DLJOB_HOME": str(self.home), "DISTRIBUTED_BACKEND": "YuanRong"}
        self.err = folder / "err"
        with self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [DLJOB, "run", str(file)], env=env, cwd=folder, stdout=subprocess.PIPE, stderr=err, text=True
            )

    def until(self, words: str) -> None:
        end = time.monotonic() + WAIT_S
        while words not in self.err.read_text():
            assert self.process.poll() is None, self.err.read_text()
            assert time.monotonic() < end, self.err.read_text()
            time.sleep(0.05)

    def end(self) -> tuple[int, str]:
        out, _ = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, out

    @property
    def folder(self) -> Path:
        (found,) = (self.home / "jobs").glob("[!.]*")
        return found


def sleepers(mark: str) -> list[str]:
    found = [path / "cmdline" for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [str(path) for path in found if path.exists() and mark.encode() in _read(path)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_job_of_scripts_runs_on_the_sdks_local_mode_and_a_rank_that_fails_comes_back(tmp_path: Path) -> None:
    run = Run(
        tmp_path,
        '{"name": "w", "replicas": 2, "entrypoint": {"module": "train.py"}, "env": [{"name": "MARK", "value": "m"}]}',
        '{"name": "c", "driver": false, "entrypoint": {"module": "train.py"}, "args": ["call"], "env": '
        '[{"name": "MARK", "value": "n"}]}',
    )
    code, out = run.end()
    assert code == 0, run.err.read_text()
    assert json.loads(out)["restarts"]["process"] == 1
    assert "on openYuanrong's local mode, in this process" in run.err.read_text()
    status = json.loads((run.folder / "status.json").read_text())
    assert status["phase"] == "Succeeded"
    logs = "".join(path.read_text() for path in sorted((run.folder / "logs").rglob("*.log")))
    assert "hello from w/1 of 2 start 2 m" in logs
    assert "hello from c/0 of 1 start 1 n" in logs
    assert "the backend yr carries no calls between roles" in logs


@pytest.mark.parametrize(("sig", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_ranks_end_with_the_run_whatever_ends_it(tmp_path: Path, sig: signal.Signals, code: int) -> None:
    seconds = f"{300 + os.getpid()}.{int(sig)}"
    run = Run(tmp_path, json.dumps({"name": "w", "entrypoint": {"command": ["sleep", seconds]}}))
    run.until("Running")  # its process is there, and may not be `sleep` yet
    eventually(lambda: sleepers(seconds), WAIT_S, run.err.read_text)
    run.process.send_signal(sig)
    assert run.end()[0] == code
    eventually(lambda: not sleepers(seconds), WAIT_S, lambda: sleepers(seconds))


if __name__ == "__main__":
    asyncio.run(carries_keys_between_processes())
    asyncio.run(one_of_many_clients_writes_first())
