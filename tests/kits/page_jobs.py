"""Made-up data of pages, in the format of docs/adr/0075-report-page.md; the same arguments give the same data.

`rl_job` is a job of any size with incidents; `never_started`, `no_ranks` and `hostile` are what pages must survive.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

ACCOUNTS = (
    *("queue", "schedule", "init", "productive", "detect", "decide", "replace", "rendezvous", "recompute", "wait"),
    *("idle", "spare"),
)
STACK = 'Thread 0x7f10 (most recent call first):\n  File "train.py", line {line}, in step\n    loss.backward()'
BEGIN = 1_795_600_000.0
"""Start of the made-up jobs (unix seconds)."""
SHARES = {"trainer": 0.4, "rollout": 0.4, "reference": 0.1, "reward": 0.1}
FAULTS = (
    ("Process", "Killed", "rollout", "ended by SIGKILL, exit code 137"),
    ("RoleGroup", "CudaError", "trainer", "CUDA error: uncorrectable ECC error encountered"),
    ("Process", "UserError", "reward", "ValueError: score of an empty answer"),
    ("Node", "NodeLost", "trainer", "node gpu-0007 stopped answering"),
    ("RoleGroup", "Hang", "trainer", "no step for 180 s while 3 ranks waited in all_reduce"),
    ("Process", "OutOfMemory", "reference", "the kernel ended it: memory of its cgroup was used up"),
    ("Master", "MasterRestarted", "master", "PrimeMaster restarted: PrimeMaster was lost"),
)
STAGES = (("noticed", "detect"), ("decided", "decide"), ("placed", "schedule"), ("started", "replace"))
NASTY = (
    "</script><img src=x onerror=alert(1)>\x1b[31m\x07\u202eevil\u2066 "
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 {{data}}"
)
"""Text that ends an element, moves a cursor, turns a line around, and is written from right to left."""


@dataclass
class _Job:
    """A job under construction."""

    rng: random.Random
    end: float
    roles: dict[str, int]
    lanes: dict[str, list[list[float]]] = field(default_factory=dict)
    incidents: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def tell(self, at: float, reason: str, target: str, message: str, **more: object) -> None:
        self.events.append({"time": round(at, 3), "reason": reason, "target": target, "message": message, **more})


def rl_job(ranks: int = 1000, hours: float = 24.0, events: int = 10_000, incidents: int = 12, seed: int = 0) -> Any:
    """The data of a page of a job of reinforcement learning that ended well."""
    job = _Job(random.Random(seed), BEGIN + hours * 3600, _roles(ranks))  # noqa: S311 - the same data each time
    job.tell(BEGIN + 2, "Admitted", "job", f"{ranks} ranks held on {math.ceil(ranks / 8)} nodes")
    for role, count in job.roles.items():
        ready = BEGIN + job.rng.uniform(60, 200)
        job.lanes[role] = [_begin(job, ready) for _ in range(count)]
        job.tell(ready, "RoleReady", role, f"all {count} ranks are ready", seconds=round(ready - BEGIN, 2))
    for number in range(incidents):
        at = BEGIN + hours * 3600 * (number + 0.4 + job.rng.uniform(-0.3, 0.3)) / incidents
        _fail(job, number, at, FAULTS[number % len(FAULTS)])
    _fill_events(job, events)
    for role in job.roles:
        for lane in job.lanes[role]:
            lane += [job.end - 3, ACCOUNTS.index("idle"), job.end, -1]
    ledger = _ledger(job)
    return _document(job, ledger, hours)


def _roles(ranks: int) -> dict[str, int]:
    counts = {role: max(1, round((ranks - 1) * share)) for role, share in SHARES.items()}
    return {"coordinator": 1, **counts} if ranks > len(counts) else {"trainer": ranks} if ranks else {}


def _begin(job: _Job, ready: float) -> list[float]:
    queued, begun = BEGIN + 2, BEGIN + 20 + job.rng.uniform(0, 30)
    starts = (BEGIN, queued, round(begun, 2), round(ready + job.rng.uniform(-8, 0), 2))
    return [part for at, name in zip(starts, ACCOUNTS, strict=False) for part in (at, ACCOUNTS.index(name))]


def _fail(job: _Job, number: int, at: float, fault: tuple[str, str, str, str]) -> None:
    level, reason, role, text = fault
    role = role if role in job.roles or role == "master" else next(iter(job.roles))
    count = job.roles.get(role, 0)
    rank = job.rng.randrange(count) if count else 0
    hit = [] if level == "Master" else [rank] if level == "Process" else list(range(count))
    stages = {
        name: round(job.rng.uniform(*_range(name, level)), 2)
        for name in ("noticed", "decided", "placed", "started", "first step")
    }
    at, until = round(at, 2), round(at + sum(stages.values()) - stages["noticed"], 2)
    for own in hit:
        _lose(job, job.lanes[role][own], at, stages, failed=own == rank)
    name = f"{role}/{rank}" if hit else role
    lost = job.rng.randrange(0, 40) if level == "RoleGroup" else None
    job.tell(at, "Restarting", name, f"{name}: {reason}: {text}; restarting {len(hit)} ranks", level=level)
    job.tell(
        until,
        "Recovered",
        name,
        f"{len(hit)} ranks ready again {until - at:.2f} s after the failure",
        level=level,
        seconds=until - at,
    )
    job.incidents.append(
        {
            "id": number + 1,
            "at": at,
            "until": until,
            "level": level,
            "reason": reason,
            "target": role if len(hit) > 1 else name,
            "rank": name if hit else "",
            "incarnation": 1 + number,
            "cause": f"{name}: {reason}: {text}",
            "evidence": []
            if level == "Master"
            else ["exit code 137", f"last line: {text}", "node: kernel: NVRM: Xid 94, contained ECC error"],
            "followed": [f"{role}/{own}: lost its peer {name}" for own in hit[:3] if own != rank],
            "restarted": [f"{role}/{own}" for own in hit],
            "lostSteps": lost,
            "stages": [{"name": key, "seconds": value} for key, value in stages.items()],
            "log": {"rank": name, "lines": [f"step {100 + i} loss 0.{i:03d}" for i in range(12)] + [text]}
            if hit
            else None,
            "stacks": [{"rank": name, "text": STACK.format(line=40 + i)} for i in range(2)] if reason == "Hang" else [],
        }
    )


def _range(stage: str, level: str) -> tuple[float, float]:
    if level == "Master":
        return (0.0, 0.01) if stage != "started" else (2.0, 6.0)
    large = level != "Process"
    spans = {
        "noticed": (0.2, 30),
        "decided": (0.1, 5),
        "placed": (0, 90 if level == "Node" else 0.1),
        "started": (20, 240 if large else 60),
    }
    return spans.get(stage, (5, 1500 if large else 60))


def _lose(job: _Job, lane: list[float], at: float, stages: dict[str, float], *, failed: bool) -> None:
    moment = at
    if failed:
        lane += [round(at - stages["noticed"], 2), ACCOUNTS.index("detect")]
    for stage, account in STAGES[1:]:
        if stages[stage] > 0:
            lane += [round(moment, 2), ACCOUNTS.index(account)]
            moment += stages[stage]
    meeting = stages["first step"] * job.rng.uniform(0.2, 0.4)
    lane += [round(moment, 2), ACCOUNTS.index("rendezvous"), round(moment + meeting, 2), ACCOUNTS.index("recompute")]
    lane += [round(moment + stages["first step"], 2), ACCOUNTS.index("productive")]


def _fill_events(job: _Job, wanted: int) -> None:
    while len(job.events) < wanted:
        at = job.rng.uniform(BEGIN, job.end)
        step = int((at - BEGIN) / 12)
        role = job.rng.choice([*job.roles])
        kind = job.rng.randrange(3)
        if kind == 0:
            job.tell(at, "CheckpointSaved", role, f"step {step} saved by {job.roles[role]} ranks", step=step)
        elif kind == 1:
            job.tell(at, "NodeFrozen", f"gpu-{job.rng.randrange(200):04d}", "the node is silent for 3.0 s")
        else:
            job.tell(at, "WeightsPublished", role, f"version {step // 10} of policy: 14.2 GiB in 3.1 s")
    job.events.sort(key=lambda event: event["time"])
    for seq, event in enumerate(job.events, 1):
        event["seq"] = seq


def _ledger(job: _Job) -> dict[str, Any]:
    roles = [{"name": role, "accounts": _sums(lanes)} for role, lanes in job.lanes.items()]
    total: dict[str, float] = {}
    for role in roles:
        for account, value in role["accounts"].items():
            total[account] = total.get(account, 0) + value
    whole = sum(total.values())
    goodput = round(total.get("productive", 0) / whole, 4) if whole else None
    return {
        "seconds": job.end - BEGIN,
        "processes": sum(job.roles.values()),
        "goodput": goodput,
        "accounts": total,
        "roles": roles,
    }


def _sums(lanes: list[list[float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for lane in lanes:
        for i in range(0, len(lane) - 2, 2):
            name = ACCOUNTS[int(lane[i + 1])]
            found[name] = found.get(name, 0) + lane[i + 2] - lane[i]
    return found


def _document(job: _Job, ledger: dict[str, Any], hours: float) -> dict[str, Any]:
    last = job.incidents[-1] if job.incidents else None
    cause = [f"rl-{sum(job.roles.values())} (5f0c2a9e): Succeeded: Completed: all driver roles ended well"]
    if last:
        cause += [
            f"first cause: {last['cause']}",
            *(f"evidence: {line}" for line in last["evidence"]),
            "next: read the last lines of the rank's log, and the kernel log of its node",
            f"      dljob logs rl-job {last['target']}",
        ]
    return {
        "format": 1,
        "made": {"at": job.end + 60, "by": "0.1.0"},
        "live": False,
        "job": _job_part(job, ledger, cause, hours),
        "roles": [
            {
                "name": role,
                "type": "Elastic" if role == "trainer" else "Actor",
                "driver": role == "coordinator",
                "replicas": count,
                "devices": 1.0,
                "collocation": None,
            }
            for role, count in job.roles.items()
        ],
        "accounts": list(ACCOUNTS),
        "lanes": job.lanes,
        "incidents": job.incidents,
        "ledger": ledger,
        "samples": _samples(job, hours),
        "placement": _placement(job),
        "events": job.events,
        "eventsLeftOut": 0,
        "spec": {
            "roles": [
                {
                    "name": role,
                    "replicas": count,
                    "env": [{"name": "TOKEN", "value": "(left out)"}],
                    "entrypoint": {"class": f"train.{role.title()}"},
                }
                for role, count in job.roles.items()
            ],
            "faultTolerance": {"maxRestarts": 10, "backoff": {"initialSeconds": 1, "maxSeconds": 300}},
            "cleanupPolicy": "DeleteCluster",
        },
        "whatifs": _whatifs(ledger),
        "unrecorded": [],
    }


def _job_part(job: _Job, ledger: dict[str, Any], cause: list[str], hours: float) -> dict[str, Any]:
    levels = [incident["level"] for incident in job.incidents]
    return {
        "name": f"rl-{sum(job.roles.values())}",
        "uid": "5f0c2a9e41d84c0e",
        "phase": "Succeeded",
        "reason": "Completed",
        "message": "all driver roles ended well",
        "start": BEGIN,
        "end": job.end,
        "seconds": job.end - BEGIN,
        "goodput": ledger["goodput"],
        "processes": ledger["processes"],
        "deviceSeconds": round(0.8 * ledger["processes"] * hours * 3600, 3),
        "restarts": {level: levels.count(level) for level in dict.fromkeys(levels)},
        "cause": cause,
        "step": int(hours * 300),
    }


def _whatifs(ledger: dict[str, Any]) -> list[dict[str, Any]]:
    measured = ledger["goodput"] or 0.0
    rules = (
        ("faultTolerance.spares.processesPerNode=1", 0.021, 0.006),
        ("checkpoint.everySteps=50", 0.008, 0.009),
        ("faultTolerance.backoff.initialSeconds=30", -0.013, 0.003),
    )
    return [
        {
            "rule": rule,
            "goodput": measured + difference,
            "difference": difference,
            "uncertainty": uncertainty,
            "measured": measured,
            "unchanged": measured - 0.002,
            "seconds": ledger["seconds"] * (1 - difference),
            "phase": "Succeeded",
        }
        for rule, difference, uncertainty in rules
    ]


def _samples(job: _Job, hours: float) -> dict[str, Any]:
    count = 720
    times = [round(BEGIN + 200 + i * (hours * 3600 - 200) / count, 1) for i in range(count)]
    noise = [job.rng.gauss(0, 1) for _ in range(count)]
    steps = [int((at - BEGIN) / 12) for at in times]
    spread = {"low": [max(0, step - 3) for step in steps], "middle": steps, "high": [step + 1 for step in steps]}
    grown = [i / count for i in range(count)]
    calls = {
        name: {
            "sent": [int(rate * i) for i in range(count)],
            "parked": [max(0, int(4 + 3 * noise[i])) for i in range(count)],
            "again": [i // 90 for i in range(count)],
            "lost": [i // 400 for i in range(count)],
            "underWay": [max(0, int(6 + 3 * noise[i])) for i in range(count)],
            "tookMs": [int(250 * rate * i) for i in range(count)],
        }
        for name, rate in (
            ("coordinator>rollout.generate", 900),
            ("coordinator>trainer.step", 120),
            ("rollout>reward.score", 1800),
        )
    }
    published = [step // 10 for step in steps]
    return {
        "times": times,
        "steps": {role: spread for role in job.roles if role in ("trainer", "coordinator")},
        "progress": {
            "loss": [round(2.2 * math.exp(-3 * x) + 0.4 + 0.02 * n, 4) for x, n in zip(grown, noise, strict=True)],
            "reward": [round(1 - math.exp(-4 * x) + 0.015 * n, 4) for x, n in zip(grown, noise, strict=True)],
            "kl": [round(abs(0.02 + 0.004 * n), 5) for n in noise],
        },
        "memory": {
            role: {
                "low": [9.1e9 + 1e8 * n for n in noise],
                "middle": [11e9 + 2e8 * n for n in noise],
                "high": [14e9 + 3e8 * n for n in noise],
            }
            for role in job.roles
        },
        "device": {
            "trainer": {
                "low": [61e9 + 1e8 * n for n in noise],
                "middle": [66e9 + 2e8 * n for n in noise],
                "high": [71e9 + 3e8 * n for n in noise],
            }
        },
        "calls": calls,
        "queues": {"experience": {"items": [max(0, min(512, int(256 + 90 * n))) for n in noise], "capacity": 512}},
        "weights": {
            "policy": {
                "published": published,
                "held": {
                    "rollout": [
                        [max(0, value - (i // 25 + rank) % 3) for i, value in enumerate(published)] for rank in range(4)
                    ]
                },
            }
        },
    }


def _placement(job: _Job) -> dict[str, Any]:
    ranks = [(role, rank) for role, count in job.roles.items() for rank in range(count)]
    nodes = []
    for number in range(0, len(ranks), 8):
        bundles = [
            {"unit": f"{role}/{rank}", "ranks": [f"{role}/{rank}"], "shares": {"CPU": 12.0, "GPU": 1.0}}
            for role, rank in ranks[number : number + 8]
        ]
        nodes.append(
            {
                "name": f"gpu-{number // 8:04d}",
                "resources": {"CPU": 128.0, "GPU": 8.0, "memory": 2.0**40},
                "bundles": bundles,
            }
        )
    plan = [{**node, "bundles": list(node["bundles"])} for node in nodes]
    if len(nodes) > 2:  # a node was lost, and another one took its units
        nodes[1] = {**nodes[1], "bundles": nodes[1]["bundles"][:5]}
        nodes.append({**nodes[1], "name": "gpu-spare-0", "bundles": plan[1]["bundles"][5:]})
    return {"nodes": nodes, "plan": {"nodes": plan}}


def never_started() -> dict[str, Any]:
    """A job that waits for capacity: most parts have nothing yet."""
    data = rl_job(ranks=0, events=0, incidents=0)
    data["job"] |= {
        "name": "waiting",
        "phase": "Pending",
        "reason": "NoCapacity",
        "message": "needs 8 GPUs, the largest node has 4",
        "start": None,
        "end": None,
        "seconds": None,
        "goodput": None,
        "cause": [],
        "restarts": {},
        "deviceSeconds": None,
        "processes": None,
    }
    data |= dict.fromkeys(("lanes", "incidents", "ledger", "samples", "placement", "spec", "whatifs"))
    data |= {
        "events": [],
        "unrecorded": [
            "lanes: the job has no journal yet",
            "samples: the job never ran",
            "ledger: the job never started",
        ],
    }
    return data


def no_ranks() -> dict[str, Any]:
    """A job whose roles have no ranks."""
    data = never_started()
    data["job"] |= {"name": "empty", "phase": "Running", "start": BEGIN, "end": BEGIN + 60, "seconds": 60.0}
    data |= {
        "roles": [
            {"name": "trainer", "type": "Elastic", "driver": True, "replicas": 0, "devices": 0.0, "collocation": None}
        ],
        "lanes": {"trainer": []},
        "incidents": [],
        "ledger": {"seconds": 60.0, "processes": 0, "goodput": None, "accounts": {}, "roles": []},
        "placement": {"nodes": [], "plan": {"nodes": []}},
    }
    return data


def hostile() -> dict[str, Any]:
    """A small job in which every text that a user, a log or a cluster writes is hostile."""
    data = rl_job(ranks=12, hours=1, events=60, incidents=3)
    kept = {"format", "phase", "level", "name"}
    dirty = {
        key: value if key in ("lanes", "accounts", "samples") else _dirty(value, kept) for key, value in data.items()
    }
    dirty["job"]["name"] = dirty["roles"][0]["name"] = NASTY
    dirty["lanes"][NASTY] = dirty["lanes"].pop("coordinator")
    dirty["samples"]["progress"][NASTY] = dirty["samples"]["progress"].pop("kl")
    dirty["samples"]["calls"]["__proto__"] = dirty["samples"]["calls"].pop("rollout>reward.score")
    dirty["events"][5]["time"] -= 7200  # a clock that went back
    return dirty


def _dirty(value: Any, kept: set[str], key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _dirty(own, kept, name) for name, own in value.items()}
    if isinstance(value, list):
        return [_dirty(own, kept, key) for own in value]
    return value + NASTY if isinstance(value, str) and key not in kept else value
