"""Pages: built of a day of 1,000 ranks, and followed by 50 readers on a job of 1,000 ranks with 10 events a second."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE / "kits"), str(HERE.parent / "kits")]

from bench_common import Row  # noqa: E402 - the folders above have no package
from growing_folder import GrowingFolder  # noqa: E402
from simulated_folder import UID, written  # noqa: E402

from dljob.report import job_folder, page  # noqa: E402
from dljob.report.page_data import page_data  # noqa: E402
from dljob.testing.simulate import large  # noqa: E402
from dljob.testing.simulate.drive import Case, Driver, Durations  # noqa: E402
from dljob.testing.world.fault_schedule import Timed  # noqa: E402
from dljob.testing.world.model import FaultMove  # noqa: E402

SIZE = large.Size(nodes=125, days=1, world=63)
KILLS = int(os.environ.get("PAGE_KILLS", "350"))
"""Each is 28 events of the journal: 350 are 10,000."""
READERS = int(os.environ.get("PAGE_READERS", "50"))
PER_S = 10
COOKIES: dict[str, str] = {}
FOLLOWED_S = float(os.environ.get("PAGE_S", "30"))


def day(kills: int) -> tuple[Driver, Case]:
    """Return a day of 1,001 ranks. Each hundredth kill restarts a world of 504 ranks, the others a group of 8."""
    ranks, every = (SIZE.nodes - SIZE.world) * large.PER_NODE, 85_000 / kills
    targets = ("trainer/7" if i % 100 == 99 else f"rollout/{i * 37 % ranks}" for i in range(kills))
    faults = [Timed(600 + i * every, FaultMove("kill", 0, 0, target)) for i, target in enumerate(targets)]
    case = Case(1, large.manifest(SIZE), tuple(faults))
    driver = Driver(case, pace=Durations(work=(86_400, 86_401), total=86_400))
    driver.run()
    return driver, case


def build(folder: Path) -> tuple[float, int, int]:
    """Return CPU seconds and bytes of a page, and the number of its incidents."""
    begin = time.process_time()
    data = page_data(job_folder.load(folder), time.time())
    text = page.html(data)
    return time.process_time() - begin, len(text.encode()), len(data["incidents"])


def follow(folder: Path, growing: GrowingFolder) -> tuple[float, int]:
    """Return the share of a core that `dljob open` takes for its readers, and the answers that they got."""
    growing.step(200)
    env = {**os.environ, "DLJOB_HOME": str(folder)}
    command = [sys.executable, "-m", "dljob.cli", "open", UID, "--no-browser"]
    ends, answers = threading.Event(), [0]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        link = server.stdout.readline().strip()
        for _ in range(READERS):
            threading.Thread(target=read, args=(cookie_of(link), link, ends, answers), daemon=True).start()
        time.sleep(3)
        begin, used, counted = time.monotonic(), cpu(server.pid), answers[0]
        while (now := time.monotonic()) - begin < FOLLOWED_S:
            growing.step(PER_S // 2)
            time.sleep(max(0.0, 0.5 - (time.monotonic() - now)))
        share = (cpu(server.pid) - used) / (time.monotonic() - begin)
        ends.set()
        server.kill()
    return share, answers[0] - counted


def cookie_of(link: str) -> str:
    """Return the cookie of one browser for all readers, as 50 tabs have it."""
    if link not in COOKIES:
        url = urlsplit(link)
        connection = HTTPConnection(url.netloc)
        connection.request("GET", f"/?{url.query}")
        COOKIES[link] = str(connection.getresponse().getheader("Set-Cookie")).partition(";")[0]
    return COOKIES[link]


def read(cookie: str, link: str, ends: threading.Event, answers: list[int]) -> None:
    """Poll as a page does, over one connection."""
    connection, version = HTTPConnection(urlsplit(link).netloc), ""
    while not ends.is_set():
        connection.request("GET", f"/data?after={version}", headers={"Cookie": cookie})
        answer = connection.getresponse()
        said = answer.read()
        if answer.status == 200:
            answers[0] += 1
            version = json.loads(said)["version"]
        elif answer.status == 503:  # PrimeMaster is not there in this benchmark, which is told; the page asks on
            ends.wait(0.5)


def cpu(pid: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    with tempfile.TemporaryDirectory() as temp:
        driver, case = day(KILLS)
        written(Path(temp) / "day", driver, case.manifest, 4)
        runs = [build(Path(temp) / "day") for _ in range(3)]
        seconds, size = median(run[0] for run in runs), runs[0][1]
        events = len(driver.world.journal)
        Row(
            "page of 1,001 ranks and a day",
            f"page of a job of 1,001 ranks, {events:,} events of its journal, 24 h: CPU time until it is built",
            "<= 2 s, <= 5 MB",
            seconds,
            2.0,
            samples={"seconds": [run[0] for run in runs]},
            facts={"at most 5 MB": size <= 5_000_000},
            note=f"{size / 1e6:.2f} MB, {runs[0][2]} incidents",
        ).emit()
        home = Path(temp) / "home"
        place = home / "jobs" / f"large-{UID[:8]}"
        growing = GrowingFolder(place, case, driver)
        entry = {"name": "large", "uid": UID, "dir": str(place), "environment": {}, "started": 1.0}
        # Its runner is this process: as long as it lives the job counts as running.
        started = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
        entry |= {"runner": os.getpid(), "runner_started": started}
        (place / "job.json").write_text(json.dumps(entry))
        share, answers = follow(home, growing)
        Row(
            "50 readers of a live page",
            f"{READERS} pages open on a job of 1,001 ranks, {PER_S} events a second: CPU of the command",
            "<= 3 % of a core",
            100 * share,
            3.0,
            unit="%",
            note=f"{answers / FOLLOWED_S:.0f} answers a second",
        ).emit()


if __name__ == "__main__":
    main()
