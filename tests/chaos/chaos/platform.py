"""Everything a run needs on the host: directory, volume, bucket, database, server. Created at the start, removed at the end."""

import os
import shutil
import tempfile
from pathlib import Path

from chaos.bucket import Bucket
from chaos.database import Database, Postgres, Sqlite
from chaos.options import Options
from chaos.outages import Outages
from chaos.processes import Processes
from chaos.server import Server
from chaos.volume import Volume


class Platform:
    def __init__(self, options: Options) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="isopod-chaos-"))
        self.volume = Volume(self.home)
        self.state = self.volume.path / "state"
        self.bucket = Bucket()
        self.database_kind = options.database or ("postgres" if options.seed % 2 == 0 else "sqlite")
        self.database: Database = Postgres() if self.database_kind == "postgres" else Sqlite(self.state)
        self.outages = Outages()
        self.processes = Processes(self.state)
        options.output.mkdir(parents=True, exist_ok=True)
        log = options.output.resolve() / f"server-{options.seed}.log"
        log.write_bytes(b"")
        self.server = Server(options.isopod.resolve(), self.state, log, self.outages)

    def open(self) -> None:
        self.volume.open()
        self.bucket.open()
        self.database.open()
        self.server.variables = self.bucket.variables()
        self.server.options = self.database.options()
        self.server.prepare()
        self.server.launch()
        if not self.server.wait_until_it_listens(120):
            raise RuntimeError(f"the server did not start:\n{self.server.tail()}")
        self.server.wait_for_template()
        os.environ.update(self.server.environment())

    def end_lasting_faults(self) -> None:
        """Ends all outages. May be called at any time."""
        self.volume.free()
        self.bucket.proxy.restore()
        self.database.restore()
        for what in ("disk", "store", "database"):
            self.outages.end(what)

    def close(self) -> list[str]:
        """Removes all of it. Returns a list of errors."""
        problems = self.volume.close()
        self.bucket.close()
        self.database.close()
        shutil.rmtree(self.home, ignore_errors=True)
        return problems

    def tag(self) -> str:
        """The tag in the names of everything outside of the state directory. Empty before the server has started."""
        try:
            return (self.state / "tag").read_text().strip()
        except OSError:
            return ""
