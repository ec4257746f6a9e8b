#!/usr/bin/env python3
"""Ready-made templates, built by `isopod template build` and seen in a real Chromium through their preview URLs.

    python3 tests/templates/run.py --isopod target/debug/isopod [--only TEXT]

Needs root, Chromium (`apt-get install chromium`), and the npm and PyPI registries.
The last line is `N passed, N failed`.
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import time
import tomllib
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "sdk"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from chromium import Chromium  # noqa: E402
from harness.packages import PYTHON_INTERPRETER_VERSIONS, PYTHON_VERSIONS, python_of  # noqa: E402
from harness.server import Server  # noqa: E402

CASES = []


def case(function):
    CASES.append(function)
    return function


class Rig:
    """A server, the command line, and the official SDK."""

    def __init__(self, server, isopod):
        self.server, self.isopod = server, str(isopod)

    def cli(self, *words, code=0, timeout=1200):
        environment = self.server.environment()
        done = subprocess.run([self.isopod, *words], env=environment, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == code, f"isopod {' '.join(words)} ended with {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout, done.stderr

    def build(self, directory, *options):
        # Any version of Node.js and Python will do, and images need not be reachable.
        stdout, _ = self.cli("template", "build", "--allow-host-base", str(directory), *options)
        assert "Template ID: " in stdout, stdout
        return next(line.split(": ")[1] for line in stdout.splitlines() if line.startswith("Template ID: "))

    def build_as_named(self, directory, *options):
        """Builds without the host's help if its versions are others. If only those can be had, builds with them: False."""
        words = [self.isopod, "template", "build", str(directory), *options]
        done = subprocess.run(words, env=self.server.environment(), capture_output=True, text=True, timeout=1200)
        if done.returncode == 0:
            assert "Template ID: " in done.stdout, done.stdout
            return True
        assert "which is not what the name asks for" in done.stderr, done.stderr[-3000:]
        self.build(directory, *options)
        return False

    def sdk(self, script, *words, package="e2b"):
        """Runs a few lines with the official SDK, in a process of its own."""
        version = PYTHON_VERSIONS[0] if package == "e2b" else PYTHON_INTERPRETER_VERSIONS[0]
        command = [str(python_of(version, package)), "-c", f"import json, sys\nfrom {package.replace('-', '_')} import Sandbox\n{script}"]
        done = subprocess.run([*command, *words], env=self.server.environment(), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def run(self, sandbox, line):
        """What a line for the shell writes."""
        return json.loads(self.sdk("print(json.dumps(Sandbox.connect(sys.argv[1]).commands.run(sys.argv[2]).stdout))", sandbox, line))

    def cells(self, sandbox, *cells):
        """What each cell writes and returns."""
        script = """
sandbox = Sandbox.connect(sys.argv[1])
done = [sandbox.run_code(cell) for cell in sys.argv[2:]]
assert not any(one.error for one in done), [one.error for one in done]
print(json.dumps([("".join(one.logs.stdout), one.text) for one in done]))
"""
        return json.loads(self.sdk(script, sandbox, *cells, package="e2b-code-interpreter"))

    def read(self, sandbox, path):
        """The bytes of a file."""
        return bytes.fromhex(self.sdk("print(Sandbox.connect(sys.argv[1]).files.read(sys.argv[2], format='bytes').hex())", sandbox, path))

    def sandbox(self, template):
        return Sandbox(self, template)

    def preview(self, sandbox, port):
        return f"http://{port}-{sandbox}.localhost:{self.server.port}/"


class Sandbox:
    def __init__(self, rig, template):
        self.rig, self.template = rig, template

    def __enter__(self):
        self.id = self.rig.sdk("print(Sandbox.create(sys.argv[1], timeout=900).sandbox_id)", self.template)
        return self.id

    def __exit__(self, *_):
        self.rig.sdk("Sandbox.kill(sys.argv[1])", self.id)


@case
def a_preview_that_is_opened_too_early_waits(rig):
    """The page reloads itself until the port opens."""
    with rig.sandbox("base") as sandbox, Chromium() as browser:
        browser.open(rig.preview(sandbox, 8000))
        browser.until("port is not open")
        script = "Sandbox.connect(sys.argv[1]).commands.run(sys.argv[2], background=True)"
        rig.sdk(script, sandbox, "mkdir -p /tmp/www && echo now-it-is-up > /tmp/www/index.html && cd /tmp/www && python3 -m http.server 8000")
        browser.until("now-it-is-up")


@case
def a_next_js_page_is_seen_and_changes_live(rig):
    """Running when the sandbox is created, and hot reload through the edge."""
    rig.build(ROOT / "templates" / "nextjs-developer")
    with rig.sandbox("nextjs-developer") as sandbox, Chromium() as browser:
        files_are_those_of(rig, sandbox, "nextjs-developer", "package.json", "pages/index.tsx")
        browser.open(rig.preview(sandbox, 3000))
        browser.until("Hello from Next.js", seconds=120)
        browser.value("window.sameDocument = true")
        # Wait a moment for the page's socket: changes before it is open are not reported to it.
        time.sleep(3)
        page = "export default function Home() { return <h1>Changed by the SDK</h1> }\n"
        rig.sdk("Sandbox.connect(sys.argv[1]).files.write(sys.argv[2], sys.argv[3])", sandbox, "/home/user/pages/index.tsx", page)
        browser.until("Changed by the SDK", seconds=60)
        assert browser.value("window.sameDocument") is True, "the page was loaded anew instead of changed"


@case
def the_seed_is_built_as_far_as_registries_reach(rig):
    """The seed's own e2b.toml and Dockerfile. `shadcn` asks a web site that need not be reachable; then
    the error names that line, and nothing of the build can be used."""
    words = ["template", "build", str(ROOT / "tests" / "templates" / "seed"), "--name", "seed", "--allow-host-base"]
    done = subprocess.run([rig.isopod, *words], env=rig.server.environment(), capture_output=True, text=True, timeout=1200)
    if done.returncode == 0:
        assert "Template ID: " in done.stdout
        with rig.sandbox("seed") as sandbox:
            script = ROOT / "tests" / "templates" / "seed" / "compile_page.sh"
            assert rig.read(sandbox, "/compile_page.sh") == script.read_bytes()
        return
    assert "e2b.Dockerfile:" in done.stderr and "error: the build failed" in done.stderr, done.stderr[-3000:]
    failed = next(line for line in done.stderr.splitlines() if line.startswith("error: "))
    line = int(failed.split("e2b.Dockerfile:")[1].split(":")[0])
    text = (ROOT / "tests" / "templates" / "seed" / "e2b.Dockerfile").read_text().splitlines()[line - 1]
    assert "shadcn" in text, f"{failed}\n{text}\n{done.stderr[-3000:]}"
    rig.cli("create", "--detach", "--template", "seed", code=125)


def files_are_those_of(rig, sandbox, template, *paths):
    """What the Dockerfile copies is in the home directory, byte for byte."""
    for path in paths:
        assert rig.read(sandbox, f"/home/user/{path}") == (ROOT / "templates" / template / path).read_bytes(), path


def page_of(rig, template, port, text, file, seconds=180, name=None):
    rig.build(ROOT / "templates" / template, *(["--name", name] if name else []))
    with rig.sandbox(name or template) as sandbox, Chromium() as browser:
        files_are_those_of(rig, sandbox, template, file)
        limits_are_those_of(rig, sandbox, template)
        browser.open(rig.preview(sandbox, port))
        browser.until(text, seconds)


def limits_are_those_of(rig, sandbox, template):
    """The sandbox has the CPUs and the memory that the template's e2b.toml names."""
    with open(ROOT / "templates" / template / "e2b.toml", "rb") as settings:
        wanted = tomllib.load(settings)
    script = "info = Sandbox.connect(sys.argv[1]).get_info(); print(info.cpu_count, info.memory_mb)"
    assert rig.sdk(script, sandbox) == f"{wanted['cpu_count']} {wanted['memory_mb']}"


@case
def a_web_template_works_under_the_name_that_e2bs_app_uses_in_development(rig):
    page_of(rig, "nextjs-developer", 3000, "Hello from Next.js", "pages/index.tsx", name="nextjs-developer-dev")


@case
def a_vue_page_is_seen(rig):
    page_of(rig, "vue-developer", 3000, "Hello from Vue", "app/app.vue")


@case
def a_streamlit_page_is_seen(rig):
    page_of(rig, "streamlit-developer", 8501, "Hello from Streamlit", "app.py")


@case
def a_gradio_page_is_seen(rig):
    page_of(rig, "gradio-developer", 7860, "Hello from Gradio", "app.py")


@case
def node16_has_node_16(rig):
    """Under its own name, and under the one that E2B's app uses in development."""
    for options in ([], ["--name", "node16-dev"]):
        rig.build(ROOT / "templates" / "node16", *options)
        with rig.sandbox(options[-1] if options else "node16") as sandbox:
            version = "print(Sandbox.connect(sys.argv[1]).commands.run('node --version && npm --version').stdout)"
            assert rig.sdk(version, sandbox).startswith("v16."), "another version comes first"


@case
def nodejs_has_the_version_that_its_dockerfile_names(rig):
    dockerfile = (ROOT / "templates" / "nodejs" / "e2b.Dockerfile").read_text()
    wanted = re.search(r"^FROM node:(\d+)-slim$", dockerfile, re.MULTILINE)[1]
    if not rig.build_as_named(ROOT / "templates" / "nodejs", "--name", "own-nodejs"):
        # The build was refused for this, and then allowed to use what the host has.
        wanted = subprocess.run(["/usr/bin/node", "--version"], capture_output=True, text=True).stdout.strip("v").split(".")[0]
    with rig.sandbox("own-nodejs") as sandbox:
        assert rig.run(sandbox, "node --version").startswith(f"v{wanted}.")
        assert re.fullmatch(r"\d+\.\d+\.\d+\n", rig.run(sandbox, "npm --version"))
        assert rig.run(sandbox, "node -e 'console.log([1, 2, 3].map((n) => n * 14).at(-1))'") == "42\n"


@case
def built_interpreters_are_the_servers_own(rig):
    """The same Python with the same packages in both names, also for a program that a shell starts."""
    code = "import sys, numpy, pandas; x = 6; print(sys.version, numpy.__version__, pandas.__version__)"
    seen = {}
    for name in ("python3", "code-interpreter-v1"):
        rig.build(ROOT / "templates" / name, "--name", f"own-{name}")
        for template in (name, f"own-{name}"):
            with rig.sandbox(template) as sandbox:
                seen[template] = rig.cells(sandbox, code, "x * 7")
                shell = rig.run(sandbox, "python3 -c 'import sys; print(sys.version)'").strip()
            [[versions, _], [_, result]] = seen[template]
            assert result == "42" and versions.startswith(shell), (template, seen, shell)
    assert len({json.dumps(cells) for cells in seen.values()}) == 1, seen


@case
def a_built_base_is_the_base(rig):
    rig.build(ROOT / "templates" / "base", "--name", "own-base")
    with rig.sandbox("base") as given, rig.sandbox("own-base") as built:
        assert rig.read(built, "/etc/os-release") == rig.read(given, "/etc/os-release") != b""
        assert rig.run(built, "id -un; pwd; echo $((6 * 7))") == "user\n/home/user\n42\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isopod", required=True, type=Path, help="the program to test")
    parser.add_argument("--only", action="append", default=[], help="cases whose name has this text")
    args = parser.parse_args()
    # So that a run that is stopped still removes what it created.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    server, failed, passed = Server(args.isopod.resolve()), 0, 0
    try:
        server.start()
        rig = Rig(server, args.isopod.resolve())
        for one in CASES:
            if args.only and not any(text in one.__name__ for text in args.only):
                continue
            start = time.monotonic()
            try:
                one(rig)
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
