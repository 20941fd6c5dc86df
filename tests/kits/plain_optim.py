"""An optimizer that uses tensors only, without `torch.optim`.

The first optimizer of `torch.optim` in a process imports `torch._dynamo`: 5 s of processor time in each process, more
than `import torch` (torch 2.15 on two slow cores).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

DECAY = 0.9


class Momentum:
    """Gradient descent with momentum; its state must be saved with the model, as with any optimizer."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], lr: float) -> None:
        self._own = list(parameters)
        self._lr = lr
        self._moved = [torch.zeros_like(weight) for weight in self._own]

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for weight in self._own:
            weight.grad = None

    def step(self) -> None:
        """Update the parameters along the gradients."""
        with torch.no_grad():
            for weight, moved in zip(self._own, self._moved, strict=True):
                moved.mul_(DECAY).add_(weight.grad if weight.grad is not None else 0.0)
                weight.sub_(moved, alpha=self._lr)

    def state_dict(self) -> dict[str, Any]:
        """Return parameter index -> momentum."""
        return {"moved": dict(enumerate(self._moved))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the momenta."""
        for number, moved in state["moved"].items():
            self._moved[number].copy_(moved)
