"""The database is unreachable (PostgreSQL), or another process holds its write lock (SQLite)."""

import sqlite3

from chaos.context import Context

# How long a request may wait for a connection or a lock before it is refused.
GRACE = 6.0


def begin(context: Context, choice: float) -> str | None:
    context.outages.begin("database")
    try:
        context.platform.database.cut(choice)
    except sqlite3.Error:
        context.outages.end("database", 0)
        return None
    return "the database is cut off"


def end(context: Context) -> None:
    context.platform.database.restore()
    context.outages.end("database", GRACE)
