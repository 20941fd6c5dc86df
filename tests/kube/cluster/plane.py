"""A control plane without nodes: etcd, API server, controller manager and scheduler on an address of this machine."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from cluster import certs, processes
from cluster.cache import program

SERVICES = "10.96.0.0/16"
AUDIT = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, userGroups: ["system:serviceaccounts:kube-system"]}
- {level: Metadata, userGroups: ["system:serviceaccounts"]}
- {level: None}
"""
"""Audit policy: requests of service accounts, except Kubernetes' own, go to `log/audit` as lines of JSON."""
NAMES = ("etcd", "apiserver", "controller-manager", "scheduler")


@dataclass(frozen=True)
class Plane:
    """A control plane's folder, address and ports.

    Args:
        run: the folder of its state: `pki/`, `log/`, `pid/`, `etcd/`.
        address: the API server's.
        ports: of the API server, etcd for clients and for peers, controller manager, scheduler.
    """

    run: Path
    address: str
    ports: tuple[int, int, int, int, int]

    @property
    def server(self) -> str:
        """Return the API server's URL."""
        return f"https://{self.address}:{self.ports[0]}"

    def start(self) -> None:
        """Start the control plane with an empty etcd; wait until the API server is ready and the others are started."""
        certs.write(self.run / "pki", sorted({"127.0.0.1", self.address, "10.96.0.1"}), self.server)
        self._etcd()
        self._apiserver()
        processes.until(self._ready, 90, "the API server", self.run, NAMES[:2])
        self._component("controller-manager", self.ports[3], *self._controllers())
        self._component("scheduler", self.ports[4])

    def _etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in self.ports[1:3])
        where = ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
        where += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        keep = ["--data-dir", str(self.run / "etcd"), "--unsafe-no-fsync"]  # The data need not survive the cluster.
        processes.start(self.run, "etcd", [program("kube"), "etcd", *where, *keep, "--log-level", "warn"])

    def _apiserver(self) -> None:
        pki = self.run / "pki"
        # A Service endpoint may not be a loopback address; without a node no client uses this one.
        endpoint = "none" if self.address.startswith("127.") else "lease"
        (self.run / "audit.yaml").write_text(AUDIT)
        flags = {
            "etcd-servers": f"http://127.0.0.1:{self.ports[1]}",
            "bind-address": self.address,
            "advertise-address": self.address,
            "secure-port": self.ports[0],
            "endpoint-reconciler-type": endpoint,
            "tls-cert-file": pki / "apiserver.crt",
            "tls-private-key-file": pki / "apiserver.key",
            "client-ca-file": pki / "ca.crt",
            "kubelet-client-certificate": pki / "apiserver.crt",
            "kubelet-client-key": pki / "apiserver.key",
            "kubelet-certificate-authority": pki / "ca.crt",
            "kubelet-preferred-address-types": "InternalIP",
            "authorization-mode": "Node,RBAC",
            # The second plugin requires the right `dljobs/finalizers`; many clusters enable it.
            "enable-admission-plugins": "NodeRestriction,OwnerReferencesPermissionEnforcement",
            "audit-policy-file": self.run / "audit.yaml",
            "audit-log-path": self.run / "log" / "audit",
            "allow-privileged": "true",
            "service-cluster-ip-range": SERVICES,
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-key-file": pki / "service-account.key",
            "service-account-signing-key-file": pki / "service-account.key",
        }
        processes.start(
            self.run, "apiserver", [program("kube"), "apiserver", *(f"--{k}={v}" for k, v in flags.items())]
        )

    def _controllers(self) -> list[str]:
        pki = self.run / "pki"
        token = f"--service-account-private-key-file={pki / 'service-account.key'}"
        return ["--use-service-account-credentials", f"--root-ca-file={pki / 'ca.crt'}", token]

    def _component(self, name: str, port: int, *flags: str) -> None:
        config = self.run / "pki" / f"{name}.kubeconfig"
        where = ["--bind-address=127.0.0.1", f"--secure-port={port}", "--leader-elect=false"]
        who = [f"--{kind}={config}" for kind in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")]
        # The default client limits suit a shared server; a test creates a thousand pods at once.
        processes.start(
            self.run, name, [program("kube"), name, *where, *who, "--kube-api-qps=500", "--kube-api-burst=1000", *flags]
        )

    def _ready(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.run / "pki" / "ca.crt"))
        try:
            with urllib.request.urlopen(f"{self.server}/readyz", context=context, timeout=5) as reply:  # noqa: S310
                return reply.status == 200
        except (OSError, urllib.error.URLError):
            return False
