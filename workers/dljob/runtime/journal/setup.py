"""What a PrimeMaster is made for: the job, its plan, and what its surroundings promise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dljob.master.state.events import Carried
from dljob.master.state.state import JobState
from dljob.master.transition import initial
from dljob.plan.model import JobPlan
from dljob.runtime.process.messages import JobInfo
from dljob.spec.model import DLJobSpec


@dataclass(frozen=True, slots=True)
class Setup:
    """What a master is made for."""

    info: JobInfo
    spec: DLJobSpec
    plan: JobPlan
    own_nodes: bool = False
    carried: Carried | None = None
    """What the last attempt handed on."""
    roams: bool = False
    """Whether what is left at the end goes into the key-value store too."""
    core: str = ""
    """Which code decides here."""

    def initial(self, now: float) -> JobState:
        """The job's first state."""
        return initial(self.plan, self.spec, self.info.uid, now, own_nodes=self.own_nodes)

    @property
    def folder(self) -> Path:
        """The job's folder."""
        return Path(self.info.dir)
