"""Coding agents. They start; what they do then needs a model."""

from cases.web import PORTS
from runner.program import Program


class ClaudeCode(Program):
    name, title = "claude-code", "Claude Code"
    version = "cd claude; npx claude --version | awk '{print $1}'"
    note = "starts, and says that nobody has logged in"

    def use(self, box, account):
        box.download("mkdir claude; cd claude; npm init -y >/dev/null; npm install --silent @anthropic-ai/claude-code", account)
        assert "Claude Code" in box.sh("cd claude; npx claude --version", account)
        told = box.sh("cd claude; timeout 60 npx claude --print hello 2>&1 </dev/null || true", account)
        assert "login" in told.lower(), told


class Codex(Program):
    name, title = "codex", "Codex"
    version = "cd codex; npx codex --version | awk '{print $2}'"
    note = "starts; `codex sandbox` says that it has no namespaces"

    def use(self, box, account):
        install_codex(box, account)
        assert "codex" in box.sh("cd codex; npx codex --version", account)
        told = box.sh("cd codex; npx codex sandbox -- echo ran 2>&1 || true", account)
        assert "No permissions to create a new namespace" in told, told


class CodexSandbox(Program):
    name, title = "codex-sandbox", "`codex sandbox`"
    features = ("userns",)
    version = Codex.version
    note = "with `userns`: a command reads, and may not write or connect"

    def use(self, box, account):
        install_codex(box, account)
        port = PORTS[account]
        box.start(f"python3 -m http.server {port} --bind 127.0.0.1 --directory /usr/share/doc", account)
        box.until(f"curl -sf -o /dev/null http://127.0.0.1:{port}/", account)
        box.write("codex/try.sh", TRY.replace("PORT", str(port)), account)
        told = box.sh("cd codex; npx codex sandbox -- bash try.sh 2>&1", account)
        assert told == "reads package.json\nmay not write\nmay not connect\n", told


TRY = """
grep -q codex package.json && echo reads package.json
touch ~/written 2>/dev/null && echo writes || echo may not write
curl -sf -o /dev/null http://127.0.0.1:PORT/ && echo connects || echo may not connect
"""


def install_codex(box, account):
    box.download("mkdir codex; cd codex; npm init -y >/dev/null; npm install --silent @openai/codex", account)
