"""One run of a peer: its Ray, its start, an event, and the end of all its processes, all seen from outside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from dljob.runtime.forked_workers import starter
from dljob.runtime.forked_workers.processes import SERVER, of_raylet
from dljob.runtime.forked_workers.server import CLEAN_NAME

HERE = Path(__file__).parent
CODE = HERE / "workloads"
MARK = "PEER_OUT"
"""All processes of a run inherit this variable: by it they are found."""
RANKS, JOBS = 4, 8
"""As many as an event meets; jobs of one rank that run at once."""
SHARE = 0.8
"""Of the machine's memory, for as many jobs of one rank as fit."""
STARTER = starter.__file__
LIMIT_S, END_S, LEAVE_S = 120.0, 20.0, 5.0
"""Until a run counts as one that does not come back; for the command to end; for its other processes after it."""
HEADLESS_S = 75.0
"""For which a job runs without its head before a rank is killed: Ray's own processes give up after 60."""
RAYS_TITLES = ("ray::IDLE", "ray::_AutoscalingCoordinatorActor", "raylet", "gcs_server", "ray-dashboard")
RAYS_WORDS = (
    "/ray/dashboard/",
    "/ray/autoscaler/",
    "/ray/_private/log_monitor",
    "/ray/_private/runtime_env",
    "ray_here.py",
)
"""How processes of Ray itself begin, and what is in their commands."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
PASSING = re.compile(r"^\[[^\]]*\] \S+:\d+: | for job peer-\d+|\.\s*(GCS may have been killed.*)?$")
"""What differs from run to run, or says nothing: the head of a line of Ray's log, and the number of a job."""
OF_A_WORKER = re.compile(r"^\S*\(.*pid=\d+")
"""How Ray begins a line of a worker, with the name of its class or without."""
WARNING = "[W"
"""How a warning of torch's C++ begins, which is about something else."""
MIB = 1 << 20


class NoFigureError(Exception):
    """A run has no figure; says why."""


@dataclass(frozen=True)
class Peer:
    """One that runs the workloads."""

    name: str
    script: str
    settings: str
    """Its best documented settings, for the page."""
    workloads: str = "SA"
    why_not: str = ""
    """Why it does not run the other workload."""
    environment: str = ""
    """The lock in this folder; empty: dljob's own environment."""
    ray: bool = True
    start_hook: str = ""
    """What its documentation has for RAY_START_HOOK."""
    master: str | tuple[str, ...] = ""
    """How the title of its master's process begins; empty: its command is master and head."""
    absent: dict[str, str] = field(default_factory=dict)
    """Row -> why it cannot be measured."""


@dataclass(frozen=True)
class Outcome:
    """What a run measured."""

    values: dict[str, float]
    """Row -> seconds or MiB."""
    restarted: int | None = None
    left: int = 0
    again: int = 0
    """How often the command ended and was started again."""


