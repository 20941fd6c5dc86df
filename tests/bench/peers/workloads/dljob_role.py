"""Workload A as a role of dljob."""

from workload_a import Stay

from dljob import current_worker


def stay() -> None:
    """Run the shared class as a rank."""
    Stay().stay(current_worker().rank)
