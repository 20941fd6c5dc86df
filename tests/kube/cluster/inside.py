"""PID 1 of the real node's namespaces: sets up mounts and network, starts the node's processes, reaps orphans.

Its changes are visible in these namespaces only: `/etc` and `/var` are overlays, `/run` is new, and machine-wide
settings that a kubelet would write are hidden by bind-mounted files with the values that it wants.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from cluster import cache, images, processes, torch_volume
from cluster.node import CGROUP, DNS, NAME, NODE, PODS
from cluster.plane import SERVICES, Plane

SOCKET = "/run/containerd.sock"
# Machine-wide sysctls that the kubelet writes unless they have these values already.
SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}


def sh(*command: object) -> None:
    """Run a command; raises if it fails."""
    subprocess.run([str(c) for c in command], check=True)


def mounts(run: Path) -> None:
    """Mount the node's own `/run`, `/etc` and `/var`, and files with the sysctl values that the kubelet wants."""
    sh("mount", "--make-rshared", "/")
    sh("mount", "-t", "tmpfs", "tmpfs", "/run")
    for folder in ("etc", "var"):
        upper, work = run / "overlay" / folder, run / "overlay" / f"{folder}.work"
        upper.mkdir(parents=True)
        work.mkdir()
        options = f"lowerdir=/{folder},upperdir={upper},workdir={work}"
        sh("mount", "-t", "overlay", "-o", options, "overlay", f"/{folder}")
    for setting, value in SETTINGS.items():
        file = run / "settings" / setting
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")
        sh("mount", "--bind", file, f"/proc/sys/{setting}")
    torch_volume.bind(run / "torch")


def network(run: Path) -> None:
    """Configure the link once it exists. There is no default route, so that nothing reaches the outside.

    Service addresses get a route, any route: kube-proxy rewrites the destination of a packet, but a packet to an
    address without a route is dropped before, and the API server calls webhooks at their Service.
    """
    processes.until(lambda: "eth0" in [n for _, n in socket.if_nameindex()], 20, "the link to this machine")
    for args in (
        "link set lo up",
        f"address add {NODE}/30 dev eth0",
        "link set eth0 up",
        f"route add {SERVICES} dev eth0",
    ):
        sh("ip", *args.split())
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    Path("/etc/resolv.conf").write_text(f"nameserver {DNS}\n")
    (run / "resolv.conf").write_text("")  # The cluster's DNS has no upstream server.
    addresses = {"type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": PODS}]]}
    bridge = {"type": "bridge", "bridge": "pods0", "isDefaultGateway": True, "hairpinMode": True, "ipam": addresses}
    Path("/etc/cni/net.d").mkdir(parents=True, exist_ok=True)
    plugins = {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}
    Path("/etc/cni/net.d/10-pods.conflist").write_text(json.dumps(plugins))


def cgroups() -> None:
    """Create the node's cgroup: one in each hierarchy of cgroup v1, or one of v2."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        (root / CGROUP).mkdir(exist_ok=True)
        return
    for hierarchy in (p for p in root.iterdir() if p.is_dir() and not p.is_symlink()):
        (hierarchy / CGROUP).mkdir(exist_ok=True)
    for file in ("cpuset.cpus", "cpuset.mems"):  # A new cpuset is empty and accepts no process.
        if (root / "cpuset" / file).exists():
            (root / "cpuset" / CGROUP / file).write_text((root / "cpuset" / file).read_text())


def tools() -> dict[str, str]:
    """Return the environment in which the unpacked container runtime finds its programs and libraries."""
    root = cache.kube() / "root" / "usr"
    libraries = ":".join(str(p) for p in (root / "lib").glob("*-linux-gnu"))
    return {"PATH": f"{root}/sbin:{root}/bin:{os.environ['PATH']}", "LD_LIBRARY_PATH": libraries}


def containerd(run: Path) -> None:
    """Start the container runtime and import the images of the cluster and of the project."""
    root = cache.kube() / "root" / "usr"
    config = f"""version = 2
