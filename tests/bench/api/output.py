"""What it costs to show a rank that writes 100,000 lines of 100 bytes a second, against the same run under --quiet.

OUTPUT_S: how long each run steps, 60 seconds unless it is said. The display is a terminal that is read at once.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import APPS, Row, folder, runs, say, until

SECONDS = float(os.environ.get("OUTPUT_S", "60"))
ASK_S = 0.2
JOB = """apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {{name: flood}}
spec:
  code: {{workingDir: {code}}}
  roles:
  - {{name: stepper, entrypoint: {{class: output_app.step}}, resources: {{cpu: 100m}}, config: {{seconds: {seconds}}}}}
  - {{name: writer, driver: false, entrypoint: {{class: output_app.write}}, resources: {{cpu: 100m}}}}
"""


class Run:
    """One `dljob run` on a terminal: its steps, its memory, and how late PrimeMaster answers meanwhile."""

    def __init__(self, home: Path, *flags: str) -> None:
        file = home / "flood.yaml"
        file.write_text(JOB.format(code=APPS, seconds=SECONDS))
        master, slave = pty.openpty()
        env = {**os.environ, "DLJOB_HOME": str(home / "state"), "TERM": "xterm", "COLUMNS": "120"}
        env.pop("NO_COLOR", None)
        command = [sys.executable, "-m", "dljob.cli", "run", str(file), *flags]
        self._process = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=slave, stdin=subprocess.DEVNULL
        )
        os.close(slave)
        self._home, self.shown = home, 0
        reader = threading.Thread(target=self._read, args=(master,))
        reader.start()
        self.late: list[float] = []
        self.peak = self.cpu = 0.0
        self._watch()
        out, _ = self._process.communicate()
        reader.join()
        if self._process.returncode:
            raise RuntimeError(f"dljob run ended with {self._process.returncode}: {out.decode()}")
        self.step: float = json.loads(out)["step"]
        (written,) = home.glob("state/jobs/flood-*/written")
        lines, took = json.loads(written.read_text())
        self.rate = lines / took
        self.kept = sum(f.stat().st_blocks for f in home.glob("state/jobs/flood-*/logs/writer-0.log")) * 512 / 2**20

    def _read(self, master: int) -> None:
        with suppress(OSError):  # the other end is closed
            while data := os.read(master, 1 << 16):
                self.shown += data.count(b"[writer/0]")
        os.close(master)

    def _watch(self) -> None:
        """Ask PrimeMaster while the job runs, and look at the memory of the command."""
        from dljob.runtime.control_socket import messages
        from dljob.runtime.control_socket.client import NoAnswerError, SocketLine

        (entry,) = until(lambda: list(self._home.glob("state/jobs/flood-*/job.json")))
        uid: str = json.loads(entry.read_text())["uid"]
        until(lambda: list(entry.parent.glob("written")))
        line = SocketLine(entry.parent)
        begin, before = time.monotonic(), self._used()
        while self._process.poll() is None and not _over(entry.parent):
            asked = time.monotonic()
            try:
                line.ask(messages.request(uid, "pids", ()), 10.0)
            except NoAnswerError:
                break
            self.late.append(time.monotonic() - asked)
            with suppress(OSError, IndexError, ValueError):
                status = Path(f"/proc/{self._process.pid}/status").read_text()
                self.peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
            self.cpu = (self._used() - before) / (time.monotonic() - begin)
            time.sleep(ASK_S)

    def _used(self) -> float:
        """Seconds of a processor that the command has used."""
        with suppress(OSError, IndexError, ValueError):
            found = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
            return (int(found[11]) + int(found[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0


def _over(job: Path) -> bool:
    with suppress(OSError, ValueError):
        return json.loads((job / "status.json").read_text())["phase"] not in ("Pending", "Scheduling", "Running")
    return False


def percentile(values: list[float], share: float) -> float:
    """The value below which such a share lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def once(*flags: str) -> Run:
    """A run in a home of its own."""
    with folder() as home:
        return Run(home, *flags)


def main() -> None:
    """Three rows."""
    pairs: list[tuple[Run, Run]] = []
    for number in range(runs(3)):
        quiet, shown = once("--quiet"), once()
        pairs.append((quiet, shown))
        say(f"  run {number + 1}: a step takes {shown.step:.4f} s, {quiet.step:.4f} s under --quiet;")
        say(f"    {shown.peak:.0f}, {quiet.peak:.0f} MB; {shown.cpu:.2f}, {quiet.cpu:.2f} of a core")
    what = f"a rank writes 100,000 lines/s for {SECONDS:g} s beside another one"
    facts: dict[str, Any] = {
        "lines a second": round(median(shown.rate for _, shown in pairs)),
        "at most 200 a second shown": all(run.shown <= 202 * (SECONDS + 15) for _, run in pairs),
        "its log is at most 272 MiB": all(run.kept <= 272.5 for pair in pairs for run in pair),
    }
    Row(
        "output-steps",
        f"{what}: its steps, shown against --quiet",
        "<= 1.1 x",
        median(shown.step / quiet.step for quiet, shown in pairs),
        1.1,
        "x",
        samples={"shown": [s.step for _, s in pairs], "quiet": [q.step for q, _ in pairs]},
        facts=facts,
    ).emit()
    used = [median(run.cpu for run in half) for half in zip(*pairs, strict=True)]
    Row(
        "output-memory",
        f"{what}: peak of dljob run over that under --quiet",
        "<= 50 MB",
        median(shown.peak - quiet.peak for quiet, shown in pairs),
        50.0,
        "MB",
        samples={"shown": [s.peak for _, s in pairs], "quiet": [q.peak for q, _ in pairs]},
        note=f"it takes {used[1]:.2f} of a core, {used[0]:.2f} under --quiet",
    ).emit()
    late, calm = [x for _, s in pairs for x in s.late], [x for q, _ in pairs for x in q.late]
    Row(
        "output-lag",
        f"{what}: PrimeMaster's answer at its control socket",
        "<= 50 ms, median",
        median(late),
        0.05,
        samples={"shown": late, "quiet": calm},
        note=f"p99 {percentile(late, 0.99) * 1e3:.0f} ms, under --quiet {percentile(calm, 0.99) * 1e3:.0f} ms",
    ).emit()


if __name__ == "__main__":
    main()
