"""`dljob doctor`: results of checks, each with its fix, and pure functions that read answers of a cluster."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dljob.api.kubernetes.jobs import entries, nested
from dljob.cli.target import has_kubeconfig
from dljob.telemetry.wording import counted

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]
State = Literal["ok", "warn", "fail", "skip"]

SOON_DAYS = 30
"""Days before expiry from which a certificate should be renewed."""
CERTIFICATE_METRIC = "dljob_webhook_certificate_remaining_seconds"
_WEBHOOK = "dljob.io/webhook"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check."""

    check: str
    state: State
    message: str
    fix: str = ""


Check = Callable[["Kube", str], Awaitable[CheckResult]]


def healthy(findings: Iterable[CheckResult]) -> bool:
    """Whether no check failed; warnings do not count."""
    return all(finding.state != "fail" for finding in findings)


def lines(findings: Sequence[CheckResult]) -> list[str]:
    """Format one line per result, with its fix below."""
    width = max(len(finding.check) for finding in findings)
    lines_so_far: list[str] = []
    for result in findings:
        lines_so_far.append(f"{result.state:<4}  {result.check.ljust(width)}  {result.message}")
        if result.fix:
            lines_so_far.append(f"      {' ' * width}  -> {result.fix}")
    return lines_so_far


def data(findings: Sequence[CheckResult]) -> list[Json]:
    """Convert results to data for scripts."""
    return [asdict(finding) for finding in findings]


def check_packages() -> list[CheckResult]:
    """Check the packages that a job on this machine, or a script that talks to one, needs."""
    results = [CheckResult("dljob", "ok", f"{_installed('dljob')} on Python {platform.python_version()}")]
    for package, extra, purpose in (
        ("ray", "runtime", "dljob run on this machine"),
        ("torch", "torch", "Elastic roles here"),
    ):
        version = _installed(package)
        fix = f"pip install 'dljob[{extra}]', if you want {purpose}"
        results.append(_package(package, version) if version else CheckResult(package, "skip", "not installed", fix))
    return results


def _package(package: str, version: str) -> CheckResult:
    """Check an installed package for bytecode."""
    # Not by an import: torch takes seconds.
    package_spec = importlib.util.find_spec(package)
    folder = Path(package_spec.origin).parent if package_spec and package_spec.origin else None
    # Without bytecode each process that starts compiles torch again, for seconds.
    if folder is None or Path(importlib.util.cache_from_source(str(folder / "__init__.py"))).exists():
        return CheckResult(package, "ok", version)
    if not sys.dont_write_bytecode and os.access(folder, os.W_OK):
        return CheckResult(package, "ok", version)  # the first import writes the bytecode
    reason = "PYTHONDONTWRITEBYTECODE is set" if sys.dont_write_bytecode else "its folder cannot be written to"
    message = f"{version}, compiled anew in each process that starts: {reason}"
    return CheckResult(package, "warn", message, shlex.join([sys.executable, "-m", "compileall", "-q", str(folder)]))


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def has_cluster() -> bool:
    """Whether anything names a cluster: a kubeconfig, or a pod's service account."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) or has_kubeconfig()


# -- reading answers


def version_of(image: str) -> str:
    """Return the version in an image's tag, without a leading v; empty when it has none."""
    # First without the digest, which has a colon of its own.
    tag = image.rsplit("/", 1)[-1].partition("@")[0].partition(":")[2]
    return tag.removeprefix("v")


def deployment(check: str, deployments: Sequence[Mapping[str, Any]], missing: CheckResult) -> tuple[CheckResult, str]:
    """Check that a Deployment exists and is ready; return the result and its version."""
    if not deployments:
        return missing, ""
    # Several may match, such as an old release beside a new one: the one that works counts.
    best = max(deployments, key=lambda item: int(nested(item, "status").get("readyReplicas") or 0))
    meta, spec = best["metadata"], nested(best, "spec")
    ready, replicas = int(nested(best, "status").get("readyReplicas") or 0), int(spec.get("replicas", 1))
    containers = entries(nested(nested(spec, "template"), "spec"), "containers")
    labels = nested(meta, "labels")
    # The chart's label first: an image may be tagged with anything.
    version = str(labels.get("app.kubernetes.io/version") or version_of(str(containers[0]["image"]))).removeprefix("v")
    place = f"{meta['namespace']}/{meta['name']}"
    message = f"{version or 'version unknown'}, Deployment {place}, {ready}/{replicas} ready"
    if ready == 0:
        return CheckResult(
            check, "fail", message, f"kubectl describe deployment {meta['name']} -n {meta['namespace']}"
        ), version
    return CheckResult(check, "ok", message), version


