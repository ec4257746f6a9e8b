#!/usr/bin/env python3
"""The example in examples/fragments, used in a real Chromium: a prompt becomes a live preview in an iframe. And the route that
the third seed prints, run by Node.

    python3 tests/fragments/run.py --isopod target/debug/isopod [--only TEXT] [--screenshots DIRECTORY]

Needs root, Node.js, Chromium (`apt-get install chromium`), and the npm registry once, for E2B's SDK. With
ISOPOD_FULL=1 also the templates that take a minute or more to build. The seed's route is skipped if its text is not here.
The last line is `N passed, N failed, N skipped`.
"""

import argparse
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.request
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "sdk"))
sys.path.insert(0, str(ROOT / "tests" / "templates"))
sys.path.insert(0, str(ROOT / "tests" / "agent_service"))

from chromium import Chromium  # noqa: E402
from endpoint import Endpoint, say  # noqa: E402
from harness.packages import JS_VERSIONS, node_project  # noqa: E402
from harness.seeds import NoSeeds  # noqa: E402
from harness.server import Server  # noqa: E402
from route import Route, team_token  # noqa: E402

TEMPLATE = "code-interpreter-v1"
IS_FULL = os.environ.get("ISOPOD_FULL") == "1"
CASES = []


def case(when=True):
    def register(function):
        if when:
            CASES.append(function)
        return function

    return register


class App:
    """The example as a user runs it, with the published SDK."""

    def __init__(self, server, model=None):
        self.server, self.model = server, model or {}
        self.home = Path(tempfile.mkdtemp(prefix="isopod-fragments-"))
        shutil.copytree(ROOT / "examples" / "fragments", self.home / "app")
        (self.home / "app" / "node_modules").symlink_to(node_project("e2b", JS_VERSIONS[0]) / "node_modules")

    def __enter__(self):
        # It must not find a model of the person who runs the tests.
        environment = {k: v for k, v in self.server.environment().items() if not k.startswith("OPENAI_")}
        environment |= {"PORT": "0"} | self.model
        self.process = subprocess.Popen(
            ["node", "server.mjs"], cwd=self.home / "app", env=environment, stdout=subprocess.PIPE, text=True
        )
        self.url = self.process.stdout.readline().strip().replace("localhost", "127.0.0.1")
        assert self.url.startswith("http://"), "the example did not start"
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(10)
        shutil.rmtree(self.home)


