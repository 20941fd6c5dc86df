"""Conversion of resources between openYuanrong's terms and those of plans."""

from __future__ import annotations

from collections.abc import Mapping

from dljob.plan.model import GRAIN, Resources

MEBI = 2**20


def bundle_of(resources: Resources) -> dict[str, float]:
    """Return resources in openYuanrong's terms: CPU in thousandths, Memory in MB, others by `KIND/.+/count`."""
    bundle: dict[str, float] = {}
    for name, amount in resources:
        if name == "CPU":
            bundle["CPU"] = amount * 1000 / GRAIN
        elif name == "memory":
            # Rounded up to whole MB: a group must not hold less than was asked for.
            bundle["Memory"] = -(-amount // GRAIN // MEBI)
        else:
            bundle[f"{name}/.+/count"] = amount / GRAIN
    return bundle


def resources_of(amounts: Mapping[str, float]) -> Resources:
    """Return openYuanrong's amounts as resources of a plan."""
    resources: dict[str, int] = {}
    for name, amount in amounts.items():
        if name == "CPU":
            resources["CPU"] = round(amount * GRAIN / 1000)
        elif name == "Memory":
            resources["memory"] = round(amount) * MEBI * GRAIN
        elif name.endswith("/count"):
            resources[name.partition("/")[0]] = round(amount * GRAIN)
    return tuple(sorted((name, amount) for name, amount in resources.items() if amount))
