"""run --detach: the command returns and the job goes on, with the process that holds its Ray. A stand-in has no Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dljob.api import registry

UID = "a7efe1" * 5 + "00"
SPEC = """
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {name: hello}
spec:
  roles:
  - {name: worker, entrypoint: {module: hello.py}}
"""
HOST = f"""
import json, os, signal, sys
from dljob.api import registry
order = json.loads(sys.stdin.readline())
if order["replace"]:
    print(json.dumps({{"error": "UsageError", "message": "job hello runs already", "hint": "stop it"}}), flush=True)
    sys.exit()
me, folder = os.getpid(), str(registry.folder_of("hello", {UID!r}))
record = registry.RegistryEntry("hello", {UID!r}, folder, runner=me, runner_started=registry.start_of(me))
registry.register(record)
(record.folder / "order.json").write_text(json.dumps(order))
print(json.dumps({{"uid": {UID!r}, "nodes": 1}}), flush=True)
assert sys.stdin.readline() == ""  # the command is gone
(record.folder / "alone").touch()
signal.pause()
"""


def dljob(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own, with a host that starts no Ray."""
    script = (
        "import sys; from dljob.api.local import session; from dljob.cli import main;"
        f"session.COMMAND = (sys.executable, '-c', {HOST!r}); session.check_runtime = lambda: None;"
        "main.main(sys.argv[1:])"
    )
    (folder / "dljob.yaml").write_text(SPEC)
    (folder / "hello.py").touch()
    env = {**os.environ, "DLJOB_HOME": str(folder / "home"), "KUBECONFIG": "/nonexistent"}
    call = [sys.executable, "-c", script, *words]
    return subprocess.run(call, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_the_job_goes_on_without_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("DLJOB_HOME", str(tmp_path / "home"))
    done = dljob(tmp_path, "run", "dljob.yaml", "-d", "-q", "--pretend", "NPU=8", "--name", "other")
    record = registry.find("hello")
    try:
        assert (done.returncode, json.loads(done.stdout)) == (0, {"name": "hello", "uid": UID, "dir": record.dir})
        assert done.stderr == "dljob status hello, dljob logs hello --follow, dljob stop hello\n"
        assert not record.stale, "its host lives"
        assert os.getsid(record.runner) == record.runner, "a terminal that closes does not reach it"
        order = json.loads((record.folder / "order.json").read_text())
        assert (order["keep"], order["pretend"], order["code_dir"]) == (True, {"NPU": 8}, str(tmp_path))
        assert order["manifest"]["metadata"]["name"] == "other"
        while not (record.folder / "alone").exists():
            assert not record.stale
    finally:
        os.kill(record.runner, signal.SIGKILL)


def test_a_refusal_of_the_session_host_is_told(tmp_path):
    done = dljob(tmp_path, "run", "dljob.yaml", "--detach", "--replace")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: job hello runs already\n  stop it\n"


@pytest.mark.parametrize("more", [["-k"], ["--roles", "worker"], ["--faults", "f.yaml"]])
def test_options_for_watching_are_refused_with_detach(more, capsys):
    from dljob.cli import main

    assert main.run(["run", "dljob.yaml", "--detach", *more]) == 2
    assert "--detach is for a run on this machine that is not watched" in capsys.readouterr().err
