"""CPUs and memory for `resources.auto`, from what the ranks of earlier jobs of the name used. No I/O.

The choice is made once, before an attempt starts, and what runs is never changed. Its text tells the earlier job and
the measurement that it stands on, or why the value to begin with is used.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dljob.spec.model import AutoResources, DLJobManifest, DLJobSpec, Role
from dljob.spec.quantity import GRAIN, parse_cpu, parse_memory, show, show_memory
from dljob.spec.rules.auto import CHOSEN
from dljob.telemetry.wording import counted, seconds

LEAST_S = 300.0
"""Productive seconds of a rank, in all runs together, from which its use is known."""
MARGIN = 1.2
"""What is chosen or proposed above the most that was measured."""
GROWTH = 0.05
"""Growth of a peak in the last quarter of a run from which it is not known where it ends."""
WINDOWS = 10
"""Measurements of CPU time that a rank's use takes."""
USUAL = 0.95
"""Share of the measurements in which a rank used no more than what counts as its use."""
EARLIER_JOBS = 20
"""Most earlier jobs of a name that count, the newest ones."""
SHAPE = ("type", "entrypoint", "replicas", "accelerator", "driver")
"""Fields of a role that must be equal for records to count: `args` and `config` differ with each run."""
_KILLED = 1.5
"""What memory grows by after ranks were killed for want of it."""
_MIB = 2**20


class ResourceUse(NamedTuple):
    """What the ranks of a role used in one earlier job."""

    productive_s: float
    """Productive seconds, of one rank."""
    peak: int = 0
    """Highest peak memory of a rank in bytes; 0: not recorded."""
    growth: float = 0.0
    """Share by which it grew in the last quarter of the run."""
    cpus: float = 0.0
    """CPUs that a rank did not exceed in 95 % of the measurements."""
    measurements: int = 0
    """Measurements of CPU time."""
    out_of_memory: int = 0
    """Ranks killed for want of memory."""

    def row(self, role: str) -> dict[str, Any]:
        """Return this use of a role as the status of a DLJob has it."""
        return {
            "name": role,
            "productiveSeconds": int(self.productive_s),
            "peakMiB": self.peak // _MIB,
            "growthPermille": round(self.growth * 1000),
            "cpuMillis": round(self.cpus * 1000),
            "measurements": self.measurements,
            "outOfMemory": self.out_of_memory,
        }

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> ResourceUse:
        """Return the use that a row tells; what is no whole number from 0 on reads as 0."""
        counts = {key: value if isinstance(value := row.get(key), int) and value >= 0 else 0 for key in COUNTS}
        return cls(
            counts["productiveSeconds"],
            counts["peakMiB"] * _MIB,
            counts["growthPermille"] / 1000,
            counts["cpuMillis"] / 1000,
            counts["measurements"],
            counts["outOfMemory"],
        )

    def with_earlier(self, earlier: ResourceUse) -> ResourceUse:
        """Return what is known with the report of an earlier PrimeMaster or attempt, whose figures stay."""
        more = self if self.measurements >= earlier.measurements else earlier
        return ResourceUse(
            max(self.productive_s, earlier.productive_s),
            max(self.peak, earlier.peak),
            self.growth if self.peak >= earlier.peak else earlier.growth,
            more.cpus,
            more.measurements,
            max(self.out_of_memory, earlier.out_of_memory),
        )


COUNTS = ("productiveSeconds", "peakMiB", "growthPermille", "cpuMillis", "measurements", "outOfMemory")
"""Fields of a row beside the name of the role: whole numbers."""


class EarlierJob(NamedTuple):
    """An earlier job of the name, or an earlier attempt. `name` is how people call it."""

    name: str
    roles: Mapping[str, ResourceUse]


class ChosenResource(NamedTuple):
    """The value of one resource of a role, and the reason."""

    role: str
    resource: str
    value: str
    reason: str


class _Use(NamedTuple):
    job: str
    use: ResourceUse


