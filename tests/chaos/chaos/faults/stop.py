"""`isopod serve` is stopped with SIGTERM, as by an upgrade. Streams end cleanly, and the campaign restarts it."""

from chaos.context import Context


def stop(context: Context, choice: float) -> str | None:
    server = context.platform.server
    if server.has_ended():
        return None
    context.outages.begin("server")
    # Without its records or its disk, it may report that it could not complete everything.
    is_excused = context.outages.is_away("database", "disk")
    for problem in server.terminate():
        if not is_excused:
            context.violations.add("server", "SIGTERM ends the server with 0", problem)
    return "server, stopped"
