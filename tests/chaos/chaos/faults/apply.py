"""Maps the name of a fault to its function."""

from chaos.context import Context
from chaos.faults import database, disk, guest, kernel, launcher, server, spawner, stop, store, supervisor, worker, zygote

_HIT = {
    "server": server.kill,
    "guest": guest.kill,
    "kernel": kernel.kill,
    "zygote": zygote.kill,
    "spawner": spawner.kill,
    "launcher": launcher.kill,
    "worker": worker.kill,
    "supervisor": supervisor.kill,
    "stop": stop.stop,
}
_BEGIN = {"disk": disk.begin, "store": store.begin, "database": database.begin}
_END = {"disk": disk.end, "store": store.end, "database": database.end}


def strike(context: Context, fault: str, choice: float) -> str | None:
    """Applies the fault. Returns a description of its victim, or None."""
    return (_HIT.get(fault) or _BEGIN[fault])(context, choice)


def end(context: Context, fault: str) -> None:
    _END[fault](context)
