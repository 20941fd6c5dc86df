"""How to reach the API server: a pod's service account, or a kubeconfig. The official client knows the credentials."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import yaml
from kubernetes.aio import config as _config
from kubernetes.aio.client.configuration import Configuration

from dljob.kube.errors import ApiError

config: Any = _config  # its functions have no types
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its service account."""

Refresh: TypeAlias = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Way:
    """Where the API server is and what to say there."""

    configuration: Any
    """The official client's Configuration."""
    namespace: str
    """The current one: the context's, or the pod's own."""
    refresh: Refresh | None = None
    """Asks for fresh credentials (exec plugins, OIDC); None when the client does so itself."""


async def find(context: str | None = None, kubeconfig: str | None = None) -> Way:
    """The way to the cluster: an argument or KUBECONFIG names it; else the pod's service account; else ~/.kube/config.

    Raises:
        ApiError: There is no such file or context, or the file is damaged (status 0).
    """
    if not (context or kubeconfig or os.environ.get("KUBECONFIG")):
        settings = Configuration()
        try:
            config.load_incluster_config(client_configuration=settings)
        except config.ConfigException:
            pass
        else:
            return Way(settings, _own_namespace())
    return await _from_file(context, kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config")


async def _from_file(context: str | None, files: str) -> Way:
    settings = Configuration()
    path = _existing(files)

    async def load() -> _Loader:
        return await config.load_kube_config(
            config_file=path, context=context, client_configuration=settings, persist_config=False
        )

    try:
        loader = await load()
    except (config.ConfigException, OSError, KeyError, TypeError, yaml.YAMLError) as error:
        named = f"context {context!r} of " if context else ""
        raise ApiError(0, "NoConfig", f"cannot use {named}the kubeconfig {files}: {error}") from error

    async def refresh() -> None:
        await load()

    return Way(settings, loader.current_context["context"].get("namespace") or "default", refresh)


class _Loader(Protocol):
    current_context: dict[str, Any]


def own_account(folder: Path = ACCOUNT) -> str:
    """`namespace/name` of this pod's service account, as its token says; empty outside of pods."""
    try:
        claims = (folder / "token").read_text().split(".")[1]
        subject: str = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["sub"]
    except (OSError, ValueError, LookupError):
        return ""
    return subject.removeprefix("system:serviceaccount:").replace(":", "/")


def _own_namespace() -> str:
    return (ACCOUNT / "namespace").read_text().strip() or "default"


def _existing(files: str) -> str:
    """Those of the files (as KUBECONFIG lists them) that are there; the client only warns when none is."""
    found = [path for part in files.split(os.pathsep) if part and (path := Path(part).expanduser()).is_file()]
    if not found:
        raise ApiError(0, "NoConfig", f"no kubeconfig at {files}, and this is no pod: no cluster to talk to")
    return os.pathsep.join(map(str, found))