class Rig:
    def __init__(self, server, app, browser, isopod, screenshots):
        self.server, self.app, self.browser, self.isopod = server, app, browser, str(isopod)
        self.screenshots = screenshots

    def ask(self, prompt):
        """Types a prompt and presses the button."""
        self.browser.open(self.app.url)
        self.browser.until("What shall I build?")
        self.browser.value(f"document.getElementById('prompt').value = {json.dumps(prompt)}")
        self.press("#ask button")

    def press(self, selector):
        self.browser.value(f"document.querySelector({json.dumps(selector)}).click()")

    def preview(self, seconds=60):
        """The URL of the preview, once it is in the page."""
        self.browser.until("Stop", seconds)
        return self.browser.value("document.querySelector('iframe').src")

    def stop(self):
        self.press("#stop")
        self.browser.until("The sandbox has ended.")
        assert self.sandboxes() == [], "the sandbox is still there"

    def sandboxes(self, **headers):
        """The sandboxes of the server's first team, or of the one that other headers name."""
        return self.api("GET", "/v2/sandboxes", headers=headers or None)

    def api(self, method, path, body=None, headers=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | (headers or {"X-API-Key": self.server.key})
        request = urllib.request.Request(f"{self.server.url}{path}", method=method, data=data, headers=headers)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return json.loads(answer.read() or "null")

    def admin_key(self):
        """Such a key is created on the server's machine, in its state directory."""
        words = [self.isopod, "--state-dir", str(self.server.state), "key", "create", "--local", "--scope", "admin"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

    def look(self, name):
        if self.screenshots:
            self.browser.screenshot(self.screenshots / f"{name}.png")

    def build(self, template):
        words = [self.isopod, "template", "build", str(ROOT / "templates" / template)]
        done = subprocess.run(words, env=self.server.environment(), capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"


@case()
def the_sdk_of_these_tests_is_one_that_the_example_installs(rig):
    """The example gets the SDK of the other suites here, and of its package.json from its users."""
    wanted = json.loads((rig.app.home / "app" / "package.json").read_text())["dependencies"]["e2b"]
    installed = json.loads((rig.app.home / "app" / "node_modules" / "e2b" / "package.json").read_text())["version"]
    assert wanted.startswith("^"), f"this test reads only ranges like ^1.2.3, not {wanted}"
    lowest, found = ([int(number) for number in version.split(".")] for version in (wanted[1:], installed))
    assert found[0] == lowest[0] > 0 and found >= lowest, f"{installed} is not in {wanted}"


@case()
def a_prompt_becomes_a_live_page_in_the_iframe(rig):
    """The page is of another origin, runs its script, and its files have been written."""
    rig.ask("Greetings from <the prompt>")
    preview = rig.preview()
    rig.browser.until("Greetings from <the prompt>", frame=preview)
    frame = rig.browser.complete_frame(preview)
    rig.browser.value("document.getElementById('count').click()", frame)
    rig.browser.until("Clicked 1 times", frame=preview)
    assert rig.browser.value("getComputedStyle(document.body).display", frame) == "grid", "the style sheet is missing"
    assert "page.css" in rig.browser.text(), "the page shows the code"
    rig.look("page")
    rig.stop()


@case()
def a_published_preview_opens_by_its_short_url_and_ends_with_the_sandbox(rig):
    rig.ask("A page to share")
    rig.preview()
    rig.press("#publish")
    rig.browser.until("/s/")
    short = rig.browser.value("document.getElementById('link').href")
    with Chromium() as visitor:
        visitor.open(short)
        visitor.until("A page to share")
        assert visitor.value("location.hostname").startswith("8000-"), "it leads to the sandbox's own origin"
    rig.stop()
    with Chromium() as visitor:
        visitor.open(short)
        visitor.until("the sandbox behind this link has ended")


@case()
def a_step_that_fails_is_shown_with_its_output_and_leaves_no_sandbox(rig):
    rig.ask("Something that fails")
    rig.browser.until("the install step failed")
    rig.browser.until("no such package: does-not-exist")
    assert "page.css" in rig.browser.text(), "the page shows the code that did not run"
    assert rig.sandboxes() == []
    rig.look("failure")


@case()
def the_seeds_route_creates_sandboxes_of_the_team_that_a_token_names(rig):
    """First what it refuses, then with a person's token, then without one."""
    rig.api("PUT", "/api/v1/teams/painters", {"name": "painters"}, headers={"X-API-Key": rig.admin_key()})
    secret = rig.server.variables["ISOPOD_TEAM_TOKEN_SECRET"]
    token, strangers = team_token(secret, "ada", "painters"), team_token(secret, "eve", "others")
    team = {"X-Supabase-Team": "painters", "X-Supabase-Token": token}
    fragment = {"template": TEMPLATE, "code": "print('out'); 6 * 7"}
    with Route(rig.server) as route:
        for wrong, reason in ((token[:-3], "the token's signature is invalid"), (strangers, "you are not a member of this team")):
            refused = route.post(fragment=fragment, userID="ada", teamID="painters", accessToken=wrong)
            assert refused.get("thrown") and reason in refused["message"], refused
        assert rig.sandboxes() == rig.sandboxes(**team) == []

        answer = route.post(fragment=fragment, userID="ada", teamID="painters", accessToken=token)
        assert answer["status"] == 200, answer
        ran = answer["body"]
        assert list(ran) == ["sbxId", "template", "stdout", "stderr", "cellResults"], ran
        assert (ran["template"], ran["stdout"], ran["stderr"]) == (TEMPLATE, ["out\n"], [])
        assert [result["text"] for result in ran["cellResults"]] == ["42"]
        [found] = rig.sandboxes(**team)
        assert found["sandboxID"] == ran["sbxId"] and TEMPLATE in (found["alias"], found["templateID"]), found
        assert found["metadata"] == {"template": TEMPLATE, "userID": "ada", "teamID": "painters"}
        assert 590 <= lifetime(found) <= 610, found
        assert rig.sandboxes() == [], "it belongs to the team of the API key"

        # The body alone names no team.
        page = {"template": "base", "code": "<h1>hello</h1>", "file_path": "index.html", "port": 8000}
        answer = route.post(fragment=page, teamID="painters")
        previewed = answer["body"]
        assert (answer["status"], list(previewed)) == (200, ["sbxId", "template", "url"]), answer
        assert previewed["url"].startswith(f"https://8000-{previewed['sbxId']}."), previewed
        [found] = rig.sandboxes()
        assert found["sandboxID"] == previewed["sbxId"]
        assert found["metadata"] == {"template": "base", "userID": "", "teamID": "painters"}
        assert [one["sandboxID"] for one in rig.sandboxes(**team)] == [ran["sbxId"]]
    rig.api("DELETE", f"/sandboxes/{previewed['sbxId']}")
    rig.api("DELETE", f"/sandboxes/{ran['sbxId']}", headers=team)
    assert rig.sandboxes() == rig.sandboxes(**team) == []


def lifetime(listed):
    """Seconds from a sandbox's start to its end."""
    start, end = (datetime.fromisoformat(listed[name].replace("Z", "+00:00")) for name in ("startedAt", "endAt"))
    return (end - start).total_seconds()


def examples(page):
    """The shell commands of a page that can be run as they are, with the JSON that it shows as their result."""
    found = re.findall(r"```sh\n(.*?)```\n\n```json\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    return [(command, json.loads(shown)) for command, shown in found if "…" not in command]


@case()
def the_commands_of_the_documentation_return_what_it_shows(rig):
    """Code, an app, and a script. Ids, ports, times and sizes are others."""
    shown = examples("fragments.md")
    code, app, script = (ran(rig, command, result) for command, result in shown)
    shown_url = shown[1][1]["url"]
    assert code["template"] == TEMPLATE and code["runtimeError"] is None and code["truncated"] is False
    assert (code["stdout"], code["stderr"]) == (["hello\n"], [])
    assert code["cellResults"] == [{"text": "42", "isMainResult": True}]
    assert app["url"] == shown_url.replace("i…", app["sbxId"]).replace("3000", str(rig.server.port)), app
    rig.browser.open(app["url"])
    rig.browser.until("Hello")
    assert (script["output"], script["stdout"], script["status"], script["error"]) == ("42\n", "42\n", "success", None)
    assert sorted(one["sandboxID"] for one in rig.sandboxes()) == sorted([code["sbxId"], app["sbxId"]])
    end(rig, code, app)


def ran(rig, command, shown):
    """What a command of the documentation prints: the fields that are shown, in their order."""
    done = subprocess.run(["sh", "-c", command], env=rig.server.environment(), capture_output=True, text=True, timeout=120)
    answer = json.loads(done.stdout)
    assert list(answer) == list(shown), (command, done)
    return answer


def end(rig, *fragments):
    """Ends the sandboxes of fragments. There must be no other."""
    for fragment in fragments:
        rig.api("DELETE", f"/sandboxes/{fragment['sbxId']}")
    assert rig.sandboxes() == []


@case()
def an_exception_of_the_code_is_in_the_result(rig):
    failed = rig.api("POST", "/api/v1/fragments", {"template": TEMPLATE, "code": "print('before')\n1/0"})
    assert failed["stdout"] == ["before\n"] and failed["cellResults"] == [], failed
    error = failed["runtimeError"]
    assert (error["name"], error["value"]) == ("ZeroDivisionError", "division by zero"), error
    assert "1/0" in error["traceback"], error
    end(rig, failed)


@case()
def what_a_package_json_names_is_installed_before_the_code_runs(rig):
    """It names nothing, so that no registry is needed. npm then leaves its lock file."""
    files = [
        {"file_path": "script.py", "file_content": "import os; print(os.path.exists('package-lock.json'))"},
        {"file_path": "package.json", "file_content": '{"name": "fragment", "version": "1.0.0"}'},
    ]
    for asked, found in ((True, "True\n"), (False, "False\n")):
        body = {"template": TEMPLATE, "code": files, "install_dependencies": asked}
        installed = rig.api("POST", "/api/v1/fragments", body)
        assert (installed["runtimeError"], installed["stdout"]) == (None, [found]), installed
        end(rig, installed)


@case()
def what_requirements_name_is_installed_before_the_code_runs(rig):
    """Of this machine alone: a package that is there, and one that is nowhere."""
    def body(line):
        files = [
            {"file_path": "script.py", "file_content": "print('ran')"},
            {"file_path": "requirements.txt", "file_content": f"--no-index\n{line}\n"},
        ]
        return {"template": TEMPLATE, "code": files, "install_dependencies": True}

    installed = rig.api("POST", "/api/v1/fragments", body("pip"))
    assert (installed["runtimeError"], installed["stdout"]) == (None, ["ran\n"]), installed
    end(rig, installed)
    try:
        ran_all_the_same = rig.api("POST", "/api/v1/fragments", body("isopod-is-no-such-package"))
        raise AssertionError(ran_all_the_same)
    except urllib.error.HTTPError as refused:
        with refused:
            failed = json.loads(refused.read())
    assert (failed["error_code"], failed["details"]["step"]) == ("step_failed", "install"), failed
    assert "isopod-is-no-such-package" in json.dumps(failed["details"]), failed
    assert rig.sandboxes() == []


@case()
def the_example_asks_a_model_of_its_readme(rig):
    """Behind OpenAI's API on loopback. It answers in a block of code, as some models do."""
    fragment = {
        "commentary": "A page.", "title": "From a model", "template": "base", "additional_dependencies": [],
        "has_additional_dependencies": False, "install_dependencies_command": "", "port": 8000, "file_path": "index.html",
        "code": "<h1>Written by a model</h1>", "start_command": "python3 -m http.server 8000",
    }
    with Endpoint() as endpoint:
        endpoint.script("A page by a model", say(f"```json\n{json.dumps(fragment)}\n```"))
        model = {"OPENAI_API_KEY": "sk-tests", "OPENAI_BASE_URL": endpoint.url, "OPENAI_MODEL": "tiny-model"}
        with App(rig.server, model) as app:
            rig.app = app
            rig.ask("A page by a model")
            rig.browser.until("Written by a model", frame=rig.preview())
            rig.stop()
        [(headers, body)] = endpoint.requests["A page by a model"]
    assert (headers["authorization"], body["model"]) == ("Bearer sk-tests", "tiny-model"), (headers, body)


@case()
def a_script_returns_its_output_and_leaves_no_sandbox(rig):
    scripts = {
        "python": "print(6 * 7)",
        "javascript": "console.log(6 * 7)",
        "bash": "echo $((6 * 7))",
    }
    for language, script in scripts.items():
        done = rig.api("POST", "/sandbox/run", {"script": script, "language": language})
        assert (done["status"], done["output"], done["error"]) == ("success", "42\n", None), (language, done)
        assert done["metadata"]["execution_time_ms"] > 0 and done["metadata"]["memory_usage_mb"] > 0, (language, done)
        assert rig.sandboxes() == [], language


@case()
def a_chart_of_the_code_interpreter_is_seen(rig):
    rig.ask("A chart of something")
    rig.browser.until("200 points", 120)
    assert rig.browser.value("document.querySelector('#preview img').naturalWidth") > 100
    rig.look("chart")
    rig.stop()


@case(IS_FULL)
def a_streamlit_app_runs_in_the_iframe(rig):
    rig.build("streamlit-developer")
    rig.ask("A Streamlit app")
    rig.browser.until("Its square is", 120, frame=rig.preview(120))
    rig.look("streamlit")
    rig.stop()


@case(IS_FULL)
def a_next_js_page_runs_in_the_iframe(rig):
    rig.build("nextjs-developer")
    rig.ask("A Next.js page")
    preview = rig.preview(120)
    rig.browser.until("A Next.js page", 120, frame=preview)
    rig.browser.until("Clicked 0 times", frame=preview)
    rig.look("nextjs")
    rig.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isopod", required=True, type=Path, help="the program to test")
    parser.add_argument("--only", action="append", default=[], help="cases whose name has this text")
    parser.add_argument("--screenshots", type=Path, help="a directory for pictures of the pages")
    args = parser.parse_args()
    # So that a run that is stopped still removes what it created.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    chosen = [one for one in CASES if not args.only or any(text in one.__name__ for text in args.only)]
    tokens = {"ISOPOD_TEAM_TOKEN_SECRET": secrets.token_hex(32)}
    server, outcomes = Server(args.isopod.resolve(), prepare=TEMPLATE, variables=tokens), []
    try:
        server.start()
        server.wait_for_template(TEMPLATE)
        with App(server) as app:
            outcomes = [outcome(one, server, app, args) for one in chosen]
    finally:
        problems = server.stop()
    for problem in problems:
        print(f"problem: {problem}")
    failed = outcomes.count("FAILED") + len(problems)
    print(f"{outcomes.count('ok')} passed, {failed} failed, {outcomes.count('skipped')} skipped")
    sys.exit(1 if failed else 0)


def outcome(one, server, app, args):
    start = time.monotonic()
    try:
        with Chromium() as browser:
            one(Rig(server, app, browser, args.isopod.resolve(), args.screenshots))
    except NoSeeds as absent:
        print(f"skipped {one.__name__}: {absent}", flush=True)
        return "skipped"
    except Exception:
        print(f"FAILED  {one.__name__}\n{traceback.format_exc()}{server.tail()}", flush=True)
        return "FAILED"
    print(f"ok      {one.__name__} ({time.monotonic() - start:.1f} s)", flush=True)
    return "ok"


if __name__ == "__main__":
    main()
