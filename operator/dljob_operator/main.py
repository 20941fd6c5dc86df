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

from dljob.control.model import Settings
from dljob.errors import DLJobError, UsageError
from dljob.kube.connection import own_account
from dljob.kube.token_key import TokenKey
from dljob.plan.dress import DEFAULT_IMAGE, DEFAULT_RAY_VERSION
from dljob_operator.app import App, Options

log = logging.getLogger("dljob_operator")

KEY_VARIABLE = "DLJOB_TOKEN_KEY"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the operator until it is told to stop; exits 0 then, and with the code of what went wrong otherwise."""
    arguments = parser().parse_args(argv)
    log_as(arguments.log_format)
    try:
        app = asyncio.run(_run(arguments))
    except DLJobError as error:
        log.critical("%s", error)
        sys.exit(int(error.exit_code))
    except KeyboardInterrupt:
        sys.exit(130)
    if app.again:
        logging.shutdown()
        given = sys.argv[1:] if argv is None else argv
        os.execv(sys.executable, [sys.executable, "-m", "dljob_operator", *given])  # noqa: S606 - ourselves, anew


async def _run(arguments: argparse.Namespace) -> App:
    app = App(options(arguments))
    await app.run()
    return app


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
    add("--kubeconfig", help="kubeconfig to use, outside of a cluster")
    add("--context", help="context of the kubeconfig")
    return made


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
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
