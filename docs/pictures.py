"""Draw the pictures of the page in docs/img: light, dark and narrow, of real jobs and of a made-up large one.

    python docs/pictures.py [NAME=FOLDER ...]

FOLDER is that of a job (`make run` tells it); its page becomes page-NAME-light.webp and so on. Without a folder only
the made-up job of 1,000 ranks is drawn. It needs Chromium (tests/kits/browser.py).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "kits"))
import page_jobs
from browser import Browser, browser, missing

from dljob.report.page import html

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "img"
MOST_BYTES = 150_000
WORST = """(() => {
  const all = page.data.incidents || [];
  const took = all.map((one) => (one.until ?? one.at) - one.at);
  const worst = took.indexOf(Math.max(...took));
  if (worst < 0) return;
  openIncident(worst);
  page.open.add(all[worst].target.split('/')[0]);
  timeline.lanes.layout();
  showAround(all[worst]);
})()"""
"""Opens the longest incident, and shows the ranks of its role around it."""
VIEWS = (
    ("light", 1440, 1000, False, "scrollTo(0, 0)"),
    ("dark", 1440, 1000, True, WORST),
    ("narrow", 360, 1000, False, "document.getElementById('timeline').scrollIntoView()"),
)


def draw(shown: Browser, name: str, page: Path) -> None:
    """Draw one page in each view."""
    for view, width, height, dark, script in VIEWS:
        shown.open(page.as_uri(), width, height, dark=dark)
        shown.run("page.ready")
        shown.run(script)
        shown.settle()
        file = IMAGES / f"page-{name}-{view}.webp"
        shown.picture(file)
        size = file.stat().st_size
        if (found := shown.complaints()) or size > MOST_BYTES:
            sys.exit(f"{file.name}: {size} bytes, {found}")
        sys.stdout.write(f"{file.relative_to(ROOT)}: {size // 1000} kB\n")


def main(jobs: list[str]) -> None:
    """Draw all pictures."""
    if why := missing():
        sys.exit(why)
    with tempfile.TemporaryDirectory() as folder, browser() as shown:
        made = Path(folder) / "simulated.html"
        made.write_text(html(page_jobs.rl_job()), encoding="utf-8")
        draw(shown, "simulated", made)
        for job in jobs:
            name, _, of = job.partition("=")
            file = Path(folder) / f"{name}.html"
            command = [sys.executable, "-m", "dljob.cli", "report", f"{Path(of).resolve()}/", "-o", str(file)]
            subprocess.run(command, check=True)
            draw(shown, name, file)


if __name__ == "__main__":
    main(sys.argv[1:])
