"""A page in a headless Chromium: its size, its first paint, and the time until a zoom or a filter is painted."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kits"))
import page_jobs
from bench_common import Row, runs, say
from browser import Browser, browser, missing

from dljob.report.page import html

FRAMES = 20
# A task after the frame's callbacks runs when the frame was painted; the wait for the display's clock is counted, too.
PAINTED = "new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
ZOOM = f"""(async () => {{ const found = []; setWindow(page.start, page.end);
  for (let i = 0; i < {FRAMES}; i += 1) {{
    const begin = performance.now(); zoom(0.8, page.start + 30000); await {PAINTED};
    found.push((performance.now() - begin) / 1000); }} return found; }})()"""
UNFOLD = "(() => { for (const name of roleNames()) page.open.add(name); timeline.lanes.layout(); drawNow(); })()"
FILTER = f"""(async () => {{ const found = []; const box = document.getElementById('filter');
  for (const text of ['t', 'tr', 'tra', 'train', 'trainer weights', 'zzz', '', 'gpu-0', 'silent 3', 'version']) {{
    const begin = performance.now(); box.value = text; box.dispatchEvent(new Event('input')); await {PAINTED};
    found.push((performance.now() - begin) / 1000); }} return found; }})()"""
PAINT = """new Promise((done) => new PerformanceObserver((list) => {
  const first = list.getEntriesByName('first-contentful-paint')[0]; if (first) done(first.startTime / 1000);
}).observe({type: 'paint', buffered: true}))"""


def paints(shown: Browser, url: str, count: int) -> list[float]:
    """Seconds until the first content is painted, of so many loads."""
    found: list[float] = []
    for number in range(count):
        shown.open(url)
        found.append(float(shown.run(PAINT)))
        shown.run("page.ready")
        say(f"  load {number + 1} of {count}: {found[-1]:.3f} s")
    return found


def rows(shown: Browser, folder: Path) -> None:
    """Print the rows."""
    large: dict[str, Any] = page_jobs.rl_job()
    text = html(large)
    file = folder / "large.html"
    file.write_text(text, encoding="utf-8")
    job = "page of 1,000 ranks, 10,000 events, 24 h"
    Row("shown_page_size", f"{job}: the file", "<= 5 MB", len(text.encode()) / 1e6, 5.0, "MB",
        facts={"at most 0.4 MB beside the data": len(html({}).encode()) <= 400_000}).emit()  # fmt: skip
    loads = paints(shown, file.as_uri(), runs(5))
    Row("shown_page_paint", f"{job}: first paint", "<= 1 s", median(loads), 1.0, samples={"loads": loads}).emit()
    for name, what, script in (
        ("zoom", "a zoom of the folded lanes", ZOOM),
        ("ranks", "a zoom with all roles unfolded", ZOOM),
        ("filter", "a filter of its events", FILTER),
    ):
        if name == "ranks":
            shown.run(UNFOLD)
        took = shown.run(script)
        Row(f"shown_page_{name}", f"{job}: {what}", "<= 50 ms", median(took), 0.05, samples={"frames": took}).emit()
    file = folder / "largest.html"
    file.write_text(html(page_jobs.rl_job(ranks=10_000)), encoding="utf-8")
    shown.open(file.as_uri())
    shown.run("page.ready")
    took = shown.run(ZOOM)
    Row("shown_page_10000", "page of 10,000 ranks: a zoom of the folded lanes", "<= 50 ms", median(took), 0.05,
        samples={"frames": took}).emit()  # fmt: skip


def main() -> None:
    """Measure, if this machine has a browser."""
    if why := missing():
        sys.exit(why)
    with tempfile.TemporaryDirectory() as folder, browser() as shown:
        rows(shown, Path(folder))


if __name__ == "__main__":
    main()
