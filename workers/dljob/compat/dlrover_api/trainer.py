"""`ElasticTrainer`: gradients are accumulated so that the global batch stays the same with fewer ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from dljob.errors import UsageError
from dljob.runtime.process.context import progress


class _Accumulation:
    """State that a trainer, its optimizer and its scheduler share."""

    def __init__(self) -> None:
        self.synchronises = True
        self.backward = 0
        self.steps = 0


class ElasticOptimizer(torch.optim.Optimizer):
    """An optimizer whose `step` and `zero_grad` wait until the gradients are synchronised."""

    def __init__(self, optimizer: torch.optim.Optimizer, shared: _Accumulation) -> None:
        # Without the parent's constructor: parameters and state are those of the wrapped optimizer.
        self.optimizer, self._shared = optimizer, shared

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["optimizer"], name)

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's signature
        """Clear the gradients."""
        if self._shared.synchronises:
            self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Step."""
        return self.optimizer.step(closure) if self._shared.synchronises else None

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped optimizer's state."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the wrapped optimizer's state."""
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to the wrapped optimizer."""
        self.optimizer.add_param_group(param_group)


class ElasticScheduler:
    """A scheduler that steps with its optimizer."""

    def __init__(self, scheduler: Any, shared: _Accumulation) -> None:
        self.scheduler, self._shared = scheduler, shared

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["scheduler"], name)

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step, once the gradients are synchronised."""
        if self._shared.synchronises:
            self.scheduler.step(*args, **kwargs)


class ElasticTrainer:
    """Counts steps, and accumulates gradients so that the global batch stays what it is with all workers.

    Args:
        model: the model; where it has `no_sync`, as DDP, that is used while gradients are accumulated.
        dataloader: kept for DLRover's signature.
    """

    def __init__(self, model: Any, dataloader: Any = None) -> None:
        self.model, self.dataloader = model, dataloader
        self.gradient_accumulation_steps = 1
        self._shared = _Accumulation()

    def prepare(self, optimizer: torch.optim.Optimizer, lr_scheduler: Any = None) -> Any:
        """Return the optimizer, and the scheduler if there is one, that step with this trainer."""
        self.gradient_accumulation_steps = accumulation_steps()
        wrapped_optimizer = ElasticOptimizer(optimizer, self._shared)
        return (
            wrapped_optimizer
            if lr_scheduler is None
            else (wrapped_optimizer, ElasticScheduler(lr_scheduler, self._shared))
        )

    @contextmanager
    def step(self, fix_total_batch_size: bool = False) -> Generator[None]:  # noqa: FBT001, FBT002
        """Do one step; with `fix_total_batch_size` gradients are synchronised in every n-th only."""
        shared = self._shared
        shared.backward += 1
        shared.synchronises = not fix_total_batch_size or shared.backward % self.gradient_accumulation_steps == 0
        context = nullcontext if shared.synchronises else getattr(self.model, "no_sync", nullcontext)
        with context():
            yield
        if shared.synchronises:
            shared.steps += 1
            report(shared.steps)

    def reset(self) -> None:
        """Count steps from 0 again."""
        self._shared.steps = 0

    @property
    def num_steps(self) -> int:
        """Number of steps that the optimizer did."""
        return self._shared.steps


def accumulation_steps() -> int:
    """Return the backward passes of one step: the most workers (WORKER_NUM nodes) over those that there are."""
    most = int(os.environ.get("WORKER_NUM") or 1) * int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    size, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    return max(1, most // size + (rank < most % size))


def report(step: int) -> None:
    """Report a step as the rank's progress; outside a job nobody hears it."""
    try:
        progress(step)
    except UsageError:
        return