class Run:
    """A peer's processes in a folder of their own."""

    def __init__(self, peer: Peer, python: Path, out: Path, limit_s: float = LIMIT_S) -> None:
        self.peer, self.python, self.out, self.limit_s = peer, python, out, limit_s
        words = [str(CODE), str(HERE), os.environ.get("PYTHONPATH", "")]
        quiet = {
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "DLJOB_HOME": str(out / "state"),
            "RAY_TMPDIR": str(out),
        }
        compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.env = {**compiled, **quiet, MARK: str(out), "PYTHONPATH": os.pathsep.join(words).rstrip(os.pathsep)}
        self.made: subprocess.Popen[bytes] | None = None
        self.jobs: list[subprocess.Popen[bytes]] = []
        """The commands of several jobs, each with a folder of its own."""
        self.ray: subprocess.Popen[bytes] | None = None
        self.begun = 0.0

    def _spawn(self, *words: str, env: dict[str, str] | None = None, **more: Any) -> subprocess.Popen[bytes]:
        with (self.out / "log").open("ab") as log:
            command = [str(self.python), "-W", "ignore", *words]
            return subprocess.Popen(
                command, cwd=self.out, env=env or self.env, stdout=log, stderr=log, start_new_session=True, **more
            )

    def start_ray(self, n: int) -> None:
        """Start a Ray in which either raylet has room for all ranks and a master; a slow machine gets a second try."""
        address = self.out / "address"
        for again in (True, False):
            words = [str(n + 2), *filter(None, [self.peer.start_hook])]
            self.ray = self._spawn(str(HERE / "ray_here.py"), *words, stdin=subprocess.PIPE)
            try:
                self.until(address.exists, "Ray did not come up")
            except NoFigureError:
                if not again:
                    raise
                self.end()
            else:
                break
        self.env["RAY_ADDRESS"] = address.read_text()

    def start(self, workload: str, n: int) -> float:
        """Return seconds from starting the peer's command to the last of n ranks in user code."""
        self.begun = time.time()
        self.made = self._spawn(str(HERE / self.peer.script), workload, str(n))
        first = self.until(lambda: len(got := self.lives()) >= n and got)
        return max(life["t"] for life in first.values()) - self.begun

    def start_jobs(self, workload: str) -> dict[str, float]:
        """Start JOBS jobs of one rank at once.

        Returns:
            Seconds until the last of them is in user code; how many fit in SHARE of the machine's memory beside what
            was there before (Ray, templates), by what these have added to it.
        """
        before, self.begun = self.pss(), time.time()
        for number in range(JOBS):
            (own := self.out / f"job-{number}").mkdir()
            env = {**self.env, MARK: str(own), "PEER_JOB": f"peer-{number}"}
            self.jobs.append(self._spawn(str(HERE / self.peer.script), workload, "1", env=env))
        first = self.until(lambda: len(got := self._first_lives()) == JOBS and got)
        seconds = max(first) - self.begun
        fit = (SHARE * psutil.virtual_memory().total - before) / ((self.pss() - before) / JOBS)
        return {"jobs": seconds, "fit": fit}

    def _first_lives(self) -> list[float]:
        """Return when each rank 0 of the jobs began; workers of Ray write to the folder of that Ray, not of a job."""
        files = [file for folder in (self.out, *self.out.glob("job-*")) for file in folder.glob("rank-0.jsonl")]
        return [json.loads(line)["t"] for file in files for line in file.read_text().splitlines()]

    def pss(self) -> int:
        """Return bytes of all processes of this run; what several of them share counts once."""
        total = 0
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total

    def lives(self, since: float = 0.0) -> dict[int, dict[str, Any]]:
        """Return the newest life of each rank that began later than a time."""
        found = {}
        for file in self.out.glob("rank-*.jsonl"):
            lines = file.read_text().splitlines()
            life = json.loads(lines[-1]) if lines else {"t": 0.0}
            if life["t"] > since:
                found[life["rank"]] = life
        return found

    def until(self, check: Callable[[], Any], late: str = "") -> Any:
        """Return the first true answer of a check."""
        end = time.monotonic() + self.limit_s
        while not (got := check()):
            over = next(
                (made for made in (self.made, *self.jobs) if made is not None and made.poll() is not None), None
            )
            if over is not None and not check():
                raise NoFigureError(f"the command ended with {over.returncode}")
            if self.made is None and self.ray is not None and self.ray.poll() is not None:
                raise NoFigureError(f"Ray ended with {self.ray.returncode}")
            if time.monotonic() > end:
                raise NoFigureError(late or f"not in {self.limit_s:.0f} s")
            time.sleep(0.01)
        return got

    def processes(self) -> list[psutil.Process]:
        """Return all processes of this run."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if f"{process.environ().get(MARK)}/".startswith(f"{self.out}/"):
                    found.append(process)
        return found

    def named(self, name: str | tuple[str, ...]) -> psutil.Process:
        """Return the process whose title or program begins so; the peer's command for an empty name."""
        if not name and self.made is not None:
            return psutil.Process(self.made.pid)
        found = [one for one in self.processes() if title(one).startswith(name)]
        if not found:
            raise NoFigureError(f"no process is named {name}")
        return found[0]

    def memory(self) -> dict[str, float]:
        """Return MiB of a rank, the median of all, and of all else but Ray's own; what is shared counts once."""
        ranks = {life["pid"] for life in self.lives().values()}
        own, rest = [], 0.0
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                pss = process.memory_full_info().pss / MIB
                if process.pid in ranks:
                    own.append(pss)
                elif not is_rays(process):
                    rest += pss
        return {"pss": median(own), "pss-rest": rest}

    def strike(self, event: str) -> list[int]:
        """Do what an event does; returns the ranks that it ended or stopped.

        Raises:
            NoFigureError: there is no process that it could meet.
        """
        pids = {rank: life["pid"] for rank, life in self.lives().items()}
        if event == "node":
            return self._end_node(pids)
        victims = {"two": [1, 2], "all": list(pids)}.get(event, [1])
        if event == "master":
            self.named(self.peer.master).kill()
        for rank in victims:
            with contextlib.suppress(ProcessLookupError):  # it ended with its master
                os.kill(pids[rank], signal.SIGSTOP if event == "hang" else signal.SIGKILL)
        return victims

    def inflict(self, event: str) -> float:
        """Do what an event does; returns seconds until the ranks that it ended are in user code again.

        With a master a rank is killed, and once a head is gone for HEADLESS_S: it is the time until somebody commands.
        """
        if event == "head":
            self.named("gcs_server").kill()
            self._outlive(HEADLESS_S)
            event = "one"
        begin = time.time()
        victims = self.strike(event)
        back = self.until(lambda: set(victims) <= set(got := self.lives(begin)) and got)
        return max(back[rank]["t"] for rank in victims) - begin

    def _outlive(self, seconds: float) -> None:
        """Wait so long. Raises NoFigureError if the command ends meanwhile."""
        begin = time.monotonic()
        while (gone := time.monotonic() - begin) < seconds:
            if self.made is not None and (code := self.made.poll()) is not None:
                raise NoFigureError(f"the command ended with {code} after {gone:.0f} s")
            time.sleep(0.1)

    def start_again(self, workload: str, n: int) -> bool:
        """Start the command again if it has ended, as a user or a controller would; return whether it had."""
        if self.made is None or self.made.poll() is None:
            return False
        self.made = self._spawn(str(HERE / self.peer.script), workload, str(n))
        return True

    def _end_node(self, pids: dict[int, int]) -> list[int]:
        """Kill the raylet of rank 0 with all that runs below it; returns its ranks."""
        raylets = (one.pid for one in self.processes() if title(one) == "raylet")
        gone = next((node for one in raylets if pids[0] in (node := of_raylet(one))), None)
        if gone is None:
            raise NoFigureError("rank 0 runs below no raylet")
        for pid in gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return [rank for rank, pid in pids.items() if pid in gone]

    def restarted(self, before: dict[int, int]) -> int:
        """Return how many ranks have another process than before, after a second in which others may follow."""
        time.sleep(1.0)
        return sum(life["pid"] != before.get(rank) for rank, life in self.lives().items())

    def leave(self) -> int:
        """Let the workload end; return how many of its processes are still there after it, idle ones of Ray not."""
        for folder in (self.out, *self.out.glob("job-*")):
            (folder / "go").touch()
        for made in filter(None, (self.made, *self.jobs)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                made.wait(END_S)
        end = time.monotonic() + LEAVE_S
        while (left := self._of_the_peer()) and time.monotonic() < end:
            time.sleep(0.1)
        for process in left:
            with contextlib.suppress(psutil.Error):
                print(f"left by {self.peer.name}: {' '.join(process.cmdline())[:200]}", file=sys.stderr, flush=True)
        return len(left)

    def _of_the_peer(self) -> list[psutil.Process]:
        """Return the processes that began with the peer's command or later, without those of Ray itself.

        A template, and the servers of workers, go by themselves half a minute behind their last child.
        """
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                waits = (SERVER in words and process.name() != CLEAN_NAME) or STARTER in words
                ended = process.status() == psutil.STATUS_ZOMBIE
                if not (is_rays(process) or waits or ended) and process.create_time() >= self.begun - 1:
                    found.append(process)
        return found

    def note(self, words: str) -> None:
        """Add a line to the log of this run."""
        with (self.out / "log").open("a") as log:
            log.write(f"[bench] {words}\n")

    def end(self) -> None:
        """End all processes of this run."""
        for _ in range(5):  # a process may start another one meanwhile
            if not (there := self.processes()):
                break
            for process in there:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(there, 2)
        for made in filter(None, (self.made, *self.jobs, self.ray)):
            made.wait(END_S)


def is_rays(process: psutil.Process) -> bool:
    """Return whether a process is one of Ray itself, which runs no code of the peer. Raises psutil.Error."""
    words = " ".join(process.cmdline())
    return title(process).startswith(RAYS_TITLES) or any(word in words for word in RAYS_WORDS)


def title(process: psutil.Process) -> str:
    """Return the title that a process gave itself, or the name of its program."""
    with contextlib.suppress(psutil.Error):
        word = (process.cmdline() or [""])[0]
        return word if word.startswith("ray::") else Path(word).name
    return ""


@contextlib.contextmanager
def running(peer: Peer, python: Path, limit_s: float = LIMIT_S) -> Iterator[Run]:
    """Yield a run in a folder with a short path; all its processes are ended behind it."""
    with tempfile.TemporaryDirectory(prefix="dlp", dir="/tmp", ignore_cleanup_errors=True) as folder:
        run = Run(peer, python, Path(folder), limit_s)
        try:
            yield run
        finally:
            run.end()


def measure(peer: Peer, workload: str, row: str, python: Path, limit_s: float = LIMIT_S) -> Outcome:
    """Run a peer once through one row.

    Raises:
        NoFigureError: it did not come back, or could not be run.
    """
    event, _, number = row.partition("-")
    n = int(number) if event == "start" else JOBS if event == "jobs" else RANKS
    with running(peer, python, limit_s) as run:
        if peer.ray:
            run.start_ray(n)
        try:
            if event == "jobs":
                return Outcome(run.start_jobs(workload), left=run.leave())
            seconds = run.start(workload, n)
            if event == "start":
                return Outcome({row: seconds, **(run.memory() if n == 16 else {})}, left=run.leave())
            before = {rank: life["pid"] for rank, life in run.lives().items()}
            seconds = run.inflict(event)
            restarted = run.restarted(before)
            return Outcome({row: seconds}, restarted, 0 if event in ("node", "head") else run.leave())
        except NoFigureError as error:
            print(*tail(run.out / "log"), sep="\n", file=sys.stderr, flush=True)
            raise NoFigureError(f"{error}{said(run.out / 'log') if 'ended' in str(error) else ''}") from error


def said(log: Path) -> str:
    """Return the last line of what a command said, short enough for a table; lines of Ray's workers are left out."""
    lines = [line for line in tail(log) if not OF_A_WORKER.search(line) and not line.startswith(WARNING)]
    return f": {PASSING.sub('', COLOURS.sub('', lines[-1])).strip().replace('|', '/')[:100]}" if lines else ""


def tail(log: Path) -> list[str]:
    """Return the last lines of what a run said."""
    return log.read_text(errors="replace").strip().splitlines()[-20:] if log.exists() else []
