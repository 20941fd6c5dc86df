"""`dljob-operator`: command line, logging, and the process around the operator."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import sys
from collections.abc import Sequence
from importlib.metadata import version as version_of
from pathlib import Path

from dljob.errors import DLJobError, UsageError
from dljob.json_log import JsonLines
from dljob.kube.connection import own_account
from dljob.kube.token_key import TokenKey
from dljob.raycluster.pod_security import LEVELS, PodPolicy
from dljob.raycluster.render import DEFAULT_IMAGE, DEFAULT_RAY_VERSION
from dljob.raycluster.taints import TOLERATION_SECONDS
from dljob.reconcile.leadership.lease import DURATION, RETRY, LeaseTiming
from dljob.reconcile.state.excess import NESTING
from dljob.reconcile.state.model import Settings
from dljob.spec.scalars import IMAGE_PATTERN, WORDS
from dljob_operator.app import App, Elect, Options
from dljob_operator.leader import lease
from dljob_operator.process import run

log = logging.getLogger(__package__)

KEY_VARIABLE = "DLJOB_TOKEN_KEY"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the operator until it is stopped; exit with 0 then, else with the code of the error."""
    arguments = parser().parse_args(argv)
    log_as(arguments.log_format)
    sys.setrecursionlimit(NESTING)
    given_words = sys.argv[1:] if argv is None else argv
    try:
        asyncio.run(_run(arguments, given_words))
    except DLJobError as error:
        log.critical("%s", error)
        sys.exit(int(error.exit_code))
    except KeyboardInterrupt:
        # 128 + SIGINT, as shells report it.
        sys.exit(130)


async def _run(arguments: argparse.Namespace, given_words: Sequence[str]) -> None:
    """Run the app; restart or leave from here, where tasks may be left that would never end."""
    app = App(options(arguments))
    await run(app)
    # Neither execv nor _exit runs exit handlers: flush the log here.
    if app.restarts or app.hangs:
        logging.shutdown()
    if app.restarts:
        os.execv(sys.executable, [sys.executable, "-m", "dljob_operator", *given_words])  # noqa: S606 - ourselves, anew
    if app.hangs:
        os._exit(0)  # a plain return would wait in asyncio.run for the task that hangs


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command_line = argparse.ArgumentParser(
        prog="dljob-operator", description="Runs DLJobs on a Kubernetes cluster with KubeRay.", allow_abbrev=False
    )
    add = command_line.add_argument
    add("--namespace", action="append", default=[], help="namespace to watch (repeatable; default: all)")
    words = "labels of the namespaces to serve, among all, as kubectl's --selector has them (default: any)"
    add("--namespace-selector", default="", metavar="SELECTOR", help=words)
    add(
        "--image",
        default=DEFAULT_IMAGE,
        type=_image,
        help="runtime image of jobs without spec.image (%(default)s)",
    )
    add("--ray-version", default=DEFAULT_RAY_VERSION, help="Ray's version of jobs without rayVersion (%(default)s)")
    add(
        "--init-image",
        default="",
        type=_image,
        help="image that copies dljob into user images; none: these must contain it",
    )
    add("--token-key-file", type=Path, help=f"file with the key of Ray's tokens (or ${KEY_VARIABLE})")
    add("--metrics-port", type=_port, default=8080, help="port of /metrics, 0 for none (%(default)s)")
    add("--health-port", type=_port, default=8081, help="port of /healthz, 0 for none (%(default)s)")
    add("--webhook-port", type=_port, default=0, help="port of the admission webhook, 0 for none (%(default)s)")
    words = "folder with the webhook's tls.crt and tls.key (%(default)s)"
    add("--webhook-certificate", type=Path, default=Path("/etc/dljob/webhook"), metavar="FOLDER", help=words)
    add("--log-format", choices=("plain", "json"), default="plain", help="format of the log (%(default)s)")
    add("--workers", type=_count, default=16, help="DLJobs that are processed concurrently (%(default)s)")
    _pod_flags(command_line)
    _election_flags(command_line)
    add("--kubeconfig", help="kubeconfig to use, outside of a cluster")
    add("--context", help="context of the kubeconfig")
    return command_line


