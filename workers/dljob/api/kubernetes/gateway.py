"""The job's own voice: the gateway on the head, asked through the API server with the rights of the user."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from dljob.api.kubernetes.jobs import part, phase_of, place_of, status_of, why
from dljob.control import names
from dljob.errors import ExitCode, UnreachableError
from dljob.plan.pods import GATEWAY_PORT, TOKEN_KEY

if TYPE_CHECKING:
    from dljob.kube.api import Kube
    from dljob.kube.gateway import Gateway, Piece

T = TypeVar("T")
Json = dict[str, Any]


_EARLY = frozenset({"Pending", "Queued", "Provisioning"})
"""Phases without a head."""


class SilentError(UnreachableError):
    """The job's head cannot be asked now: it is not up yet, is gone, or does not answer."""


class NotYetError(SilentError):
    """Nothing of the job runs yet."""

    exit_code = ExitCode.NOT_FOUND


class AwayError(SilentError):
    """The gateway answers, and who should know does not at the moment; `said`: the gateway's own words."""

    def __init__(self, message: str, said: str) -> None:
        super().__init__(message)
        self.said = said


@dataclass(frozen=True, slots=True)
class Head:
    """The gateway of one job's RayCluster."""

    pod: str
    job: str
    """The uid as Ray's side knows it."""
    gateway: Gateway

    async def notes(self, after: int = 0) -> list[Json]:
        """PrimeMaster's timeline, after a number."""
        return await self._heard(self.gateway.events(self.job, after=after))

    async def tail(self, role: str, rank: int, limit: int) -> str:
        """The end of a rank's log, at most `limit` bytes. Raises NotFoundError when there is none."""
        return await self._heard(self.gateway.tail(self.job, role, rank, limit))

    async def stacks(self, target: str) -> Mapping[str, str]:
        """Rank -> the stacks of its process. Raises NotFoundError when there is no such target, or the job is over."""
        return await self._heard(self.gateway.stacks(self.job, target))

    async def piece(self, role: str, rank: int, start: int) -> Piece:
        """A rank's log from a byte on, as much as fits into an answer. Raises NotFoundError when there is none."""
        return await self._heard(self.gateway.follow(self.job, role, rank, start))

    async def _heard(self, question: Awaitable[T]) -> T:
        from dljob.kube import head
        from dljob.kube.api import ApiError

        try:
            return await question
        except head.UnknownError:
            raise
        except head.HeadError as error:
            message = f"the gateway on pod {self.pod} answers {error.status}: {error.message}"
            away = isinstance(error, head.AwayError)
            raise (AwayError(message, error.said) if away else SilentError(message)) from error
        except ApiError as error:
            if error.status == 403:
                raise _forbidden(error.message, "pods/proxy") from error
            raise SilentError(f"pod {self.pod} does not answer: {error.message}", hint=error.hint) from error


async def reach(kube: Kube, job: Mapping[str, Any]) -> Head:
    """The gateway of a job's RayCluster.

    Raises:
        NotYetError: nothing of the job runs yet.
        SilentError: there is no RayCluster, or no head, at this moment.
        UnreachableError: the user may not read the token.
    """
    from dljob.kube.gateway import Gateway
    from dljob.kube.head import through

    cluster = part(status_of(job), "rayCluster")
    meta = job["metadata"]
    if phase_of(job) in _EARLY:
        reason, message = why(job)
        waits = f" ({f'{reason}: {message}' if message else reason})" if reason else ""
        raise NotYetError(f"nothing of job {place_of(job)} runs yet: {phase_of(job)}{waits}")
    name, pod = str(cluster.get("name") or ""), str(cluster.get("headPod") or "")
    if not name or not pod:
        raise SilentError(f"job {place_of(job)} has no head pod now", hint=f"see dljob status {meta['name']}")
    secret = await _secret(kube, job, name)
    token = await _token(kube, secret, meta["namespace"]) if secret else ""
    ask = through(kube, pod, GATEWAY_PORT, meta["namespace"], token)
    return Head(pod, names.job_uid(meta["uid"]), Gateway(ask))


async def _secret(kube: Kube, job: Mapping[str, Any], cluster: str) -> str:
    """The Secret with the token of the job's RayCluster; empty: it asks for none."""
    from dljob.kube.api import ApiError, NotThereError
    from dljob.kube.kuberay_client import RayClusters, token_secret

    if not part(job["spec"], "rayClusterRef"):
        return names.token_secret(cluster)
    try:
        return token_secret(await RayClusters(kube).get(cluster, job["metadata"]["namespace"]))
    except NotThereError as error:
        raise SilentError(f"the RayCluster {cluster} of job {place_of(job)} is gone") from error
    except ApiError as error:
        if error.status == 403:
            raise _forbidden(error.message, "rayclusters") from error
        raise


async def _token(kube: Kube, secret: str, namespace: str) -> str:
    from dljob.kube.api import SECRETS, ApiError, NotThereError

    try:
        found = await kube.get(SECRETS, secret, namespace)
        return base64.b64decode(found["data"][TOKEN_KEY]).decode().strip()
    except NotThereError as error:
        raise SilentError(f"the Secret {secret} with the token of the RayCluster is gone") from error
    except ApiError as error:
        if error.status == 403:
            raise _forbidden(error.message, "secrets") from error
        raise
    except (KeyError, ValueError, binascii.Error) as error:
        raise SilentError(f"the Secret {secret} holds no token under {TOKEN_KEY}") from error


def _forbidden(message: str, what: str) -> UnreachableError:
    hint = f"logs and the job's own events of a running job need the right to get {what}; see dljob doctor"
    return UnreachableError(message, hint=hint)
