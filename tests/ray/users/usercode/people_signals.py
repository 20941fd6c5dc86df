"""User code that takes a signal when it is imported."""

import signal

signal.signal(signal.SIGTERM, signal.SIG_IGN)


def main():
    """Never reached in a thread."""