def _pod_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags about the pods of jobs: their limits, and how their images are pulled."""
    add, usual = parser.add_argument, PodPolicy()
    help_text = "level of the Pod Security Standards for the pods of jobs (%(default)s)"
    add("--pod-security", choices=LEVELS, default=usual.level, help=help_text)
    help_text = (
        f"capability that containers of jobs may add beyond that level (repeatable; {', '.join(usual.capabilities)})"
    )
    add("--pod-capability", action="append", metavar="NAME", help=f"{help_text}; empty: none")
    help_text = "namespace whose jobs are exempt from level and capabilities (repeatable)"
    add("--pod-security-exempt", action="append", default=[], metavar="NAMESPACE", help=help_text)
    help_text = "Secret in each job's namespace to pull its images with, beside the job's own (repeatable)"
    add("--image-pull-secret", action="append", default=[], metavar="NAME", help=help_text)
    words = "seconds after which a job without a deadline fails whose pods cannot start, 0 for never (%(default)s)"
    add("--pre-running-deadline", type=int, default=3600, metavar="SECONDS", help=words)
    words = "seconds that pods of jobs stay on a Kubernetes node whose kubelet is silent (%(default)s)"
    add("--unreachable-toleration", type=_count, default=TOLERATION_SECONDS, metavar="SECONDS", help=words)
    help_text = "service account that pods of jobs may use (repeatable; default: any but the operator's own)"
    add("--pod-service-account", action="append", default=[], metavar="NAME", help=help_text)


def _pods(arguments: argparse.Namespace) -> PodPolicy:
    named = arguments.pod_capability
    return PodPolicy(
        level=arguments.pod_security,
        # An empty name clears the list: no capability beyond the level.
        capabilities=PodPolicy().capabilities if named is None else tuple(name for name in named if name),
        exempt=tuple(arguments.pod_security_exempt),
        accounts=tuple(arguments.pod_service_account),
        operator=own_account(),
    )


def _election_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of leader election, named as in Kubernetes' own controllers."""
    add, name = parser.add_argument, "--leader-elect"
    help_text = "act only while holding a Lease, for several replicas (default: act as the only one)"
    add(name, nargs="?", type=_truth, const=True, default=False, metavar="true|false", help=help_text)
    help_text = "time without renewal after which another replica takes the Lease (8s)"
    add(f"{name}-lease-duration", type=_whole_seconds, default=DURATION, metavar="SECONDS", help=help_text)
    help_text = "interval of renewals, at most a third of that (2.6s)"
    add(f"{name}-retry-period", type=_seconds, default=RETRY, metavar="SECONDS", help=help_text)
    add(f"{name}-resource-name", default=lease.NAME, metavar="NAME", help="name of the Lease (%(default)s)")
    help_text = "namespace of the Lease (default: the operator's own)"
    add(f"{name}-resource-namespace", default="", metavar="NAMESPACE", help=help_text)


def _elect(arguments: argparse.Namespace) -> Elect | None:
    if not arguments.leader_elect:
        return None
    duration, retry = arguments.leader_elect_lease_duration, arguments.leader_elect_retry_period
    # The holder stops at two thirds: with fewer than three renewals one lost answer would cost the lead.
    if not 3 <= 3 * retry <= duration:
        raise UsageError(
            f"--leader-elect-retry-period of {retry:g} s does not fit --leader-elect-lease-duration of {duration} s",
            hint="a Lease is to be renewed three times while it lasts: take 1 s or more, and at most a third of it",
        )
    lease_namespace = arguments.leader_elect_resource_namespace
    return Elect(LeaseTiming(duration, retry), arguments.leader_elect_resource_name, lease_namespace)


def options(arguments: argparse.Namespace) -> Options:
    """Convert the flags to values.

    Raises:
        UsageError: the token key cannot be used, or is missing within a cluster; two flags exclude each other.
    """
    return Options(
        settings=Settings(
            version=version_of("dljob"),
            image=arguments.image,
            ray_version=arguments.ray_version,
            init_image=arguments.init_image,
            pull_secrets=tuple(dict.fromkeys(arguments.image_pull_secret)),
            pods=_pods(arguments),
            toleration_seconds=arguments.unreachable_toleration,
            pre_running_deadline=arguments.pre_running_deadline,
        ),
        key=_key(arguments.token_key_file),
        # Each once: every list is made for each namespace.
        namespaces=tuple(dict.fromkeys(arguments.namespace)),
        namespace_selector=_selector(arguments),
        elect=_elect(arguments),
        context=arguments.context,
        kubeconfig=arguments.kubeconfig,
        workers=arguments.workers,
        metrics_port=arguments.metrics_port,
        health_port=arguments.health_port,
        webhook_port=arguments.webhook_port,
        webhook_certificate=arguments.webhook_certificate,
    )


def _selector(arguments: argparse.Namespace) -> str:
    if arguments.namespace and arguments.namespace_selector:
        hint = "leave one out: a selector selects among all namespaces"
        raise UsageError("--namespace and --namespace-selector exclude each other", hint=hint)
    return arguments.namespace_selector


def _key(file: Path | None) -> TokenKey:
    if file is not None:
        return TokenKey.from_file(file)
    if os.environ.get(KEY_VARIABLE):
        return TokenKey.from_text(os.environ[KEY_VARIABLE], f"${KEY_VARIABLE}")
    # In a pod a made-up key would be a new one at each start, and cut off the jobs of the last.
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        raise UsageError("no token key is given", hint="mount a Secret and name it: --token-key-file")
    log.warning("no --token-key-file: a key is generated; after a restart the operator cannot reach present jobs")
    return TokenKey.generate()


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is no port")
    return number


def _image(text: str) -> str:
    if text and not re.fullmatch(IMAGE_PATTERN, text.replace("{rayVersion}", DEFAULT_RAY_VERSION)):
        raise argparse.ArgumentTypeError(f"{text} is not {WORDS[IMAGE_PATTERN]}")
    return text


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
    # `leaseDurationSeconds` of a Lease is an integer.
    if number != int(number):
        raise argparse.ArgumentTypeError(f"{text}: a Lease lasts whole seconds")
    return int(number)


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text} is neither true nor false")
    return text == "true"


def log_as(form: str) -> None:
    """Set up logging on stderr: lines for people, or one JSON object per line."""
    handler = logging.StreamHandler()
    plain = logging.Formatter("%(asctime)s %(levelname)-8s %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else plain)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for noisy in ("kopf.objects", "kopf.activities", "aiohttp.access"):  # lines for every event and every probe
        logging.getLogger(noisy).setLevel(logging.WARNING)
