"""Log lines as JSON objects, one per line, for the operator and for PrimeMaster."""

from __future__ import annotations

import json
import logging
import time


class JsonLines(logging.Formatter):
    """Formats a record as a line: time (RFC 3339, UTC), level, logger, message, the call's fields, and the exception.

    A call passes its own fields as `extra={"fields": {...}}`; their values must be of JSON's types.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **record.__dict__.get("fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
