#!/usr/bin/env python3
"""The dashboard in a real Chromium, with real sandboxes: each page is opened, used, checked by axe, and photographed.

    python3 tests/dashboard/run.py --isopod target/debug/isopod [--only TEXT] [--screenshots DIRECTORY]

Needs root, Chromium (`apt-get install chromium`), npm once for axe-core, and vim in /usr/bin for one case.
No case passes if a page violates its policy or logs an error. The last line is `N passed, N failed`.
"""

import argparse
import http.client
import json
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "sdk"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from browser import Browser  # noqa: E402
from harness.packages import node_project  # noqa: E402
from harness.server import Server  # noqa: E402

AXE_VERSION = "4.10.3"
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
SHIFT_CTRL = 2 | 8
CASES = []


def case(function):
    CASES.append(function)
    return function


class Rig:
    """A server, a browser, and the API for what the pages show."""

    def __init__(self, server, browser, screenshots):
        self.server, self.browser, self.screenshots = server, browser, screenshots
        self.axe = (node_project("axe-core", AXE_VERSION) / "node_modules/axe-core/axe.min.js").read_text()

    def api(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        headers = {"X-API-Key": self.server.key, "content-type": "application/json"}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status < 300, f"{method} {path}: {answer.status} {text}"
        return json.loads(text) if text else None

    def inside(self, sandbox, method, path, body):
        """A request to the guest of a sandbox."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        token = self.api("GET", f"/sandboxes/{sandbox}").get("envdAccessToken", "")
        headers = {"E2b-Sandbox-Id": sandbox, "E2b-Sandbox-Port": "49983", "X-Access-Token": token}
        headers["content-type"] = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        connection.request(method, path, body if isinstance(body, bytes) else json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status < 300, f"{path}: {answer.status} {content}"
        return content

    def read(self, sandbox, path):
        return self.inside(sandbox, "GET", f"/files?path={path}", {})

    def write(self, sandbox, path, content):
        self.inside(sandbox, "POST", f"/files?path={path}", content)

    def create(self, **fields):
        made = self.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 3600, "secure": True, **fields})
        return made["sandboxID"]

    def sign_in(self):
        browser = self.browser
        browser.go("/dashboard/sign-in")
        browser.fill("#key", self.server.key)
        browser.leave_by("button.primary")

    def look(self, name, path=None):
        """Checks the page with axe and at the width of a phone, and keeps a picture of it."""
        browser = self.browser
        if path:
            browser.go(path)
        for scheme in ("dark", "light"):
            browser.scheme(scheme)
            self.check(f"{name}, {scheme}")
        browser.size(360, 740)
        browser.wait("innerWidth === 360")
        wide = browser.value("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{name} is {wide} px too wide for a phone"
        browser.size(1280, 800)
        browser.wait("innerWidth === 1280")
        if self.screenshots:
            browser.value("scrollTo(0, 0)")
            browser.picture(str(self.screenshots / f"{name}.png"))
        self.is_clean(name)

    def check(self, name):
        browser = self.browser
        browser.value(self.axe)
        # The colors in a terminal are those that programs chose.
        browser.value("window.found = null; axe.run({exclude: [['.xterm-rows']]}, {resultTypes: ['violations']}).then((result) => { window.found = result.violations })")
        violations = browser.wait("window.found && JSON.stringify(window.found.filter((v) => ['serious', 'critical'].includes(v.impact)).map((v) => [v.id, v.nodes.map((n) => n.html.slice(0, 160))]))")
        assert json.loads(violations) == [], f"axe on {name}: {violations}"

    def is_clean(self, name):
        problems = self.browser.take_problems()
        assert problems == [], f"{name}: {problems}"

    def terminal_text(self):
        return self.browser.value("[...document.querySelectorAll('.xterm-rows > div')].map((row) => row.textContent).join('\\n')") or ""

    def until_terminal(self, text, seconds=30):
        deadline = time.monotonic() + seconds
        while text not in (shown := self.terminal_text()):
            assert time.monotonic() < deadline, f"the terminal never showed {text!r}, but {shown!r}"
            time.sleep(0.1)

    def open_terminal(self, sandbox):
        self.browser.go(f"/dashboard/sandboxes/{sandbox}/terminal")
        self.browser.wait("document.getElementById('terminal-state').dataset.kind === 'good'", "the terminal is connected")
        self.until_terminal("$")
        self.browser.click("#terminal")

    def enter(self, line):
        self.browser.type(line)
        self.browser.enter()


@case
def signing_in_leads_back_to_the_page(rig):
    browser = rig.browser
    browser.go("/dashboard/sandboxes?state=paused")
    # The form is there instead of the page, with its status.
    problems = browser.take_problems()
    assert all("401" in problem for problem in problems), problems
    rig.look("sign-in")
    browser.fill("#key", "e2b_" + "0" * 40)
    browser.leave_by("button.primary")
    assert "not valid here" in browser.text()
    browser.take_problems()
    browser.fill("#key", rig.server.key)
    browser.leave_by("button.primary")
    assert browser.value("location.pathname + location.search") == "/dashboard/sandboxes?state=paused"
    rig.is_clean("after signing in")
    browser.leave_by("form[action='/dashboard/sign-out'] button")
    browser.wait("location.pathname === '/dashboard/sign-in'", "the page for signing in")


@case
def the_list_is_live_and_searched(rig):
    browser = rig.browser
    rig.sign_in()
    browser.go("/dashboard/sandboxes")
    created = [rig.create(metadata={"purpose": f"example {name}", "user": "demo"}) for name in ("ada", "grace", "edsger")]
    browser.until(created[-1], seconds=15)
    rig.look("sandboxes")
    browser.key("/", text="/")
    assert browser.value("document.activeElement.id") == "q"
    # Each word is also looked for in ids, which are random.
    browser.type("example grace")
    browser.value("window.isOld = true")
    browser.enter()
    browser.wait("!window.isOld && document.readyState === 'complete'")
    browser.wait("document.querySelectorAll('tbody tr').length === 1", "the one that was searched")
    browser.go("/dashboard/sandboxes")
    rig.api("DELETE", f"/sandboxes/{created[0]}")
    browser.wait(f"!document.body.innerText.includes('{created[0]}')", "the ended sandbox disappears", 15)
    for sandbox in created[1:]:
        rig.api("DELETE", f"/sandboxes/{sandbox}")
    rig.is_clean("the list")


@case
def the_keyboard_leads_everywhere(rig):
    browser = rig.browser
    rig.sign_in()
    browser.go("/dashboard")
    for letter, path in (("s", "/dashboard/sandboxes"), ("o", "/dashboard")):
        browser.letter("g")
        browser.letter(letter)
        browser.wait(f"location.pathname === '{path}' && document.readyState === 'complete'", f"g {letter}")
    browser.letter("?")
    browser.wait("document.getElementById('help').open")
    rig.check("the list of shortcuts")
    browser.escape()
    browser.wait("!document.getElementById('help').open")
    rig.look("overview")


@case
def a_sandbox_is_seen_paused_resumed_and_ended(rig):
    browser = rig.browser
    rig.sign_in()
    sandbox = rig.create(metadata={"purpose": "a report", "user": "demo"})
    path = f"/dashboard/sandboxes/{sandbox}"
    browser.go(path)
    browser.wait("document.querySelectorAll('.plot canvas').length === 2", "two plots")
    rig.look("sandbox")
    browser.leave_by(f"form[action='{path}/extend'] button")
    browser.until("Its end is moved")
    browser.leave_by(f"form[action='{path}/pause'] button")
    browser.until("Paused.")
    assert rig.api("GET", f"/sandboxes/{sandbox}")["state"] == "paused"
    browser.go(f"{path}/terminal")
    browser.until("The sandbox is paused")
    browser.leave_by(f"form[action='{path}/resume'] button")
    browser.until("Resumed")
    browser.accepts = False
    browser.click(f"form[action='{path}/kill'] button")
    browser.wait("true")
    assert browser.dialogs[-1].startswith("End this sandbox?"), browser.dialogs
    assert rig.api("GET", f"/sandboxes/{sandbox}")["state"] == "running"
    browser.accepts = True
    browser.leave_by(f"form[action='{path}/kill'] button")
    browser.until(f"{sandbox} is gone")
    rig.is_clean("a sandbox")


@case
def a_terminal_runs_vim_and_follows_the_window(rig):
    browser = rig.browser
    rig.sign_in()
    sandbox = rig.create()
    rig.open_terminal(sandbox)
    rig.enter("stty size; echo $((40 + 2))-ready")
    rig.until_terminal("42-ready")
    rig.enter("printf 'line %s\\n' $(seq 100) > notes.txt; vim -u NONE -N notes.txt")
    rig.until_terminal("line 1")
    rig.until_terminal("notes.txt")
    for letter in "Ohello from the browser":
        browser.letter(letter)
    rig.until_terminal("hello from the browser")
    before = rig.terminal_text().count("\n")
    browser.size(900, 560)
    deadline = time.monotonic() + 15
    while rig.terminal_text().count("\n") >= before:
        assert time.monotonic() < deadline, "the terminal kept its size"
        time.sleep(0.1)
    browser.escape()
    rig.enter(":wq")
    rig.until_terminal("$ ")
    rig.enter("stty size")
    rows = rig.terminal_text().count("\n") + 1
    rig.until_terminal(f"{rows} ")
    assert rig.read(sandbox, "/home/user/notes.txt").startswith(b"hello from the browser\nline 1\n")
    browser.size(1280, 800)
    browser.wait("innerWidth === 1280")
    rig.enter("clear; ls --color=always /; uname -sr")
    rig.until_terminal("Linux")
    rig.look("terminal")
    rig.api("DELETE", f"/sandboxes/{sandbox}")


@case
def a_terminal_survives_a_restart_of_the_server(rig):
    browser = rig.browser
    rig.sign_in()
    sandbox = rig.create()
    rig.open_terminal(sandbox)
    rig.enter("for i in $(seq 1 60); do echo tick-$i-; sleep 0.25; done; echo all-$((1 + 1))-done")
    rig.until_terminal("tick-5-")
    rig.server.kill()
    browser.wait("document.getElementById('terminal-state').dataset.kind !== 'good'", "the page notices")
    rig.server.launch()
    browser.wait("document.getElementById('terminal-state').dataset.kind === 'good'", "the page connects again", 60)
    rig.until_terminal("all-2-done", 60)
    for _ in range(5):
        browser.key("PageUp", number=33, modifiers=8)
    rig.until_terminal("tick-1-")
    # The connection that broke is an error for the browser, and the only one.
    problems = browser.take_problems()
    assert all("ERR_" in problem for problem in problems), problems
    rig.api("DELETE", f"/sandboxes/{sandbox}")


@case
def files_are_browsed_edited_and_uploaded(rig):
    browser = rig.browser
    rig.sign_in()
    sandbox = rig.create()
    rig.write(sandbox, "/home/user/hello.py", b"# A greeting\ndef greet(name):\n    return f\"Hello, {name}!\"\n\nprint(greet('you'), 42)\n")
    rig.write(sandbox, "/home/user/table.csv", b"name,count\n\"a, b\",1\nc,2\n")
    rig.write(sandbox, "/home/user/picture.svg", b"<svg xmlns='http://www.w3.org/2000/svg' width='40' height='40'><script>parent.document.title='owned'</script><circle r='20' cx='20' cy='20'/></svg>")
    base = f"/dashboard/sandboxes/{sandbox}/files"
    rig.look("files", base)
    browser.go(f"{base}/view?path=/home/user/hello.py")
    browser.wait("document.querySelectorAll('.editor .c-word').length === 2", "colors of `def` and `return`")
    rig.look("editor")
    browser.click(".editor textarea")
    browser.key("Home", number=36, modifiers=2)
    browser.type("import sys\n")
    browser.wait("document.getElementById('saved').textContent === 'Not saved yet'")
    browser.click("[data-save-file]")
    browser.wait("document.getElementById('saved').textContent === 'Saved'")
    content = rig.read(sandbox, "/home/user/hello.py")
    assert b"import sys\n" in content and content.count(b"\n") == 6, content
    browser.go(f"{base}/view?path=/home/user/table.csv")
    assert browser.value("[...document.querySelectorAll('.sheet tbody tr:first-child td')].map((cell) => cell.textContent).join('|')") == "a, b|1"
    rig.check("a table")
    browser.go(f"{base}/view?path=/home/user/picture.svg")
    browser.wait("document.querySelector('.picture').naturalWidth === 40", "the picture")
    assert "owned" not in browser.value("document.title")
    with tempfile.TemporaryDirectory() as directory:
        local = Path(directory) / "up <b>&.txt"
        local.write_bytes(b"x" * 100_000)
        browser.go(base)
        browser.value("window.isOld = true")
        browser.choose_files("#upload", [str(local)])
        browser.wait("!window.isOld && document.readyState === 'complete'", "the upload")
    browser.until("up <b>&.txt")
    assert len(rig.read(sandbox, "/home/user/up%20%3Cb%3E%26.txt")) == 100_000
    browser.fill("#folder", "new folder")
    browser.leave_by(f"form[action='{base}/folder'] button")
    browser.until("new folder/")
    rig.is_clean("files")
    rig.api("DELETE", f"/sandboxes/{sandbox}")


@case
def a_port_is_previewed_on_its_own_origin(rig):
    browser = rig.browser
    rig.sign_in()
    sandbox = rig.create()
    page = b"<h1>a page from inside</h1><script>try { parent.document.title = 'owned' } catch { document.title = 'refused' }</script>"
    rig.write(sandbox, "/home/user/www/index.html", page)
    rig.open_terminal(sandbox)
    rig.enter("cd www && python3 -m http.server 8000")
    rig.until_terminal("Serving HTTP")
    path = f"/dashboard/sandboxes/{sandbox}"
    browser.go(f"{path}/processes")
    browser.until("/bin/bash")
    rig.look("processes")
    browser.go(f"{path}/ports")
    browser.until(f"8000-{sandbox}")
    rig.look("ports")
    browser.go(f"{path}/ports?port=8000")
    frame = browser.value("document.querySelector('iframe').src")
    browser.until("a page from inside", frame=frame)
    assert "owned" not in browser.value("document.title")
    rig.is_clean("ports")
    rig.api("DELETE", f"/sandboxes/{sandbox}")


@case
def what_sandboxes_say_is_text(rig):
    browser = rig.browser
    rig.sign_in()
    sandbox = rig.create(metadata={"name": HOSTILE})
    rig.write(sandbox, "/home/user/%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E.txt", HOSTILE.encode() + b"</textarea><script>document.title='owned'</script>")
    rig.open_terminal(sandbox)
    rig.enter(f"printf '\\033]0;{'x' * 200}\\007\\033]52;c;b3duZWQ=\\007'; echo {HOSTILE!r}")
    rig.until_terminal("owned")
    assert len(browser.value("document.getElementById('terminal-title').textContent")) <= 80
    path = f"/dashboard/sandboxes/{sandbox}"
    name = "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E.txt"
    pages = ["/dashboard", "/dashboard/sandboxes", path, f"{path}/logs", f"{path}/files", f"{path}/processes"]
    for page in [*pages, f"{path}/files/view?path=/home/user/{name}", f"{path}/logs?q=%3Cb%3E", "/dashboard/sandboxes?q=%3Cscript%3E"]:
        browser.go(page)
        assert "owned" not in browser.value("document.title"), page
        assert browser.value("document.querySelectorAll('main script, main img[src=x]').length") == 0, page
        rig.is_clean(page)
    rig.look("logs", f"{path}/logs")
    rig.api("DELETE", f"/sandboxes/{sandbox}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isopod", required=True, type=Path, help="the program to test")
    parser.add_argument("--only", action="append", default=[], help="cases whose name has this text")
    parser.add_argument("--screenshots", type=Path, help="where to keep pictures of the pages")
    args = parser.parse_args()
    # So that a run that is stopped still removes what it created.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    server, failed, passed = Server(args.isopod.resolve()), 0, 0
    try:
        server.start()
        for one in CASES:
            if args.only and not any(text in one.__name__ for text in args.only):
                continue
            start = time.monotonic()
            try:
                with Browser() as browser:
                    browser.base = f"http://isopod.localhost:{server.port}"
                    one(Rig(server, browser, args.screenshots))
                passed += 1
                print(f"ok      {one.__name__} ({time.monotonic() - start:.1f} s)", flush=True)
            except Exception:
                failed += 1
                print(f"FAILED  {one.__name__}\n{traceback.format_exc()}", flush=True)
    finally:
        problems = server.stop()
    for problem in problems:
        print(f"problem: {problem}")
    print(f"{passed} passed, {failed + len(problems)} failed")
    sys.exit(1 if failed or problems else 0)


if __name__ == "__main__":
    main()
