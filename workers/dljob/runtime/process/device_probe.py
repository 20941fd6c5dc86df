"""Which devices a bundle has: Ray tells only a process that lives in it, and it is the same for all that ever do."""

from __future__ import annotations

from collections.abc import Iterable

from dljob.runtime.process.guard import EndCode, Guard, Lease, end

Devices = tuple[tuple[str, tuple[str, ...]], ...]


class DeviceProbe:
    """An actor that takes a bundle's devices for as long as it takes to say which they are; it ends after its time."""

    def __init__(self, life_s: float) -> None:
        self._guard = Guard(Lease(life_s), lambda: end(EndCode.SIGTERM, "SIGTERM from outside"))

    def devices(self) -> Devices:
        """Ray resource -> ids."""
        import ray

        ids = ray.get_runtime_context().get_accelerator_ids()
        return tuple((name, tuple(found)) for name, found in sorted(ids.items()) if found)


def together(parts: Iterable[Devices]) -> Devices:
    """All devices of several bundles: per resource each id once, in the order of the bundles."""
    found: dict[str, dict[str, None]] = {}
    for part in parts:
        for name, ids in part:
            found.setdefault(name, {}).update(dict.fromkeys(ids))
    return tuple((name, tuple(ids)) for name, ids in sorted(found.items()))
