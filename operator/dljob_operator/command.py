"""`dljob-operator`: names a missing extra before kopf and the Kubernetes client are imported."""

from __future__ import annotations

import sys

from dljob.errors import not_installed


def main() -> None:
    """Run the operator; exit with 2 and one sentence when it is not installed."""
    try:
        from dljob_operator.main import main as run  # noqa: PLC0415 - it imports kopf and the Kubernetes client
    except ModuleNotFoundError as error:
        missing = not_installed(error, "operator")
        if missing is None:
            raise
        sys.stderr.write(f"error: {missing}\n")
        sys.exit(int(missing.exit_code))
    run()
