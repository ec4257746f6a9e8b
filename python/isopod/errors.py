"""Errors of the server, as exceptions.

``ApiError`` has the status, the stable ``code`` and the details of the reply. Subclasses name the cases that callers
usually treat differently; ``TransientError`` marks the ones that a retry may solve.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional

__all__ = [
    "ApiError",
    "BackendTimeoutError",
    "BackendUnavailableError",
    "ConfigurationError",
    "ConflictError",
    "FileTooLargeError",
    "InvalidKeyError",
    "InvalidRequestError",
    "IsopodError",
    "NotFoundError",
    "PermissionDeniedError",
    "QuotaExceededError",
    "ReplyTimeoutError",
    "TimedOutError",
    "TransientError",
    "UnreachableError",
]


class IsopodError(Exception):
    """The base of all errors of this package."""


class ConfigurationError(IsopodError, ValueError):
    """A setting is missing or wrong. Nothing was sent to the server."""


class FileTooLargeError(IsopodError, ValueError):
    """A file is larger than ``max_file_size``."""


class TransientError(IsopodError):
    """The same call may succeed later."""


class TimedOutError(TransientError, TimeoutError):
    """It took too long, here or on the server. What was asked for may still happen."""


class UnreachableError(TransientError):
    """The server could not be reached, or did not answer in time."""


class ReplyTimeoutError(UnreachableError, TimedOutError):
    """The server did not answer in the time that this program waits."""


class ApiError(IsopodError):
    """The server refused a request."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: Optional[str] = None,
        details: Optional[Mapping[str, Any]] = None,
        retry_after: Optional[float] = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        #: One of the stable codes in docs/service.md, such as ``quota_exceeded``; None if the route has none.
        self.code = code
        self.details: Mapping[str, Any] = details or {}
        #: Seconds after which the server expects a retry to work.
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.status} {self.code}: {self.message}" if self.code else f"{self.status}: {self.message}"


class InvalidRequestError(ApiError):
    """A value in the request is wrong (400, 413, 415, 422)."""


class InvalidKeyError(ApiError):
    """The API key is missing or unknown (401)."""


class PermissionDeniedError(ApiError):
    """The key must not do this, for example because another agent owns the sandbox (403)."""


class NotFoundError(ApiError):
    """There is no such thing, or it belongs to another team (404)."""


class ConflictError(ApiError):
    """The state of the thing does not allow it (409)."""


class QuotaExceededError(ApiError):
    """A limit is reached (429, 507). Retry only if ``retry_after`` is set."""


class BackendUnavailableError(ApiError, TransientError):
    """The server can't do it right now (500, 502, 503, 504)."""


class BackendTimeoutError(BackendUnavailableError, TimedOutError):
    """The server did not get an answer from what runs the sandboxes in time (504), for example ``backend_timeout``."""


_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: InvalidRequestError,
    401: InvalidKeyError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    410: NotFoundError,
    413: InvalidRequestError,
    415: InvalidRequestError,
    422: InvalidRequestError,
    429: QuotaExceededError,
    504: BackendTimeoutError,
    507: QuotaExceededError,
}


def error_of(status: int, body: Any, text: str, retry_after: Optional[float]) -> ApiError:
    """The exception for a reply. ``body`` is its JSON, if it has any."""
    fields: Mapping[str, Any] = body if isinstance(body, dict) else {}
    message = fields.get("message") or fields.get("error") or text.strip() or "the server gave no reason"
    kind = _BY_STATUS.get(status, BackendUnavailableError if status >= 500 else ApiError)
    details = fields.get("details")
    return kind(
        str(message),
        status=status,
        code=fields.get("error_code"),
        details=details if isinstance(details, dict) else None,
        retry_after=retry_after,
    )
