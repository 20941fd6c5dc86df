"""The plan of 100,000 ranks, and the assignment of 10,000 units to 2,000 nodes: no Ray, no cluster."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, runs

from dljob.master.start.assign import Assignment, assign, would_be_nodes
from dljob.plan.model import JobPlan
from dljob.plan.plan import plan
from dljob.spec.loading.load import parse
from dljob.spec.model import DLJobManifest

GIB = 1 << 30


def document(scale: int) -> dict[str, Any]:
    """A PPO job: four collocated roles, rollouts on machines of their own, a driver; 12,500 x scale ranks."""
    train = {"driver": False, "type": "Elastic", "replicas": 2500 * scale, "replicasPerGroup": 8, "nodeGroup": "train"}
    shares = {"actor": "0.4", "critic": "0.2", "reference": "0.2", "reward": "0.2"}
    roles = [
        train | {"name": name, "entrypoint": {"class": f"ppo.{name}"}, "accelerator": {"count": count}}
        for name, count in shares.items()
    ]
    rollout = {"name": "rollout", "driver": False, "replicas": 2500 * scale - 1, "entrypoint": {"class": "ppo.Rollout"}}
    roles.append(rollout | {"accelerator": {"count": 1}, "nodeGroup": "rollout"})
    roles.append({"name": "trainer", "entrypoint": {"class": "ppo.Trainer"}})
    machine = {"cpu": "96", "memory": "800Gi", "accelerator": {"type": "GPU", "count": 8}}
    count = -(-2500 * scale // 8)
    groups = [machine | {"name": name, "replicas": count} for name in ("train", "rollout")]
    together = [{"name": "train", "roles": list(shares), "level": "Device"}]
    spec = {"roles": roles, "collocations": together, "nodeGroups": groups}
    return {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "large"}, "spec": spec}


def rss(key: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) << 10


def walked(manifest: DLJobManifest) -> tuple[float, float, JobPlan]:
    """Seconds of plan(), seconds of making the place of every rank and every unit, and the plan."""
    begin = time.perf_counter()
    made = plan(manifest)
    planned = time.perf_counter()
    places = [made.place(role.name, rank) for role in made.roles.values() for rank in range(role.replicas)]
    units = list(made.units.values())
    assert len(places) == sum(len(unit.members) * made.roles[unit.members[0][0]].group_size for unit in units)
    return planned - begin, time.perf_counter() - planned, made


def planning() -> None:
    """Time and memory of the plan."""
    manifest = parse(document(8))
    before = rss("VmRSS")
    times = [walked(manifest)]
    added = rss("VmHWM") - before
    ranks = sum(role.replicas for role in times[0][2].roles.values())
    times += [walked(manifest) for _ in range(runs() - 1)]
    walks = [walk for _, walk, _ in times]
    Row(
        "plan",
        f"plan of {ranks:,} ranks, each rank's place and each unit made",
        "< 1 s, < 300 MB RSS added",
        median(took + walk for took, walk, _ in times),
        1.0,
        samples={"plan": [took for took, _, _ in times], "every place and unit": walks},
        facts={"< 300 MB added": added < 300e6},
        note=f"{added / 1e6:.0f} MB added, all places and units kept at once",
    ).emit()


def assigning() -> None:
    """Time of the assignment: units of two sizes."""
    doc = document(1)
    doc["spec"]["nodeGroups"] = [{"name": "all", "replicas": 2000, "cpu": "20", "memory": "64Gi"}]
    doc["spec"]["collocations"] = []
    small = {"name": "small", "replicas": 6000, "entrypoint": {"class": "a.B"}, "resources": {"cpu": "2"}}
    large = {"name": "large", "replicas": 4000, "entrypoint": {"class": "a.B"}, "resources": {"cpu": "5"}}
    doc["spec"]["roles"] = [small, large]
    made = plan(parse(doc))
    nodes, units = would_be_nodes(made), list(made.units.values())
    took: list[float] = []
    for _ in range(runs()):
        begin = time.perf_counter()
        found = assign(units, nodes)
        took.append(time.perf_counter() - begin)
    assert isinstance(found, Assignment), found
    assert len(found.nodes) == len(units)
    Row(
        "assign",
        f"assign of {len(units):,} units to {len(nodes):,} nodes",
        "< 2 s",
        median(took),
        2.0,
        samples={"assign": took},
        note="6,000 units of 2 CPUs and 4,000 of 5 on machines of 20",
    ).emit()


if __name__ == "__main__":
    planning()
    assigning()
