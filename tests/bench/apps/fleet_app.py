"""Engines that stream a token each 20 ms, and a driver that reads them while their number changes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dljob import RoleGroup, Worker, current_worker, progress, rpc

TOKEN_S = 0.02


class FleetEngine(Worker):
    """Computes nothing."""

    @rpc(stream=16)
    def tokens(self, count: int) -> Iterator[float]:
        """The times at which they are made."""
        for number in range(count):
            time.sleep(TOKEN_S)
            progress(int(time.time() * 1000) + number)
            yield time.time()

    @rpc(idempotent=True)
    def ping(self) -> int:
        """The rank's number."""
        return self.context.rank


def wait_for(group: RoleGroup, ranks: int) -> None:
    """Wait until callers know of so many ranks."""
    while len(group) != ranks:
        time.sleep(0.005)


class Scaler(Worker):
    """Reads the streams of two engines, once undisturbed and once while two more come and go."""

    def run(self) -> None:
        """Write the largest gap of each reading, and the seconds until the added engines answer."""
        found = {"quiet": list[float](), "scaled": list[float](), "added": list[float](), "gone": list[float]()}
        for _ in range(self.config["rounds"]):
            found["quiet"].append(self._largest_gap(lambda: time.sleep(self.config["quiet_s"])))
            found["scaled"].append(self._largest_gap(lambda: self._scale(found)))
        Path(self.config["out"], "fleet.json").write_text(json.dumps(found))

    def _scale(self, found: dict[str, list[float]]) -> None:
        group, job = RoleGroup("engine"), current_worker().job
        begin = time.perf_counter()
        job.scale("engine", 4)
        wait_for(group, 4)
        assert sorted(group.ping()) == [0, 1, 2, 3]
        found["added"].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        job.scale("engine", 2)
        wait_for(group, 2)
        found["gone"].append(time.perf_counter() - begin)
        time.sleep(3.0)  # the processes of those that leave end

    def _largest_gap(self, meanwhile: Callable[[], None]) -> float:
        """Return the largest time between two tokens of the two engines while something else happens."""
        over, gaps = threading.Event(), [0.0, 0.0]

        def read(engine: int) -> None:
            last = 0.0
            with RoleGroup("engine")[engine].tokens(1_000_000) as stream:
                for _ in stream:
                    now = time.perf_counter()
                    gaps[engine] = max(gaps[engine], now - last if last else 0.0)
                    last = now
                    if over.is_set():
                        return

        readers = [threading.Thread(target=read, args=(engine,)) for engine in (0, 1)]
        for reader in readers:
            reader.start()
        meanwhile()
        over.set()
        for reader in readers:
            reader.join()
        return max(gaps)
