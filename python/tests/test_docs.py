"""The examples of docs/python.md, as they are there. What a line prints stands in its comment."""

import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT

PAGE = (ROOT / "docs" / "python.md").read_text()
BLOCKS = re.findall(r"^```(python|yaml)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PROGRAMS = [body for language, body in BLOCKS if language == "python"]
#: A first line such as `# report.yaml` names the file.
FILE = re.compile(r"# ([\w./]+\.(?:yaml|py))\n")


def name_of(body):
    named = FILE.match(body)
    return named[1] if named else body.strip().splitlines()[0]


@pytest.mark.parametrize("body", PROGRAMS, ids=name_of)
def test_the_example_runs_and_prints_what_it_says(body, tmp_path):
    for _, other in BLOCKS:
        if FILE.match(other):
            (tmp_path / FILE.match(other)[1]).write_text(other)
    is_test = name_of(body).startswith("test_")
    arguments = ["-m", "pytest", "-q", "-p", "isopod.pytest_plugin", name_of(body)] if is_test else ["-c", body]
    done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = re.findall(r"print\(.*\)  # (.*)$", body, re.MULTILINE)
    assert is_test or done.stdout.splitlines() == expected, done.stdout


def test_the_page_has_examples():
    assert len(PROGRAMS) >= 10 and sum(len(re.findall(r"print\(", body)) for body in PROGRAMS) >= 10
