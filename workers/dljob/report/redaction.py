"""The spec as a page shows it; `dljob.spec.redaction` has the rules, by which PrimeMaster keeps a spec as well."""

from dljob.spec.redaction import LEFT_OUT, without_values

__all__ = ["LEFT_OUT", "without_values"]
