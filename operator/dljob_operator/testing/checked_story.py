"""A story under its invariants: each decision, write, submission and change is checked when it has happened."""

from __future__ import annotations

from dljob.reconcile.state.model import Observed, ReconcileResult
from dljob_operator.testing import invariants as laws
from dljob_operator.testing.api_server import Body
from dljob_operator.testing.head_process import HeadProcess
from dljob_operator.testing.simulated_operator import SimulatedOperator
from dljob_operator.testing.simulated_process import SimulatedProcess
from dljob_operator.testing.world import StoryState


class CheckedStory(StoryState):
    """State of a story with operators in it, whose invariants are checked."""

    def new_operator(self, number: int, skew: float, behind: int, lag: float) -> SimulatedProcess:
        """Start a process of the operator."""
        return SimulatedOperator(self, number, skew, behind, lag)

    def decided(self, operator: SimulatedProcess, observed: Observed, outcome: ReconcileResult) -> None:
        """Note and check the decision of a pass."""
        self.note_decision(operator, outcome)
        laws.decided(self, observed, outcome)

    def wrote(self, operator: SimulatedProcess) -> None:
        """Count and check a write to the API server."""
        super().wrote(operator)
        laws.wrote(self, operator)

    def taken_by(self, head: HeadProcess, id_: str) -> None:
        """Check a submission that a head accepted."""
        laws.check_submission(self, head, id_)

    def changed(self, kind: str, _name: str, body: Body, is_deleted: bool) -> None:  # noqa: FBT001 - as the server tells
        """Bring a change of an object to the operators, and check it."""
        super().changed(kind, _name, body, is_deleted)
        laws.changed(self, kind, body, is_deleted=is_deleted)
