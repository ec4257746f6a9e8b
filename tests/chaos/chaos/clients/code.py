"""Runs cells in the code interpreter."""

import time
from functools import partial

from chaos import sdk
from chaos.clients.client import Client
from chaos.ledger import Life, Owned
from chaos.server import INTERPRETER

CELL_DEADLINE = 60.0


class Code(Client):
    pause = 0.5

    def turn(self) -> None:
        candidates = self.context.ledger.alive(INTERPRETER)
        if not candidates:
            return
        sandbox = self.draw.choice(candidates)
        with sdk.using(sandbox) as can:
            if can:
                self._run(sandbox)

    def _run(self, sandbox: Owned) -> None:
        lines = self.draw.choice([1, 50, 400])
        code = (
            f"import time\nfor i in range({lines}):\n    print(i, flush=True)\n    if i % 50 == 49: time.sleep(0.1)\n{lines} * 2"
        )
        opened, kernel = self.open(sandbox), f"kernel of {sandbox.id}"
        run = partial(opened.run_code, code, timeout=CELL_DEADLINE, request_timeout=sdk.REQUEST)
        start = time.monotonic()
        done = self.call(f"a cell in {sandbox.id}", run, ("disk", kernel), sandbox)
        self.context.ledger.count("cells acknowledged")
        if done.error is not None:
            if not self.context.outages.excuses(start, kernel, "disk", "server") and sandbox.life is Life.ALIVE:
                self.context.violations.add("code", f"a cell in {sandbox.id} runs", f"{done.error.name}: {done.error.value}")
            return
        expected = "".join(f"{number}\n" for number in range(lines))
        found = "".join(done.logs.stdout)
        if found != expected or done.text != str(lines * 2):
            text = f"{len(found)} of {len(expected)} bytes, result {done.text!r}"
            self.context.violations.add("code", f"a cell in {sandbox.id} gives its {lines} lines and its result", text)
