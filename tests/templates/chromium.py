"""A headless Chromium, controlled over a pair of pipes with its debugging protocol."""

import json
import os
import shutil
import subprocess
import tempfile
import time

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


class Chromium:
    def __enter__(self):
        program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
        if program is None:
            raise RuntimeError("there is no Chromium; hint: apt-get install chromium")
        self.home = tempfile.mkdtemp(prefix="isopod-chromium-")
        commands, self.commands = os.pipe()
        self.answers, answers = os.pipe()
        command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--no-proxy-server"]
        command += [f"--user-data-dir={self.home}", "--remote-debugging-pipe", "about:blank"]
        # The protocol requires descriptors 3 and 4.
        shell = ["bash", "-c", f'exec "$0" "$@" 3<&{commands} 4>&{answers}']
        self.process = subprocess.Popen(
            [*shell, *command], pass_fds=(commands, answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(commands)
        os.close(answers)
        self.unread, self.number = b"", 0
        target = self._ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        self.session = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.commands)
        os.close(self.answers)
        shutil.rmtree(self.home, ignore_errors=True)

    def open(self, url):
        self._ask("Page.navigate", {"url": url}, self.session)

    def value(self, expression):
        """Evaluates an expression in the page. None while the page is being replaced."""
        try:
            asked = {"expression": expression, "returnByValue": True}
            return self._ask("Runtime.evaluate", asked, self.session)["result"].get("value")
        except RuntimeError:
            return None

    def text(self):
        return self.value("document.body ? document.body.innerText : ''") or ""

    def until(self, text, seconds=60):
        """Waits until the page shows the text."""
        deadline = time.monotonic() + seconds
        while text not in (shown := self.text()):
            assert time.monotonic() < deadline, f"the page never showed {text!r}, but: {shown[:2000]!r}"
            time.sleep(0.2)

    def _ask(self, method, parameters, session=None):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._read())
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _read(self):
        while b"\0" not in self.unread:
            piece = os.read(self.answers, 1 << 16)
            if not piece:
                raise RuntimeError("Chromium has ended")
            self.unread += piece
        line, self.unread = self.unread.split(b"\0", 1)
        return line
