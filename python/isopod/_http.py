"""Requests to the server, once for synchronous and asynchronous callers.

An operation is a generator: it yields a ``Request``, is sent the ``httpx.Response`` or thrown the error, and returns its
result.
``Client.run`` drives it with blocking calls and ``Client.arun`` with awaited ones, so no operation is written twice.
"""

from __future__ import annotations

import json
import os
import ssl
import threading
from dataclasses import dataclass, field
from typing import Any, Generator, Mapping, Optional, TypeVar, Union
from urllib.parse import quote, urlsplit

import httpx

from .errors import ApiError, ConfigurationError, IsopodError, ReplyTimeoutError, UnreachableError, error_of

DEFAULT_URL = "http://127.0.0.1:3000"
#: Seconds for a request that runs nothing.
DEFAULT_TIMEOUT = 60.0

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """Where the server is, and with which key to call it."""

    api_key: str
    api_url: str = DEFAULT_URL
    #: Where sandboxes are reached. None: by names below E2B_DOMAIN, as in E2B's cloud.
    sandbox_url: Optional[str] = DEFAULT_URL

    @staticmethod
    def resolve(api_key: Optional[str] = None, api_url: Optional[str] = None) -> "Settings":
        """Arguments first, then ``E2B_API_KEY``, ``E2B_API_URL``, ``E2B_SANDBOX_URL`` and ``E2B_DOMAIN``."""
        key = api_key or os.environ.get("E2B_API_KEY")
        if not key:
            raise ConfigurationError(
                "E2B_API_KEY environment variable is required; `isopod serve` prints the line to paste"
            )
        known = _clean(os.environ.get("E2B_API_URL"))
        domain = os.environ.get("E2B_DOMAIN")
        if not api_url and not known and domain:
            return Settings(key, f"https://api.{domain}", _clean(os.environ.get("E2B_SANDBOX_URL")))
        url = _clean(api_url) or known or DEFAULT_URL
        # The server has its sandboxes behind the same port. E2B_SANDBOX_URL is about the server of E2B_API_URL.
        sandbox = _clean(os.environ.get("E2B_SANDBOX_URL")) if url == (known or DEFAULT_URL) else None
        return Settings(key, url, sandbox or url)

    def sdk(self) -> dict[str, Any]:
        """The options by which E2B's SDK finds the same server."""
        options = {"api_key": self.api_key, "api_url": self.api_url, "sandbox_url": self.sandbox_url}
        return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class Request:
    """One request. ``timeout`` is in seconds; None waits without limit for the reply to begin and to end."""

    method: str
    path: str
    json: Any = None
    content: Union[bytes, None] = None
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: Optional[float] = DEFAULT_TIMEOUT
    #: Statuses that the operation looks at itself. Others from 400 raise.
    accept: tuple[int, ...] = ()


#: An operation: yields requests, is sent their responses, returns a T.
Steps = Generator[Request, httpx.Response, T]


def segment(text: str) -> str:
    """One component of a path."""
    return quote(text, safe="")


def path_of(text: str) -> str:
    """A path with its slashes."""
    return quote(text, safe="/")


def ask(request: Request) -> Steps[Any]:
    """One request whose reply is JSON, or nothing."""
    response = yield request
    return response.json() if response.content else None


class Client:
    """Connections to one server. All objects with the same settings share one, from any thread."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._trust = _trust()
        self._blocking = httpx.Client(**self.options())

    @staticmethod
    def resolve(api_key: Optional[str] = None, api_url: Optional[str] = None) -> "Client":
        settings = Settings.resolve(api_key, api_url)
        with _lock:
            if settings not in _clients:
                _clients[settings] = Client(settings)
            return _clients[settings]

    def run(self, steps: Steps[T]) -> T:
        """Drives an operation with blocking calls."""
        try:
            request = next(steps)
            while True:
                try:
                    reply = _checked(request, self._blocking.request(**_arguments(request)))
                except (ApiError, httpx.TransportError) as error:
                    request = steps.throw(self._told(request, error))
                else:
                    request = steps.send(reply)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    async def arun(self, steps: Steps[T]) -> T:
        """Drives an operation without blocking the event loop.

        Each operation has its own connection, so that an object can be used in one event loop after the other.
        """
        async with httpx.AsyncClient(**self.options()) as client:
            try:
                request = next(steps)
                while True:
                    try:
                        reply = _checked(request, await client.request(**_arguments(request)))
                    except (ApiError, httpx.TransportError) as error:
                        request = steps.throw(self._told(request, error))
                    else:
                        request = steps.send(reply)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]

    def options(self) -> dict[str, Any]:
        """The arguments of an httpx client for this server."""
        settings = self.settings
        return {
            "base_url": settings.api_url,
            "headers": {"X-API-Key": settings.api_key},
            "verify": self._trust,
            # A proxy can't reach this machine's loopback.
            "trust_env": not _is_loopback(settings.api_url),
        }

    def _told(self, request: Request, error: Exception) -> IsopodError:
        """The error for the operation, which may know what to do with it."""
        if isinstance(error, IsopodError):
            return error
        reason = str(error) or type(error).__name__
        kind = ReplyTimeoutError if isinstance(error, httpx.TimeoutException) else UnreachableError
        told = kind(f"{request.method} {self.settings.api_url}{request.path}: {reason}")
        told.__cause__ = error
        return told


_lock = threading.Lock()
_clients: dict[Settings, Client] = {}


def _forget() -> None:
    """A forked process must not use its parent's connections."""
    global _lock
    _lock = threading.Lock()
    _clients.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _arguments(request: Request) -> dict[str, Any]:
    headers = dict(request.headers)
    content = request.content
    if request.json is not None:
        content = json.dumps(request.json).encode()
        headers.setdefault("content-type", "application/json")
    elif content is not None:
        headers.setdefault("content-type", "application/octet-stream")
    return {
        "method": request.method,
        "url": request.path,
        "content": content,
        "params": dict(request.params) or None,
        "headers": headers,
        "timeout": httpx.Timeout(request.timeout, connect=10.0),
    }


def _checked(request: Request, reply: httpx.Response) -> httpx.Response:
    if reply.status_code < 400 or reply.status_code in request.accept:
        return reply
    try:
        body: Any = reply.json()
    except ValueError:
        body = None
    raise error_of(reply.status_code, body, reply.text[:500], _retry_after(reply))


def _clean(url: Optional[str]) -> Optional[str]:
    return url.rstrip("/") if url else None


def _retry_after(reply: httpx.Response) -> Optional[float]:
    try:
        return float(reply.headers["retry-after"])
    except (KeyError, ValueError):
        return None


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.endswith(".localhost") or host.startswith("127.")


_shared_trust: Optional[ssl.SSLContext] = None


def _trust() -> ssl.SSLContext:
    """The authorities of this machine and ``SSL_CERT_FILE``, read once: this takes longer than a request."""
    global _shared_trust
    if _shared_trust is None:
        _shared_trust = ssl.create_default_context()
    return _shared_trust
