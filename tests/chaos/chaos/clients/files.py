"""Writes new and existing files, in sandboxes and in the workspace, and reads some back at once."""

import itertools
import time
from functools import partial

from chaos import sdk
from chaos.checks import files as check
from chaos.clients import upload
from chaos.clients.client import Client, Failed
from chaos.context import Context
from chaos.ledger import Content, File, Owned

SIZES = (0, 1, 100, 4096, 65_537, 400_000, 1_500_000)
LIKELY = (1, 2, 6, 6, 4, 2, 1)
MANY = 40


class Files(Client):
    pause = 0.1

    def __init__(self, context: Context, name: str) -> None:
        super().__init__(context, name)
        self._numbers = itertools.count(1)

    def turn(self) -> None:
        candidates = self.context.ledger.alive()
        if not candidates:
            return
        sandbox = self.draw.choice(candidates)
        with sdk.using(sandbox) as can:
            if can:
                self._act(sandbox)

    def _act(self, sandbox: Owned) -> None:
        mine = [file for path, file in list(sandbox.files.items()) if f"/{self.name}-" in path]
        if mine and self.draw.random() < 0.2:
            check.compare(self.context, sandbox, self.open(sandbox), self.draw.choice(mine), time.monotonic() + check.DEADLINE)
        elif mine and (len(sandbox.files) >= MANY or self.draw.random() < 0.3):
            self._write(sandbox, self.draw.choice(mine))
        else:
            self._write(sandbox, self._new(sandbox))

    def _new(self, sandbox: Owned) -> File:
        in_workspace = sandbox.execution is not None and self.draw.random() < 0.6
        folder = f"/opt/sentient/executions/{sandbox.execution}" if in_workspace else "/home/user/chaos"
        return File(f"{folder}/{self.name}-{next(self._numbers)}", in_workspace=in_workspace)

    def _write(self, sandbox: Owned, file: File) -> None:
        size = self.draw.choices(SIZES, LIKELY)[0]
        content = Content(f"{sandbox.id}{file.path}/{self.draw.random()}", size)
        excuses = ("disk",) + (("store", "mounts") if file.in_workspace else ())
        opened, way = self.open(sandbox), upload.draw_way(self.draw)
        body = upload.body(content.bytes(), way, self.draw)
        with file.lock:
            start = time.monotonic()
            file.pending.append(content)
            sandbox.files[file.path] = file
            action = partial(opened.files.write, file.path, body, request_timeout=sdk.REQUEST)
            try:
                what = f"write of {size} bytes ({way.value}) to {file.path} in {sandbox.id}"
                self.call(what, action, excuses, sandbox, is_given_up=way is upload.Way.ABANDONED)
            except Failed:
                file.broke_off_at = time.monotonic()
                # Writing in place on a full disk may leave anything, as on any system.
                if self.context.outages.excuses(start, "disk"):
                    del sandbox.files[file.path]
                raise
            file.acknowledged, file.pending = content, []
        self.context.ledger.count("writes acknowledged")
        self.context.ledger.count("bytes acknowledged", size)
