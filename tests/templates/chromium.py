"""A headless Chromium, controlled over a pair of pipes with its debugging protocol."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time

TEXT = "document.body ? document.body.innerText : ''"
NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


class Chromium:
    def __init__(self, *options):
        self.options = options

    def __enter__(self):
        program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
        if program is None:
            raise RuntimeError("there is no Chromium; hint: apt-get install chromium")
        self.home = tempfile.mkdtemp(prefix="isopod-chromium-")
        commands, self.commands = os.pipe()
        self.answers, answers = os.pipe()
        command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--no-proxy-server"]
        command += [f"--user-data-dir={self.home}", "--remote-debugging-pipe", *self.options, "about:blank"]
        # The protocol requires descriptors 3 and 4.
        shell = ["bash", "-c", f'exec "$0" "$@" 3<&{commands} 4>&{answers}']
        self.process = subprocess.Popen(
            [*shell, *command], pass_fds=(commands, answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(commands)
        os.close(answers)
        self.unread, self.number, self.has_lost_requests, self.troubles = b"", 0, False, []
        target = self._ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        self.session = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        self._ask("Network.enable", {}, self.session)
        self._ask("Runtime.enable", {}, self.session)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.commands)
        os.close(self.answers)
        # Its other processes end a moment later, and may still write.
        deadline = time.monotonic() + 10
        while os.path.exists(self.home) and time.monotonic() < deadline:
            shutil.rmtree(self.home, ignore_errors=True)
            time.sleep(0.05)

    def open(self, url):
        """Opens a page, and waits until its scripts and style sheets are there, or ten seconds."""
        self.url = url
        # Chromium gives up on requests when an interface comes or goes on the machine, and other tests make interfaces.
        for _ in range(5):
            self.has_lost_requests = False
            failure = self._ask("Page.navigate", {"url": url}, self.session).get("errorText")
            if failure != NETWORK_CHANGED and self._loads():
                return

    def _loads(self, seconds=10):
        """Whether the page is complete, with everything that it asked for."""
        deadline = time.monotonic() + seconds
        while self.value("document.readyState") != "complete" and time.monotonic() < deadline:
            time.sleep(0.05)
        return not self.has_lost_requests

    def value(self, expression, session=None):
        """Evaluates an expression in the page. None while the page is being replaced."""
        try:
            asked = {"expression": expression, "returnByValue": True}
            return self._ask("Runtime.evaluate", asked, session or self.session)["result"].get("value")
        except RuntimeError:
            return None

    def text(self):
        return self.value(TEXT) or ""

    def frame(self, url):
        """The session of a frame of another site, which has a process of its own. None while there is no such frame."""
        for target in self._ask("Target.getTargets", {})["targetInfos"]:
            if target["type"] == "iframe" and target["url"].startswith(url):
                asked = {"targetId": target["targetId"], "flatten": True}
                return self._ask("Target.attachToTarget", asked)["sessionId"]
        return None

    def frame_text(self, url):
        """What a frame of another site shows."""
        session = self.frame(url)
        return (session and self.value(TEXT, session)) or ""

    def complete_frame(self, url, seconds=60):
        """The session of a frame whose scripts have run."""
        deadline = time.monotonic() + seconds
        while not (session := self.frame(url)) or self.value("document.readyState", session) != "complete":
            assert time.monotonic() < deadline, f"the frame {url} never was complete; {self.troubles[-20:]}"
            time.sleep(0.1)
        return session

    def until(self, text, seconds=60, frame=None):
        """Waits until the page, or its frame with this URL, shows the text."""
        deadline = time.monotonic() + seconds
        while text not in (shown := self.frame_text(frame) if frame else self.text()):
            assert time.monotonic() < deadline, f"the page never showed {text!r}, but: {shown[:2000]!r}; {self.troubles[-20:]}"
            # A page may go on loading modules after it is complete, and stays empty when one of them is lost.
            if self.has_lost_requests and not frame:
                self.open(self.url)
            time.sleep(0.2)

    def screenshot(self, path):
        picture = self._ask("Page.captureScreenshot", {"format": "png"}, self.session)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture))

    def _ask(self, method, parameters, session=None):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._read())
            self._note(answer.get("method"), answer.get("params", {}))
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _note(self, method, event):
        """Remembers what went wrong in the page, for the message of a test that fails."""
        if method == "Network.loadingFailed":
            self.has_lost_requests |= event["errorText"] == NETWORK_CHANGED
            self.troubles.append(event["errorText"])
        elif method == "Network.responseReceived" and event["response"]["status"] >= 400:
            self.troubles.append(f"{event['response']['status']} {event['response']['url']}")
        elif method == "Runtime.exceptionThrown":
            self.troubles.append(event["exceptionDetails"].get("exception", {}).get("description", "an exception")[:500])

    def _read(self):
        while b"\0" not in self.unread:
            piece = os.read(self.answers, 1 << 16)
            if not piece:
                raise RuntimeError("Chromium has ended")
            self.unread += piece
        line, self.unread = self.unread.split(b"\0", 1)
        return line
