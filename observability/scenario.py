"""Three hours of a made-up fleet, as samples: what tests and pictures show when no cluster is there.

Jobs' samples come out of the product's own code, from snapshots; names, labels and buckets are the catalogue's.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from dljob.telemetry.catalog import CATALOG, CONTROLLER, STARTUP_STAGES
from dljob.telemetry.exposition import Sample, sample
from dljob.telemetry.job_samples import samples

END = 1_790_000_000.0
"""Unix seconds of the last sample."""
HOURS = 3
STEP_S = 30.0
"""Between scrapes."""
SHOWN = {"namespace": "research", "dljob": "grpo-math"}
"""The job of the job dashboard."""
FLAGS = (f"--query.lookback-delta={STEP_S - 1:.0f}s",)
"""For a Prometheus over it: what is recorded has no marks of series that end, as scrapes have."""
TARGET = {"job": "dljob-metrics", "instance": "10.244.0.7:8080"}
"""Labels that Prometheus gives the operator's series."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure at `at` (seconds from the beginning) that took `seconds` to repair."""

    at: float
    level: str
    role: str
    seconds: float
    back: float = 0.0
    """Seconds of work before it that no checkpoint had: their steps are done again."""


@dataclass(frozen=True, slots=True)
class Story:
    """A job: when it was made, how long each stage took, what went wrong, how it ended."""

    namespace: str
    name: str
    made_at: float
    roles: dict[str, int]
    pace: float
    """Steps a second."""
    starts_in: float = 45.0
    faults: tuple[Fault, ...] = ()
    ends: float = 1e9
    how: str = "Succeeded"
    stuck: str = ""
    """The phase that it never leaves."""
    lives: tuple[float, ...] = ()
    """When PrimeMaster came back."""

    def fault(self, t: float) -> Fault | None:
        """The failure that is being repaired."""
        return next((f for f in self.faults if f.at <= t < f.at + f.seconds), None)

    def phase(self, t: float) -> str:
        """The phase in its status; empty before it is made."""
        age = t - self.made_at
        if age < 0:
            return ""
        if self.stuck:
            return self.stuck
        for share, phase in ((0.1, "Pending"), (0.7, "Provisioning"), (1.0, "Scheduling")):
            if age < share * self.starts_in:
                return phase
        if t >= self.ends:
            return self.how
        return "Recovering" if self.fault(t) else "Running"

    def snapshot(self, t: float) -> dict[str, Any] | None:
        """PrimeMaster's brief snapshot; None while there is no master, as a minute after the end."""
        phase = self.phase(t)
        if phase in ("", "Pending", "Queued", "Provisioning") or t > self.ends + 60:
            return None
        past = [f for f in self.faults if f.at <= t]
        units = sum(self.roles.values()) // 4 or 1
        pending = units // 2 if phase == "Scheduling" else 0
        return {
            "name": self.name,
            "uid": hashlib.md5(self.name.encode(), usedforsecurity=False).hexdigest(),
            "phase": phase,
            "roles": [self._role(name, count, phase, t) for name, count in self.roles.items()],
            "ledger": {"roles": [self._spent(name, count, t) for name, count in self.roles.items()]},
            "restarts": {
                level: sum(f.level == level for f in past)
                for level in ("InProcess", "Process", "RoleGroup", "Role", "Job", "Node", "Master")
            },
            "recentFaults": [
                {"level": f.level, "seconds": f.seconds if t >= f.at + f.seconds else None} for f in past[-10:]
            ],
            "progress": {"step": self._step(t) if t > self.made_at + self.starts_in + 20 else None},
            "placement": {"ready": units - pending, "pending": pending},
            "epoch": 1 + sum(at <= t for at in self.lives),
            "seconds": min(t, self.ends) - self.made_at - 0.7 * self.starts_in,
        }

    def _step(self, t: float) -> int:
        lost = sum(f.back * (t >= f.at + f.seconds) + min(max(t - f.at, 0), f.seconds) for f in self.faults)
        return int(max(min(t, self.ends) - self.made_at - self.starts_in - lost, 0) * self.pace)

    def _spent(self, name: str, count: int, t: float) -> dict[str, Any]:
        """Where the time of a role's ranks went: a fault takes that of the ranks that it touches, stage by stage."""
        total = (min(t, self.ends) - self.made_at - 0.7 * self.starts_in) * count
        spent = {"schedule": min(total, 0.1 * self.starts_in * count), "init": 0.2 * self.starts_in * count}
        spent["init"] = min(total - spent["schedule"], spent["init"])
        for fault in self.faults:
            touched, seconds_left = self._touched(fault, name, count), max(t - fault.at, 0.0)
            stages = [(account, part * fault.seconds) for account, part in STAGES]
            for account, seconds in (*stages, ("recompute", fault.back)):
                spent[account] = spent.get(account, 0.0) + min(seconds_left, seconds) * touched
                seconds_left = max(seconds_left - seconds, 0.0)
        return {"name": name, "accounts": {**spent, "productive": total - sum(spent.values())}}

    def _touched(self, fault: Fault, name: str, count: int) -> int:
        """How many ranks of a role a fault restarts."""
        touched = {"InProcess": 1, "Process": 1, "Node": min(count, 4), "RoleGroup": count // 2}.get(fault.level, count)
        return touched if fault.role == name or fault.level == "Job" else 0

    def _role(self, name: str, count: int, phase: str, t: float) -> dict[str, Any]:
        fault = self.fault(t)
        away = self._touched(fault, name, count) if fault else 0
        if phase == "Scheduling":
            away = (count + 1) // 2
        done = count if phase == "Succeeded" else 0
        # Its servers learn from a stream, and fall behind while its trainer is away.
        lag = {"servedLagSeconds": 2.0 + t % 7 + (t - fault.at if fault else 0)} if name == "rollout" else {}
        return {"name": name, "desired": count, "ready": 0 if done else count - away,
                "running": 0 if done else count, "succeeded": done, "failed": 0, **lag}  # fmt: skip


STAGES = (("detect", 0.05), ("decide", 0.05), ("replace", 0.3), ("init", 0.45), ("rendezvous", 0.15))
"""Of the time until a fault is repaired, in their order."""
_GRPO = {"trainer": 1, "actor": 16, "rollout": 8, "reward": 4, "reference": 8}
STORIES = (
    Story(
        "research",
        "grpo-math",
        600,
        _GRPO,
        0.055,
        faults=(
            Fault(2400, "Process", "rollout", 60),
            Fault(3600, "Node", "rollout", 210),
            Fault(4700, "RoleGroup", "actor", 180, back=300),
            Fault(7300, "Role", "reward", 90),
            Fault(8200, "Job", "actor", 330, back=420),
            Fault(9600, "Process", "rollout", 60),
            Fault(10200, "InProcess", "actor", 30),
        ),
        lives=(5900,),
    ),
    Story(
        "research",
        "ppo-llama8b",
        -7200,
        _GRPO,
        0.04,
        faults=(Fault(5600, "RoleGroup", "actor", 150, back=200), Fault(8400, "Job", "actor", 240, back=300)),
    ),
    Story("research", "sft-7b", 1500, {"trainer": 32}, 0.4, ends=6900),
    Story("research", "dpo-ablation-3", 3000, {"trainer": 16}, 0.25, ends=8400),
    Story("research", "dpo-ablation-4", 5100, {"trainer": 16}, 0.25, ends=10020, how="Failed"),
    Story("vision", "clip-base", -3600, {"trainer": 64}, 0.8, faults=(Fault(9600, "Process", "trainer", 60),)),
    Story("vision", "vit-eval", 7800, {"worker": 4}, 1.5, ends=9300),
    Story(
        "vision",
        "sam-distill",
        6600,
        {"trainer": 8, "teacher": 4},
        0.3,
        starts_in=110,
        faults=tuple(Fault(7200 + 540 * n, "Process", "teacher", 50) for n in range(7)),
    ),
    Story("speech", "asr-xl", 8700, {"trainer": 128}, 0.2, stuck="Provisioning"),
    Story("speech", "tts-small", 9900, {"trainer": 8}, 0.7, stuck="Queued"),
)


@dataclass
class Histogram:
    """Observations of a histogram of the catalogue, counted as Prometheus' clients do."""

    name: str
    labels: dict[str, str]
    observed_values: list[float] = field(default_factory=list[float])

    def lines(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Its series."""
        for bound in CATALOG[self.name].buckets:
            yield (
                f"{self.name}_bucket",
                {**self.labels, "le": f"{bound:g}"},
                sum(s <= bound for s in self.observed_values),
            )
        yield f"{self.name}_bucket", {**self.labels, "le": "+Inf"}, len(self.observed_values)
        yield f"{self.name}_sum", self.labels, sum(self.observed_values)
        yield f"{self.name}_count", self.labels, len(self.observed_values)


class Operator:
    """The operator's own series over time, with an hour in which the API server throttles."""

    def __init__(self) -> None:
        self.chance = random.Random(4)  # noqa: S311 - the same story each time
        self.counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
        controller_label = {"controller": CONTROLLER}
        self.passes = Histogram("controller_runtime_reconcile_time_seconds", controller_label)
        self.waits = Histogram("workqueue_queue_duration_seconds", {"name": CONTROLLER})
        self.stages = {stage: Histogram("dljob_startup_seconds", {"stage": stage}) for stage in STARTUP_STAGES}
        self.depth = 0

    def advance(self, t: float) -> None:
        """Thirty seconds more."""
        live = sum(story.phase(t) not in ("", "Succeeded", "Failed") for story in STORIES)
        trouble = 4200 <= t < 5400
        passes = self.chance.randint(live, 3 * live)
        errors = self.chance.randint(1, 4) if trouble else int(self.chance.random() < 0.02)
        self.depth = self.chance.randint(3, 25) if trouble else self.chance.randint(0, 2)
        for _ in range(passes):
            self.passes.observed_values.append(self.chance.lognormvariate(-4.2 + (2.5 if trouble else 0), 0.7))
            self.waits.observed_values.append(self.chance.lognormvariate(-6.0 + (3.5 if trouble else 0), 0.8))
        again = self.chance.randint(1, 4)
        self._count("controller_runtime_reconcile_total", passes, CONTROLLER, "success")
        self._count("controller_runtime_reconcile_total", again, CONTROLLER, "requeue_after")
        self._count("controller_runtime_reconcile_total", errors, CONTROLLER, "error")
        self._count("controller_runtime_reconcile_errors_total", errors, CONTROLLER)
        self._count("workqueue_retries_total", errors, CONTROLLER)
        self._count("rest_client_requests_total", passes + 12, "200", "GET")
        self._count("rest_client_requests_total", passes // 3, "200", "PATCH")
        self._count("rest_client_requests_total", self.chance.randint(0, 2), "201", "POST")
        self._count("rest_client_requests_total", int(self.chance.random() < 0.1), "409", "PATCH")
        self._count("rest_client_requests_total", errors, "429" if trouble else "500", "GET")
        self._count("dljob_ray_api_requests_total", 3 * live, "200")
        self._count("dljob_ray_api_requests_total", self.chance.randint(0, 2), "503")
        self._count("dljob_ray_api_requests_total", int(self.chance.random() < 0.05), "<error>")
        self._count("dljob_missed_events_total", int(self.chance.random() < 0.03), "DLJob")
        self._count("dljob_missed_events_total", int(self.chance.random() < 0.05), "Pod")
        for story in STORIES:
            if not story.stuck and 0 <= t - story.made_at - story.starts_in < STEP_S:
                parts = (0.09, 0.6 * story.starts_in, 0.18, 0.3 * story.starts_in)
                for stage, seconds in zip(STARTUP_STAGES, parts, strict=True):
                    self.stages[stage].observed_values.append(seconds * self.chance.uniform(0.8, 1.3))

    def _count(self, name: str, by: int, *labels: str) -> None:
        self.counts[name, labels] += by

    def lines(self, t: float) -> Iterator[tuple[str, dict[str, str], float]]:
        """Its series now."""
        jobs = [(s.namespace, s.name, s.phase(t)) for s in STORIES if s.phase(t)]
        counts = Counter((namespace, phase) for namespace, _, phase in jobs)
        operator_samples = [sample(name, labels, value) for (name, labels), value in self.counts.items()]
        operator_samples += [
            sample("workqueue_depth", (CONTROLLER,), self.depth),
            sample("dljob_operator_build_info", (version("dljob"),), 1),
            sample("dljob_operator_leader", (), 1),
        ]
        operator_samples += [sample("dljob_jobs", labels, count) for labels, count in counts.items()]
        operator_samples += [sample("dljob_status_phase", labels, 1) for labels in jobs]
        operator_samples += [sample("dljob_status_attempt", labels[:2], 1) for labels in jobs]
        operator_samples += [
            sample("dljob_status_master", (*labels[:2], "Own"), 1)
            for labels in jobs
            if labels[2] in ("Running", "Recovering")
        ]
        yield from map(_line, operator_samples)
        for histogram in (self.passes, self.waits, *self.stages.values()):
            yield from histogram.lines()


def _line(metric_sample: Sample) -> tuple[str, dict[str, str], float]:
    return (
        metric_sample.metric.name,
        dict(zip(metric_sample.metric.labels, metric_sample.labels, strict=True)),
        metric_sample.value,
    )


def _alerts(t: float) -> Iterator[tuple[str, dict[str, str], float]]:
    """What Prometheus itself would say of the last minutes."""
    firing = (
        ("DLJobFailed", "research", "dpo-ablation-4", 10080, "warning"),
        ("DLJobPendingTooLong", "speech", "asr-xl", 9600, "warning"),
        ("DLJobRestartLooping", "vision", "sam-distill", 9900, "warning"),
    )
    for name, namespace, job, since, severity in firing:
        if t >= since:
            labels = {
                "alertname": name,
                "alertstate": "firing",
                "namespace": namespace,
                "dljob": job,
                "severity": severity,
            }
            yield "ALERTS", labels, 1


def recording() -> str:
    """The whole story in OpenMetrics' text with timestamps."""
    operator, begin = Operator(), END - HOURS * 3600
    out: list[str] = []
    for tick in range(int(HOURS * 3600 / STEP_S) + 1):
        t = tick * STEP_S
        operator.advance(t)
        series = [(name, {**labels, **TARGET}, value) for name, labels, value in operator.lines(t)]
        for story in STORIES:
            if (snapshot := story.snapshot(t)) is not None:
                job_samples = samples(snapshot, story.namespace, "2.60.0")
                series += [
                    (name, {**labels, "job": "dljob-jobs"}, value) for name, labels, value in map(_line, job_samples)
                ]
        series += _alerts(t)
        for name, labels, value in series:
            inner = ",".join(f'{key}="{text}"' for key, text in labels.items())
            out.append(f"{name}{{{inner}}} {float(value)!r} {begin + t:.0f}\n")
    return "".join([*out, "# EOF\n"])
