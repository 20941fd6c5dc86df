"""Outside witnesses, resolved: presets, and what the spec says beside them."""

from __future__ import annotations

from dljob.cli import placement
from dljob.master.start.assign import would_be_nodes
from dljob.plan.plan import plan
from dljob.plan.witnesses import PRESETS, DumpPlan, WitnessPlan, resolve
from dljob.spec.loading.load import parse
from dljob.spec.witness import Witness

OWN = {
    "name": "own",
    "preset": "xpu-timer",
    "port": 9000,
    "urlPath": "/m",
    "metric": "grad",
    "means": "Slow",
    "when": "Below",
    "value": "0.5",
    "forSeconds": 7,
    "act": True,
    "dump": {"port": 9001, "urlPath": "/dump", "body": "{}"},
}


def test_a_field_of_the_spec_wins_over_its_preset() -> None:
    assert resolve(Witness.model_validate(OWN)) == WitnessPlan(
        *("own", 9000, "/m", "grad", "Slow"),
        above=False,
        value=0.5,
        for_s=7,
        act=True,
        dump=DumpPlan(9001, "/dump", "{}"),
    )
    found = resolve(Witness.model_validate({"name": "x", "preset": "xpu-timer"}))
    assert (found.port, found.metric, found.condition) == (
        18889,
        "XPU_TIMER_COMMON_HANG",
        "XPU_TIMER_COMMON_HANG > 0 for 30 s",
    )
    assert found.dump == PRESETS["xpu-timer"].dump
    assert PRESETS["npu-exporter"].condition == "npu_chip_info_health_status < 1 for 30 s"


def test_the_plan_shows_what_is_read_where() -> None:
    witnesses = [OWN, {"name": "d", "preset": "dcgm"}, {"name": "r", "dump": {"port": 9701, "urlPath": "/trace"}}]
    spec = {"roles": [{"name": "a", "entrypoint": {"class": "a.A"}}], "faultTolerance": {"witnesses": witnesses}}
    made = plan(parse({"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "j"}, "spec": spec}))
    table = placement._Layout(made, would_be_nodes(made)).table()
    assert "own        127.0.0.1:9000/m" in table
    assert "Slow, acts, dump at a hang" in table
    assert "SilentCorruption, evidence only" in table
    (recorder,) = (line.split() for line in table.splitlines() if line.startswith("r "))
    assert recorder == ["r", "127.0.0.1:9701/trace", "-", "dump", "at", "a", "hang"]
