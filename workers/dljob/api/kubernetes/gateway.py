"""The job's own voice: the gateway on the head, asked through the API server with the rights of the user."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from dljob.api.kubernetes.jobs import items, part, phase_of, place_of, status_of, why
from dljob.control import names
from dljob.errors import ExitCode, NotFoundError, UnreachableError
from dljob.plan.pods import GATEWAY_PORT, TOKEN_KEY

if TYPE_CHECKING:
    from dljob.kube.api import Kube, Reply

Json = dict[str, Any]


_EARLY = frozenset({"Pending", "Queued", "Provisioning"})
"""Phases without a head."""
CHUNK = 1024 * 1024
"""Bytes of a log in one answer, at most."""


class SilentError(UnreachableError):
    """The job's head cannot be asked now: it is not up yet, is gone, or does not answer."""


class NotYetError(SilentError):
    """Nothing of the job runs yet."""

    exit_code = ExitCode.NOT_FOUND


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a rank's log."""

    text: str
    offset: int
    """Where the next piece begins, in bytes."""
    end: bool
    """Nothing more comes."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """The gateway of one job's RayCluster."""

    kube: Kube
    namespace: str
    pod: str
    uid: str
    """32 hex digits."""
    token: str

    async def notes(self, after: int = 0) -> list[Json]:
        """The master's timeline, after a number."""
        answer = await self._json("events", after=after, timeout=0)
        return items(answer, "events")

    async def ranks(self) -> list[Json]:
        """Every rank with its phase, step and node."""
        answer = await self._json("status", ranks=1, after=0, timeout=0)
        return items(answer, "ranks")

    async def tail(self, role: str, rank: int, length: int) -> str:
        """The last `length` bytes of a rank's log; empty when there is none yet."""
        return (await self._ask("logs", role=role, rank=rank, bytes=length)).text()

    async def chunk(self, role: str, rank: int, at: int) -> Chunk:
        """A rank's log from an offset on, as much as fits into an answer."""
        answer = await self._json("logs", role=role, rank=rank, follow=1, bytes=CHUNK, **{"from": at})
        return Chunk(str(answer.get("text") or ""), int(answer.get("offset", at)), bool(answer.get("end")))

    async def _json(self, what: str, **query: str | int) -> Json:
        reply = await self._ask(what, **query)
        try:
            return cast("Json", reply.json() or {})
        except ValueError as error:
            raise SilentError(f"the gateway on pod {self.pod} answers no JSON: {reply.text()[:100]!r}") from error

    async def _ask(self, what: str, **query: str | int) -> Reply:
        from dljob.kube.api import ApiError

        path = f"/v1/jobs/{self.uid}/{what}"
        headers = {"x-ray-authorization": f"Bearer {self.token}"}
        try:
            reply = await self.kube.proxy_get(
                self.pod, GATEWAY_PORT, path, self.namespace, headers=headers, query=query
            )
        except ApiError as error:
            if error.status == 403:
                raise _forbidden(error.message, "pods/proxy") from error
            raise SilentError(f"pod {self.pod} does not answer: {error.message}", hint=error.hint) from error
        if reply.status == 200:
            return reply
        said = _said(reply)
        if reply.status == 404:
            raise NotFoundError(said)
        raise SilentError(f"the gateway on pod {self.pod} answers {reply.status}: {said}")


async def reach(kube: Kube, job: Mapping[str, Any]) -> Gateway:
    """The gateway of a job's RayCluster.

    Raises:
        NotYetError: nothing of the job runs yet.
        SilentError: there is no RayCluster, or no head, at this moment.
        UnreachableError: the user may not read the token.
    """
    cluster = part(status_of(job), "rayCluster")
    meta = job["metadata"]
    if phase_of(job) in _EARLY:
        reason, message = why(job)
        waits = f" ({f'{reason}: {message}' if message else reason})" if reason else ""
        raise NotYetError(f"nothing of job {place_of(job)} runs yet: {phase_of(job)}{waits}")
    name, pod = str(cluster.get("name") or ""), str(cluster.get("headPod") or "")
    if not name or not pod:
        raise SilentError(f"job {place_of(job)} has no head pod now", hint=f"see dljob status {meta['name']}")
    token = await _token(kube, names.token_secret(name), meta["namespace"])
    return Gateway(kube, meta["namespace"], pod, names.job_uid(meta["uid"]), token)


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


def _said(reply: Reply) -> str:
    """The gateway's error in its own words."""
    try:
        answer: object = json.loads(reply.body)
    except ValueError:
        return reply.text().strip()[:200]
    said = cast("Json", answer).get("error") if isinstance(answer, dict) else None
    return str(said or reply.text())[:200]
