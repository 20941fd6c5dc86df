"""Probe for the devices of a bundle: Ray reveals their ids only to processes in the bundle, the same ids to each."""

from __future__ import annotations

from collections.abc import Iterable

from dljob.runtime.process.guard import EndCode, Guard, Lease, end

Devices = tuple[tuple[str, tuple[str, ...]], ...]


class DeviceProbe:
    """An actor that holds a bundle's devices just long enough to report them; it ends after `life_s` by itself."""

    def __init__(self, lifetime_s: float) -> None:
        # It holds devices that a rank waits for, so it ends even if nobody kills it.
        self._guard = Guard(Lease(lifetime_s), lambda: end(EndCode.SIGTERM, "SIGTERM from outside"))

    def devices(self) -> Devices:
        """Return Ray resource -> ids."""
        import ray

        ids = ray.get_runtime_context().get_accelerator_ids()
        return tuple((name, tuple(device_ids)) for name, device_ids in sorted(ids.items()) if device_ids)


def together(parts: Iterable[Devices]) -> Devices:
    """Merge the devices of several bundles: per resource each id once, in the order of the bundles."""
    ids_by_resource: dict[str, dict[str, None]] = {}
    for part in parts:
        for name, ids in part:
            # A dict keeps the order and drops an id that several bundles share.
            ids_by_resource.setdefault(name, {}).update(dict.fromkeys(ids))
    return tuple((name, tuple(ids)) for name, ids in sorted(ids_by_resource.items()))
