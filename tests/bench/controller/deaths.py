"""PrimeMaster killed at every point that it comes to in the life of a job with everything: before, in and after each
append to its journal, before and after each thing it asks of Ray; once each in one job, one after another.

BENCH_EACH=1: then each point alone, in a job of its own, which takes a quarter of an hour.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, cluster, say

RAY = Path(__file__).resolve().parents[2] / "ray"
FOLDERS = [str(RAY / "kits"), str(RAY / "users")]


def story(where: Path, at: Sequence[str]) -> Any:
    """One job from its start to its end; what is not as it must be raises an AssertionError. The scene, to look at."""
    job: Any = import_module("prime_help").Job(where)
    scene: Any = import_module("mortal_scene").Scene(job, at)
    try:
        scene.story()
    finally:
        job.close()
    return scene


def told(scene: Any) -> str:
    """What was not come to, of all kinds of events that there are."""
    from dljob.master.state.events import Event

    never = {kind.__name__ for kind in get_args(Event)} - scene.kinds()
    return f"kinds of events that this job never has: {', '.join(sorted(never)) or 'none'}"


def main() -> None:
    """One row; a point at which something is wrong ends it with what that is."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*FOLDERS, os.environ.get("PYTHONPATH")]))
    sys.path += FOLDERS
    with cluster(4, 4), tempfile.TemporaryDirectory(prefix="dlb", dir="/tmp") as home:
        scene = story(Path(home) / "all", ["*"])
        points, deaths = sorted(scene.points()), len(scene.job.segments()) - 1
        say(f"{deaths} deaths at {len(points)} points", told(scene))
        for number, point in enumerate(points if os.environ.get("BENCH_EACH") else ()):
            story(Path(home) / str(number), [point])
            say(f"  {point}")
    Row(
        "deaths",
        "PrimeMaster killed at every transition",
        "0 restarts except the due ones, 0 effects lost or doubled",
        0,
        0,
        unit="restarts",
        facts={"0 effects lost or doubled": True},
        note=f"{deaths} deaths, {len(points)} points",
    ).emit()


if __name__ == "__main__":
    main()
