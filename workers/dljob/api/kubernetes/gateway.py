"""Gateway of a job, on its head: notes, logs, stacks and result, asked through the API server as the user."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from dljob.api.kubernetes.jobs import nested, phase_of, place_of, status_of, why
from dljob.errors import ExitCode, UnreachableError, UsageError
from dljob.raycluster.pods import GATEWAY_PORT, TOKEN_KEY
from dljob.reconcile.state import names

if TYPE_CHECKING:
    from dljob.kube.api import Kube
    from dljob.kube.gateway import GatewayClient, Piece
    from dljob.kube.head import Ask

T = TypeVar("T")
DASHBOARD_PORT = 8265
"""Port of Ray's dashboard on the head."""
Json = dict[str, Any]


_EARLY = frozenset({"Invalid", "Pending", "Queued", "Provisioning"})
"""Phases before the job has a head."""


class SilentError(UnreachableError):
    """The job's head does not answer: it has not started, is gone, or is unreachable."""


class NotYetError(SilentError):
    """Nothing of the job runs yet."""

    exit_code = ExitCode.NOT_FOUND


class AwayError(SilentError):
    """The gateway answers, but its source (PrimeMaster, a node) does not; `said` is the gateway's message."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class JobGateway:
    """The gateway of one job's RayCluster."""

    pod: str
    job: str
    """The job's uid in Ray's form."""
    gateway: GatewayClient

    async def notes(self, after: int = 0) -> list[Json]:
        """Return PrimeMaster's notes after a number."""
        return await self._await_answer(self.gateway.events(self.job, after=after))

    async def status(self, *, ranks: bool = False, after: int = 0, wait: float = 0.0) -> Json:
        """Return PrimeMaster's snapshot, newer than `after` or after `wait` seconds; with `ranks`, each of them too."""
        return dict(await self._await_answer(self.gateway.status(self.job, ranks=ranks, after=after, wait=wait)))

    async def pods(self) -> dict[str, str]:
        """Return Ray's node id -> pod, of the nodes that hold units of the job."""
        rows = (await self._await_answer(self.gateway.placement(self.job)))["nodes"]
        return {str(row["node"]): str(row["pod"]) for row in rows if row["pod"]}

    async def master(self) -> tuple[str, int]:
        """Return the pod of the PrimeMaster that commands, and its pid there."""
        row = (await self._await_answer(self.gateway.placement(self.job)))["master"]
        return str(row["pod"]), int(row["pid"])

    async def learned(self, process: str, evidence: str) -> None:
        """Report evidence for the end of a rank's process, written as `rollout/1.5`, before it ends."""
        order = self.gateway.command(self.job, id=f"chaos-{time.time_ns()}", kind="cause", target=process, by=evidence)
        await self._await_answer(order)

    async def result(self) -> str | None:
        """Return the value that rank 0 of the first driver role returned, as JSON; None while there is none."""
        result: str | None = (await self._await_answer(self.gateway.status(self.job))).get("result")
        return result

    async def tail(self, role: str, rank: int, limit: int) -> Piece:
        """Return the end of a rank's log, at most `limit` bytes. Raises NotFoundError when there is no log."""
        return await self._await_answer(self.gateway.tail(self.job, role, rank, limit))

    async def stacks(self, target: str) -> Mapping[str, str]:
        """Return the stacks by rank. Raises NotFoundError when there is no such target, or the job is over."""
        return await self._await_answer(self.gateway.stacks(self.job, target))

    async def record(self, have: Mapping[str, int]) -> Json:
        """Return the files of the job's record, and new parts. Raises NotFoundError where it has no records."""
        return await self._await_answer(self.gateway.record(self.job, have))

    async def piece(self, role: str, rank: int, start: int, limit: int | None = None) -> Piece:
        """Return a piece of a rank's log from byte `start` on. Raises NotFoundError when there is no log."""
        return await self._await_answer(self.gateway.follow(self.job, role, rank, start, limit=limit))

    async def since(self, role: str, rank: int, moment: float) -> Piece:
        """Return the first piece of a rank's output since a moment. Raises NotFoundError when there is no log."""
        return await self._await_answer(self.gateway.since(self.job, role, rank, moment))

    async def _await_answer(self, question: Awaitable[T]) -> T:
        from dljob.kube import head
        from dljob.kube.api import ApiError

        try:
            return await question
        except head.UnknownError:
            # The gateway answered: there is no such log or target, which callers tell apart from silence.
            raise
        except head.TooOldError as error:
            hint = "run the job with a newer image; dljob events tells what PrimeMaster did"
            raise UsageError(f"pod {self.pod}: {error.message}", hint=hint) from error
        except head.HeadError as error:
            message = f"the gateway on pod {self.pod} answers {error.status}: {error.message}"
            # 503: the gateway lives, and a master or node behind it is away. A retry may help, unlike other errors.
            away = isinstance(error, head.UnavailableError)
            raise (AwayError(message, error.said) if away else SilentError(message)) from error
        except ApiError as error:
            if error.status == 403:
                raise _forbidden(error.message, "pods/proxy") from error
            raise SilentError(f"pod {self.pod} does not answer: {error.message}", hint=error.hint) from error


