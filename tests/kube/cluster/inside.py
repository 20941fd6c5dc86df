"""The first process of the real node's namespaces: it lays out mounts and network, starts all, and collects what ends.

What it changes is seen in these namespaces alone: `/etc` and `/var` are overlays, `/run` is new, and settings of the
whole machine that a kubelet would write are covered by files that read as it wants.
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
# The kubelet writes these for the whole machine, unless they read so already.
SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}


def sh(*command: object) -> None:
    """Run a command that must succeed."""
    subprocess.run([str(c) for c in command], check=True)


def mounts(run: Path) -> None:
    """Give the node a `/run`, `/etc` and `/var` of its own, and settings that read as the kubelet wants."""
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
    """Take the link, once it is there. There is no default route: nothing gets out.

    Services have a route, which any will do for: kube-proxy changes where a packet goes, but not that of an address
    without a route, and the API server calls webhooks at their Service.
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
    (run / "resolv.conf").write_text("")  # whom the cluster's DNS asks: nobody
    addresses = {"type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": PODS}]]}
    bridge = {"type": "bridge", "bridge": "pods0", "isDefaultGateway": True, "hairpinMode": True, "ipam": addresses}
    Path("/etc/cni/net.d").mkdir(parents=True, exist_ok=True)
    plugins = {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}
    Path("/etc/cni/net.d/10-pods.conflist").write_text(json.dumps(plugins))


def cgroups() -> None:
    """Make the node's group: one in each hierarchy of cgroup v1, or the one of v2."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        (root / CGROUP).mkdir(exist_ok=True)
        return
    for hierarchy in (p for p in root.iterdir() if p.is_dir() and not p.is_symlink()):
        (hierarchy / CGROUP).mkdir(exist_ok=True)
    for file in ("cpuset.cpus", "cpuset.mems"):  # a new cpuset is empty, and takes no process so
        if (root / "cpuset" / file).exists():
            (root / "cpuset" / CGROUP / file).write_text((root / "cpuset" / file).read_text())


def tools() -> dict[str, str]:
    """The environment in which the unpacked container runtime finds its programs and libraries."""
    root = cache.kube() / "root" / "usr"
    libraries = ":".join(str(p) for p in (root / "lib").glob("*-linux-gnu"))
    return {"PATH": f"{root}/sbin:{root}/bin:{os.environ['PATH']}", "LD_LIBRARY_PATH": libraries}


def containerd(run: Path) -> None:
    """Start the container runtime, and import the images of the cluster and of the project."""
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
    """Ask containerd."""
    command = [str(cache.kube() / "root" / "usr" / "bin" / "ctr"), "--address", SOCKET, "--namespace", "k8s.io", *args]
    return subprocess.run(command, env={**os.environ, **tools()}, capture_output=True, text=True, check=False)


def load(archive: str) -> None:
    """Import an image's archive.

    Raises:
        RuntimeError: containerd did not take it; in its words.
    """
    done = ctr("images", "import", archive)
    if done.returncode:
        raise RuntimeError(f"ctr images import {archive}: {done.stderr.strip()}")


def kubelet_config(run: Path) -> dict[str, object]:
    """How the kubelet is set up."""
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
        "cpuCFSQuota": False,  # else a pod of 0.3 CPUs takes a minute to import Ray beside a core that idles
        "nodeStatusUpdateFrequency": "2s",  # how soon declared devices can be had
        # Images cannot be pulled again, and this machine's disk is not the node's: it keeps them, and evicts late.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
    }


def proxy_config(run: Path) -> dict[str, object]:
    """How kube-proxy is set up."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": f"{run}/pki/proxy.kubeconfig"},
        "clusterCIDR": PODS,
        "hostnameOverride": NAME,
        "bindAddress": NODE,
        # These limits are the whole machine's, and may not be set from here.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def kubelet(run: Path) -> None:
    """Start the kubelet and kube-proxy, once the API server answers."""
    (run / "kubelet.json").write_text(json.dumps(kubelet_config(run)))
    (run / "proxy.json").write_text(json.dumps(proxy_config(run)))
    who = [f"--kubeconfig={run / 'pki' / 'kubelet.kubeconfig'}", f"--hostname-override={NAME}", f"--node-ip={NODE}"]
    where = [f"--config={run / 'kubelet.json'}", f"--root-dir={run / 'kubelet'}"]
    processes.start(run, "kubelet", [cache.program("kube"), "kubelet", *who, *where], tools())
    processes.start(run, "proxy", [cache.program("kube"), "proxy", f"--config={run / 'proxy.json'}"], tools())


def main(run: Path) -> None:
    """Start the node's processes, say so in `serving` and `ready`, and collect what ends, for as long as this lives."""
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
        pid, status = os.wait()  # the kubelet and its kin never end, so there is always someone to wait for
        for note in (run / "pid").iterdir():
            if json.loads(note.read_text())["pid"] == pid:
                print(f"{note.name} ended with status {status}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
