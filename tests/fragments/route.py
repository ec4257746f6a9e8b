"""The `POST` of a Next.js route as the third seed prints it, run by Node with the published SDK.

The block leaves its end open; what `REST` has in that place makes the answer that E2B's fragments app gives. Nothing else
is changed, and nothing has to stand in for Next.js: `Request` and `Response` are Node's own.
"""

import base64
import hashlib
import hmac
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from harness.packages import JS_INTERPRETER_VERSIONS, _once, cache_root
from harness.seeds import block

TYPESCRIPT = "5.9.3"
OPEN_END = "  // ... rest of the implementation\n"
REST = """
  const result = { sbxId: sbx.sandboxId, template: fragment.template }
  if (fragment.port) {
    await sbx.files.write(fragment.file_path, fragment.code)
    return Response.json({ ...result, url: `https://${sbx.getHost(fragment.port)}` })
  }
  const { logs, error, results } = await sbx.runCode(fragment.code)
  return Response.json({ ...result, stdout: logs.stdout, stderr: logs.stderr, runtimeError: error, cellResults: results })
"""


class Route:
    """The seed's module without its types, next to the packages that it imports."""

    def __init__(self, server):
        source = block(2, "typescript", "export async function POST")
        assert source.count(OPEN_END) == 1, "the seed's block ends otherwise"
        self.server = server
        self.home = Path(tempfile.mkdtemp(prefix="isopod-route-"))
        (self.home / "node_modules").symlink_to(_project() / "node_modules")
        (self.home / "route.ts").write_text(source.replace(OPEN_END, REST))
        shutil.copy(Path(__file__).with_name("post.mjs"), self.home)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.home)

    def post(self, **body):
        """The status and JSON of the answer, or the name and message of what `POST` throws."""
        command = ["node", "post.mjs", "route.ts"]
        done = subprocess.run(
            command, cwd=self.home, env=self.server.environment(), input=json.dumps(body), capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)


def team_token(secret, person, team):
    """A token as an identity service signs it for a member of a team."""
    claims = {"sub": person, "exp": int(time.time()) + 3600, "app_metadata": {"teams": [team]}}
    signed = ".".join(_encoded(json.dumps(part).encode()) for part in ({"alg": "HS256", "typ": "JWT"}, claims))
    return f"{signed}.{_encoded(hmac.digest(secret.encode(), signed.encode(), hashlib.sha256))}"


def _encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _project():
    """A Node project with the SDK that the block imports, and the compiler that removes its types."""
    packages = [f"@e2b/code-interpreter@{JS_INTERPRETER_VERSIONS[0]}", f"typescript@{TYPESCRIPT}"]
    home = cache_root() / f"route-{hashlib.sha256(repr(packages).encode()).hexdigest()[:12]}"

    def install():
        (home / "package.json").write_text('{"private": true, "type": "module"}\n')
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent", *packages], cwd=home, check=True)

    _once(home, install)
    return home