def undecided(spec: DLJobSpec) -> bool:
    """Return whether a role leaves resources to be chosen."""
    return any(role.resources.auto is not None for role in spec.roles)


def shape_of(spec: DLJobSpec) -> str:
    """Return 16 hex digits over what must be equal for the records of a job to count for another."""
    data = spec.model_dump(mode="json", by_alias=True, exclude_none=True)["roles"]
    role_shapes = [{"name": role["name"], **{key: role.get(key) for key in SHAPE}} for role in data]
    return hashlib.sha256(json.dumps(role_shapes, sort_keys=True).encode()).hexdigest()[:16]


def choose(spec: DLJobSpec, earlier: Sequence[EarlierJob], left_out: str = "") -> tuple[ChosenResource, ...]:
    """Return a value for each resource that the roles leave open.

    Args:
        spec: The spec.
        earlier: The jobs that count, the newest last.
        left_out: Why another one does not count, for the reason of a value to begin with; empty: none was left out.
    """
    choices: list[ChosenResource] = []
    for role in spec.roles:
        if role.resources.auto is not None:
            earlier_uses = [_Use(job.name, job.roles[role.name]) for job in earlier if role.name in job.roles]
            choices += _of_role(role, role.resources.auto, earlier_uses, f"; {left_out}" if left_out else "")
    return tuple(choices)


def with_chosen(manifest: DLJobManifest, choices: Sequence[ChosenResource]) -> DLJobManifest:
    """Return the job with the chosen values, without `auto` in their roles, and with the annotation that tells them."""
    if not choices:
        return manifest
    values: dict[str, dict[str, Any]] = {}
    for choice in choices:
        values.setdefault(choice.role, {"auto": None})[choice.resource] = choice.value
    roles = tuple(
        role.model_copy(update={"resources": role.resources.model_copy(update=values[role.name])})
        if role.name in values and role.resources.auto is not None
        else role
        for role in manifest.spec.roles
    )
    annotation = json.dumps([[choice.role, describe_choice(choice)] for choice in choices], separators=(",", ":"))
    metadata = manifest.metadata.model_copy(
        update={"annotations": {**manifest.metadata.annotations, CHOSEN: annotation}}
    )
    changed = manifest.spec.model_copy(update={"roles": roles})
    return manifest.model_copy(update={"metadata": metadata, "spec": changed})


def describe_choice(choice: ChosenResource) -> str:
    """Return the sentence about a choice, for the event and the terminal."""
    return f"resources.{choice.resource} is {choice.value}: {choice.reason}"


def _of_role(role: Role, auto: AutoResources, earlier_uses: Sequence[_Use], left_out: str) -> list[ChosenResource]:
    choices: list[ChosenResource] = []
    if auto.cpu is not None:
        value, reason = _cpu(role, earlier_uses)
        bounds = (parse_cpu(auto.cpu.min), parse_cpu(auto.cpu.max))
        first = role.resources.cpu or auto.cpu.min
        choices.append(_within(role.name, "cpu", first, bounds, (value, reason, left_out)))
    if auto.memory is not None:
        value, reason = _memory(role, earlier_uses)
        bounds = (parse_memory(auto.memory.min), parse_memory(auto.memory.max))
        first = role.resources.memory or auto.memory.min
        choices.append(_within(role.name, "memory", first, bounds, (value, reason, left_out)))
    return choices


def _within(
    role: str, resource: str, first: str, bounds: tuple[int, int], measured: tuple[int | None, str, str]
) -> ChosenResource:
    """Return a choice within its bounds; without a measurement that of the spec, and why."""
    value, reason, left_out = measured
    if value is None:
        return ChosenResource(role, resource, first, f"the value to begin with, since {reason}{left_out}")
    low, high = bounds
    bounded = min(max(value, low), high)
    limit = "" if bounded == value else f"; {'auto.' + resource}.{'min' if bounded == low else 'max'} bounds it"
    shown = show(bounded) if resource == "cpu" else show_memory(bounded)
    return ChosenResource(role, resource, shown, f"{reason}{limit}")


