"""The log as JSON, one object per line, for log collectors.

Place on the data path: beside it. `millpond serve` sets it up; a program that embeds the app has its own
logging. A record's `fields` (given as `extra={"fields": {...}}`) stand beside its time, level and message.
"""

import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

import msgspec


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON.

    >>> record = logging.LogRecord("millpond.access", logging.INFO, "", 0, "call", (), None)
    >>> record.created, record.fields = 0.0, {"status": 200}
    >>> JsonLines().format(record)
    '{"time":"1970-01-01T00:00:00Z","level":"INFO","logger":"millpond.access","message":"call","status":200}'
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line, without a line end."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def log_as_json(stream: TextIO = sys.stderr) -> None:
    """Write Millpond's log, from level INFO up, to a stream as JSON lines."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("millpond")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
