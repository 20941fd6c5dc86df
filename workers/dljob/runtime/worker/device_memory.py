"""The share of its device's memory to which a rank is held: torch refuses more, as if the device were that small.

`torch.cuda.set_per_process_memory_fraction` initialises CUDA, which takes seconds and hundreds of MiB of the device: a
rank that only imports torch must not. So the call waits in torch's own queue for the first use of CUDA, and until torch
is there, for its import. PYTORCH_CUDA_ALLOC_CONF is no way: a torch that does not know `per_process_memory_fraction`
(PyTorch#161035) refuses to allocate at all.

Only the standard library is imported here: the role's interpreter may be another one than dljob's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

CUDA = "torch.cuda"


class DeviceMemoryLimit:
    """The limit of this process: a share of one of its visible devices, applied when CUDA is first used."""

    def __init__(self) -> None:
        self.share = 0.0
        self.index = 0
        """Index of the device among the visible ones."""

    def hold(self, share: float, index: int) -> None:
        """Hold this process to a share of a device's memory; 0: to none. A restart in this process says it again."""
        if not share or (share, index) == (self.share, self.index):
            return
        self.share, self.index = share, index
        if CUDA in sys.modules:
            self._queue(sys.modules[CUDA])
        elif self not in sys.meta_path:
            sys.meta_path.insert(0, self)  # type: ignore[arg-type]

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """Let the other finders find `torch.cuda`, and queue the limit once that is imported."""
        if name != CUDA:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in sys.meta_path)), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def executing(module: ModuleType) -> None:
                execute(module)
                self._queue(module)

            spec.loader.exec_module = executing
        return spec

    def _queue(self, cuda: Any) -> None:
        # torch runs what is queued at the first use of CUDA, and at once where there was one.
        cuda._lazy_call(self._apply)

    def _apply(self) -> None:
        cuda = sys.modules[CUDA]
        # A script may show itself fewer devices than it was shown: its own alone is then the first.
        index = self.index if self.index < cuda.device_count() else 0
        # torch makes the device the current one, and it is user code that chooses that.
        with cuda.device(index):
            cuda.set_per_process_memory_fraction(self.share, index)
        words = f"torch is held to {self.share:g} of the memory of GPU {index} (accelerator.memoryLimit)"
        print(f"[dljob] {words}", file=sys.stderr, flush=True)  # noqa: T201 - into the rank's log


limit = DeviceMemoryLimit()
