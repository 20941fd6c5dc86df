"""What `resources.auto` chooses: within its bounds, with its source, or the value to begin with, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dljob.report.advice.earlier_jobs import earlier_jobs
from dljob.report.advice.job_use import JobUse, RoleUse
from dljob.spec import chosen_resources
from dljob.spec.chosen_resources import ChosenResource, EarlierJob, ResourceUse, describe_choice, shape_of, with_chosen
from dljob.spec.loading.load import parse
from dljob.spec.model import DLJobManifest
from dljob.spec.rules.auto import CHOSEN, chosen

MIB = 2**20
USED = RoleUse(2, 1200.0, 0.9, peaks=(900 * MIB, 1000 * MIB), cpus=tuple(0.5 + n / 100 for n in range(20)))
BOTH: dict[str, Any] = {"cpu": {"min": "500m", "max": "4"}, "memory": {"min": "512Mi", "max": "4Gi"}}


def job(auto: dict[str, Any] | None = BOTH, /, **resources: Any) -> DLJobManifest:
    said = {**resources, **({} if auto is None else {"auto": auto})}
    role = {"name": "t", "replicas": 2, "entrypoint": {"class": "m.T"}, "resources": said}
    other = {"name": "o", "entrypoint": {"class": "m.O"}}
    return manifest(role, other)


def manifest(*roles: dict[str, Any]) -> DLJobManifest:
    kind = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob"}
    return parse({**kind, "metadata": {"name": "j"}, "spec": {"roles": [*roles]}})


def earlier(used: RoleUse = USED, name: str = "j (1111)") -> JobUse:
    spec = job().model_dump(mode="json", by_alias=True, exclude_none=True)["spec"]
    return JobUse(name, spec, 1000.0, 0.9, False, {"t": used, "o": RoleUse(1, 0.0, None)})


def choose(made: DLJobManifest, uses: Sequence[JobUse]) -> tuple[DLJobManifest, tuple[ChosenResource, ...]]:
    found = chosen_resources.choose(made.spec, *earlier_jobs(made, uses))
    return with_chosen(made, found), found


def texts(made: DLJobManifest, *uses: JobUse) -> list[str]:
    return [describe_choice(one) for one in choose(made, uses)[1]]


def test_memory_is_chosen() -> None:
    less = earlier(replace(USED, peaks=(500 * MIB,)), "j (2222)")
    made, _ = choose(job({"memory": BOTH["memory"]}), [earlier(), less])
    assert made.spec.roles[0].resources.memory == "1280Mi"
    assert made.spec.roles[0].resources.cpu is None
    assert made.spec.roles[0].resources.auto is None
    (text,) = texts(job({"memory": BOTH["memory"]}), earlier(), less)
    source = "1 000 MiB, the highest peak of 2 earlier jobs, that of j (1111)"
    assert text == f"resources.memory is 1280Mi: a fifth above {source}"


def test_cpus_are_chosen() -> None:
    made, (one,) = choose(job({"cpu": BOTH["cpu"]}), [earlier()])
    assert made.spec.roles[0].resources.cpu == one.value == "0.9"
    assert one.reason == "a fifth above 0.68 CPUs, the most in 95% of 20 measurements of j (1111)"


def test_choice_stays_within_its_bounds() -> None:
    low = {"cpu": {"min": "2", "max": "4"}, "memory": {"min": "512Mi", "max": "1Gi"}}
    made, found = choose(job(low), [earlier()])
    assert (made.spec.roles[0].resources.cpu, made.spec.roles[0].resources.memory) == ("2", "1Gi")
    assert found[0].reason.endswith("; auto.cpu.min bounds it")
    assert found[1].reason.endswith("; auto.memory.max bounds it")


def test_killed_ranks_get_half_as_much_again() -> None:
    killed = earlier(replace(USED, out_of_memory=2))
    (_, memory) = texts(job(memory="1Gi"), killed)
    assert memory.startswith("resources.memory is 1536Mi: half above 1 000 MiB")
    assert memory.endswith("2 ranks were killed for want of it")


@pytest.mark.parametrize(
    ("used", "cpu", "memory"),
    [
        (replace(USED, productive_s=100.0), "50.0 s of productive time a rank", "wanted are 5m00s"),
        (
            replace(USED, cpus=(0.5,) * 9, peaks=()),
            "9 measurements of CPU time, wanted are 10",
            "no peak of its memory",
        ),
        (replace(USED, growth=0.2), "is 0.9", "still grew by 20% in the last quarter"),
    ],
)
def test_too_little_history_leaves_the_value_to_begin_with(used: RoleUse, cpu: str, memory: str) -> None:
    first, second = texts(job(), earlier(used))
    assert cpu in first
    assert memory in second
    assert "resources.memory is 512Mi: the value to begin with, since " in second
    assert "resources.memory is 2Gi: the value to begin with" in texts(job(memory="2Gi"), earlier(used))[1]


def test_first_job_begins_with_the_least() -> None:
    made, found = choose(job(), [])
    assert (made.spec.roles[0].resources.cpu, made.spec.roles[0].resources.memory) == ("500m", "512Mi")
    assert found[0].reason == "the value to begin with, since no earlier job of the name has ended here"


def test_jobs_of_another_shape_do_not_count() -> None:
    other = earlier()
    roles = [{**other.spec["roles"][0], "replicas": 3}, other.spec["roles"][1]]
    (text, _) = texts(job(), replace(other, spec={"roles": roles}))
    assert text.endswith("; j (1111): another shape of job than this job: roles.t.replicas is 3, not 2")


def test_role_with_a_quota_keeps_its_cpus() -> None:
    role = {"name": "t", "replicas": 2, "entrypoint": {"module": "t.py"}, "reserve": "Quota"}
    made = manifest({**role, "resources": {"auto": {"cpu": BOTH["cpu"]}}})
    spec = made.model_dump(mode="json", by_alias=True, exclude_none=True)["spec"]
    (text,) = texts(made, replace(earlier(), spec=spec))
    assert "a role that reserves a quota starts processes of its own" in text


def test_choices_are_told_to_the_master_by_an_annotation() -> None:
    made, found = choose(job(), [earlier()])
    assert chosen(made.metadata.annotations) == tuple(("t", describe_choice(one)) for one in found)
    assert chosen({}) == chosen({CHOSEN: "{"}) == chosen({CHOSEN: "[1]"}) == ()
    assert choose(job(None), [earlier()]) == (job(None), ())


def test_cpus_are_those_of_the_job_that_used_most() -> None:
    more = earlier(replace(USED, cpus=(1.9,) * 12), "j (2222)")
    few = earlier(replace(USED, cpus=(3.0,) * 9), "j (3333)")
    (text,) = texts(job({"cpu": BOTH["cpu"]}), earlier(), more, few)
    source = "1.90 CPUs, the most in 95% of 12 measurements of j (2222), the highest of 2 earlier jobs"
    assert text == f"resources.cpu is 2.5: a fifth above {source}"


def test_few_measurements_of_each_job_count_together() -> None:
    few = replace(USED, cpus=(0.5,) * 6)
    (text,) = texts(job({"cpu": BOTH["cpu"]}), earlier(few), earlier(replace(few, cpus=(0.7,) * 6), "j (2222)"))
    assert "0.70 CPUs, the most in 95% of 6 measurements of j (2222)" in text


def test_row_of_a_status_tells_the_same_use() -> None:
    use = ResourceUse(1200.9, 900 * MIB, 0.031, 0.68, 20, 2)
    row = use.row("t")
    assert row.pop("name") == "t"
    assert ResourceUse.of_row(row) == use._replace(productive_s=1200)
    odd = {"productiveSeconds": -1, "peakMiB": "9", "cpuMillis": None, "measurements": 3}
    assert ResourceUse.of_row(odd) == ResourceUse(0, measurements=3)


def test_figures_of_an_earlier_report_stay_where_they_tell_more() -> None:
    before, now = ResourceUse(900.0, 800, 0.5, 1.5, 40, 1), ResourceUse(10.0, 700, 0.0, 0.2, 1, 0)
    assert now.with_earlier(before) == before
    assert ResourceUse(950.0, 801, 0.1, 0.9, 41, 0).with_earlier(before) == ResourceUse(950.0, 801, 0.1, 0.9, 41, 1)


def test_shape_is_of_names_types_entrypoints_sizes_and_devices() -> None:
    own = job().spec
    assert shape_of(own) == shape_of(job(cpu="1").spec) == shape_of(job(None, memory="1Gi").spec)
    (first, other) = own.roles
    for role in (first.model_copy(update={"replicas": 3}), first.model_copy(update={"name": "u"})):
        assert shape_of(own.model_copy(update={"roles": (role, other)})) != shape_of(own)


def test_choices_touch_no_role_that_leaves_nothing_open() -> None:
    said = [ChosenResource("t", "cpu", "2", "why"), ChosenResource("o", "cpu", "3", "why")]
    made = with_chosen(job(), said)
    assert [role.resources.cpu for role in made.spec.roles] == ["2", None]


def test_roles_that_no_earlier_job_had_begin_anew() -> None:
    (one, _) = chosen_resources.choose(job().spec, [EarlierJob("j (1111)", {"o": ResourceUse(1e4)})])
    assert one.reason == "the value to begin with, since no earlier job of the name has ended here"
