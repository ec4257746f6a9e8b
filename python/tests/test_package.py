"""The package itself: what it exports, what it needs, and that its types hold for its users."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

from isopod._http import Settings
from isopod.errors import ConfigurationError

PROGRAM = """
import isopod
from isopod.compat.roma import E2BToolkit

with isopod.session("x") as run:
    reveal_type(run.execute("1").text)
reveal_type(isopod.workflow("f.yaml").run().status)
reveal_type(E2BToolkit().run_python_code("1"))
isopod.session(1)
"""


def test_every_name_can_be_imported():
    code = "import isopod; [getattr(isopod, name) for name in isopod.__all__]; from isopod import *; print(workflow.__module__)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True)
    assert done.stdout == "isopod.workflows\n", done.stderr
    import isopod

    assert isopod.__all__ == sorted(["find_program", *isopod._HOMES, *isopod._MODULES])
    with pytest.raises(AttributeError):
        isopod.no_such_name


def test_the_program_is_found_without_other_packages(tmp_path):
    """`uvx isopod serve` imports the package, and must not load the SDK for that."""
    program = tmp_path / "bin" / "isopod"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    code = "import sys, isopod; print(isopod.find_program()); assert not {'httpx', 'e2b', 'pandas'} & set(sys.modules)"
    variables = environment() | {"PATH": str(program.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True)
    assert done.stdout.strip().endswith("/isopod"), done.stderr


@pytest.mark.parametrize(
    "given, variables, expected",
    [
        ({}, {}, ("http://127.0.0.1:3000", "http://127.0.0.1:3000")),
        ({}, {"E2B_API_URL": "http://a:1/", "E2B_SANDBOX_URL": "http://b:2"}, ("http://a:1", "http://b:2")),
        ({}, {"E2B_API_URL": "http://a:1"}, ("http://a:1", "http://a:1")),
        ({"api_url": "http://c:3"}, {"E2B_API_URL": "http://a:1", "E2B_SANDBOX_URL": "http://b:2"}, ("http://c:3", "http://c:3")),
        ({}, {"E2B_DOMAIN": "box.example"}, ("https://api.box.example", None)),
        ({}, {"E2B_DOMAIN": "box.example", "E2B_API_URL": "http://a:1"}, ("http://a:1", "http://a:1")),
    ],
)
def test_the_server_is_found_by_arguments_and_variables(monkeypatch, given, variables, expected):
    for name in ("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_DOMAIN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = Settings.resolve(**given)
    assert (found.api_url, found.sandbox_url) == expected
    assert found.sdk().get("sandbox_url") == expected[1]
    assert Settings.resolve("mine", **given).api_key == "mine"


def test_the_data_classes_say_what_is_not_installed(monkeypatch, tmp_path):
    from isopod import StorageConfig, SyncDataStorage, SyncFileStorage

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    files = SyncFileStorage(StorageConfig(base_path=str(tmp_path), flat_structure=True), "e")
    with pytest.raises(ConfigurationError, match=r"pip install 'isopod\[data\]'"):
        SyncDataStorage(files, "t").store_parquet([{"a": 1}], "d", "p")


def test_types_reach_the_user(tmp_path):
    """mypy finds the package's types, and a mistake in its use."""
    file = tmp_path / "user.py"
    file.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-untyped-imports", "--cache-dir", str(tmp_path / "cache"), str(file)],
        env=environment() | {"MYPYPATH": str(ROOT / "python")}, cwd=tmp_path, capture_output=True, text=True,
    )
    assert 'Revealed type is "str | None"' in done.stdout or "Union[builtins.str, None]" in done.stdout, done.stdout
    assert "ToolResult" in done.stdout
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1 and 'incompatible type "int"' in errors[0], done.stdout


def test_the_package_is_typed_strictly():
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT / "python", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def environment():
    return os.environ | {"PYTHONPATH": str(ROOT / "python")}
