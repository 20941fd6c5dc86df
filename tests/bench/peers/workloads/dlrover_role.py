"""Workload A as a workload of DLRover."""

from dlrover.python.unified.api.runtime.worker import current_worker
from workload_a import Stay


class Role(Stay):
    """The shared class with the method that DLRover runs."""

    def run(self) -> None:
        """Run the shared class as a rank."""
        self.stay(current_worker().actor_info.rank)
