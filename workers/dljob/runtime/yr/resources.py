"""Resources in openYuanrong's words and in ours."""

from __future__ import annotations

from collections.abc import Mapping

from dljob.plan.model import GRAIN, Resources

MEBI = 2**20


def bundle_of(resources: Resources) -> dict[str, float]:
    """Resources in openYuanrong's words: CPU in thousandths, Memory in MB, others by `KIND/.+/count`."""
    made: dict[str, float] = {}
    for name, amount in resources:
        if name == "CPU":
            made["CPU"] = amount * 1000 / GRAIN
        elif name == "memory":
            made["Memory"] = -(-amount // GRAIN // MEBI)
        else:
            made[f"{name}/.+/count"] = amount / GRAIN
    return made


def resources_of(amounts: Mapping[str, float]) -> Resources:
    """The other way round."""
    made: dict[str, int] = {}
    for name, amount in amounts.items():
        if name == "CPU":
            made["CPU"] = round(amount * GRAIN / 1000)
        elif name == "Memory":
            made["memory"] = round(amount) * MEBI * GRAIN
        elif name.endswith("/count"):
            made[name.partition("/")[0]] = round(amount * GRAIN)
    return tuple(sorted((name, amount) for name, amount in made.items() if amount))
