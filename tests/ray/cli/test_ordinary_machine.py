"""`dljob` where people run it: names that do not resolve, odd folders, full disks, closed streams, a deaf Ray."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from cli_kit import Place, using
from patience import patience

from dljob.api import registry
from dljob.runtime.control_socket import location

pytestmark = [pytest.mark.ray, pytest.mark.timeout(150)]

ROOT = Path(__file__).parents[3]
SURROUNDINGS = """
set -eu
mkdir "$BASE/home" "$BASE/full"
printf '::1 localhost\\n127.0.0.1 localhost\\n' > "$BASE/hosts"
mount --bind "$BASE/hosts" /etc/hosts
hostname nobody-knows-this-machine
mount -t tmpfs -o ro tmpfs "$BASE/home"
mount -t tmpfs -o size=64k tmpfs "$BASE/full"
dd if=/dev/zero of="$BASE/full/x" bs=1k count=1000 2>/dev/null || true
export HOME="$BASE/home" TMPDIR="$BASE/full"
unset XDG_RUNTIME_DIR XDG_STATE_HOME
"""
# What is tried may itself lie below /tmp.
TINY_TMP = """
export HOME=$BASE
mkdir -p "$DLJOB_HOME" "$BASE/kept"
mount --bind "$DLJOB_ROOT" "$BASE/kept"
mount -t tmpfs -o size=8m tmpfs /tmp
mkdir -p "$DLJOB_ROOT"
mount --bind "$BASE/kept" "$DLJOB_ROOT"
exec "$@"
"""
TRAIN = """
import os, pathlib, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
print("sum", one.item(), repr(sys.stdin.read()), flush=True)
while not pathlib.Path("enough").exists():
    time.sleep(0.05)
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A folder with spaces and umlauts, and a state folder whose path is too long for a socket."""
    folder = tmp_path / "Ordner mit Ümläuten"
    folder.mkdir()
    made = Place(folder)
    made.home = folder / ("x" * 80) / "Zustand"
    made.env["DLJOB_HOME"] = str(made.home)
    made.env.pop("XDG_RUNTIME_DIR", None)
    return made


def within(base: Path, then: str = 'exec "$@"') -> list[str]:
    """The command prefix that makes the surroundings; skips where they cannot be had."""
    prefix = ["unshare", "-mu"]
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount and host name of its own to be had")
    return [*prefix, "env", f"BASE={base}", "bash", "-c", f"{SURROUNDINGS}{then}", "_"]


def test_a_job_runs_in_all_awkward_surroundings_at_once(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`localhost` is ::1 first, nobody knows the host name, HOME is read-only, TMPDIR full, stdin and stdout closed."""
    (place.folder / "train.py").write_text(TRAIN)
    monkeypatch.chdir(place.folder)
    line = ["torchrun", "--nproc-per-node=2", "train.py"]
    with place.running(*line, within=within(tmp_path, 'exec "$@" <&-')) as run:
        assert run.process.stdout
        run.process.stdout.close()
        run.process.stdout = None
        run.until(lambda each: "Running" in each)
        shown = place.dljob("status", "train", "-o", "json")
        assert shown.returncode == 0, shown.stderr
        assert [rank["phase"] for rank in json.loads(shown.stdout)["ranks"]] == ["Ready"] * 2
        entry = place.entry("train")
        path = Path(entry["socket"])
        assert len(os.fsencode(entry["folder"] / location.NAME)) > location.PATH_MAX
        assert path.parent.name == f"dljob-{os.geteuid()}"
        assert path.stat().st_mode & 0o777 == 0o600
        scratch = place.scratch("train")
        (place.folder / "enough").touch()
        assert run.process.wait(timeout=patience(60)) == 0
    assert "Traceback" not in "\n".join(run.errors)
    logs = place.dljob("logs", "train").stdout
    assert all(f"[default/{rank}] sum 2.0 ''" in logs for rank in (0, 1))
    assert not path.exists()
    assert not scratch.exists()
    assert using(scratch) == []


@pytest.mark.parametrize(
    ("then", "says"),
    [
        ('unset DLJOB_HOME; exec "$@"', ("Read-only file system", "set DLJOB_HOME to a folder that you may write to")),
        (
            TINY_TMP,
            ("/tmp: 8 MiB are free, 64 are needed", "set TMPDIR"),
        ),
    ],
    ids=["a state folder that is read-only", "no disk with room"],
)
def test_an_unusable_machine_is_refused_in_one_sentence(then: str, says: tuple[str, str], place: Place) -> None:
    (base := Path("/var/tmp") / f"dlj-test-{os.getpid()}").mkdir()
    try:
        shutil.copytree(place.folder, base / "job")
        home = place.env | {"DLJOB_HOME": str(base / "state"), "DLJOB_ROOT": str(ROOT)}
        words = [*within(base, then), sys.executable, "-m", "dljob.cli", "run"]
        file = place.job("quick")
        shutil.copy(file, base / "job")
        done = subprocess.run(
            [*words, str(base / "job" / file.name)],
            env=home,
            capture_output=True,
            text=True,
            timeout=patience(10),
            check=False,
        )
    finally:
        shutil.rmtree(base)
    assert done.returncode == 4, done.stderr
    assert all(each in done.stderr for each in says), done.stderr


class Deaf:
    """Listens, takes connections, and never says a word: `ray.init` hangs there in C++."""

    def __init__(self, command: str, place: Place, name: str) -> None:
        self.line = socket.create_server(("", 0))  # Ray takes 127.0.0.1 for the machine's own address
        self.line.settimeout(patience(20))
        self.address = f"127.0.0.1:{self.line.getsockname()[1]}"
        self.words = ["submit", str(place.job("quick", name=name)), "--address", self.address]
        if command == "status":
            self.words = ["status", name]
            folder = place.home / "jobs" / name
            registry.register(registry.RegistryEntry(name=name, uid=name * 8, dir=str(folder), address=self.address))

    def joined(self) -> list[socket.socket]:
        """The first connections: the command knocks, then Ray joins."""
        return [self.line.accept()[0] for _ in range(2)]


@pytest.mark.parametrize("command", ["submit", "status"])
def test_a_ray_that_never_answers_is_given_up_with_exit_code_4(command: str, place: Place) -> None:
    """One that is not interrupted gives up with exit code 4: 130 says that Ctrl-C was heard before."""
    late, broken_off = Deaf(command, place, "late"), Deaf(command, place, "stop")
    with ExitStack() as lines:
        for each in (late, broken_off):
            lines.enter_context(each.line)
        with place.running(*broken_off.words) as interrupted:
            for held in broken_off.joined():
                lines.enter_context(held)
            interrupted.process.send_signal(signal.SIGINT)
            assert interrupted.process.wait(patience(20)) == 130
        with place.running(*late.words) as waits:
            assert waits.process.wait(patience(30)) == 4
            _, _, errors = waits.end()
    assert late.address in errors
    assert "within" in errors
    assert "Traceback" not in errors
