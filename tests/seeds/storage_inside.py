"""Run by storage.py with the official SDK: a sandbox of an execution reads what the host wrote, and writes."""

import sys

from e2b_code_interpreter import Sandbox

execution = sys.argv[1]
root = f"/opt/sentient/executions/{execution}"
with Sandbox.create(metadata={"execution_id": execution}) as sandbox:
    code = f"""
with open('{root}/artifacts/test.txt') as file:
    content = file.read()
open('{root}/results/from_sdk.txt', 'w').write('Hello from the sandbox!')
content
"""
    ran = sandbox.run_code(code)
    assert ran.error is None, ran.error
    assert ran.text == "Hello from host!", ran.text
    assert sandbox.files.read(f"{root}/artifacts/test.txt") == "Hello from host!"
    environment = sandbox.commands.run("env; cat /proc/1/environ 2>/dev/null; cat /proc/mounts").stdout
    for word in ("AWS_ACCESS", "AWS_SECRET", "roma-storage"):
        assert word not in environment, (word, environment)
