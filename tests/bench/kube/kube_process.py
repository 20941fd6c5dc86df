"""SIGKILL of one worker, a spare available: until its rank is back in user code, in a pod of the real node, against
the same job on a plain Ray of this machine, in turn.

The plain Ray is a process of its own, in a network of its own where that can be made.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "worker"))
import restart
from bench_common import APPS, HERE, Entries, Row, cluster, folder, in_turn, runs
from bench_jobs import end, manifest, role
from kube_jobs import NAMESPACE, SMALL, meta, node

sys.path[:0] = [str(HERE.parent), str(HERE.parent / "kube"), str(HERE.parent / "kube" / "kits")]
from cluster.handle import Cluster  # noqa: E402 - the folders above have no packages
from operator_kit import found, until  # noqa: E402 - the folders above have no packages

from tiers import isolated  # noqa: E402 - the folder above has no package

NAME = "killed"
OUT = "/tmp/entries"
RANKS = 2
GROUP = {"name": "cpu", "cpu": "1", "memory": "2Gi"}
KILL = f"""\
import json, os, pathlib, signal, time

def last():
    return json.loads(pathlib.Path("{OUT}/worker-{restart.VICTIM}.jsonl").read_text().splitlines()[-1])

def hosts():
    titles = ((int(one.parent.name), one.read_bytes()) for one in pathlib.Path("/proc").glob("[0-9]*/cmdline"))
    return [pid for pid, title in titles if title.startswith(b"ray::ThreadHost")]

while len(hosts()) <= {RANKS}:
    time.sleep(0.1)
time.sleep(1.5)
there, victim, at = hosts(), last()["pid"], time.time()
os.kill(victim, signal.SIGKILL)
while (now := last())["t"] <= at:
    time.sleep(0.003)
print(json.dumps({{"took": now["t"] - at, "spare": now["pid"] in there}}))
"""
"""Runs in the pod: a kill when the spare is ready and warmed up, and what came of it."""


def job(out: Path | str) -> dict[str, Any]:
    """Two ranks that wait to be ended, and a spare."""
    return manifest(NAME, Path(out), [role("worker", "bench_app.stay", RANKS)], spares={"processesPerNode": 1})


def plain() -> None:
    """Kill a worker of a job on a plain Ray for each line that comes, and say how long it took."""
    with cluster(2), folder() as out:
        entries = Entries(out)
        handle = restart.submit(job(out))
        entries.await_count(RANKS)
        for _ in sys.stdin:
            restart.spare_ready()
            print(restart.kill_one(entries), flush=True)
        end(handle)


@contextmanager
def beside() -> Iterator[Any]:
    """That, as a process: call it for the seconds of another kill."""
    command = [*isolated(), sys.executable, "-W", "ignore", __file__, "--plain"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None

    def kill() -> float:
        process.stdin.write("\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    try:
        yield kill
    finally:
        process.stdin.close()
        process.wait(120)


def start(at: Cluster) -> str:
    """The same job on Kubernetes; gives its worker pod."""
    code = {"bench_app.py": (APPS / "bench_app.py").read_text()}
    document = job(OUT)
    document["metadata"] = meta(NAME)
    document["spec"] |= {"code": {"configMap": NAME}, "nodeGroups": [GROUP], **SMALL}
    # The folder that its ranks write to is made where they live.
    document["spec"]["nodeGroups"] = [{**GROUP, "template": template()}]
    at.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(NAME), "data": code}, document)
    until(lambda: found(at, "dljob", NAME).get("status", {}).get("phase") == "Running", "it runs", 180)
    listed = at.get("pods", "-n", NAMESPACE, "-l", "ray.io/node-type=worker")["items"]
    return listed[0]["metadata"]["name"]


def template() -> dict[str, Any]:
    """A worker pod with a folder for the entries."""
    mounts = [{"name": "entries", "mountPath": OUT}]
    return {
        "spec": {
            "containers": [{"name": "ray-worker", "volumeMounts": mounts}],
            "volumes": [{"name": "entries", "emptyDir": {}}],
        }
    }


def main() -> None:
    """One row."""
    spares: list[bool] = []
    with node() as jobs, beside() as theirs:
        pod = start(jobs.cluster)

        def ours() -> float:
            where = (pod, "-n", NAMESPACE, "-c", "ray-worker")
            said = json.loads(jobs.cluster.kubectl("exec", *where, "--", "python", "-c", KILL))
            spares.append(said["spare"])
            return said["took"]

        plain_s, pods_s = in_turn(theirs, ours, runs(15))
        restarts = found(jobs.cluster, "dljob", NAME)["status"]["restarts"]
    Row(
        "kube-process",
        "SIGKILL one worker in its pod, spare available -> its rank back in user code",
        "as on plain Ray + 50 ms; 1 process restarted",
        median(pods_s),
        median(plain_s) + 0.05,
        samples={"in a pod": pods_s, "plain Ray": plain_s},
        facts={"the spare was taken": all(spares), "1 process restarted": sum(restarts.values()) <= len(pods_s)},
        note=f"{median(pods_s) / median(plain_s):.2f} x plain Ray",
    ).emit()


if __name__ == "__main__":
    plain() if "--plain" in sys.argv else main()
