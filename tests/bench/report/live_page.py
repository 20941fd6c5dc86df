"""SIGKILL of a rank of a job of `dljob run`: until its incident is on the live page in a headless Chromium."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import yaml

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE / "kits"), str(HERE.parent / "kits")]

from bench_common import APPS, Entries, Row, folder, runs, say  # noqa: E402 - the folders above have no package
from bench_jobs import manifest, role  # noqa: E402
from browser import Browser, missing  # noqa: E402

SHOWN = """new Promise((done) => { const look = () =>
  document.querySelectorAll('table.incidents tbody tr').length >= %d ? done(Date.now() / 1000)
    : requestAnimationFrame(look); look(); })"""
"""The time at which the table has so many incidents, by the page itself."""


def measure(out: Path, entries: Entries, shown: Browser) -> list[float]:
    """Return the seconds from each kill to its row in the table."""
    found: list[float] = []
    for number in range(1, runs(11) + 1):
        victim = entries.last_of("worker", number % 2)
        # Between two looks of the command, at any moment of its second.
        time.sleep(2.0 + number * 0.37 % 1.1)
        killed = time.time()
        os.kill(victim["pid"], signal.SIGKILL)
        found.append(float(shown.run(SHOWN % number)) - killed)
        say(f"  kill {number}: {found[-1]:.2f} s")
        entries.next_of("worker", number % 2, killed)
    return found


def main() -> None:
    """Print the row, if this machine has a browser."""
    if why := missing():
        sys.exit(why)
    with folder() as home:
        out, job = home / "out", home / "job.yaml"
        job.write_text(yaml.safe_dump(manifest("kills", out, [role("worker", "bench_app.stay", 2)])))
        env = {**os.environ, "DLJOB_HOME": str(home / "home"), "PYTHONPATH": str(APPS)}
        dljob = [sys.executable, "-m", "dljob.cli"]
        entries = Entries(out)
        quiet = subprocess.DEVNULL
        with subprocess.Popen([*dljob, "run", str(job)], cwd=APPS, env=env, stdout=quiet, stderr=quiet) as run:
            entries.await_count(2)
            command = [*dljob, "open", "kills", "--no-browser"]
            with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as page:
                assert page.stdout
                shown = Browser(apart=False)
                shown.open(page.stdout.readline().strip())
                shown.run("page.ready")
                took = measure(out, entries, shown)
                shown.close()
                page.send_signal(signal.SIGINT)
            run.send_signal(signal.SIGINT)
    load = os.getloadavg()[0]
    Row(
        "live_page_kill",
        "SIGKILL of a rank -> its incident is on the live page in a Chromium",
        "<= 2 s",
        median(took),
        2.0,
        samples={"seconds": took},
        facts={"each within 2 s": max(took) <= 2.0},
        note=f"load {load:.0f}",
    ).emit()


if __name__ == "__main__":
    main()
