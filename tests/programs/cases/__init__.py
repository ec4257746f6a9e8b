"""The programs, in the order of the table."""

from cases import web, services, languages, tools, browsers, agents  # noqa: F401
