"""Public API for launching scripts: the builders, `submit`, and the handle of a job."""

from __future__ import annotations

from dljob.api.builder import DLJobBuilder
from dljob.api.job import DLJob, Workload
from dljob.api.rl import RLJobBuilder, RLRoleType
from dljob.api.role import RoleBuilder

__all__ = ["DLJob", "DLJobBuilder", "RLJobBuilder", "RLRoleType", "RoleBuilder", "Workload"]
