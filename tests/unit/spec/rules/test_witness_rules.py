"""Rules about outside witnesses: what one needs, and who reads it."""

from __future__ import annotations

from dljob.errors import SpecError
from dljob.spec.loading.load import parse


def said(witness, **node):
    """What the loader finds in a job with this witness."""
    policy = {"witnesses": [{"name": "w", **witness}], **({"node": node} if node else {})}
    spec = {"roles": [{"name": "a", "entrypoint": {"class": "a.A"}}], "faultTolerance": policy}
    try:
        parse({"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "j"}, "spec": spec})
    except SpecError as error:
        return [str(problem) for problem in error.problems]
    return []


def test_a_witness_without_a_preset_names_what_it_lacks():
    (words,) = said({"port": 9000, "metric": "m"})
    assert "a witness without a preset needs port, metric, means, when and value" in words
    assert "(add means, when, value, or a preset)" in words
    assert not said({"preset": "dcgm"})
    assert not said({"port": 9000, "metric": "m", "means": "Hang", "when": "Above", "value": 0})


def test_a_recorder_has_a_dump_alone_and_never_acts():
    dump = {"port": 9701, "urlPath": "/handler/fr_trace_json", "body": "{}"}
    assert not said({"dump": dump})
    for more in ({"act": True}, {"port": 9000}):
        (words,) = said({"dump": dump, **more})
        assert "or a dump alone, which never acts" in words


def test_a_witness_that_nobody_reads_is_refused():
    (words,) = said({"preset": "dcgm"}, action="Ignore")
    assert "nobody reads witnesses where node.action is Ignore (leave node.action out)" in words


def test_a_bound_is_a_number_without_an_exponent():
    for wrong in (0.5, "1e3", "NaN", True):
        (words,) = said({"preset": "dcgm", "value": wrong})
        assert "witnesses[0].value" in words
    assert 'write "0.5"' in said({"preset": "dcgm", "value": 0.5})[0]
    assert "write" not in said({"preset": "dcgm", "value": float("nan")})[0]


def test_a_number_that_no_text_could_have_is_refused_without_a_hint():
    (words,) = said({"port": 9000, "metric": "m", "means": "Hang", "when": "Above", "value": 1e300})
    assert words.endswith("must be a whole number or a quoted text, not the float 1e+300")
