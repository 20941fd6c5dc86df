"""Settings of all tests: Hypothesis profiles, failures printed at once, and signals that are not ignored."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

# A busy machine must not fail a property: no deadline, and slow drawing of examples is no failure.
settings.register_profile("dljob", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dljob")

# nohup lets SIGHUP be ignored in all that it starts, and so does a shell with SIGINT in what it starts behind itself:
# the commands that tests start would inherit both, and obey.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class TellsAtOnce:
    """Print each failure at once: a run that is killed before its summary has still told what failed."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._plugins.get_plugin("terminalreporter")  # None in a worker process of xdist.
        if report.failed and reporter:
            reporter.write_line(f"\nFAILED {report.when} of {report.nodeid}\n{report.longreprtext[-3000:]}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(TellsAtOnce(config))
