"""Flash checkpoints of DLRover on `dljob.checkpoint`: memory of the node, a copy on a peer, the job's folder.

`StorageType.DISK` also writes the file that DLRover would write, for tools that read it and for later jobs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum, auto
from pathlib import Path
from typing import Any

import torch

from dljob.compat.dlrover_api.notes import tell_once
from dljob.errors import UsageError
from dljob.runtime.checkpoint.checkpoints import checkpoint
from dljob.runtime.process.context import current_worker

TRACKER = "dlrover_latest.txt"
"""File of a checkpoint folder with the last step that was written there."""
SAVE_TIMEOUT_S = 600


class StorageType(Enum):
    """Home of a checkpoint."""

    MEMORY = auto()
    DISK = auto()


class Checkpointer(ABC):
    """Saves and loads the states of a script."""

    @abstractmethod
    def save_checkpoint(
        self, step: int, state_dict: Any, path: str = "", storage_type: StorageType = StorageType.DISK
    ) -> None:
        """Save a state."""

    @abstractmethod
    def load_checkpoint(self, resume_path: str = "") -> Any:
        """Return the last state."""


class DdpCheckpointer(Checkpointer):
    """Checkpoints of ranks that each have the whole model.

    Args:
        checkpoint_dir: folder of the files.
        local_shard_num: as 1 in all.
        global_shard_num: as 1 in all.
        comm_backend: has no effect.
        deletion_strategy: has no effect: no file is deleted.
        save_timeout: seconds that `wait_latest_checkpoint` waits.
        replica_count: has no effect: a peer node has a copy.

    Raises:
        UsageError: the model is in shards.
    """

    def __init__(  # noqa: PLR0917 - DLRover's signature
        self,
        checkpoint_dir: str,
        local_shard_num: int = 1,
        global_shard_num: int = 1,
        comm_backend: str = "",
        deletion_strategy: object = None,
        save_timeout: int = SAVE_TIMEOUT_S,
        replica_count: int = 0,
    ) -> None:
        if (local_shard_num, global_shard_num) != (1, 1):
            raise UsageError("DdpCheckpointer with shards", hint="save each rank's part by dljob.checkpoint.save")
        idle = {"comm_backend": comm_backend, "deletion_strategy": deletion_strategy, "replica_count": replica_count}
        for name in (name for name, value in idle.items() if value):
            tell_once(f"DdpCheckpointer({name}=...)", "dljob.checkpoint copies to a peer node, and deletes no file")
        self.checkpoint_dir = checkpoint_dir
        self._timeout = save_timeout

    def save_checkpoint(
        self, step: int, state_dict: Any, path: str = "", storage_type: StorageType = StorageType.DISK
    ) -> None:
        """Save a state; every rank calls it with the same step. With DISK, rank 0 also writes the file."""
        on_disk = storage_type is StorageType.DISK
        checkpoint.save(step, state_dict, persist=on_disk)
        if not on_disk or current_worker().rank:
            return
        folder = Path(self.checkpoint_dir)
        file = Path(path) if path else folder / str(step) / "rank_0.pt"
        write(file, state_dict)
        _write_text(folder / TRACKER, str(step))

    def load_checkpoint(self, resume_path: str = "") -> Any:
        """Return the state of a file, or the newest of this job and of the folder; an empty dict without one."""
        if resume_path:
            return torch.load(resume_path, map_location="cpu", weights_only=False)
        step, state = checkpoint.load() or (-1, {})
        folder = Path(self.checkpoint_dir)
        # A later job finds what an earlier one wrote; within one job, memory is never older than the file.
        written = (folder / TRACKER).read_text().strip() if (folder / TRACKER).is_file() else ""
        file = folder / written / "rank_0.pt"
        if written.isdecimal() and int(written) > step and file.is_file():
            return torch.load(file, map_location="cpu", weights_only=False)
        return state

    def wait_latest_checkpoint(self, timeout: float | None = None) -> None:
        """Wait until what was saved is on disk."""
        checkpoint.wait(self._timeout if timeout is None else timeout)


def write(file: Path, state: Any) -> None:
    """Write a state under its name once it is whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.part")
    torch.save(state, part)
    part.replace(file)


def _write_text(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.part")
    part.write_text(text)
    part.replace(file)
