"""A planted cause run for real: its folder, its command, its processes, and what dljob says of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

from cause import MARK, Cause

NAME = "exam"
"""Of each job; every one has a DLJOB_HOME of its own."""
TOKEN = "EXAM_TOKEN"
"""All processes of a job inherit this variable: by it they are found and ended."""
BIN = Path(sys.executable).parent
ASK_S, POLL_S, SETTLE_S, STOP_S = 60.0, 4.0, 8.0, 30.0
"""For an answer of `dljob why`; between two questions; from the first answer of a running job to the one that is
graded; for the command to end once it is told to."""
FIRST_LINE = re.compile(r"^\[[\w.-]+/\d+\]", re.MULTILINE)
"""How the command begins a line of a rank."""
BUSY = "a node of Ray did not start"
"""What the command prints where Ray does not come up: of most causes that is not what was planted."""
TAIL = 40
RUN_YAML = """\
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {{name: {name}}}
spec:
{spec}  roles:
{roles}
"""
RAYLET = "raylet/raylet"
PARTS = {
    "PrimeMaster": ("ray::PrimeMaster",),
    "head raylet": (RAYLET, "/n0/raylet "),
    "raylet": (RAYLET, "/n1/raylet "),
    "gcs": ("gcs/gcs_server",),
    "host": ("ray::", "Host"),
    "node agent": ("ray::NodeAgent",),
    "fork server": ("forked_workers/server.py",),
}
"""Part -> words that its command line has."""


def tidy(text: str) -> str:
    """Return a text of a row as it is written to a file."""
    return textwrap.dedent(text).strip("\n") + "\n"


class RunningJob:
    """One job, in a folder with a short path of its own."""

    def __init__(self, cause: Cause) -> None:
        self.cause = cause
        self.root = Path("/tmp") / f"exam-{secrets.token_hex(4)}"
        self.root.mkdir(mode=0o700)
        self.kubernetes = ("-k", "-n", self.root.name) if cause.group == "Kubernetes" else ()
        """Flags of each command of a job on Kubernetes, which has a namespace of its own."""
        self.folder = self.root / "code"
        self.output = self.root / "output"
        self.home = self.folder / cause.home if cause.home else self.root / "home"
        quiet = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        path = os.pathsep.join([str(BIN), os.environ["PATH"]])
        self.groups = {setting.split("/")[0]: self._group(setting) for setting in cause.cgroup}
        limits = {f"EXAM_{name.upper()}": str(folder) for name, folder in self.groups.items()}
        marks = {TOKEN: self.root.name, "EXAM_NAMESPACE": self.root.name, "DLJOB_HOME": str(self.home), "PATH": path}
        self.env = kept | quiet | dict(cause.env) | limits | marks
        self.process: subprocess.Popen[bytes] | None = None
        self.broken = ""
        """Why the cause could not be planted."""

    def _group(self, setting: str) -> Path:
        return Path("/sys/fs/cgroup") / setting.split("/", maxsplit=1)[0] / self.root.name

    def prepare(self) -> None:
        """Write the files, mount the disk, make the control groups."""
        cause = self.cause
        self.folder.mkdir()
        if cause.disk:
            (self.folder / "disk").mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", f"size={cause.disk}", "exam", str(self.folder / "disk")]
            subprocess.run(mount, check=True)
        for name, text in {self.script: cause.program, **cause.files}.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(tidy(text))
        if cause.roles:
            roles = textwrap.indent(tidy(cause.roles), "  ")
            spec = textwrap.indent(tidy(cause.spec), "  ") if cause.spec else ""
            (self.folder / "dljob.yaml").write_text(RUN_YAML.format(name=NAME, spec=spec, roles=roles))
        if self.kubernetes:
            subprocess.run(["kubectl", "create", "namespace", self.root.name], env=self.env, check=True)
        if cause.before:
            subprocess.run(["bash", "-c", cause.before], cwd=self.folder, env=self.env, check=True)
        for setting, limit in cause.cgroup.items():
            self._group(setting).mkdir(exist_ok=True)
            (self._group(setting) / Path(setting).name).write_text(limit)

    @property
    def script(self) -> str:
        """The name of the user's program."""
        return "work.py" if self.cause.roles else "train.py"

    @property
    def command(self) -> list[str]:
        """The user's command."""
        if self.cause.roles:
            stop = ("--stop-on-interrupt",) if self.kubernetes else ()
            return ["dljob", "run", "dljob.yaml", *self.kubernetes, *stop, *self.cause.flags]
        return [
            "dljob",
            "torchrun",
            "--name",
            NAME,
            f"--nproc-per-node={self.cause.ranks}",
            *self.cause.flags,
            "train.py",
        ]

    def marked_line(self) -> str:
        """Return `file:line` of the line that `why` must name; empty where none is marked."""
        for name, text in {self.script: self.cause.program, **self.cause.files}.items():
            for number, line in enumerate(tidy(text).splitlines(), 1):
                if MARK in line:
                    return f"{Path(name).name}:{number}"
        return ""

    def start(self) -> None:
        """Start the user's command."""
        groups = [str(folder / "cgroup.procs") for folder in self.groups.values()] if self.cause.limited else []
        join = "".join(f"echo $$ > {file}; " for file in groups)
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                ["bash", "-c", f'{join}exec "$@"', "_", *self.command],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def printed(self) -> str:
        """Return what the command has printed."""
        return self.output.read_text(errors="replace")

    def ended(self) -> bool:
        """Whether the command has ended."""
        return self.process is None or self.process.poll() is not None

    def act(self) -> None:
        """Do what is done from outside, each as soon as its line is there; runs in a thread."""
        for act in self.cause.acts:
            try:
                while not re.search(act.after, self.printed()):
                    if self.ended():
                        self.broken = f"the command ended before {act.after!r} was printed"
                        return
                    time.sleep(0.1)
                time.sleep(act.delay_s)
                act.do(self)
            except Exception as error:  # noqa: BLE001 - whatever it is, the cause was not planted
                self.broken = f"behind {act.after!r}: {type(error).__name__}: {error}"
                return

    def run(self) -> dict[str, Any]:
        """Run the job, and return what dljob says of it."""
        self.prepare()
        begin = time.monotonic()
        self.start()
        actor = threading.Thread(target=self.act, daemon=True)
        actor.start()
        self._until_a_rank_prints(begin)
        deadline = time.monotonic() + self.cause.limit_s
        why = self._until_the_end(deadline) if self.cause.ends else self._until_told(deadline)
        running = not self.ended()
        actor.join(1.0)
        if actor.is_alive() and not self.broken and running:
            self.broken = "an act was not yet done at the end of the time limit"
        told = {"why": why, "status": self.ask("status")}
        self.end()
        lines = self.printed().replace("\r", "\n").splitlines()
        if BUSY in self.printed() and not self.cause.before:
            self.broken = "the machine is too busy for a Ray"
        return {
            **told,
            "running": running,
            "exit_code": None if running or self.process is None else self.process.returncode,
            "seconds": round(time.monotonic() - begin, 1),
            "broken": self.broken,
            "console": lines[-TAIL:],
        }

    def _until_a_rank_prints(self, begin: float) -> None:
        while (
            not FIRST_LINE.search(self.printed())
            and not self.ended()
            and time.monotonic() < begin + self.cause.starts_s
        ):
            time.sleep(0.2)

    def _until_the_end(self, deadline: float) -> dict[str, Any]:
        while not self.ended() and time.monotonic() < deadline:
            time.sleep(0.2)
        return self.ask("why")

    def _until_told(self, deadline: float) -> dict[str, Any]:
        """Ask until something is told; the answer a little later counts, when evidence has had time to come."""
        while time.monotonic() < deadline and not self.ended():
            time.sleep(POLL_S)
            if tells(self.ask("why")):
                time.sleep(SETTLE_S)
                break
        return self.ask("why")

    def ask(self, command: str) -> dict[str, Any]:
        """Return the answer of `dljob why` or `dljob status`, with its exit code; of a failed one its words."""
        words = ["dljob", command, NAME, "-o", "json", *self.kubernetes]
        try:
            ran = subprocess.run(
                words, cwd=self.root, env=self.env, capture_output=True, text=True, check=False, timeout=ASK_S
            )
        except subprocess.TimeoutExpired:
            return {"code": None, "error": f"no answer in {ASK_S:.0f} s"}
        try:
            return {"code": ran.returncode, **json.loads(ran.stdout)}
        except ValueError:
            return {"code": ran.returncode, "error": (ran.stderr + ran.stdout).strip()}

    def pids(self, target: str) -> list[int]:
        """Return the processes of a rank or a part.

        Raises:
            LookupError: there is none.
        """
        if target == "command" and self.process is not None:
            return [self.process.pid]
        if target == "everything":
            return [pid for pid, _line in self.processes() if pid != os.getpid()]
        if words := PARTS.get(target):
            # The command line of a raylet has those of its agents.
            lines = [(pid, line) for pid, line in self.processes() if (RAYLET in line) == (RAYLET in words)]
            found = [pid for pid, line in lines if all(word in line for word in words)]
        else:
            ranks = self.ask("status").get("ranks", [])
            found = [rank["pid"] for rank in ranks if f"{rank['role']}/{rank['rank']}" == target and rank["pid"]]
        if not found:
            raise LookupError(f"no process of {target}")
        return found

    def processes(self) -> list[tuple[int, str]]:
        """Return the processes of this job with their command lines."""
        mark = f"{TOKEN}={self.root.name}".encode()
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found.append((int(folder.name), line))
        return found

    def end(self) -> None:
        """End the command as a user would, and then every process of the job."""
        if self.process and not self.ended():
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
        for _ in range(5):
            there = [pid for pid, _line in self.processes() if pid != os.getpid()]
            for pid in there:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not there:
                break
            time.sleep(0.2)

    def remove(self) -> None:
        """Remove folders, mounts and control groups."""
        if self.kubernetes:
            words = ["kubectl", "delete", "namespace", self.root.name, "--wait=false"]
            subprocess.run(words, env=self.env, check=False)
        if self.cause.disk:
            subprocess.run(["umount", "-l", str(self.folder / "disk")], check=False)
        for folder in self.groups.values():
            with contextlib.suppress(OSError):
                folder.rmdir()
        shutil.rmtree(self.root, ignore_errors=True)


def tells(answer: dict[str, Any]) -> bool:
    """Whether an answer of `why` says more than that all is well."""
    lines = answer.get("lines", [])[1:]
    return bool(
        answer.get("error") or answer.get("fault") or answer.get("kind") != "nothing" or lines != ["nothing failed"]
    )
