"""HTTPS server of the admission webhook; a separate process judges each AdmissionReview.

kopf's own webhook server cannot be used: it takes at most 1 MiB, parses and compares old and new on the event loop, and
sets no limit to a handler's time (ADR 67).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

from aiohttp import web

from dljob.reconcile.admission import answered, unjudged, waiting
from dljob.reconcile.state.model import Settings
from dljob_operator.webhook.certificate import Certificate
from dljob_operator.webhook.process import JudgeProcess, UnjudgedError

log = logging.getLogger(__package__)

PATH = "/validate"
MAX_BODY = 3 * 1024**2
"""Largest question in bytes: it holds the old object beside the new one, and etcd stores at most 1.5 MiB of each."""
MAX_AT_ONCE = 16
"""Questions held in memory; more are refused, and the API server admits the job."""
READ_SECONDS = 2.0
LOOK_SECONDS = 1.0
_UID = re.compile(rb'"request"\s*:\s*\{\s*"uid"\s*:\s*"([0-9a-zA-Z-]{1,64})"')
"""The uid, which Kubernetes writes first. Only the judge process parses the question."""
_HEAD = 4096

Exists: TypeAlias = Callable[[str, str], Awaitable[bool]]
"""Whether the ConfigMap (namespace, name) exists."""


class Webhook:
    """The webhook server of one operator."""

    def __init__(
        self,
        settings: Settings,
        certificate: Certificate,
        *,
        count: Callable[[str], None] = lambda _result: None,
        process: JudgeProcess | None = None,
    ) -> None:
        self.certificate = certificate
        self.exists: Exists | None = None
        """Set as soon as the API server can be asked."""
        self._judge = process or JudgeProcess(settings)
        self._count = count
        self._open_requests = 0
        self._runner: web.AppRunner | None = None

    async def serve(self, port: int, host: str = "") -> int:
        """Serve on a port, and return it; 0 asks for a free one."""
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_post(PATH, self._review)
        # No lingering: the body of a refused question stays unread.
        runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.5, access_log=None, lingering_time=0.0)
        await runner.setup()
        self._runner = runner
        site = web.TCPSite(runner, host or None, port, ssl_context=self.certificate.context)
        await site.start()
        self._judge.start()  # ahead of the first question, which has 2 s
        return int(runner.addresses[0][1])

    async def close(self) -> None:
        """Stop serving."""
        if self._runner is not None:
            await self._runner.cleanup()
        await self._judge.close()

    async def _review(self, request: web.Request) -> web.Response:
        # The declared length, before a byte of the body is read.
        if (request.content_length or 0) > MAX_BODY:
            raise web.HTTPRequestEntityTooLarge(MAX_BODY, request.content_length or 0)
        if self._open_requests >= MAX_AT_ONCE:
            # failurePolicy is Ignore: an error status means that the job is admitted, and judged by the operator later.
            raise web.HTTPServiceUnavailable(text="too many DLJobs are being judged")
        self._open_requests += 1
        try:
            return await self._answer(request)
        finally:
            self._open_requests -= 1

    async def _answer(self, request: web.Request) -> web.Response:
        # A slow sender must not hold one of the few places for long.
        async with asyncio.timeout(READ_SECONDS):
            body = await request.read()
        match = _UID.search(body[:_HEAD])
        if match is None:
            raise web.HTTPBadRequest(text="no AdmissionReview with a request and its uid")
        # The answer needs the uid even when the judge fails; so it is searched for, not parsed.
        version, uid = "admission.k8s.io/v1", match[1].decode()
        try:
            judged = await self._judge.judge(body)
        except UnjudgedError as error:
            self._count("unjudged")
            return web.json_response(answered(version, uid, unjudged(str(error))))
        version, admission = judged.version, judged.admission
        self._count("allowed" if admission.allowed else "refused")
        if admission.config_map and not await self._config_map_exists(judged.namespace, admission.config_map):
            # Only a warning: in one file the ConfigMap may come after the job.
            admission = waiting(admission, judged.namespace)
        return web.json_response(answered(version, judged.uid, admission))

    async def _config_map_exists(self, namespace: str, name: str) -> bool:
        """Whether a ConfigMap exists; yes when that cannot be found out."""
        if self.exists is None:
            return True
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await self.exists(namespace, name)
        except Exception as error:  # noqa: BLE001 - it costs only a warning; the job is admitted anyway
            log.warning("cannot see whether ConfigMap %s/%s is there: %r", namespace, name, error)
            return True


async def begin(webhook: Webhook, port: int, every: float = 10.0) -> None:
    """Serve as soon as a certificate can be loaded, and follow its renewals, for ever."""
    while not webhook.certificate.load():  # noqa: ASYNC110 - files give no notice of their arrival
        await asyncio.sleep(every)
    await webhook.serve(port)
    log.info("the admission webhook is served on port %d", port)
    await webhook.certificate.follow()


def create_webhook(settings: Settings, folder: Path, count: Callable[[str], None]) -> Webhook:
    """Return the webhook whose certificate is in a folder."""
    return Webhook(settings, Certificate(folder), count=count)
