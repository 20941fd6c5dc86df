"""The operator of one life, started again after each death."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from mortal import DIED
from stage import Nursery

KEY = "an operator's key for the sweep alone"


class BrokenError(AssertionError):
    """A life did not go as expected."""


@dataclass
class Operator:
    """The operator of one life: at each of its points it dies and is started again."""

    nursery: Nursery
    folder: Path
    kubeconfig: Path
    namespace: str
    door: str
    points: list[tuple[str, str]] = field(default_factory=list)
    """Points not reached yet: (call, before or after)."""
    deaths: int = 0

    async def live(self) -> None:
        """Run the operator, and again after each death."""
        self.folder.mkdir(parents=True, exist_ok=True)
        key = self.folder / "key"
        key.write_text(KEY)
        while (code := await self._run(key)) == DIED:
            self.deaths += 1
            self.points.remove(tuple(json.loads((self.folder / "state").read_text())["died"]))
        raise BrokenError(f"the operator ended with {code}: {self.log.read_text()[-2000:]}")

    @property
    def log(self) -> Path:
        return self.folder / "operator.log"

    @property
    def calls(self) -> Path:
        return self.folder / "calls"

    async def _run(self, key: Path) -> int:
        flags = [f"--kubeconfig={self.kubeconfig}", f"--token-key-file={key}", f"--namespace={self.namespace}"]
        flags += ["--metrics-port=0", "--health-port=0", "--init-image=example.test/init:1"]
        calls = self.calls.with_suffix(f".{self.deaths + 1}")
        env = {"SWEEP_DOOR": self.door, "SWEEP_CALLS": str(calls), "SWEEP_STATE": str(self.folder / "state")}
        env["SWEEP_POINTS"] = json.dumps(self.points)
        return await self.nursery.run(flags, env, self.log)

    def made(self) -> list[list[str]]:
        """Return the calls of the first operator in order, each with its names."""
        lines = self.calls.with_suffix(".1").read_text().splitlines()
        return [json.loads(line.partition(" > ")[2]) for line in lines if " > " in line]
