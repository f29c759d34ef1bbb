"""The file that records requests for replay."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import queue
import stat
import threading
from pathlib import Path

from fastdeploy_lp.engine.client.generation import Generation
from fastdeploy_lp.engine.client.logged_request import LoggedEngine, LoggedOutput, LoggedRequest
from fastdeploy_lp.request.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

OWNER_ONLY = 0o600
MAX_QUEUED = 4096
CLOSE_SECONDS = 10.0
ABORTED = "abort"


class RequestLog:
    """Appends a line for each ended request in a separate thread; requests never wait for the file.

    A file of more than `max_bytes` is renamed to `FILE.1`, replacing an earlier one, and a new file is created. If the
    disk is slower than the requests, records are dropped and counted. `recorded` and `dropped` count records.

    Raises ValueError naming the option for a file that cannot be written, is not a plain file, or is in use by another
    server.
    """

    def __init__(self, path: Path, engine: LoggedEngine, max_bytes: int) -> None:
        self._path = path
        self._engine = engine
        self._max_bytes = max_bytes
        self._open: dict[int, SamplingParams] = {}
        self._queue: queue.Queue[LoggedRequest | None] = queue.Queue(MAX_QUEUED)
        self._file = self._opened()
        self._size = os.fstat(self._file).st_size
        self.recorded = 0
        self.dropped = 0
        self._write(b"\n" * self._is_torn() + engine.line())
        self._thread = threading.Thread(target=self._run, name="request-log", daemon=True)
        self._thread.start()

    def began(self, generation: Generation, params: SamplingParams) -> None:
        """Notes a new request with its parameters."""
        self._open[generation.serial] = params

    def ended(self, generation: Generation) -> None:
        """Records an ended request; repeated calls do nothing."""
        params = self._open.pop(generation.serial, None)
        if params is None:
            return
        outputs = [
            LoggedOutput(each.index, each.token_ids, each.finish_reason or ABORTED, each.stop_reason)
            for each in generation.completions
        ]
        error = None if generation.error is None else str(generation.error)
        prompt = generation.prompt.token_ids
        record = LoggedRequest(
            generation.arrival_time, generation.request_id, self._engine.id, prompt, params, outputs, error
        )
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self._drop("the disk is slower than the requests")

    def close(self) -> None:
        """Writes the queued records, for a limited time, and closes the file."""
        try:
            self._queue.put(None, timeout=CLOSE_SECONDS)
        except queue.Full:
            logger.error("the request log was closed with records left", extra={"fields": {"file": str(self._path)}})
            return
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while (record := self._queue.get()) is not None:
            try:
                self._record(record.line())
            except (OSError, ValueError, TypeError) as error:
                self._drop(str(error))
        os.close(self._file)

    def _record(self, line: bytes) -> None:
        if self._size + len(line) > self._max_bytes:
            self._rotate()
        # A disk that was full may have stored only part of the last line.
        self._write(b"\n" * self._is_torn() + line)
        self.recorded += 1

    def _rotate(self) -> None:
        # The file may be missing: moved away, or not created after the previous rotation.
        with contextlib.suppress(FileNotFoundError):
            os.replace(self._path, self._path.with_name(f"{self._path.name}.1"))
        full, self._file = self._file, self._opened()
        os.close(full)
        self._size = 0
        self._write(self._engine.line())

    def _write(self, content: bytes) -> None:
        while content:
            written = os.write(self._file, content)
            self._size += written
            content = content[written:]

    def _drop(self, reason: str) -> None:
        self.dropped += 1
        # Log losses 1, 2, 4, 8 and so on.
        if self.dropped.bit_count() == 1:
            logger.error(
                "records of the request log are lost", extra={"fields": {"reason": reason, "lost": self.dropped}}
            )

    def _opened(self) -> int:
        try:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            file = os.open(self._path, flags, OWNER_ONLY)
        except OSError as error:
            raise ValueError(f"request_log: cannot write {self._path}: {error.strerror}") from None
        try:
            self._require_ours(file)
        except BaseException:
            os.close(file)
            raise
        return file

    def _require_ours(self, file: int) -> None:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ValueError(f"request_log: {self._path} is no plain file")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # An existing file may be readable by other users.
            os.fchmod(file, OWNER_ONLY)
        except BlockingIOError:
            raise ValueError(f"request_log: another server writes to {self._path}") from None
        except OSError as error:
            raise ValueError(f"request_log: cannot protect {self._path}: {error.strerror}") from None

    def _is_torn(self) -> bool:
        """Returns True if the last line is incomplete: its writer was killed."""
        return self._size > 0 and os.pread(self._file, 1, self._size - 1) != b"\n"
