"""Chromium as a user of the dashboard: windows of any size, keys, files, and what went wrong in the pages."""

import base64
import json
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "templates"))

from chromium import TEXT, Chromium  # noqa: E402

# Says what the policy of a page has blocked.
WATCH = """
addEventListener("securitypolicyviolation", (event) => {
  console.error("policy: " + event.violatedDirective + " " + event.blockedURI + " " + event.sourceFile);
});
"""


class Browser(Chromium):
    def __enter__(self):
        super().__enter__()
        self.problems = []
        self.dialogs = []
        self.accepts = True
        self.answer = None
        for domain in ("Page", "Log", "DOM"):
            self._ask(f"{domain}.enable", {}, self.session)
        self._ask("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH}, self.session)
        self.size(1280, 800)
        return self

    def frame_text(self, url):
        """What a frame shows. Names below `isopod.localhost` are one site, so its frames have no process of their own."""
        frames = self._ask("Page.getFrameTree", {}, self.session)["frameTree"].get("childFrames", [])
        found = [frame["frame"]["id"] for frame in frames if frame["frame"]["url"].startswith(url)]
        if not found:
            return ""
        try:
            world = self._ask("Page.createIsolatedWorld", {"frameId": found[0]}, self.session)["executionContextId"]
            asked = {"expression": TEXT, "contextId": world, "returnByValue": True}
            return self._ask("Runtime.evaluate", asked, self.session)["result"].get("value") or ""
        except RuntimeError:
            # The frame is being replaced.
            return ""

    def size(self, width, height, scale=1):
        screen = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", screen, self.session)

    def scheme(self, name):
        features = [{"name": "prefers-color-scheme", "value": name}]
        self._ask("Emulation.setEmulatedMedia", {"features": features}, self.session)

    def wait(self, expression, what=None, seconds=30):
        """Waits until an expression is true, and returns its value."""
        deadline = time.monotonic() + seconds
        while not (value := self.value(expression)):
            assert time.monotonic() < deadline, f"waited for {what or expression}; {self.text()[:1500]!r}; {self.problems}"
            time.sleep(0.05)
        return value

    def go(self, path):
        """Opens a page of the server by its path."""
        self.open(self.base + path)
        self.wait("document.readyState === 'complete'")

    def click(self, selector):
        """Clicks on the middle of an element, as a mouse does."""
        box = self.wait(
            "(() => { const e = document.querySelector(%s); if (!e) return null; e.scrollIntoView({block: 'center'});"
            " const b = e.getBoundingClientRect(); return b.width ? [b.x + b.width / 2, b.y + b.height / 2] : null })()"
            % json.dumps(selector),
            f"a visible {selector}",
        )
        for kind in ("mousePressed", "mouseReleased"):
            event = {"type": kind, "x": box[0], "y": box[1], "button": "left", "clickCount": 1}
            self._ask("Input.dispatchMouseEvent", event, self.session)

    def leave_by(self, selector):
        """Clicks, and waits for the next page."""
        self.value("window.isOld = true")
        self.click(selector)
        self.wait("!window.isOld && document.readyState === 'complete'", "the next page")

    def type(self, text):
        self._ask("Input.insertText", {"text": text}, self.session)

    def key(self, key, code=None, number=0, modifiers=0, text=None):
        event = {"key": key, "code": code or key, "windowsVirtualKeyCode": number, "modifiers": modifiers}
        down = {**event, "type": "keyDown" if text else "rawKeyDown"}
        if text:
            down["text"] = text
        self._ask("Input.dispatchKeyEvent", down, self.session)
        self._ask("Input.dispatchKeyEvent", {**event, "type": "keyUp"}, self.session)

    def letter(self, letter):
        self.key(letter, text=letter)

    def enter(self):
        self.key("Enter", number=13, text="\r")

    def escape(self):
        self.key("Escape", number=27)

    def fill(self, selector, text):
        self.click(selector)
        self.value(f"document.querySelector({json.dumps(selector)}).select?.()")
        self.type(text)

    def choose_files(self, selector, paths):
        root = self._ask("DOM.getDocument", {}, self.session)["root"]["nodeId"]
        node = self._ask("DOM.querySelector", {"nodeId": root, "selector": selector}, self.session)["nodeId"]
        self._ask("DOM.setFileInputFiles", {"nodeId": node, "files": paths}, self.session)

    def picture(self, path):
        data = self._ask("Page.captureScreenshot", {"format": "png"}, self.session)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def take_problems(self):
        """What went wrong since the last call: violations of the policy, errors of scripts."""
        self.value("1")
        found, self.problems = self.problems, []
        return found

    def _note(self, method, event):
        super()._note(method, event)
        if not hasattr(self, "problems"):
            return
        if method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details.get("text"))[:500])
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "assert"):
            self.problems.append(" ".join(str(argument.get("value", "?")) for argument in event["args"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] == "error":
            self.problems.append(f"{event['entry']['text']} {event['entry'].get('url', '')}")
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(event["message"])
            answer = {"accept": self.accepts}
            if self.answer is not None:
                answer["promptText"] = self.answer
            # Without waiting for the result: this runs while another call waits.
            self.number += 1
            message = {"id": self.number, "method": "Page.handleJavaScriptDialog", "params": answer, "sessionId": self.session}
            os.write(self.commands, json.dumps(message).encode() + b"\0")
            self.number -= 1
