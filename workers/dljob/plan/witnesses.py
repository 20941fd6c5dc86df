"""Outside witnesses, resolved: the presets of known monitors, and what the spec says beside them.

Which of the presets were tried with recorded answers of their project, and which were written from its documentation,
is in docs/howto/witnesses.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dljob.spec.witness import Witness


@dataclass(frozen=True, slots=True)
class DumpPlan:
    """A request for a dump; a GET where `body` is empty."""

    port: int
    path: str
    body: str = ""


@dataclass(frozen=True, slots=True)
class WitnessPlan:
    """A witness with all of its values; the node agents read it. One without a metric has a dump alone."""

    name: str
    port: int
    path: str
    metric: str
    means: str
    """Hang | Slow | SilentCorruption."""
    above: bool
    """Whether it says so above `value`, else below."""
    value: float
    for_s: int = 30
    act: bool = False
    dump: DumpPlan | None = None

    def says(self, sample: float) -> bool:
        """Whether a sample is on the side of the bound that means trouble."""
        return sample > self.value if self.above else sample < self.value

    @property
    def condition(self) -> str:
        """The condition in words: `XPU_TIMER_COMMON_HANG > 0 for 30 s`."""
        return f"{self.metric} {'>' if self.above else '<'} {self.value:g} for {self.for_s} s"


PRESETS: Mapping[str, WitnessPlan] = {
    "xpu-timer": WitnessPlan(
        *("xpu-timer", 18889, "/metrics", "XPU_TIMER_COMMON_HANG", "Hang"),
        above=True,
        value=0.0,
        dump=DumpPlan(
            18888,
            "/HostingService/DumpKernelTrace",
            '{"dump_path": "{dir}", "dump_count": 1000, "dump_time": 0, "dump_kernel_type": 7}',
        ),
    ),
    "dcgm": WitnessPlan(
        *("dcgm", 9400, "/metrics", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "SilentCorruption"),
        above=True,
        value=0.0,
    ),
    "npu-exporter": WitnessPlan(
        *("npu-exporter", 8082, "/metrics", "npu_chip_info_health_status", "SilentCorruption"),
        above=False,
        value=1.0,
    ),
}
"""Name of a preset -> the witness that it stands for."""
NO_PRESET = WitnessPlan("", 0, "/metrics", "", "", above=True, value=0.0)


def resolve(witness: Witness) -> WitnessPlan:
    """Return a witness with the values of its preset where it has none of its own."""
    base = PRESETS.get(witness.preset or "", NO_PRESET)
    dump = witness.dump
    return replace(
        base,
        name=witness.name,
        port=witness.port or base.port,
        path=witness.url_path or base.path,
        metric=witness.metric or base.metric,
        means=witness.means or base.means,
        above=base.above if witness.when is None else witness.when == "Above",
        value=base.value if witness.value is None else float(witness.value),
        for_s=witness.for_seconds,
        act=witness.act,
        dump=base.dump if dump is None else DumpPlan(dump.port, dump.url_path, dump.body),
    )
