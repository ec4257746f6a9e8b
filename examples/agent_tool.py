"""A sandbox as a tool of an agent, on the official SDK (`pip install e2b-code-interpreter`).

    async with SandboxTool() as tool:
        await tool.create_sandbox("python3")
        await tool.write_files({"app.py": "print('Hello!')"})
        print((await tool.run_command("python3 app.py"))["stdout"])

`run_code` takes Python and keeps its state; a line for the shell is for `run_command`. Whatever happens inside the block,
the sandbox is ended with it.
"""

import os

from e2b import CommandExitException
from e2b_code_interpreter import AsyncSandbox


class SandboxTool:
    """One sandbox at a time. Making another ends the one before."""

    def __init__(self, api_key=None, timeout=600):
        self.api_key = api_key or os.getenv("E2B_API_KEY")
        if not self.api_key:
            raise ValueError("E2B_API_KEY environment variable is required")
        self.timeout = timeout
        self.sandbox = None

    async def create_sandbox(self, template="python3"):
        """Makes a sandbox and gives its id."""
        await self.close()
        self.sandbox = await AsyncSandbox.create(template, timeout=self.timeout, api_key=self.api_key)
        return self.sandbox.sandbox_id

    async def write_files(self, files):
        """Writes a dictionary of paths and contents. When this returns, all files are there."""
        sandbox = self._sandbox()
        for path, content in files.items():
            if not path:
                raise ValueError("the path of a file must not be empty")
            await sandbox.files.write(path, content)

    async def run_code(self, code):
        """Runs Python."""
        done = await self._sandbox().run_code(code, timeout=300)
        return {
            "stdout": "".join(done.logs.stdout),
            "stderr": "".join(done.logs.stderr),
            "error": f"{done.error.name}: {done.error.value}" if done.error else None,
            "results": done.results,
        }

    async def run_command(self, command):
        """Runs a line for the shell."""
        try:
            done = await self._sandbox().commands.run(command, timeout=300)
            error = None
        except CommandExitException as failed:
            done, error = failed, f"exit status {failed.exit_code}"
        return {"stdout": done.stdout, "stderr": done.stderr, "error": error, "results": []}

    async def close(self):
        """Ends the sandbox, if there is one."""
        if self.sandbox is not None:
            await self.sandbox.kill()
            self.sandbox = None

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.close()

    def _sandbox(self):
        if self.sandbox is None:
            raise RuntimeError("Sandbox not initialized. Call create_sandbox first.")
        return self.sandbox


async def execute_task(code, files=None, template="python3"):
    """What an agent does with a task: make a sandbox, put the files in, run the code, and end it."""
    async with SandboxTool() as tool:
        await tool.create_sandbox(template)
        if files:
            await tool.write_files(files)
        result = await tool.run_code(code)
    if result["error"]:
        return f"Error: {result['error']}"
    return result["stdout"] or "Task completed successfully"
