"""A job that meets a full /dev/shm, and readers that die while they map what others have published."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray._private.internal_api import get_memory_info_reply, get_state_from_address

from dljob import RoleGroup, WeightChannel, Worker, checkpoint, current_worker, rpc
from dljob.linux import memory_limit

MIB = 1 << 20
FILLER = Path("/dev/shm/filler")
SIZE = 8


def array(mib: int, value: int) -> Any:
    """An array of this many MiB."""
    return np.full(mib * MIB, value, dtype=np.uint8)


class Reader(Worker):
    """Holds a version of the weights, and answers with arrays."""

    def setup(self) -> None:
        """Hold nothing yet."""
        self.held: Any = None

    @rpc(idempotent=True)
    def pid(self) -> int:
        """The process of this life."""
        return os.getpid()

    @rpc
    def hold(self) -> tuple[int, int]:
        """Map the newest version, and keep it; (version, what its bytes are)."""
        version, self.held = WeightChannel("w").receive(60)
        return version, int(self.held["a"].max())

    @rpc
    def take(self, what: Any) -> int:
        """The length of what came, which is kept."""
        self.taken = what
        return len(what)

    @rpc
    def give(self, mib: int) -> Any:
        """An array; of 0 MiB: a huge one."""
        return array(mib, 3) if mib else huge()


def huge() -> Any:
    """An array of the size of all free memory, of which no page is there until somebody writes."""
    return np.zeros(memory_limit.free()[0] or 0, dtype=np.uint8)


def error_of(what: Callable[[], Any]) -> str:
    """The class and message of the error that something raises; what it returns, if it raises none."""
    try:
        return repr(what())
    except Exception as error:  # noqa: BLE001 - the test reads it
        return f"{type(error).__name__}: {error}"


def fill() -> None:
    """Take all of the shared memory that is left."""
    with FILLER.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(MIB)) == MIB:
                pass
        except OSError:
            return


def stored() -> int:
    """MiB in Ray's stores."""
    state = get_state_from_address(ray.get_runtime_context().gcs_address)
    return int(get_memory_info_reply(state).store_stats.object_store_bytes_used) // MIB


def full(reader: Any, weights: WeightChannel) -> dict[str, str]:
    """What each use of a full shared memory says."""
    weights.publish(1, {"a": array(SIZE, 1)})
    reader.hold()
    checkpoint.save(1, {"a": array(SIZE, 1)})
    fill()
    said = {
        "argument": error_of(lambda: reader.take(array(SIZE, 3))),
        "answer": error_of(lambda: reader.give(SIZE)),
        "publish": error_of(lambda: weights.publish(2, {"a": array(SIZE, 2)})),
        "save": error_of(lambda: (checkpoint.save(2, {"a": array(SIZE, 2)}), checkpoint.wait(60))[1]),
        # What was there before is whole.
        "version": error_of(lambda: WeightChannel("w").receive(60)[0]),
        "pid": str(reader.pid()),
    }
    FILLER.unlink()
    said["huge argument"] = error_of(lambda: reader.take(huge()))
    said["huge answer"] = error_of(lambda: reader.give(0))
    said["argument after"] = error_of(lambda: reader.take(array(SIZE, 3)))
    said["answer after"] = error_of(lambda: reader.give(SIZE).nbytes)
    weights.publish(2, {"a": array(SIZE, 2)})
    said["version after"] = error_of(reader.hold)
    return said


def killed(reader: Any, weights: WeightChannel) -> list[int]:
    """MiB in Ray's stores after each death of a reader that maps a version and an argument."""
    seen = list[int]()
    bystander = RoleGroup("bystander")[0]
    bystander.hold()
    for version in range(3, 6):
        weights.publish(version, {"a": array(SIZE, version)})
        assert reader.hold() == (version, version)
        reader.take(array(SIZE, 1))
        pid = reader.pid()
        os.kill(pid, signal.SIGKILL)
        assert reader.pid() != pid
    # The two newest versions, and what the bystander holds; Ray frees the rest a moment after.
    end = time.monotonic() + 30
    while not seen or (seen[-1] > 3 * SIZE + 1 and time.monotonic() < end):
        seen.append(stored())
        time.sleep(0.5)
    assert bystander.hold() == (5, 5)
    return seen


def uses() -> dict[str, Any]:
    """Meet both, and write down what was seen."""
    reader, weights = RoleGroup("reader")[0], WeightChannel("w")
    seen = {**full(reader, weights), "stored": killed(reader, weights)}
    Path(current_worker().job_dir, "seen.json").write_text(json.dumps(seen))
    return {"ok": True}
