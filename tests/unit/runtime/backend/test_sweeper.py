"""Which processes belong to an embedded Ray: those with its mark, and Ray's workers with a file of it open."""

from __future__ import annotations

from pathlib import Path

import pytest

from dljob.runtime.backend import sweeper

MARK = "/tmp/dljob-ray-1"


def process(proc: Path, *, environ: str = "", title: str = "python", opened: str = "/dev/null") -> Path:
    """An entry of /proc."""
    (proc / "fd").mkdir(parents=True)
    (proc / "environ").write_text(environ)
    (proc / "cmdline").write_text(title)
    (proc / "fd" / "3").symlink_to(opened)
    return proc


@pytest.mark.parametrize(
    ("facts", "ours"),
    [
        ({"environ": f"A=1\0{sweeper.MARK}={MARK}\0"}, True),
        ({"environ": f"{sweeper.MARK}={MARK}0\0"}, False),
        ({"title": "ray::IDLE", "opened": f"{MARK}/logs/worker.out"}, True),
        ({"title": "ray::IDLE", "opened": f"{MARK}0/logs/worker.out"}, False),
        ({"title": "dljob status", "opened": f"{MARK}/logs/worker.out"}, False),
    ],
    ids=["marked", "marked by another", "a worker", "a worker of another", "a client"],
)
def test_processes_of_one_ray_are_known_by_mark_or_by_an_open_file(facts, ours, tmp_path):
    assert sweeper._is_ours(process(tmp_path / "7", **facts), MARK) is ours


def test_a_process_that_is_gone_belongs_to_no_ray(tmp_path):
    assert not sweeper._is_ours(tmp_path / "7", MARK)
