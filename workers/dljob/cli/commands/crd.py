"""`dljob crd`: print the CRD."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from dljob.cli import output


def crd(*, form: Annotated[output.DataFormat, Parameter(name=("--output", "-o"))] = "yaml") -> None:
    """Print the CustomResourceDefinition, which describes every field of a job.

    Args:
        form: yaml or json.
    """
    from dljob.spec.crd import crd as build

    output.structured(build(), form)
