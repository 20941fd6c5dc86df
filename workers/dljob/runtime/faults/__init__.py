"""Faults injected into a running job: `injector` chooses processes, `signals` acts on them."""
