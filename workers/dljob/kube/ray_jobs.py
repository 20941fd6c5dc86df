"""Ray's Job API on the head (port 8265), with Ray's token: what the operator submits the launcher by."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from dljob.kube.api import Json
from dljob.kube.head import Ask, HeadError, UnknownError, answered, refused

PORT = 8265
TAIL_LINES = 40
"""Lines of a failed submission's log that are kept."""


class RayJobs:
    """The Job API of one cluster; `dljob.kube.head` makes the `ask`. Every call may raise HeadError."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def submit(
        self, submission: str, argv: Sequence[str], *, runtime_env: Mapping[str, Any], metadata: Mapping[str, str]
    ) -> Literal["made", "adopted"]:
        """Start a driver under an id; a submission of that id that is there already is adopted.

        Ray runs a shell string, so the arguments are quoted here. Its agent answers a taken id with 400 and its head
        makes 500 of that (2.60), which is not relied upon: whoever is refused looks whether the id is there.
        """
        body: Json = {
            "submission_id": submission,
            "entrypoint": shlex.join(argv),
            "metadata": dict(metadata),
            "runtime_env": dict(runtime_env),
        }
        # Without resources for the entrypoint Ray pins the driver to the head, where the spec is.
        reply = await self._ask("POST", "/api/jobs/", body=body, limit=10.0)
        if reply.status < 400:
            return "made"
        try:
            await self.get(submission)
        except HeadError:
            raise refused(reply, f"submission {submission}") from None
        return "adopted"

    async def keep(self, name: str, content: bytes) -> None:
        """Put something where Ray keeps packages, as `gcs://<name>`; what is there already is left.

        Ray drops it ten minutes after it was last looked for, as the first call here does (2.60).
        """
        path = f"/api/packages/gcs/{name}"
        reply = await self._ask("GET", path, limit=10.0)
        if reply.status == 404:
            reply = await self._ask("PUT", path, body=content, limit=30.0)
        if reply.status >= 400:
            raise refused(reply, f"keep {name}")

    async def get(self, submission: str) -> Json:
        """What Ray says of a submission: `status`, `message`, `driver_exit_code`, ... Raises UnknownError when none."""
        return answered(await self._ask("GET", f"/api/jobs/{submission}"), f"submission {submission}")

    async def tail(self, submission: str, lines: int = TAIL_LINES) -> str:
        """The last lines that the driver printed; empty when Ray has none of it."""
        try:
            got = answered(await self._ask("GET", f"/api/jobs/{submission}/logs", limit=10.0), f"log of {submission}")
        except UnknownError:
            return ""
        return "\n".join(str(got.get("logs") or "").splitlines()[-lines:])

    async def session(self) -> str:
        """Ray's session: another one than before means that the head lost its state."""
        return str(answered(await self._ask("GET", "/api/version"), "version of Ray").get("session_name") or "")


def refusal(tail: str) -> dict[str, str]:
    """The launcher's last word when it refused: `reason`, `message`, `hint`; empty when it said nothing of the kind."""
    for line in reversed(tail.splitlines()):
        if not line.startswith("{"):
            continue
        try:
            parsed: object = json.loads(line)
        except ValueError:
            continue
        if isinstance(parsed, dict) and cast("Json", parsed).get("dljob") == "refused":
            said = cast("Json", parsed)
            return {key: str(said.get(key) or "") for key in ("reason", "message", "hint")}
    return {}
