"""The models of server roles: their ports, and the probes that tell whether a rank is ready."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from dljob.spec import cel, scalars
from dljob.spec.scalars import INT_OR_STRING, MAP_BY_NAME, Model, Text


def _port_as_text(value: object) -> object:
    return str(value) if type(value) is int else value


PortName = Annotated[str, Field(max_length=15, pattern=scalars.NAME_PATTERN)]
PortRef = Annotated[
    str,
    BeforeValidator(_port_as_text),
    Field(
        max_length=15,
        pattern=scalars.PORT_PATTERN,
        json_schema_extra={**INT_OR_STRING, "pattern": scalars.PORT_PATTERN},
    ),
]
MethodName = Annotated[str, Field(max_length=128, pattern=scalars.ENV_PATTERN)]
ChannelName = Annotated[str, Field(min_length=1, max_length=200, pattern=scalars.LINE_PATTERN)]
Seconds = Annotated[int, Field(ge=1, le=86400)]
Times = Annotated[int, Field(ge=1, le=10000)]


class Port(Model):
    """A port on which each rank of the role listens."""

    name: PortName
    """Name of the port: at most 15 lower-case letters, digits and '-'. A rank finds its number in DLJOB_PORT_<NAME>,
    in capitals and with '_' for '-'."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """0: each rank gets a free port outside the range from which the kernel takes ports of clients, and keeps it on the
    same node unless another process took it meanwhile. Another number: that port, which only one rank of a node can
    have."""


class HttpHeader(Model):
    """A header of a request."""

    name: Annotated[str, Field(min_length=1, max_length=256, pattern=scalars.HEADER_PATTERN)]
    """Name of the header."""
    value: Annotated[str, Field(max_length=4096, pattern=scalars.LINE_PATTERN)] = ""
    """Value of the header."""


class HttpGet(Model):
    """A GET request to the rank."""

    path: Annotated[str, Field(max_length=1024, pattern=scalars.URL_PATH_PATTERN)] = "/"
    """Path of the request, with its query."""
    port: PortRef
    """Name of a port of the role, or a number."""
    scheme: Literal["HTTP", "HTTPS"] = "HTTP"
    """HTTPS: certificates are not verified."""
    http_headers: Annotated[tuple[HttpHeader, ...], Field(max_length=32, json_schema_extra=MAP_BY_NAME)] = ()
    """Headers to send; empty by default."""


class TcpSocket(Model):
    """A TCP connection to the rank."""

    port: PortRef
    """Name of a port of the role, or a number."""


class GrpcAction(Model):
    """A call of grpc.health.v1.Health/Check to the rank, without TLS."""

    port: PortRef
    """Name of a port of the role, or a number."""
    service: Annotated[str, Field(max_length=1024, pattern=scalars.LINE_PATTERN)] = ""
    """Name of the service to ask for; left out: the server as a whole."""


class ExecAction(Model):
    """A command on the rank's machine, with the rank's environment and working directory."""

    command: Annotated[tuple[Text, ...], Field(min_length=1, max_length=256)]
    """Program and arguments, executed without a shell."""


class Probe(Model):
    """A question that the rank's host asks the rank again and again."""

    model_config = ConfigDict(json_schema_extra=cel.schema(cel.PROBE))

    http_get: HttpGet | None = None
    """Succeeds with a status from 200 to 399. At most 10 kB of the answer are read. Redirects are followed on the same
    port of the rank; one to elsewhere is a failure."""
    tcp_socket: TcpSocket | None = None
    """Succeeds when a connection can be opened."""
    grpc: GrpcAction | None = None
    """Succeeds when the answer is SERVING."""
    # `exec` is a builtin of Python, so the field has another name there.
    exec_: Annotated[ExecAction | None, Field(alias="exec")] = None
    """Succeeds when the command exits with 0; it is killed after timeoutSeconds."""
    initial_delay_seconds: Annotated[int, Field(ge=0, le=86400)] = 0
    """Seconds from the start of the rank to its first probe."""
    period_seconds: Seconds = 10
    """Seconds between two probes; until the first success it is asked more often, first after a tenth of a second."""
    timeout_seconds: Seconds = 1
    """Seconds after which a probe without an answer has failed."""
    success_threshold: Times = 1
    """Successes in a row after which a failing probe counts as succeeding."""
    failure_threshold: Times = 3
    """Failures in a row after which a succeeding probe counts as failing."""


class HttpPost(Model):
    """A POST request to the rank, without a body."""

    path: Annotated[str, Field(max_length=1024, pattern=scalars.URL_PATH_PATTERN)] = "/"
    """Path of the request, with its query."""
    port: PortRef
    """Name of a port of the role, or a number."""


class WeightsLoad(Model):
    """The order to load weights, given to a rank by its host."""

    model_config = ConfigDict(json_schema_extra=cel.schema(cel.WEIGHTS_LOAD))

    http_post: HttpPost | None = None
    """A POST request, whose JSON body names the version and a file of each channel. A status from 200 to 399, sent once
    the weights are in use, says that they are loaded."""
    exec_: Annotated[ExecAction | None, Field(alias="exec")] = None
    """A command that has the same JSON in DLJOB_WEIGHTS; it exits with 0 once the weights are in use."""
    method: MethodName | None = None
    """A method of the role's class, called with the version and a dict from channel to state; weights are loaded once
    it returns. A version whose load raises is not loaded."""
    timeout_seconds: Seconds = 300
    """Seconds after which a load, or the check after it, has failed."""


class WeightsVerify(Model):
    """A question that is asked after a load: the checksum of what the rank holds."""

    model_config = ConfigDict(json_schema_extra=cel.schema(cel.WEIGHTS_VERIFY))

    http_get: HttpGet | None = None
    """A GET request; its answer is the checksum, or with several channels a JSON object from channel to checksum."""
    exec_: Annotated[ExecAction | None, Field(alias="exec")] = None
    """A command that prints the same."""
    method: MethodName | None = None
    """A method of the role's class that returns the same, called without arguments."""


class Weights(Model):
    """Weights that dljob loads into the ranks of a role, as they are published."""

    channels: Annotated[tuple[ChannelName, ...], Field(min_length=1, max_length=32, json_schema_extra=scalars.SET)]
    """Names of the weight channels; a version counts once all of them have it."""
    max_lag: Annotated[int, Field(ge=0, le=1000000)] = 1
    """The most versions that a rank may be behind the newest one. A rank that is further behind, or holds none, is
    stale: it gets no requests until it has loaded. Before the first version no rank is stale."""
    load: WeightsLoad
    """How a rank is told to load a version."""
    verify: WeightsVerify | None = None
    """How a rank is asked for the checksum of what it holds; a wrong one loads again. Left out: nobody asks."""
    min_ready: Annotated[int, Field(ge=0, le=100000)] = 1
    """The number of ranks that loads leave ready: a rank is out of the endpoints while it loads, so no rank that is
    not stale loads as long as no more than this many are ready."""


class Drain(Model):
    """What comes before SIGTERM: the server is out of the endpoints, and finishes its requests, unprobed."""

    signal: Literal["SIGUSR1", "SIGUSR2", "SIGINT", "SIGHUP", "SIGQUIT"] | None = None
    """A signal that asks the rank's process to end once its requests are done; left out: none."""
    http_post: HttpPost | None = None
    """A request that the rank answers once its requests are done; SIGTERM follows the answer. Left out: none."""
    timeout_seconds: Seconds = 30
    """Seconds until SIGTERM in any case; without signal and httpPost it comes once nobody is connected to its ports."""
