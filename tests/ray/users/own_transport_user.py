"""User code with a transport of its own: files in the job's folder. Files that the test writes break a rank's side."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from pathlib import Path

from way_user import equal, say, state, wait_for

from dljob import WeightChannel, WeightTransport, current_worker


class Folder(WeightTransport):
    """A file for each bucket."""

    timeout_s = 1.0

    def __init__(self) -> None:
        self.folder = Path(current_worker().job_dir)

    def publish(self, version: int, buckets: Sequence[Sequence[memoryview]]) -> str:
        self.fail_if_told()
        path = f"{self.folder / 'version'}-{version}-{uuid.uuid4().hex}"
        for number, bucket in enumerate(buckets):
            Path(f"{path}-{number}").write_bytes(b"".join(bucket))
        return path

    def receive(self, address: str, sizes: Sequence[int]) -> list[bytes]:
        self.fail_if_told()
        return [Path(f"{address}-{number}").read_bytes() for number in range(len(sizes))]

    def fail_if_told(self) -> None:
        me = current_worker()
        if (self.folder / f"raise-{me.role}-{me.rank}").exists():
            raise OSError("the share is not mounted")
        if (self.folder / f"hang-{me.role}-{me.rank}").exists():
            threading.Event().wait()


def publish() -> None:
    """Publish a version for each `go-` that is not published yet."""
    channel = WeightChannel("policy", transport=Folder())
    for version in (1, 2, 3, 4):
        if not any(Path(current_worker().job_dir).glob(f"sent-{version}-*")):
            wait_for(f"go-{version}")
            channel.publish(version, state(version))
            say(f"sent-{version}", by=channel.came_by)
    wait_for("end")


def receive() -> None:
    """Say by which transport each version came."""
    channel, version = WeightChannel("policy", transport=Folder()), 0
    say("ready")
    while version < 4:
        version, found = channel.receive(120)
        say(f"got-{version}", right=equal(found, state(version)), by=channel.came_by)
    wait_for("end")
