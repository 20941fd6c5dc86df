"""A cluster with one real node in its own network, mount, PID and UTS namespaces.

One process is PID 1 of those namespaces, so one SIGKILL ends everything, containers included, and this machine keeps
no mount and no firewall rule. A link joins the two: from this machine, API server, pods and Services are reachable at
their own addresses; from the node, nothing outside is. The link has a fixed name and range, so only one node runs at a
time.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cluster import build, cache, images, kuberay, processes, torch_volume
from cluster.handle import Cluster, KubectlError
from cluster.plane import SERVICES

LINK = "dljob0"
HOST, NODE, PODS, DNS = "10.254.0.1", "10.254.0.2", "10.244.0.0/16", "10.96.0.10"
NAME = "node"
CGROUP = "dljob-node"
NAMESPACES = (
    "--net",
    "--mount",
    "--uts",
    "--ipc",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--propagation=private",
)


PROBE = """
mkdir "$1/lower" "$1/upper" "$1/work" "$1/merged"
mount -t overlay -o "lowerdir=$1/lower,upperdir=$1/upper,workdir=$1/work" overlay "$1/merged"
umount "$1/merged"
ip link add probe0 type veth peer name probe1
for group in /sys/fs/cgroup/memory /sys/fs/cgroup; do
    if [ -e "$group/cgroup.procs" ]; then mkdir "$group/dljob-probe-$$"; rmdir "$group/dljob-probe-$$"; break; fi
done
"""
"""What a node does to its namespaces, in small; all of it is gone with the shell."""


def able(run: Path) -> None:
    """Check that this machine can run a real node whose folder is `run`.

    Raises:
        MissingError: it cannot; the message says what it lacks.
    """
    if os.geteuid():
        raise cache.MissingError("the real node needs root: it makes namespaces, mounts and a network link")
    lacking = [tool for tool in ("unshare", "nsenter", "ip", "mount") if shutil.which(tool) is None]
    if lacking:
        raise cache.MissingError(f"the real node needs {', '.join(lacking)} on the PATH (Debian: util-linux, iproute2)")
    with tempfile.TemporaryDirectory(dir=run.parent) as folder:
        probe = subprocess.run(
            ["unshare", *NAMESPACES, "sh", "-ec", PROBE, "sh", folder], capture_output=True, text=True, check=False
        )
    if probe.returncode:
        need = f"the real node needs CAP_SYS_ADMIN and CAP_NET_ADMIN, overlays in {run.parent} and cgroups of its own"
        raise cache.MissingError(f"{need}: {probe.stderr.strip()}")
    for program in build.PROGRAMS:
        cache.program(program.name)


def linked() -> bool:
    """Return whether the link of a node exists."""
    return LINK in [name for _, name in socket.if_nameindex()]


def ip(*args: str) -> None:
    """Run `ip` to change this machine's network.

    Raises:
        RuntimeError: the command failed; with its message.
    """
    done = subprocess.run(["ip", *args], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(args)}: {done.stderr.strip()}")


def start(run: Path) -> Cluster:
    """Start a cluster with its node, the cached images, CoreDNS and KubeRay as pods; wait until all are ready."""
    run.parent.mkdir(parents=True, exist_ok=True)
    able(run)
    processes.until(
        lambda: not linked(), 20, f"the end of the node that runs already (link {LINK}; `make kube-down` ends ours)"
    )
    build.runtime()
    images.ensure()
    run.mkdir(parents=True, exist_ok=True)
    # Not the caller's PYTHONPATH: this is another program, which needs the folder above only.
    env = {"PYTHONPATH": str(Path(__file__).parents[1])}
    outer = processes.start(
        run, "node", ["unshare", *NAMESPACES, sys.executable, "-m", "cluster.inside", str(run / "node")], env
    )
    connect(first(run, outer))
    cluster = Cluster(run / "node" / "pki" / "admin.kubeconfig", run)
    processes.until((run / "node" / "serving").exists, 120, "the node's control plane", run, ["node"])
    kuberay.crds(cluster)  # Applied while images are imported.
    processes.until((run / "node" / "ready").exists, 180, "the node's processes", run, ["node"])
    processes.until(lambda: registered(cluster), 60, "the node to register", run, ["node"])
    cluster.kubectl("wait", f"node/{NAME}", "--for=condition=Ready", "--timeout=60s")
    cluster.settle()
    cluster.apply(Path(__file__).parent / "coredns.yaml")
    if (run / "node" / "torch").exists():
        torch_volume.volume(cluster, "default")
    kuberay.deploy(cluster)
    cluster.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=60s")
    return cluster


def first(run: Path, outer: int) -> int:
    """Return the pid of the namespaces' PID 1, noted so that it is ended before the process that created them."""
    children = Path(f"/proc/{outer}/task/{outer}/children")
    processes.until(lambda: children.read_text().split(), 20, "the node's namespaces", run, ["node"])
    pid = int(children.read_text().split()[0])
    processes.note(run, "node-first", pid)
    return pid


def connect(pid: int) -> None:
    """Create the link between this machine and the namespaces of a process, with routes to pods and Services."""
    ip("link", "add", LINK, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    ip("address", "add", f"{HOST}/30", "dev", LINK)
    ip("link", "set", LINK, "up")
    for network in (PODS, SERVICES):
        ip("route", "add", network, "via", NODE)


def registered(cluster: Cluster) -> bool:
    """Return whether the kubelet has registered its node."""
    try:
        return NAME in cluster.kubectl("get", "nodes", "-o", "name")
    except KubectlError:
        return False


def load(run: Path, archives: Sequence[Path]) -> None:
    """Import images into a running node.

    Raises:
        RuntimeError: an image could not be imported.
    """
    pid = processes.find(run, "node-first")
    if not pid:
        raise RuntimeError(f"no node runs in {run}")
    for archive in archives:
        enter = ["nsenter", f"--target={pid}", "--mount", "--net", "--pid", "--ipc"]
        code = "import sys; from cluster import inside; inside.load(sys.argv[1])"
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run(
            [*enter, sys.executable, "-c", code, str(archive)], env=env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"import of {archive}: {done.stderr.strip()[-1000:]}")


def cgroups() -> list[Path]:
    """Return the node's cgroups: one in each hierarchy of cgroup v1, or one of v2."""
    root = Path("/sys/fs/cgroup")
    return [p for p in (*root.glob(f"*/{CGROUP}"), root / CGROUP) if p.is_dir()]


def clear() -> None:
    """Remove what outlives the node's processes: its end of the link, which lasts a moment longer, and its cgroups.

    Raises:
        RuntimeError: something of the node is left on this machine.
    """
    if linked():
        subprocess.run(
            ["ip", "link", "delete", LINK], capture_output=True, check=False
        )  # The kernel may have removed it just now.
    for top in cgroups():
        for folder in (*sorted((p for p in top.rglob("*") if p.is_dir()), reverse=True), top):
            folder.rmdir()
    processes.until(lambda: not traces(), 10, "the node to leave this machine as it was")


def traces() -> list[str]:
    """Return what a node has left on this machine outside its namespaces."""
    routes = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout.split()
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [
        *([f"link {LINK}"] if linked() else []),
        *(f"route {network}" for network in (PODS, SERVICES) if network in routes),
        *(f"cgroup {CGROUP}" for _ in cgroups()[:1]),
        *(
            f"mount {at}"
            for at in mounts
            if "/node/" in at and ("containerd" in at or "kubelet" in at or "overlay" in at)
        ),
    ]
