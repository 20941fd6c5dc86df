"""The platform `cpu`: tensors on the CPU, gloo, and Ray's resource GPU, since verl counts only GPU and NPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


def _device_module() -> ModuleType:
    """Return `torch.cpu` with what verl asks of `torch.cuda` besides: a CPU has no memory of its own."""
    made = ModuleType("verl_cpu.device")
    vars(made).update({name: value for name, value in vars(torch.cpu).items() if not name.startswith("__")})
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(made, name, lambda *_: 0)
    made.__dict__.update(is_available=lambda: False, mem_get_info=lambda *_: (0, 0), get_device_name=lambda *_: "CPU")
    for name in ("empty_cache", "reset_peak_memory_stats"):
        setattr(made, name, lambda *_: None)
    return made


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """A machine without accelerators."""

    device_name = "cpu"
    vendor_name = "generic"
    device_module = _device_module()

    def is_available(self) -> bool:
        return False

    def current_device(self) -> Any:
        """Return the device itself: verl moves tensors to it, and torch takes a bare index for an accelerator's."""
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
