"""The models of outside witnesses: monitors on the machines of ranks whose metrics are evidence about them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from dljob.spec import cel, scalars
from dljob.spec.scalars import LINE_PATTERN, Model, Name, Number

WitnessPreset = Literal["xpu-timer", "dcgm", "npu-exporter"]
WitnessMeaning = Literal["Hang", "Slow", "SilentCorruption"]

WitnessPort = Annotated[int, Field(ge=1, le=65535)]
UrlPath = Annotated[str, Field(max_length=1024, pattern=scalars.URL_PATH_PATTERN)]
SeriesName = Annotated[str, Field(max_length=128, pattern=scalars.SERIES_PATTERN)]


class WitnessDump(Model):
    """A request for a dump, sent when a hang is found."""

    port: WitnessPort
    """Port on the loopback address of the machine."""
    url_path: UrlPath = "/"
    """Path of the request, with its query."""
    body: Annotated[str, Field(max_length=4096, pattern=LINE_PATTERN)] = ""
    """JSON to send by POST; {dir} in it stands for a folder that the job keeps. Empty: the request is a GET."""


class Witness(Model):
    """A metric in Prometheus' text format that some process offers on the machine of ranks; or a dump alone."""

    model_config = ConfigDict(json_schema_extra=cel.schema(cel.WITNESS))

    name: Name
    """Name of the witness, shown as its evidence."""
    preset: WitnessPreset | None = None
    """Values of the fields that are left out, as a known monitor needs them; left out: none."""
    port: WitnessPort | None = None
    """Port on the loopback address of each machine with ranks; left out: that of the preset."""
    url_path: UrlPath | None = None
    """Path of the metrics; left out: /metrics."""
    metric: SeriesName | None = None
    """Name of the metric; left out: that of the preset. The sample of a rank is known by its label `rank`, `local_rank`
    or `pid`, or by the number or UUID of its device."""
    means: WitnessMeaning | None = None
    """What the metric says about the rank; left out: as the preset has it."""
    when: Literal["Above", "Below"] | None = None
    """The side of `value` on which the metric says so; left out: as the preset has it."""
    value: Number | None = None
    """The bound, such as 0 or "0.5"; left out: that of the preset. Samples that are no finite numbers say nothing."""
    for_seconds: Annotated[int, Field(ge=0, le=86400)] = 30
    """Seconds for which the metric must say so at each reading, of which there is one a second."""
    act: bool = False
    """Whether the rank is treated as failed, it alone. Otherwise the witness is evidence for failures and hangs that
    are found in another way."""
    dump: WitnessDump | None = None
    """A request to each machine of a role of which a rank hangs; left out: that of the preset. The answer is linked in
    the hang's report."""
