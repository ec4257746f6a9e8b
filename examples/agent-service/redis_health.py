"""Whether the Redis of ``REDIS_URL`` answers. One PING needs no client library."""

import asyncio
import ssl
from urllib.parse import unquote, urlsplit

#: Seconds for everything: the name, the connection, TLS, and the answer.
PATIENCE = 1.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def is_connected(url: str) -> bool:
    """False also if there is no URL, if the password is wrong, or if what answers is no Redis."""
    if not url:
        return False
    try:
        return await asyncio.wait_for(ping(url), PATIENCE)
    except (OSError, ValueError, asyncio.TimeoutError):
        return False


async def ping(url: str) -> bool:
    reader, writer = await connect(url)
    try:
        commands = [*login(url), ("PING",)]
        writer.write(b"".join(map(encoded, commands)))
        replies = [await reader.readline() for _ in commands]
        return replies[-1] == b"+PONG\r\n"
    finally:
        writer.close()


async def connect(url: str) -> Streams:
    place = urlsplit(url)
    if place.scheme == "unix":
        return await asyncio.open_unix_connection(place.path)
    if place.scheme not in ("redis", "rediss"):
        raise ValueError(f"{place.scheme} is no scheme of Redis")
    trust = ssl.create_default_context() if place.scheme == "rediss" else None
    return await asyncio.open_connection(place.hostname or "localhost", place.port or 6379, ssl=trust)


def login(url: str) -> list[tuple[str, ...]]:
    place = urlsplit(url)
    words = [unquote(word) for word in (place.username, place.password) if word]
    return [("AUTH", *words)] if place.password else []


def encoded(words: tuple[str, ...]) -> bytes:
    """A command as Redis reads it: each word with its length, so that a password may have any character."""
    parts = [word.encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
