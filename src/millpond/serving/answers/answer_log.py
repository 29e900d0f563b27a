"""A sample of the answers that were given, as Parquet files.

Place on the data path: beside the fetcher. The consistency job compares the log with what the batch says
later. The log's rows also serve as training rows.

Invariant: logging never slows an answer. A sampled answer goes into a bounded queue. If the queue is full, the
answer is dropped and counted. The log's one thread takes answers out and writes them.

A file holds the answers of one target under one set of features. Its columns are `name`, the key columns,
``time_ms``, ``context_*``, the feature columns, ``batch_end_ms`` (for a Join a map by the name of its part), and
``unavailable``, the features whose null means "not known". A key or feature with the name of one of the log's own
columns gets the prefix ``key_`` or ``feature_``. A file appears whole, under a unique name.
"""

import random
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec

from millpond.errors import MillpondError, OptionError
from millpond.features.logged_columns import CONTEXT_PREFIX, logged_column
from millpond.serving.answers.prepared import Prepared
from millpond.serving.messages import FetchResponse

Logged = tuple[Prepared, FetchResponse, Mapping[str, Any]]


class AnswerLog:
    """Writes a sample of the answers into a folder; safe to use from several threads.

    Args:
        folder: where the files go; it is made if it does not exist.
        sample: the share of answers that is logged, 0 to 1.
        queue: how many answers may wait to be written.
        rows_per_file: how many answers make a file.
        seconds_per_file: how long an answer waits at most for a file to fill.
        draw: returns a random number from 0 to 1 for each answer; one below `sample` logs it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = AnswerLog(folder, sample=0.01)
    ...     log.close()
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        sample: float = 0.01,
        queue: int = 10_000,
        rows_per_file: int = 10_000,
        seconds_per_file: float = 60.0,
        draw: Callable[[], float] = random.Random().random,  # noqa: B008 - a source of its own
    ) -> None:
        if not 0 <= sample <= 1:
            raise OptionError(f"sample is {sample!r}; a share from 0 to 1 is needed.")
        for option, value in (("queue", queue), ("rows_per_file", rows_per_file)):
            if type(value) is not int or value < 1:
                raise OptionError(f"{option} is {value!r}; a whole number above 0 is needed.")
        self._folder = Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionError(f"folder is {str(folder)!r}, which cannot be made: {error}; name another.") from error
        self._sample = sample
        self._queue_size = queue
        self._rows_per_file = rows_per_file
        self._seconds_per_file = seconds_per_file
        self._draw = draw
        self._queue: deque[Logged] = deque()
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.dropped = 0
        """Sampled answers that found no room in the queue, or could not be written."""
        self.written = 0
        """Answers that are in files."""

    def offer(self, prepared: Prepared, answer: FetchResponse, context: Mapping[str, Any]) -> None:
        """Log an answer if it is sampled and there is room."""
        if self._draw() >= self._sample:
            return
        if len(self._queue) >= self._queue_size or self._closed:
            self.dropped += 1
            return
        # The caller may change its keys and the answer before they are written.
        keys, features = deepcopy(dict(answer.keys)), deepcopy(answer.features)
        self._queue.append((prepared, msgspec.structs.replace(answer, keys=keys, features=features), context))
        if self._thread is None:
            self._start()
        if len(self._queue) >= min(self._rows_per_file, self._queue_size):
            self._wake.set()

    def flush(self) -> None:
        """Write all that waits, on the caller's thread."""
        with self._lock:
            while self._queue:
                self._write(self._taken())

    def close(self) -> None:
        """Write what waits, and stop. May be called twice."""
        self._closed = True
        self._wake.set()
        self.flush()

    def after_fork(self) -> None:
        """Leave what waits to the thread of the parent process; this process gets a thread of its own when needed."""
        self._queue = deque()
        self._wake, self._lock = threading.Event(), threading.Lock()
        self._thread = None

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="millpond-answer-log", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(self._seconds_per_file)
            self._wake.clear()
            self.flush()

    def _taken(self) -> list[Logged]:
        return [self._queue.popleft() for _ in range(min(len(self._queue), self._rows_per_file))]

    def _write(self, rows: list[Logged]) -> None:
        by_target: dict[int, list[Logged]] = {}
        for row in rows:
            by_target.setdefault(id(row[0]), []).append(row)
        for group in by_target.values():
            try:
                self._write_file(group)
            except (MillpondError, OSError, ImportError):
                # A full disk must not stop serving: answers that could not be written count as dropped.
                self.dropped += len(group)
            else:
                self.written += len(group)

    def _write_file(self, rows: list[Logged]) -> None:
        import pyarrow.parquet as pq

        name = rows[0][0].target.name
        path = self._folder / f"{name}-{rows[0][1].at}-{uuid.uuid4().hex}.parquet"
        unfinished = path.with_suffix(".unfinished")
        pq.write_table(_table(rows), unfinished)
        unfinished.rename(path)


def _table(rows: list[Logged]) -> Any:
    import pyarrow as pa

    from millpond.serving.answers.answer_table import UNAVAILABLE_COLUMN, column, column_name, table_of

    prepared = rows[0][0]
    target = prepared.target
    answers = [answer for _, answer, _ in rows]
    table = table_of(prepared, answers)
    arrays: dict[str, Any] = {"name": pa.array([target.name] * len(rows), pa.string())}
    arrays |= {logged_column("key", name): table.column(column_name("key", name)) for name in target.keys}
    arrays["time_ms"] = table.column("at")
    for name, type_ in target.context.items():
        arrays[CONTEXT_PREFIX + name] = column(type_, [context.get(name) for _, _, context in rows], name)
    arrays |= {logged_column("feature", name): table.column(column_name("feature", name)) for name in prepared.features}
    ends = [answer.batch_end_ms for answer in answers]
    if target.kind == "join":
        arrays["batch_end_ms"] = pa.array(
            [list(end.items()) if isinstance(end, dict) else [] for end in ends], pa.map_(pa.string(), pa.int64())
        )
    else:
        arrays["batch_end_ms"] = pa.array(ends, pa.int64())
    arrays["unavailable"] = table.column(UNAVAILABLE_COLUMN)
    return pa.table(arrays)
