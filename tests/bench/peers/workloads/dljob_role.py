"""Workload A as a role of dljob."""

from workload_a import Stay

from dljob import current_worker


class Rank(Stay):
    """The shared class with the method that dljob runs."""

    def run(self) -> None:
        """Run the shared class as a rank."""
        self.stay(current_worker().rank)
