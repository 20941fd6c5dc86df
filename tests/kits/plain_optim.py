"""An optimizer of tensors alone.

The first optimizer of `torch.optim` in a process imports `torch._dynamo`: 5 s of processor time in each process, more
than `import torch` (torch 2.15 on two slow cores).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

DECAY = 0.9


class Momentum:
    """Gradient descent with momentum; its state must be saved with the model, as that of any other."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], lr: float) -> None:
        self._own = list(parameters)
        self._lr = lr
        self._moved = [torch.zeros_like(weight) for weight in self._own]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for weight in self._own:
            weight.grad = None

    def step(self) -> None:
        """Go on along the gradients."""
        with torch.no_grad():
            for weight, moved in zip(self._own, self._moved, strict=True):
                moved.mul_(DECAY).add_(weight.grad if weight.grad is not None else 0.0)
                weight.sub_(moved, alpha=self._lr)

    def state_dict(self) -> dict[str, Any]:
        """Number of the parameter -> its momentum."""
        return {"moved": dict(enumerate(self._moved))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a momentum."""
        for number, moved in state["moved"].items():
            self._moved[number].copy_(moved)
