"""Exhaustive search of small worlds: `explore`, `key` (when two worlds are the same), `worlds`."""
