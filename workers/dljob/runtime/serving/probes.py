"""One probe of one rank: a request, and what its answer says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urljoin, urlsplit

from dljob.plan.serving import ProbePlan
from dljob.runtime.serving import grpc_health

MOST_BYTES = 10_000
"""Bytes of an answer that are read."""
SHOWN_BYTES = 200
"""Bytes of an answer that are shown as evidence."""
MOST_REDIRECTS = 5
NOT_SERVED = (404, 405, 501)
"""Statuses by which a server says that it does not serve the path, or not by this method."""
KILLED_S = 1.0
"""Seconds to wait for the end of a command that was killed."""


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """Where a rank listens."""

    address: str
    ports: Mapping[str, int] = field(default_factory=dict[str, int])
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """The environment of commands."""
    folder: str = "/"
    """The working directory of commands."""

    def port_of(self, probe: ProbePlan) -> int:
        """Return the number of a probe's port."""
        return int(probe.port) if probe.port.isdecimal() else self.ports[probe.port]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a probe found; `words` say it for people, with the status and the beginning of the answer."""

    ok: bool
    words: str
    body: bytes = field(default=b"", compare=False, repr=False)
    """The beginning of what the rank answered, or of what the command printed."""
    unknown: bool = field(default=False, compare=False)
    """Whether the server runs and does not know the path: waiting does not help."""


async def ask(probe: ProbePlan, target: ProbeTarget, sent: bytes = b"", most_bytes: int = SHOWN_BYTES) -> Answer:
    """Probe a rank once. Never raises: whatever goes wrong is a failure of the probe.

    `sent` is the JSON body of a request; `most_bytes` says how many bytes of the answer's body are waited for.
    """
    probe_text = _described(probe, target)
    try:
        if probe.kind == "exec":
            return await _exec(probe, target, probe_text, most_bytes)
        async with asyncio.timeout(probe.timeout_s):
            if probe.kind in ("http", "post"):
                return await _http(probe, target, probe_text, (sent, most_bytes))
            if probe.kind == "grpc":
                return await _grpc(probe, target, probe_text)
            _, writer = await asyncio.open_connection(target.address, target.port_of(probe))
            writer.close()
            return Answer(ok=True, words=f"{probe_text}: connected")
    except TimeoutError:
        return Answer(ok=False, words=f"{probe_text}: no answer within {probe.timeout_s:g} s")
    except OSError as error:
        return Answer(ok=False, words=f"{probe_text}: {error.strerror or error}")
    except (ValueError, EOFError) as error:
        kind = "gRPC" if probe.kind == "grpc" else "HTTP"
        return Answer(ok=False, words=f"{probe_text}: no {kind} answer: {error}")


def _described(probe: ProbePlan, target: ProbeTarget) -> str:
    if probe.kind == "exec":
        return f"command {' '.join(probe.command)[:SHOWN_BYTES]}"
    place = f"{target.address}:{target.port_of(probe)}"
    if probe.kind == "grpc":
        return f"gRPC health check{' of ' + probe.path if probe.path else ''} at {place}"
    return f"TCP {place}" if probe.kind == "tcp" else f"{_method(probe)} {probe.path} at {place}"


def _method(probe: ProbePlan) -> str:
    return "POST" if probe.kind == "post" else "GET"


async def _exec(probe: ProbePlan, target: ProbeTarget, probe_text: str, most_bytes: int) -> Answer:
    # Outside of the timeout: where its start is cancelled, asyncio waits until the last of its children has ended.
    process = await asyncio.create_subprocess_exec(
        *probe.command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=target.folder,
        env=dict(target.env),
        start_new_session=True,
    )
    output = b""
    try:
        async with asyncio.timeout(probe.timeout_s):
            while process.stdout is not None and (part := await process.stdout.read(MOST_BYTES)):
                output = (output + part)[:most_bytes]
            code = await process.wait()
    finally:
        # The whole session: it may have left children, and at the timeout it still runs.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):  # a child in a session of its own may hold its pipe open
            await asyncio.wait_for(process.wait(), KILLED_S)
    return Answer(code == 0, f"{probe_text}: exit code {code}" + (f", {_shown(output)}" if output else ""), output)


async def _grpc(probe: ProbePlan, target: ProbeTarget, probe_text: str) -> Answer:
    port = target.port_of(probe)
    reader, writer = await asyncio.open_connection(target.address, port, limit=MOST_BYTES)
    try:
        status = await grpc_health.check(reader, writer, f"{target.address}:{port}", probe.path, MOST_BYTES)
        status_text = grpc_health.STATUSES.get(status, str(status))
        return Answer(ok=status == grpc_health.SERVING, words=f"{probe_text}: {status_text}")
    except grpc_health.NoStatusError as error:
        return Answer(ok=False, words=f"{probe_text}: {error}")
    finally:
        writer.transport.abort()


async def _http(probe: ProbePlan, target: ProbeTarget, probe_text: str, sizes: tuple[bytes, int]) -> Answer:
    origin = f"{'https' if probe.tls else 'http'}://{target.address}:{target.port_of(probe)}"
    path = probe.path
    for _ in range(MOST_REDIRECTS):
        status, headers, body = await _get(replace(probe, path=path), target, *sizes)
        words = f"{probe_text}: status {status}" + (f", {_shown(body)}" if body else "")
        if status not in (301, 302, 303, 307, 308) or "location" not in headers:
            return Answer(200 <= status < 400, words, body, status in NOT_SERVED)
        target_url = urlsplit(urljoin(origin + path, headers["location"]))
        if f"{target_url.scheme}://{target_url.netloc}" != origin:
            return Answer(ok=False, words=f"{words}: redirects to {headers['location'][:SHOWN_BYTES]}, not followed")
        path = target_url.path + (f"?{target_url.query}" if target_url.query else "")
    return Answer(ok=False, words=f"{probe_text}: more than {MOST_REDIRECTS} redirects")


async def _get(
    probe: ProbePlan, target: ProbeTarget, sent: bytes, most_bytes: int
) -> tuple[int, dict[str, str], bytes]:
    """Send one request; return status, headers by small name, and the beginning of the body."""
    port = target.port_of(probe)
    context = _unverified() if probe.tls else None
    reader, writer = await asyncio.open_connection(target.address, port, ssl=context, limit=MOST_BYTES)
    try:
        headers = {"host": f"{target.address}:{port}", "user-agent": "dljob-probe", "accept": "*/*"}
        headers |= {name.lower(): value for name, value in probe.headers} | {"connection": "close"}
        headers |= {"content-length": str(len(sent))} if probe.kind == "post" else {}
        headers |= {"content-type": "application/json"} if sent else {}
        lines = [
            f"{_method(probe)} {probe.path} HTTP/1.1",
            *(f"{name}: {value}" for name, value in headers.items()),
            "",
            "",
        ]
        writer.write("\r\n".join(lines).encode() + sent)
        head = await _head(reader)
        status, fields = _parsed(head)
        body = await _body(reader, fields, min(most_bytes, MOST_BYTES - len(head)))
        return status, fields, body
    finally:
        # Not closed in order: the rank may have gigabytes left to send.
        writer.transport.abort()


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise ValueError(f"its headers are longer than {MOST_BYTES} bytes") from None


async def _body(reader: asyncio.StreamReader, fields: Mapping[str, str], most: int) -> bytes:
    """Return the beginning of a body; one that ends early, or never, is no failure: the status counts."""
    if fields.get("transfer-encoding", "").rpartition(",")[2].strip().lower() == "chunked":
        return await _chunks(reader, most)
    length_header = fields.get("content-length", "")
    most = min(most, int(length_header) if length_header.isdecimal() else most)
    body = b""
    with contextlib.suppress(OSError):  # the rank closed the connection; what it sent before counts
        while len(body) < most and (part := await reader.read(most - len(body))):
            body += part
    return body


async def _chunks(reader: asyncio.StreamReader, most: int) -> bytes:
    """Return the beginning of a body in chunks (RFC 9112, 7.1); what came before a broken one counts."""
    body = b""
    with contextlib.suppress(OSError, EOFError, ValueError, asyncio.LimitOverrunError):
        while len(body) < most:
            size = int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16)
            if size <= 0:
                break
            missing = min(size, most - len(body))
            while missing > 0 and (part := await reader.read(missing)):
                body, missing = body + part, missing - len(part)
            if missing or len(body) == most:  # it broke off, or the rest is not wanted
                break
            await reader.readuntil(b"\r\n")
    return body


def _parsed(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/") or not rest[:3].isdecimal():
        raise ValueError(f"it begins with {first[:SHOWN_BYTES]!r}")
    fields = (line.partition(":") for line in lines if ":" in line)
    return int(rest[:3]), {name.strip().lower(): value.strip() for name, _, value in fields}


def _shown(body: bytes) -> str:
    return repr(body[:SHOWN_BYTES].decode(errors="replace"))


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
