"""A trial of Harbor in an E2B environment: it builds the task's image, runs the agent Terminus in a sandbox of it, and
verifies the result there.
"""

import json
import subprocess
import sys
from pathlib import Path

HARBOR = Path(sys.executable).with_name("harbor")
AGENT = ["--agent", "terminus-2", "--model", "openai/gpt-4o", "--env", "e2b"]
JOB = ["--path", "task", "--jobs-dir", "jobs", "--job-name", "trial", "--yes", "--quiet"]

subprocess.run([str(HARBOR), "run", *AGENT, *JOB], check=True)
[trial] = [path.parent for path in Path("jobs/trial").glob("*/result.json")]
result = json.loads((trial / "result.json").read_text())
assert result["exception_info"] is None, result["exception_info"]
assert result["verifier_result"]["rewards"] == {"reward": 1.0}, result["verifier_result"]
print((trial / "verifier" / "test-stdout.txt").read_text())