root = "{run}/containerd"
state = "/run/containerd"
[grpc]
address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{images.PAUSE}"
disable_apparmor = true
restrict_oom_score_adj = true  # lowering it takes CAP_SYS_RESOURCE, which sandboxes do not give
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{root}/lib/cni"
conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""
    (run / "containerd.toml").write_text(config)
    processes.start(run, "containerd", [root / "bin" / "containerd", "--config", run / "containerd.toml"], tools())
    processes.until(lambda: ctr("version").returncode == 0, 30, "containerd", run, ["containerd"])
    for archive in (*images.ensure(), *cache.images()):
        load(str(archive))


def ctr(*args: str) -> subprocess.CompletedProcess[str]:
    """Run `ctr` against the node's containerd."""
    command = [str(cache.kube() / "root" / "usr" / "bin" / "ctr"), "--address", SOCKET, "--namespace", "k8s.io", *args]
    return subprocess.run(command, env={**os.environ, **tools()}, capture_output=True, text=True, check=False)


def load(archive: str) -> None:
    """Import an image's archive.

    Raises:
        RuntimeError: containerd refused it; with its message.
    """
    done = ctr("images", "import", archive)
    if done.returncode:
        raise RuntimeError(f"ctr images import {archive}: {done.stderr.strip()}")


def kubelet_config(run: Path) -> dict[str, object]:
    """Return the kubelet's configuration."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{run}/pki/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{run}/pki/kubelet.crt",
        "tlsPrivateKeyFile": f"{run}/pki/kubelet.key",
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{CGROUP}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "clusterDNS": [DNS],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{run}/resolv.conf",
        "makeIPTablesUtilChains": False,
        "maxPods": 250,
        "cpuCFSQuota": False,  # With quotas a pod of 0.3 CPUs takes a minute to import Ray while a core idles.
        "nodeStatusUpdateFrequency": "2s",  # Declared devices can be requested after this time.
        # Images cannot be pulled again and the disk is the machine's, so images are kept and eviction is late.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
    }


def proxy_config(run: Path) -> dict[str, object]:
    """Return kube-proxy's configuration."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": f"{run}/pki/proxy.kubeconfig"},
        "clusterCIDR": PODS,
        "hostnameOverride": NAME,
        "bindAddress": NODE,
        # These limits are machine-wide and cannot be set from a namespace.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def kubelet(run: Path) -> None:
    """Start the kubelet and kube-proxy once the API server answers."""
    (run / "kubelet.json").write_text(json.dumps(kubelet_config(run)))
    (run / "proxy.json").write_text(json.dumps(proxy_config(run)))
    who = [f"--kubeconfig={run / 'pki' / 'kubelet.kubeconfig'}", f"--hostname-override={NAME}", f"--node-ip={NODE}"]
    where = [f"--config={run / 'kubelet.json'}", f"--root-dir={run / 'kubelet'}"]
    processes.start(run, "kubelet", [cache.program("kube"), "kubelet", *who, *where], tools())
    processes.start(run, "proxy", [cache.program("kube"), "proxy", f"--config={run / 'proxy.json'}"], tools())


def main(run: Path) -> None:
    """Start the node's processes, report by the files `serving` and `ready`, then reap processes for ever."""
    run.mkdir(parents=True)
    socket.sethostname(NAME)
    mounts(run)
    network(run)
    cgroups()
    Plane(run, NODE, (6443, 2379, 2380, 10257, 10259)).start()
    (run / "serving").touch()
    containerd(run)
    kubelet(run)
    (run / "ready").touch()
    while True:
        pid, status = os.wait()  # The kubelet never ends, so there is always a child to wait for.
        for note in (run / "pid").iterdir():
            if json.loads(note.read_text())["pid"] == pid:
                print(f"{note.name} ended with status {status}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
