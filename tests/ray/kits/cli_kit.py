"""`dljob` as a subprocess: a folder with user code and job files, a DLJOB_HOME of its own, and traces of its Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from patience import patience

USER = '''
import os, sys, time
from pathlib import Path
from dljob import checkpoint, current_worker, progress

def quick():
    me = current_worker()
    print(f"quick {me.rank}", flush=True)
    progress(1, reward=0.5)
    return {"answer": 42, "cwd": os.getcwd()}

def bad():
    raise ValueError("no such data set: /data/x")

def devices():
    me = current_worker()
    Path(me.job_dir, f"devices-{me.rank}").write_text(os.environ.get("ASCEND_RT_VISIBLE_DEVICES", "none"))

def saving():
    """Saves step 3, and then stays; ends at once where it has been saved."""
    step = (checkpoint.load() or (0, 0))[0]
    if not step:
        checkpoint.save(3, 3)
        checkpoint.wait()
        print("saved", flush=True)
        current_worker().stopping.wait()
    return {"begun_after": step}

def patient():
    """Runs until there is a file `enough` in the job's folder."""
    me = current_worker()
    print(f"patient {me.rank} here", flush=True)
    enough = Path(me.job_dir, "enough")
    step = 0
    while not enough.exists():
        step += 1
        progress(step, reward=step / 100)
        time.sleep(0.05)
    return {"steps": step}
'''


class Place:
    """A folder with `user.py` and job files; `dljob` runs with a DLJOB_HOME inside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        (folder / "user.py").write_text(USER)
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "DLJOB_"))},
            "DLJOB_HOME": str(self.home),
            "OMP_NUM_THREADS": "1",
            "NO_COLOR": "1",
        }

    def job(self, function: str, *, name: str = "job", replicas: int = 1, extra: str = "", role: str = "") -> Path:
        """Write a job file with one role that runs `user.<function>`; returns its path."""
        file = self.folder / f"{name}.yaml"
        file.write_text(
            f"apiVersion: dljob.io/v1alpha1\nkind: DLJob\nmetadata: {{name: {name}}}\nspec:\n{extra}"
            f"  roles:\n  - {{name: worker, replicas: {replicas}, entrypoint: {{class: user.{function}}}, "
            f"resources: {{cpu: 100m}}{role}}}\n"
        )
        return file

    def dljob(self, *words: object, timeout: float = 100) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; returns the completed process."""
        return subprocess.run(
            [sys.executable, "-m", "dljob.cli", *map(str, words)],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=patience(timeout),
            check=False,
        )

    @contextmanager
    def running(self, *words: object, within: Sequence[str] = ()) -> Iterator[Running]:
        """Start a command, through the prefix `within` if given; it is killed with the block if it still runs."""
        process = subprocess.Popen(
            [*within, sys.executable, "-m", "dljob.cli", *map(str, words)],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        run = Running(process)
        try:
            yield run
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            run.close()

    def entry(self, name: str = "job") -> dict[str, Any]:
        """Return job.json of the only job of that name."""
        (file,) = self.home.glob(f"jobs/{name}-*/job.json")
        return json.loads(file.read_text()) | {"folder": file.parent}

    def scratch(self, name: str = "job") -> Path:
        """Return the folder of the embedded Ray of a job."""
        return Path(self.entry(name)["environment"]["RAY_AUTH_TOKEN_PATH"]).parent


class Running:
    """A running command whose stderr is read line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.errors: list[str] = []
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self._lines.put(line.rstrip("\n"))

    def until_all(self, *wanted: str) -> None:
        """Wait until each of these words has appeared in a line of stderr, in any order."""
        missing = set(wanted)

        def last(line: str) -> bool:
            missing.difference_update([words for words in missing if words in line])
            return not missing

        self.until(last)

    def until(self, wanted: Callable[[str], bool], timeout: float = 60) -> str:
        """Return the first line on stderr for which `wanted` is true."""
        while True:
            try:
                line = self._lines.get(timeout=patience(timeout))
            except Empty:
                raise AssertionError(f"no such line within {timeout} s; there were {self.errors}") from None
            self.errors.append(line)
            if wanted(line):
                return line

    def end(self, timeout: float = 60) -> tuple[int, str, str]:
        """Wait for the end; returns exit code, stdout and stderr."""
        assert self.process.stdout
        out = self.process.stdout.read()
        code = self.process.wait(timeout)
        self._reader.join()
        while not self._lines.empty():
            self.errors.append(self._lines.get())
        return code, out, "\n".join(self.errors)

    def close(self) -> None:
        self._reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            if stream:
                stream.close()


def using(folder: Path) -> list[int]:
    """Return the living processes that have a file of a folder open or the folder in their environment."""
    from dljob.runtime.backend.sweeper import marked

    return marked(str(folder))


def child(pid: int, *words: str) -> int:
    """Return the only child of a process that has all these words in its command line."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_text().replace("\0", " ")
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        if parent == pid and all(word in f"{command} " for word in words):
            found.append(int(entry.name))
    (only,) = found
    return only
