"""`isopod mcp install`, in a home and a project of its own."""

import json
import os
import subprocess
import tempfile
import tomllib
from pathlib import Path

KEY = "e2b_" + "5" * 40


class Place:
    def __init__(self, isopod):
        self.isopod = isopod

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory()
        self.home, self.project = Path(self.directory.name, "home"), Path(self.directory.name, "project")
        self.home.mkdir()
        self.project.mkdir()
        return self

    def __exit__(self, *_):
        self.directory.cleanup()

    def run(self, *words, code=0, key=KEY):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("E2B_")}
        variables = clean | {"HOME": str(self.home)} | ({"E2B_API_KEY": key} if key else {})
        done = subprocess.run([self.isopod, "mcp", "install", *words], cwd=self.project, env=variables,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == code, (words, done)
        return done

    def entry(self, path, section="mcpServers"):
        return json.loads(path.read_text())[section]["isopod"]


def nothing_is_written_without_a_yes(isopod):
    with Place(isopod) as place:
        for client in ("claude", "codex", "cursor", "vscode"):
            done = place.run(client, code=125)
            assert "--yes" in done.stderr and KEY not in done.stdout, done
            printed = place.run(client, "--print").stdout
            assert "isopod" in printed, printed
        assert not any(place.home.iterdir()) and not any(place.project.iterdir())


def files_of_a_project_have_no_key(isopod):
    with Place(isopod) as place:
        for client, path, section in [("claude", ".mcp.json", "mcpServers"), ("vscode", ".vscode/mcp.json", "servers")]:
            place.run(client, "--yes")
            entry = place.entry(place.project / path, section)
            assert entry["command"] == os.path.realpath(isopod) and entry["args"] == ["mcp"], entry
            assert entry["env"]["E2B_API_KEY"].startswith("${"), entry
        assert KEY not in "".join(path.read_text() for path in place.project.rglob("*") if path.is_file())
        assert json.loads((place.project / ".vscode/mcp.json").read_text())["inputs"][0]["password"] is True


def over_http_the_entry_is_a_url(isopod):
    with Place(isopod) as place:
        place.run("claude", "--http", "--yes")
        entry = place.entry(place.project / ".mcp.json")
        assert entry == {"type": "http", "url": "http://127.0.0.1:3000/mcp",
                         "headers": {"Authorization": "Bearer ${E2B_API_KEY}"}}, entry
        place.run("vscode", "--url", "https://box.example/mcp?session=work", "--yes")
        entry = place.entry(place.project / ".vscode/mcp.json", "servers")
        assert entry["url"] == "https://box.example/mcp?session=work" and "${input:" in entry["headers"]["Authorization"], entry
        place.run("cursor", "--http", "--yes")
        assert place.entry(place.home / ".cursor/mcp.json")["headers"]["Authorization"] == f"Bearer {KEY}"
        place.run("codex", "--http", "--yes", key=None)
        entry = tomllib.loads((place.home / ".codex/config.toml").read_text())["mcp_servers"]["isopod"]
        assert entry == {"url": "http://127.0.0.1:3000/mcp", "bearer_token_env_var": "E2B_API_KEY"}, entry
        assert "URL" in place.run("codex", "--url", "no url", "--yes", code=125).stderr


def files_of_a_user_have_the_key_and_are_for_the_user(isopod):
    with Place(isopod) as place:
        for client, path in [("claude", ".claude.json"), ("cursor", ".cursor/mcp.json"), ("codex", ".codex/config.toml")]:
            done = place.run(client, "--scope", "user", "--yes", "--api-url", "https://box.example")
            assert KEY not in done.stdout, done.stdout
            file = place.home / path
            assert file.stat().st_mode & 0o777 == 0o600, oct(file.stat().st_mode)
            entry = tomllib.loads(file.read_text())["mcp_servers"]["isopod"] if client == "codex" else place.entry(file)
            assert entry["env"] == {"E2B_API_KEY": KEY, "E2B_API_URL": "https://box.example"}, entry


def other_entries_stay_and_a_second_time_changes_nothing(isopod):
    with Place(isopod) as place:
        (place.home / ".codex").mkdir()
        codex, claude = place.home / ".codex/config.toml", place.project / ".mcp.json"
        codex.write_text('# mine\nmodel = "m"\n\n[mcp_servers.other]\ncommand = "x"\n')
        claude.write_text('{"z": 1, "mcpServers": {"other": {"command": "x"}}, "a": [1,  2]}')
        for _ in range(2):
            for client in ("codex", "claude"):
                place.run(client, "--yes")
        assert codex.read_text().startswith('# mine\nmodel = "m"\n\n[mcp_servers.other]\ncommand = "x"\n'), codex.read_text()
        assert tomllib.loads(codex.read_text())["mcp_servers"].keys() == {"other", "isopod"}
        text = claude.read_text()
        assert text.index('"z"') < text.index('"other"') < text.index('"isopod"') < text.index('"a": [1,  2]'), text
        assert "already" in place.run("claude", "--yes").stdout


def a_file_that_is_not_understood_stays(isopod):
    with Place(isopod) as place:
        for text in ["// comment\n{}", "[]", "{"]:
            (place.project / ".mcp.json").write_text(text)
            done = place.run("claude", "--yes", code=125)
            assert "--print" in done.stderr and (place.project / ".mcp.json").read_text() == text, done


CASES = [nothing_is_written_without_a_yes, files_of_a_project_have_no_key, over_http_the_entry_is_a_url,
         files_of_a_user_have_the_key_and_are_for_the_user,
         other_entries_stay_and_a_second_time_changes_nothing, a_file_that_is_not_understood_stays]
