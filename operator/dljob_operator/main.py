"""`dljob-operator`: the command line, the log, and the process around the operator."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version as version_of
from pathlib import Path

from dljob.control.lease import DURATION, RETRY, Pace
from dljob.control.model import Settings
from dljob.errors import DLJobError, UsageError
from dljob.kube.connection import own_account
from dljob.kube.token_key import TokenKey
from dljob.plan.dress import DEFAULT_IMAGE, DEFAULT_RAY_VERSION
from dljob_operator import lease
from dljob_operator.app import App, Elect, Options

log = logging.getLogger("dljob_operator")

KEY_VARIABLE = "DLJOB_TOKEN_KEY"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the operator until it is told to stop; exits 0 then, and with the code of what went wrong otherwise."""
    arguments = parser().parse_args(argv)
    log_as(arguments.log_format)
    given = sys.argv[1:] if argv is None else argv
    try:
        asyncio.run(_run(arguments, given))
    except DLJobError as error:
        log.critical("%s", error)
        sys.exit(int(error.exit_code))
    except KeyboardInterrupt:
        sys.exit(130)


async def _run(arguments: argparse.Namespace, given: Sequence[str]) -> None:
    """Run it, and leave from here where tasks may be left that would never end."""
    app = App(options(arguments))
    await app.run()
    if app.again or app.hangs:
        logging.shutdown()
    if app.again:
        os.execv(sys.executable, [sys.executable, "-m", "dljob_operator", *given])  # noqa: S606 - ourselves, anew
    if app.hangs:
        os._exit(0)


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = argparse.ArgumentParser(
        prog="dljob-operator", description="Runs DLJobs on a Kubernetes cluster with KubeRay.", allow_abbrev=False
    )
    add = made.add_argument
    add("--namespace", action="append", default=[], help="look after this namespace (repeatable; default: all)")
    add(
        "--image",
        default=DEFAULT_IMAGE,
        help="runtime image of jobs that name none (%(default)s)",
    )
    add("--ray-version", default=DEFAULT_RAY_VERSION, help="Ray's version of jobs that name none (%(default)s)")
    add("--init-image", default="", help="image that brings dljob into user images; none: images must have it")
    add("--token-key-file", type=Path, help=f"file with the key of Ray's tokens (or ${KEY_VARIABLE})")
    add("--metrics-port", type=_port, default=8080, help="port of /metrics, 0 for none (%(default)s)")
    add("--health-port", type=_port, default=8081, help="port of /healthz, 0 for none (%(default)s)")
    add("--log-format", choices=("plain", "json"), default="plain", help="how lines of the log look (%(default)s)")
    add("--workers", type=_count, default=16, help="how many DLJobs are worked on at once (%(default)s)")
    _election_flags(made)
    add("--kubeconfig", help="kubeconfig to use, outside of a cluster")
    add("--context", help="context of the kubeconfig")
    return made


def _election_flags(parser: argparse.ArgumentParser) -> None:
    """As Kubernetes' own controllers have them."""
    add, name = parser.add_argument, "--leader-elect"
    what = "act only while holding a Lease: for several replicas (default: act, and be the only one)"
    add(name, nargs="?", type=_truth, const=True, default=False, metavar="true|false", help=what)
    what = "a Lease that is not renewed for so long is taken by another replica (8s)"
    add(f"{name}-lease-duration", type=_whole_seconds, default=DURATION, metavar="SECONDS", help=what)
    what = "how often it is renewed, at most a third of that; who waits looks four times as often (2s)"
    add(f"{name}-retry-period", type=_seconds, default=RETRY, metavar="SECONDS", help=what)
    add(f"{name}-resource-name", default=lease.NAME, metavar="NAME", help="the Lease's name (%(default)s)")
    what = "its namespace (default: the operator's own)"
    add(f"{name}-resource-namespace", default="", metavar="NAMESPACE", help=what)


def _elect(arguments: argparse.Namespace) -> Elect | None:
    if not arguments.leader_elect:
        return None
    duration, retry = arguments.leader_elect_lease_duration, arguments.leader_elect_retry_period
    if not 3 <= 3 * retry <= duration:
        raise UsageError(
            f"--leader-elect-retry-period of {retry:g} s does not fit --leader-elect-lease-duration of {duration} s",
            hint="a Lease is to be renewed three times while it lasts: take 1 s or more, and at most a third of it",
        )
    where = arguments.leader_elect_resource_namespace
    return Elect(Pace(duration, retry), arguments.leader_elect_resource_name, where)


def options(arguments: argparse.Namespace) -> Options:
    """The flags as values.

    Raises:
        UsageError: The token key cannot be used, or there is none where there must be one.
    """
    return Options(
        settings=Settings(
            version=version_of("dljob"),
            image=arguments.image,
            ray_version=arguments.ray_version,
            init_image=arguments.init_image,
            service_account=own_account(),
        ),
        key=_key(arguments.token_key_file),
        namespaces=tuple(dict.fromkeys(arguments.namespace)),
        elect=_elect(arguments),
        context=arguments.context,
        kubeconfig=arguments.kubeconfig,
        workers=arguments.workers,
        metrics_port=arguments.metrics_port,
        health_port=arguments.health_port,
    )


def _key(file: Path | None) -> TokenKey:
    if file is not None:
        return TokenKey.from_file(file)
    if os.environ.get(KEY_VARIABLE):
        return TokenKey.from_text(os.environ[KEY_VARIABLE], f"${KEY_VARIABLE}")
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        raise UsageError("no token key is given", hint="mount a Secret and name it: --token-key-file")
    log.warning("no --token-key-file: the key is made up, and the jobs of this run are out of reach for the next one")
    return TokenKey.generate()


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is no port")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _seconds(text: str) -> float:
    try:
        return float(text.removesuffix("s"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds, such as 2s") from None


def _whole_seconds(text: str) -> int:
    number = _seconds(text)
    if number != int(number):
        raise argparse.ArgumentTypeError(f"{text}: a Lease lasts whole seconds")
    return int(number)


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text} is neither true nor false")
    return text == "true"


def log_as(form: str) -> None:
    """Set up the log on stderr: lines for people, or one JSON object a line."""
    handler = logging.StreamHandler()
    plain = logging.Formatter("%(asctime)s %(levelname)-8s %(message)s")
    handler.setFormatter(_JsonLines() if form == "json" else plain)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for noisy in ("kopf.objects", "kopf.activities", "aiohttp.access"):  # lines for every event and every probe
        logging.getLogger(noisy).setLevel(logging.WARNING)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """A line of JSON: time, level, logger, message, and the traceback where there is one."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
