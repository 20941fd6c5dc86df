"""What an action is called where its failure is told."""

from __future__ import annotations

from dljob.reconcile.state.model import Annotate, Command, Create, CreateToken, Delete, PatchCluster, Submit, label


def test_troubles_are_named_after_what_failed():
    assert label(Create("RayCluster", {})) == "CreateRayCluster"
    assert label(CreateToken("a", "b", {}, {})) == "CreateToken"
    assert label(Annotate("Pod", "a", {})) == "AnnotatePod"
    assert label(PatchCluster("c", "u")) == "PatchCluster"
    assert label(Submit("i", "c", "a", (), {}, {})) == "Submit"


def test_actions_that_are_not_repeated_have_names_of_their_own():
    assert label(Delete("RayCluster", "a", "b")) == "DeleteRayCluster a"
    assert label(Command("restart/job/1", "c", "a", "restart", "job", "x")) == "Command restart/job/1"
