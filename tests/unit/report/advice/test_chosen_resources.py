"""What `resources.auto` chooses: within its bounds, with its source, or the value to begin with, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dljob.report.advice.chosen_resources import choose, told
from dljob.report.advice.job_use import JobUse, RoleUse
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


def texts(made: DLJobManifest, *uses: JobUse) -> list[str]:
    return [told(one) for one in choose(made, uses)[1]]


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
    assert one.why == "a fifth above 0.68 CPUs, the most in 95% of 20 measurements, the last ones of j (1111)"


def test_choice_stays_within_its_bounds() -> None:
    low = {"cpu": {"min": "2", "max": "4"}, "memory": {"min": "512Mi", "max": "1Gi"}}
    made, found = choose(job(low), [earlier()])
    assert (made.spec.roles[0].resources.cpu, made.spec.roles[0].resources.memory) == ("2", "1Gi")
    assert found[0].why.endswith("; auto.cpu.min bounds it")
    assert found[1].why.endswith("; auto.memory.max bounds it")


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
    assert found[0].why == "the value to begin with, since no earlier job of the name has ended here"


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
    assert chosen(made.metadata.annotations) == tuple(("t", told(one)) for one in found)
    assert chosen({}) == chosen({CHOSEN: "{"}) == chosen({CHOSEN: "[1]"}) == ()
    assert choose(job(None), [earlier()]) == (job(None), ())
