"""One kind of fault per file. A kill or a stop returns whom it hit, or None if there was nobody; a lasting fault has a begin and
an end."""

KILLS = ("server", "guest", "kernel", "zygote", "spawner", "launcher", "worker", "supervisor")
LASTING = ("disk", "store", "database")
STOPS = ("stop",)
NAMES = KILLS + STOPS + LASTING
