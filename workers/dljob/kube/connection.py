"""Way to the API server: a pod's service account, or a kubeconfig. The official client handles the credentials."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import aiohttp
import yaml
from kubernetes.aio import config as _config
from kubernetes.aio.client.configuration import Configuration

from dljob.kube.errors import ApiError

config: Any = _config  # its functions have no types
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder of a pod's service account."""

Refresh: TypeAlias = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ApiConnection:
    """Address of an API server, with credentials."""

    configuration: Any
    """The official client's Configuration."""
    namespace: str
    """Current namespace: the context's, or the pod's own."""
    refresh: Refresh | None = None
    """Fetches fresh credentials (exec plugins, OIDC); None when the client does that itself.

    Raises ApiError: status 401 when they are refused, 0 when nobody answers."""
    origin: str = "the settings of the connection"
    """Place of address and credentials, for messages: a kubeconfig, a context in it, or a pod's service account."""


async def find(context: str | None = None, kubeconfig: str | None = None) -> ApiConnection:
    """Find the cluster: by an argument or KUBECONFIG; else the pod's service account; else ~/.kube/config.

    Raises:
        ApiError: there is no such file or context, or the file is damaged (status 0).
    """
    if not (context or kubeconfig or os.environ.get("KUBECONFIG")):
        settings = Configuration()
        try:
            # A pod with KUBECONFIG set wants that file, so the service account comes second.
            config.load_incluster_config(client_configuration=settings)
        except config.ConfigException:
            pass
        else:
            return ApiConnection(settings, _own_namespace(), origin="the service account of this pod")
    return await _from_file(context, kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config")


async def _from_file(context: str | None, files: str) -> ApiConnection:
    settings = Configuration()
    path = _existing(files)
    origin = f"context {context!r} of the kubeconfig {files}" if context else f"the kubeconfig {files}"

    async def load(status: int) -> _Loader:
        try:
            # persist_config: a refreshed token stays in memory, and the user's file is not rewritten.
            return await config.load_kube_config(
                config_file=path, context=context, client_configuration=settings, persist_config=False
            )
        # A file, or a provider of OIDC logins, that may answer another time.
        except (OSError, aiohttp.ClientError) as error:
            raise unusable(origin, error) from error
        # The client checks few of the file's values, and does not catch what comes of the others.
        except (config.ConfigException, LookupError, TypeError, ValueError, AttributeError, yaml.YAMLError) as error:
            raise unusable(origin, error, status) from error

    loader = await load(0)

    async def refresh() -> None:
        # Into the same `settings`, which the client of the transport holds.
        await load(401)

    return ApiConnection(settings, loader.current_context["context"].get("namespace") or "default", refresh, origin)


def unusable(origin: str, error: Exception, status: int = 0) -> ApiError:
    """Return the error about credentials that cannot be used, whose place is `origin`."""
    return ApiError(status, "NoConfig", f"cannot use {origin}: {str(error) or type(error).__name__}")


class _Loader(Protocol):
    current_context: dict[str, Any]


def own_account(folder: Path = ACCOUNT) -> str:
    """Return `namespace/name` of this pod's service account from its token; empty outside of pods."""
    subject = str(_own_claims(folder).get("sub", ""))
    return subject.removeprefix("system:serviceaccount:").replace(":", "/")


def own_account_reference(namespace: str, folder: Path = ACCOUNT) -> dict[str, str]:
    """Return this pod's service account as the owner of an object of its namespace; empty elsewhere."""
    claims: dict[str, Any] = _own_claims(folder).get("kubernetes.io") or {}
    account: dict[str, str] = claims.get("serviceaccount") or {}
    if claims.get("namespace") != namespace or not {"name", "uid"} <= account.keys():
        return {}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "name": account["name"], "uid": account["uid"]}


def _own_claims(folder: Path) -> dict[str, Any]:
    """Return what the token of this pod's service account says; empty outside of pods."""
    try:
        # The payload of a JWT, read without a check of its signature: it only tells who we are.
        claims = (folder / "token").read_text().split(".")[1]
        # Base64 in a JWT comes without its padding, which the decoder demands.
        return json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    except (OSError, ValueError, LookupError):
        return {}


def _own_namespace() -> str:
    return (ACCOUNT / "namespace").read_text().strip() or "default"


def _existing(files: str) -> str:
    """Return the existing files of a list like KUBECONFIG; the client only warns when there is none."""
    paths = [path for part in files.split(os.pathsep) if part and (path := Path(part).expanduser()).is_file()]
    if not paths:
        raise ApiError(0, "NoConfig", f"no kubeconfig at {files}, and this is no pod: no cluster to talk to")
    return os.pathsep.join(map(str, paths))