async def dashboard(kube: Kube, job: Mapping[str, Any], target: str) -> tuple[int, bytes]:
    """Return status and body of a path of Ray's dashboard on the job's head. Raises as `reach`."""
    from dljob.kube.api import ApiError

    pod, ask = await _port(kube, job, DASHBOARD_PORT)
    try:
        reply = await ask("GET", target, limit=20.0, large=True)
    except ApiError as error:
        if error.status == 403:
            raise _forbidden(error.message, "pods/proxy") from error
        raise SilentError(f"Ray's dashboard on pod {pod} does not answer: {error.message}") from error
    return reply.status, reply.body


async def reach(kube: Kube, job: Mapping[str, Any]) -> JobGateway:
    """Return a client of the gateway on a job's RayCluster; no request is sent to it.

    Raises:
        NotYetError: nothing of the job runs yet.
        SilentError: there is no RayCluster, or no head, at present.
        UnreachableError: the user may not read the Secret with the token.
    """
    from dljob.kube.gateway import GatewayClient

    pod, ask = await _port(kube, job, GATEWAY_PORT)
    return JobGateway(pod, names.job_uid(job["metadata"]["uid"]), GatewayClient(ask))


async def _port(kube: Kube, job: Mapping[str, Any], port: int) -> tuple[str, Ask]:
    """Return the head pod, and a client of one of its ports with Ray's token."""
    from dljob.kube.head import through

    cluster = nested(status_of(job), "rayCluster")
    meta = job["metadata"]
    # Told apart from a silent head: waiting is normal here, and `why` says for what.
    if phase_of(job) in _EARLY:
        reason, message = why(job)
        waits = f" ({f'{reason}: {message}' if message else reason})" if reason else ""
        raise NotYetError(f"nothing of job {place_of(job)} runs yet: {phase_of(job)}{waits}")
    name, pod = str(cluster.get("name") or ""), str(cluster.get("headPod") or "")
    if not name or not pod:
        hint = f"see dljob status {meta['name']} -n {meta['namespace']}"
        raise SilentError(f"job {place_of(job)} has no head pod now", hint=hint)
    secret = await _secret(kube, job, name)
    token = await _token(kube, secret, meta["namespace"]) if secret else ""
    # Through the API server's proxy: users' machines rarely reach pods, and the audit log has the call.
    return pod, through(kube, pod, port, meta["namespace"], token)


async def _secret(kube: Kube, job: Mapping[str, Any], cluster: str) -> str:
    """Return the Secret with the token of the job's RayCluster; empty when the cluster needs none."""
    from dljob.kube.api import ApiError, NotThereError
    from dljob.kube.kuberay_client import RayClusters, token_secret

    # The operator names the Secret of its own clusters; a foreign cluster says itself where its token is.
    if not nested(job["spec"], "rayClusterRef"):
        return names.token_secret(cluster)
    try:
        return token_secret(await RayClusters(kube).get_ray_cluster(cluster, job["metadata"]["namespace"]))
    except NotThereError as error:
        raise SilentError(f"the RayCluster {cluster} of job {place_of(job)} is gone") from error
    except ApiError as error:
        if error.status == 403:
            raise _forbidden(error.message, "rayclusters") from error
        raise


async def _token(kube: Kube, secret: str, namespace: str) -> str:
    from dljob.kube.api import SECRETS, ApiError, NotThereError

    try:
        secret_body = await kube.get(SECRETS, secret, namespace)
        return base64.b64decode(secret_body["data"][TOKEN_KEY]).decode().strip()
    except NotThereError as error:
        raise SilentError(f"the Secret {secret} with the token of the RayCluster is gone") from error
    except ApiError as error:
        if error.status == 403:
            raise _forbidden(error.message, "secrets") from error
        raise
    except (KeyError, ValueError, binascii.Error) as error:
        raise SilentError(f"the Secret {secret} holds no token under {TOKEN_KEY}") from error


def _forbidden(message: str, resource: str) -> UnreachableError:
    hint = f"logs and the job's own events of a running job need the right to get {resource}; see dljob doctor"
    return UnreachableError(message, hint=hint)
