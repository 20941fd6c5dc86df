"""A version to eight nodes, each behind a link of 1 Gbit/s, by a WeightChannel.

    unshare -nmu bash tests/laptop.sh python tests/bench/data/weight_chain.py

Each raylet has a network namespace of its own, joined by a bridge; what it sends passes a token bucket filter (tc tbf).
BENCH_BYTES: bytes of a version; BENCH_RUNS: versions after the first one, which finds no relay yet. Needs root,
iproute2, and a kernel with `sch_tbf`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import RAY_ENV, Row, folder, runs, say
from bench_jobs import manifest, role, submit

SIZE = int(os.environ.get("BENCH_BYTES", str(256 << 20)))
NODES = 8
RATE = 10**9 / 8
"""Bytes per second of each link."""


def run(*command: str) -> None:
    """Run a command."""
    subprocess.run(command, check=True)


def address(node: int) -> str:
    """The address of a node; the first one is the head's."""
    return f"10.77.0.{node + 1}"


def link(node: int) -> None:
    """Give a node a network namespace with a link to the bridge; the head has the namespace of this process."""
    ours, theirs = f"port{node}", f"node{node}"
    run("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs)
    run("ip", "link", "set", ours, "master", "bridge0", "up")
    inside: list[str] = []
    if node:
        run("ip", "netns", "add", theirs)
        run("ip", "link", "set", theirs, "netns", theirs)
        inside = ["-n", theirs]
        run("ip", *inside, "link", "set", "lo", "up")
    run("ip", *inside, "address", "add", f"{address(node)}/24", "dev", theirs)
    run("ip", *inside, "link", "set", theirs, "up")
    shape = ["root", "tbf", "rate", "1gbit", "burst", "256kb", "latency", "50ms"]
    run("tc", *inside, "qdisc", "add", "dev", theirs, *shape)


@contextlib.contextmanager
def network() -> Iterator[None]:
    """Lay the links; all goes with the namespace of this process."""
    if socket.gethostname() != "laptop":
        raise SystemExit("weight_chain.py lays links in the network of tests/laptop.sh, and not in this machine's")
    run("ip", "link", "set", "lo", "up")
    Path("/run/netns").mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
    run("ip", "link", "add", "bridge0", "type", "bridge")
    run("ip", "link", "set", "bridge0", "up")
    for node in range(NODES + 1):
        link(node)
    yield


@contextlib.contextmanager
def inside(node: int) -> Iterator[None]:
    """Start Ray's processes of this block in a node's network namespace, without Ray's dashboard agents."""
    from ray._private import services

    from dljob.runtime.backend.embedded import without_agent

    start = services.start_ray_process

    def entered(command: list[str], process_type: str, *args: Any, **more: Any) -> Any:
        alone = without_agent(command) if process_type == "raylet" else command
        return start(["nsenter", f"--net=/run/netns/node{node}", *alone], process_type, *args, **more)

    services.start_ray_process = entered
    try:
        yield
    finally:
        services.start_ray_process = start


@contextlib.contextmanager
def spread() -> Iterator[None]:
    """Run a Ray whose head has the publisher, and a raylet for each reader; this process is connected to it."""
    with folder() as home:
        os.environ.update(DLJOB_HOME=str(home / "state"), RAY_TMPDIR=str(home), **RAY_ENV)
        from ray.cluster_utils import Cluster

        made = Cluster()
        store = 6 * SIZE
        made.add_node(num_cpus=2, node_ip_address=address(0), include_dashboard=False, object_store_memory=store)
        for node in range(1, NODES + 1):
            with inside(node):
                made.add_node(
                    num_cpus=1, node_ip_address=address(node), object_store_memory=store, include_log_monitor=False
                )
        from dljob.runtime.backend.connect import connect

        connect(made.address)
        made.wait_for_nodes()
        say("  nodes are there")
        try:
            yield
        finally:
            import ray

            with contextlib.suppress(Exception):
                ray.shutdown()
            with contextlib.suppress(Exception):
                made.shutdown()


def main() -> None:
    """One row."""
    with network(), spread(), folder() as out:
        roles = [
            role("publisher", "chain_app.Publisher", 1, cpu="2", dependsOn=[{"role": "reader"}]),
            role("reader", "chain_app.Reader", NODES, cpu="1", driver=False),
        ]
        document = manifest("chain", out, roles)
        document["spec"]["config"] |= {"blocks": runs(3), "size": SIZE}
        status = submit(document).wait(600)
        assert status["phase"] == "Succeeded", status
        first, *found = json.loads((out / "chain.json").read_text())
    took = [each["seconds"] for each in found]
    least = SIZE / RATE
    cores = median(each["cores"] for each in found)
    begin = f"the first version, for which relays begin, took {first['seconds']:.1f} s by {'+'.join(first['by'])}"
    Row(
        "weight_chain",
        f"WeightChannel, {SIZE >> 20} MiB to {NODES} nodes with links of 1 Gbit/s",
        "<= 1.25 x bytes / link until the last one has it; bytes equal",
        median(took),
        1.25 * least,
        samples={"dljob": took, "publish": [each["published"] for each in found]},
        facts={
            "bytes equal": all(each["right"] for each in [first, *found]),
            "all by the chain": all(each["by"] == ["chain"] for each in found),
        },
        note=f"{median(took) / least:.2f} x bytes / link ({least:.2f} s); {cores:.1f} cores busy; {begin}",
    ).emit()


if __name__ == "__main__":
    main()