def webhook(marks: Mapping[str, str], now: float, seconds_left: float | None = None) -> CheckResult:
    """Check that the admission webhook is on, and the validity of its certificate.

    Args:
        marks: the annotations of the operator's Deployment, in which its chart describes the certificate.
        now: unix seconds.
        seconds_left: remaining seconds of an existing Secret's certificate, by the operator's metric; None: unknown.
    """
    expires, secret = marks.get(f"{_WEBHOOK}-certificate-expires", ""), marks.get(f"{_WEBHOOK}-secret", "")
    # The chart does not know an existing Secret's certificate; the operator, which serves it, measures it.
    if secret and seconds_left is None:
        hint = f"metric {CERTIFICATE_METRIC} tells how long it holds; this user cannot read it"
        return CheckResult("webhook", "ok", f"its certificate is in Secret {secret}; {hint}")
    try:
        seconds_left = (
            seconds_left if secret and seconds_left is not None else datetime.fromisoformat(expires).timestamp() - now
        )
    except ValueError:
        # There is no date: the chart gives one only while the webhook is on.
        message = "off: DLJobs that cannot be run are admitted, and become Invalid"
        return CheckResult("webhook", "skip", message, "helm upgrade with webhook.enabled=true")
    days = int(seconds_left // 86400)
    renew = (
        f"put a new certificate into Secret {secret}"
        if secret
        else "helm upgrade the chart: it makes a new certificate"
    )
    if days < 0:
        at = expires or datetime.fromtimestamp(now + seconds_left, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return CheckResult("webhook", "warn", f"its certificate expired on {at}: DLJobs are not judged", renew)
    state: State = "warn" if days < SOON_DAYS else "ok"
    return CheckResult(
        "webhook", state, f"its certificate holds for {counted(days, 'day')}", renew if state == "warn" else ""
    )


def field_paths(schema: Mapping[str, Any], prefix: str = "") -> set[str]:
    """Return the fields of a structural schema: spec.roles[].name, ..."""
    paths: set[str] = set()
    for name, field in nested(schema, "properties").items():
        path = f"{prefix}.{name}" if prefix else str(name)
        paths |= {path} | field_paths(field, path)
    if "items" in schema:
        paths |= field_paths(nested(schema, "items"), f"{prefix}[]")
    return paths


def crd_difference(own_crd: Mapping[str, Any], served_crd: Mapping[str, Any]) -> str:
    """Describe how the cluster's CRD differs from ours; empty when it has the same fields under spec."""
    own_fields, served_fields = _spec_fields(own_crd), _spec_fields(served_crd)
    lacks, more = sorted(own_fields - served_fields), sorted(served_fields - own_fields)
    differences = [f"lacks {_some(lacks)}"] if lacks else []
    differences += [f"has {_some(more)}, which this dljob does not know"] if more else []
    return "; ".join(differences)


def _spec_fields(crd: Mapping[str, Any]) -> set[str]:
    # Only under spec: the status is the operator's alone.
    versions: list[Json] = [v for v in entries(nested(crd, "spec"), "versions") if v.get("name") == "v1alpha1"]
    root = nested(nested(versions[0], "schema"), "openAPIV3Schema") if versions else {}
    return field_paths(nested(nested(root, "properties"), "spec"), "spec")


def _some(paths: Sequence[str]) -> str:
    # A missing object implies its missing fields: name only the topmost.
    top = [path for path in paths if path.rpartition(".")[0].removesuffix("[]") not in paths]
    return ", ".join(top[:4]) + (f" and {len(top) - 4} more" if len(top) > 4 else "")


def quota(quotas: Sequence[Mapping[str, Any]]) -> tuple[State, str]:
    """Return the state of a namespace's quotas, with the resources that are used up."""
    if not quotas:
        return "ok", "none"
    full: list[str] = []
    for quota_body in quotas:
        status = nested(quota_body, "status")
        hard, used = nested(status, "hard"), nested(status, "used")
        full += [f"{key} {used[key]} of {hard[key]}" for key in sorted(hard) if key in used and used[key] == hard[key]]
    names = ", ".join(str(quota_body["metadata"]["name"]) for quota_body in quotas)
    return ("warn", f"{names}: used up: {', '.join(full)}") if full else ("ok", names)


_DEVICE = re.compile(r".+/.*(gpu|npu|ascend|tpu|gaudi|neuron).*", re.IGNORECASE)


def devices(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Describe the nodes that accept pods, and their devices."""
    usable = [node for node in nodes if not nested(node, "spec").get("unschedulable") and _ready(node)]
    total: dict[str, int] = {}
    for node in usable:
        for name, count in nested(nested(node, "status"), "allocatable").items():
            if _DEVICE.fullmatch(name) and str(count).isdecimal() and int(count):
                total[name] = total.get(name, 0) + int(count)
    device_text = ", ".join(f"{count} {name}" for name, count in sorted(total.items())) or "no GPUs or NPUs"
    return (
        f"{len(usable)} of {counted(len(nodes), 'node')} {'takes' if len(usable) == 1 else 'take'} pods: {device_text}"
    )


def _ready(node: Mapping[str, Any]) -> bool:
    conditions = entries(nested(node, "status"), "conditions")
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
