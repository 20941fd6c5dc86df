"""Certificates of one cluster: an authority, and a key, a certificate and a kubeconfig for each component."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
YEAR = dt.timedelta(days=365)
# Component -> (user, group) that RBAC's built-in roles are bound to.
COMPONENTS = {
    "apiserver": ("kube-apiserver", "system:masters"),
    "admin": ("admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
    "kubelet": ("system:node:node", "system:nodes"),
}


def pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key in PEM."""
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def subject(user: str, group: str = "") -> x509.Name:
    """Return a certificate's subject; its organization is the Kubernetes group."""
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
    return x509.Name([*([x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []), *parts])


class Authority:
    """A certificate authority of one cluster; its files are in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, mode=0o700)
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = subject("dljob-test-cluster")
        only_ca = x509.BasicConstraints(ca=True, path_length=0)
        certificate = self._builder(self.name, self.key).add_extension(only_ca, critical=True)
        self.ca = certificate.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        (folder / "ca.crt").write_bytes(self.ca)
        account = ec.generate_private_key(ec.SECP256R1())  # Key that signs service account tokens.
        (folder / "service-account.key").write_bytes(pem(account))

    def _builder(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, valid: dt.timedelta = YEAR
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        made = x509.CertificateBuilder().subject_name(name).issuer_name(self.name).public_key(key.public_key())
        made = made.serial_number(x509.random_serial_number())
        return made.not_valid_before(now - dt.timedelta(hours=1)).not_valid_after(now + valid)

    def issue(self, component: str, addresses: list[str], server: str, valid: dt.timedelta = YEAR) -> None:
        """Write the key, certificate and kubeconfig of a component that serves at addresses and calls a server.

        The certificate is valid since an hour ago and for `valid` from now; a negative `valid` gives an expired one.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(n) for n in NAMES]
        names += [x509.IPAddress(ipaddress.ip_address(a)) for a in addresses]
        both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
        made = self._builder(subject(*COMPONENTS[component]), key, valid)
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False).add_extension(
            both, critical=False
        )
        certificate = made.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        (self.folder / f"{component}.key").write_bytes(pem(key))
        (self.folder / f"{component}.crt").write_bytes(certificate)
        config = kubeconfig(component, server, self.ca, certificate, pem(key))
        (self.folder / f"{component}.kubeconfig").write_text(json.dumps(config, indent=1))


def kubeconfig(user: str, server: str, ca: bytes, certificate: bytes, key: bytes) -> dict[str, object]:
    """Return a self-contained kubeconfig that can be copied; it is JSON, which is valid YAML."""

    def text(data: bytes) -> str:
        return base64.b64encode(data).decode()

    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority-data": text(ca)}}],
        "users": [{"name": user, "user": {"client-certificate-data": text(certificate), "client-key-data": text(key)}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": user, "namespace": "default"}}],
        "current-context": "test",
    }


def write(folder: Path, addresses: list[str], server: str) -> None:
    """Write all files of a cluster whose API server is at `server`."""
    authority = Authority(folder)
    for component in COMPONENTS:
        authority.issue(component, addresses, server)
