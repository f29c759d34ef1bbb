"""Bounds on the head of an HTTP request, checked first, while the head arrives."""

from __future__ import annotations

from http import HTTPStatus

# Bytes. Browsers and proxies send less than 16 KB; a valid request to this API never exceeds a bound.
MAX_URL_BYTES = 8 * 1024
MAX_HEADER_BYTES = 16 * 1024
MAX_HEAD_BYTES = 32 * 1024
MAX_HEADERS = 100
# Number of separator bytes in a header line.
SEPARATORS = len(b": \r\n")


class RefusedRequestError(Exception):
    """A request that never reaches the application: the connection answers it and closes."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class RequestHead:
    """Sizes of one head, including trailers; methods raise RefusedRequestError if a bound is exceeded.

    complete: True if the last line has arrived. pending: received bytes that no callback has counted yet, such as the
    beginning of a header; the parser keeps them in memory, so that they need a separate bound.
    """

    def __init__(self) -> None:
        self.complete = True
        self.pending = 0
        self._url = 0
        self._bytes = 0
        self._headers = 0

    def begin(self) -> None:
        """Starts a new request."""
        self.complete = False
        self._url = self._bytes = self._headers = 0

    def add_url(self, size: int) -> None:
        """Counts bytes of the URL."""
        self._url += size
        if self._url > MAX_URL_BYTES:
            reason = f"the URL is longer than {MAX_URL_BYTES} bytes"
            raise RefusedRequestError(HTTPStatus.REQUEST_URI_TOO_LONG, "url_too_long", reason)

    def add_header(self, name: bytes, value: bytes) -> None:
        """Counts a header or a trailer."""
        size = len(name) + len(value) + SEPARATORS
        self._headers += 1
        self._bytes += size
        if size > MAX_HEADER_BYTES:
            raise _too_large(f"a header is longer than {MAX_HEADER_BYTES} bytes")
        if self._headers > MAX_HEADERS:
            raise _too_large(f"the request has more than {MAX_HEADERS} headers")
        if self._bytes + self._url > MAX_HEAD_BYTES:
            raise _whole_too_large()

    def end(self) -> None:
        """Marks the head as complete; a body may follow."""
        self.complete = True
        self.pending = 0

    def check_pending(self) -> None:
        """Raises RefusedRequestError for an endless line or chunk size."""
        if self.pending > MAX_HEAD_BYTES:
            raise _whole_too_large()


def _whole_too_large() -> RefusedRequestError:
    return _too_large(f"the request's head is larger than {MAX_HEAD_BYTES} bytes")


def _too_large(reason: str) -> RefusedRequestError:
    return RefusedRequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large", reason)
