"""A server with HTTPS: the package trusts what SSL_CERT_FILE names, and nothing else."""

import subprocess
import sys
from pathlib import Path

from conftest import ROOT, program
from harness.server import Server

USE = """
import asyncio, isopod
service = isopod.SandboxService()
sandbox = service.create_sandbox("ada", "tls")
print(service.execute_command(sandbox.id, "echo hello").stdout.strip())
service.destroy_sandbox(sandbox.id)

async def use():
    storage = isopod.FileStorage(execution_id="tls")
    await storage.put("a.txt", b"kept")
    print(await storage.get_text("a.txt"))

asyncio.run(use())
"""


def test_a_server_with_https_is_used_if_its_authority_is_trusted():
    server = Server(program(), tls=True)
    try:
        server.start()
        known = server.environment() | {"PYTHONPATH": str(ROOT / "python")}
        done = run(known)
        assert (done.returncode, done.stdout) == (0, "hello\nkept\n"), done.stderr
        unknown = {name: value for name, value in known.items() if name != "SSL_CERT_FILE"}
        refused = run(unknown)
        assert refused.returncode == 1 and "CERTIFICATE_VERIFY_FAILED" in refused.stderr, refused.stderr
    finally:
        problems = server.stop()
    assert not problems, problems


def run(environment):
    return subprocess.run([sys.executable, "-c", USE], env=environment, cwd=Path("/"), capture_output=True, text=True)