def _short(earlier_uses: Sequence[_Use]) -> str:
    """Return why the history does not suffice; empty where it does."""
    if not earlier_uses:
        return "no earlier job of the name has ended here"
    total = sum(earlier_use.use.productive_s for earlier_use in earlier_uses)
    if total < LEAST_S:
        return f"its earlier jobs have {seconds(total)} of productive time a rank, wanted are {seconds(LEAST_S)}"
    return ""


def _memory(role: Role, earlier_uses: Sequence[_Use]) -> tuple[int | None, str]:
    """Return the memory that a rank needs, in grains; None: not known."""
    known = [earlier_use for earlier_use in earlier_uses if earlier_use.use.peak]
    if shortage := _short(earlier_uses):
        return None, shortage
    if not known:
        return None, "no peak of its memory was recorded"
    if (growth := max(earlier_use.use.growth for earlier_use in known)) > GROWTH:
        return None, f"the peak of its memory still grew by {growth:.0%} in the last quarter of a job"
    most = max(known, key=lambda earlier_use: earlier_use.use.peak)
    highest = most.use.peak
    source = f"{shown_mib(highest)}, the highest peak of {counted(len(known), 'earlier job')}, that of {most.job}"
    if killed := sum(earlier_use.use.out_of_memory for earlier_use in earlier_uses):
        declared = parse_memory(role.resources.memory) // GRAIN if role.resources.memory else 0
        value = rounded_memory(max(highest, declared) * _KILLED)
        return value * GRAIN, f"half above {source}; {counted(killed, 'rank')} were killed for want of it"
    return rounded_memory(highest * MARGIN) * GRAIN, f"a fifth above {source}"


def _cpu(role: Role, earlier_uses: Sequence[_Use]) -> tuple[int | None, str]:
    """Return the CPUs that a rank needs, in grains; None: not known."""
    if role.reserve == "Quota":
        return None, "a role that reserves a quota starts processes of its own"
    if shortage := _short(earlier_uses):
        return None, shortage
    count = sum(earlier_use.use.measurements for earlier_use in earlier_uses)
    if count < WINDOWS:
        return None, f"its earlier jobs have {counted(count, 'measurement')} of CPU time, wanted are {WINDOWS}"
    # A job with a few measurements alone is no measure: its highest one would count as its usual one.
    known = [earlier_use for earlier_use in earlier_uses if earlier_use.use.measurements >= WINDOWS] or [
        earlier_use for earlier_use in earlier_uses if earlier_use.use.measurements
    ]
    most = max(known, key=lambda earlier_use: earlier_use.use.cpus)
    measured = counted(most.use.measurements, "measurement")
    source = f"{most.use.cpus:.2f} CPUs, the most in 95% of {measured} of {most.job}"
    others = f", the highest of {counted(len(known), 'earlier job')}" if len(known) > 1 else ""
    return round(rounded_cpu(most.use.cpus * MARGIN) * GRAIN), f"a fifth above {source}{others}"


def usual_of(windows: Sequence[float]) -> float:
    """Return the CPUs that nearly all measurements, which rise, do not exceed."""
    return windows[int((len(windows) - 1) * USUAL)]


def rounded_memory(size: float) -> int:
    """Round bytes up to a step that people write."""
    step = 32 * _MIB if size < 1024 * _MIB else 128 * _MIB if size < 8192 * _MIB else 512 * _MIB
    return math.ceil(size / step) * step


def rounded_cpu(amount: float) -> float:
    """Round CPUs up to tenths below one, to halves above."""
    return max(0.1, math.ceil(amount * 10 - 1e-9) / 10) if amount < 1 else math.ceil(amount * 2 - 1e-9) / 2


def shown_mib(size: int) -> str:
    """Return bytes in MiB, as people read them."""
    return f"{size / _MIB:,.0f} MiB".replace(",", " ")
