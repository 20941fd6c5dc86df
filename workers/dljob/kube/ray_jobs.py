"""Client of Ray's Job API on the head (port 8265), with Ray's token; the operator submits the launcher by it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from dljob.kube.api import Json
from dljob.kube.head import Ask, HeadError, MisbehavesError, UnknownError, answered_object, refused

PORT = 8265
TAIL_LINES = 40
"""Lines kept of a failed submission's log."""


class JobApi:
    """Job API of one cluster; `dljob.kube.head` makes the `ask`. Every call may raise HeadError."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def submit(
        self, submission: str, argv: Sequence[str], *, runtime_env: Mapping[str, Any], metadata: Mapping[str, str]
    ) -> Literal["made", "adopted"]:
        """Start a driver under an id, or adopt an existing submission of that id.

        Ray runs a shell string, so the arguments are quoted here. Ray's agent answers a taken id with 400, which its
        head turns into 500 (2.60). Neither is relied on: after any refusal, the id is looked up.
        """
        body: Json = {
            "submission_id": submission,
            "entrypoint": shlex.join(argv),
            "metadata": dict(metadata),
            "runtime_env": dict(runtime_env),
        }
        # Without resources for the entrypoint, Ray pins the driver to the head, where the spec is mounted.
        reply = await self._ask("POST", "/api/jobs/", body=body, limit=10.0)
        if reply.status < 400:
            return "made"
        try:
            await self.get(submission)
        # Refused: Ray's answer to the submission says why, the failed look-up only that there is none.
        except HeadError:
            raise refused(reply, f"submission {submission}") from None
        return "adopted"

    async def keep(self, name: str, content: bytes) -> None:
        """Store content among Ray's packages as `gcs://<name>`, unless it is there.

        Ray drops a package ten minutes after the last look for it, such as the first call here (2.60).
        """
        path = f"/api/packages/gcs/{name}"
        reply = await self._ask("GET", path, limit=10.0)
        # Looked for before it is sent: this also renews its ten minutes, and a repeated pass sends nothing.
        if reply.status == 404:
            reply = await self._ask("PUT", path, body=content, limit=30.0)
        if reply.status >= 400:
            raise refused(reply, f"keep {name}")

    async def get(self, submission: str) -> Json:
        """Return a submission: `status`, `message`, `driver_exit_code`, ... Raises UnknownError when there is none."""
        return answered_object(await self._ask("GET", f"/api/jobs/{submission}"), f"submission {submission}")

    async def tail(self, submission: str, lines: int = TAIL_LINES) -> str:
        """Return the last lines that the driver printed; empty when Ray has none."""
        try:
            reply = await self._ask("GET", f"/api/jobs/{submission}/logs", limit=10.0, large=True)
            got = answered_object(reply, f"log of {submission}")
        except (UnknownError, MisbehavesError):  # also a log larger than the bounds of an answer
            return ""
        return "\n".join(str(got.get("logs") or "").splitlines()[-lines:])

    async def session(self) -> str:
        """Return the name of Ray's session; a new name means that the head lost its state."""
        version = answered_object(await self._ask("GET", "/api/version"), "version of Ray")
        return str(version.get("session_name") or "")


def refusal(tail: str) -> dict[str, str]:
    """Return the launcher's refusal from its output: `reason`, `message`, `hint`; empty when there is none."""
    # From the end: a refusal is the last thing that a launcher says.
    for line in reversed(tail.splitlines()):
        # The launcher writes its refusal as one line of JSON among the text of the driver.
        if not line.startswith("{"):
            continue
        try:
            parsed: object = json.loads(line)
        except ValueError:
            # The driver is user code and may print anything, also a line that only begins like JSON.
            continue
        if isinstance(parsed, dict) and cast("Json", parsed).get("dljob") == "refused":
            fields = cast("Json", parsed)
            return {key: str(fields.get(key) or "") for key in ("reason", "message", "hint")}
    return {}
