"""A host that has the workspace mounted: paths of `FileStorage` are files there, which sandboxes see and write at once."""

import asyncio
import os
import subprocess

import pytest
from conftest import TEMPLATE, program, running, sdk_variables
from harness.server import Server

from isopod.compat import roma

DIRECTORIES = ["artifacts", "temp", "results", "results/plots", "results/reports", "outputs", "logs"]
TEXT = "Hello from host! Grüße"


@pytest.fixture(scope="module")
def mounted():
    """A server, and its workspace at a path of its own on this host."""
    server = Server(program(), prepare=TEMPLATE)
    bucket, base = f"dir:{server.home / 'bucket'}", server.home / "workspace"
    server.options = ["--storage", bucket, "--storage-base-path", str(base)]

    def storage(verb):
        variables = os.environ | {"ISOPOD_STORAGE": bucket, "STORAGE_BASE_PATH": str(base)}
        words = [program(), "--state-dir", str(server.state), "storage", verb]
        done = subprocess.run(words, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    with running(server):
        storage("mount")
        try:
            yield server, base
        finally:
            storage("umount")


@pytest.fixture
def base(mounted, monkeypatch):
    """Where the workspace is. This process is a program on the host, as ROMA starts it."""
    server, base = mounted
    for name, value in sdk_variables(server).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("STORAGE_BASE_PATH", str(base))
    return base


def new_storage(execution_id):
    return roma.FileStorage(config=roma.ConfigManager().load_config().storage, execution_id=execution_id)


def test_a_file_goes_from_the_host_through_a_sandbox_and_back(base, unique):
    """The steps of ROMA's end-to-end test, without its pauses."""

    async def use():
        storage = new_storage(unique)
        assert storage.base_path == base and storage.root == base / "executions" / unique
        await storage.put_text("input.txt", TEXT, metadata={"by": "host"})
        source, target = storage.get_artifacts_path("input.txt"), storage.get_outputs_path("output.txt")
        assert source.exists() and source.read_text() == TEXT and not target.exists()
        async with roma.AsyncE2BToolkit(timeout=300) as toolkit:
            assert toolkit.execution_id == unique, "it is the one of the storage"
            code = f"text = open('{source}').read()\nopen('{target}', 'w').write(text.upper())\nprint(text)"
            done = (await toolkit.run_python_code(code)).data
            assert done["ok"] and done["stdout"] == [TEXT], done
            assert target.exists() and target.read_text() == TEXT.upper()
            assert await storage.get_text("outputs/output.txt") == TEXT.upper()
            assert await storage.list_keys() == ["artifacts/input.txt", "outputs/output.txt"]
            # What one of them removes is gone for the other.
            target.unlink()
            assert not (await toolkit.run_command(f"test -e {target}")).data["ok"]
            await toolkit.run_command(f"rm {source}")
            assert not source.exists() and not await storage.exists("input.txt")

    asyncio.run(use())


def test_all_seven_directories_are_there_for_host_and_sandbox(base, unique):
    storage = new_storage(unique)
    paths = [str(getattr(storage, f"get_{name.split('/')[-1]}_path")()) for name in DIRECTORIES]
    assert paths == [f"{base}/executions/{unique}/{name}" for name in DIRECTORIES]
    assert [path for path in paths if not os.path.isdir(path)] == []
    with roma.E2BToolkit(timeout=300) as toolkit:
        look = f"import os\nfor path in {paths}:\n    assert os.path.isdir(path), path\n    open(path + '/from-sandbox', 'w').close()"
        done = toolkit.run_python_code(look).data
        assert done["ok"], done
    assert [path for path in paths if not os.path.isfile(f"{path}/from-sandbox")] == []


def test_large_and_many_files_are_whole_on_both_sides(base, unique):
    storage = roma.SyncFileStorage(roma.ConfigManager().load_config().storage, unique)
    data = os.urandom(3 << 20)
    storage.put("large.bin", data)
    for number in range(5):
        storage.put_text(f"many/{number}.txt", f"File {number}")
    place = storage.get_artifacts_path()
    code = f"""
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(5) as pool:
    print(list(pool.map(lambda n: open(f'{place}/many/{{n}}.txt').read(), range(5))))
open('{place}/copy.bin', 'wb').write(open('{place}/large.bin', 'rb').read())
"""
    with roma.E2BToolkit(timeout=300) as toolkit:
        done = toolkit.run_python_code(code).data
    assert done["ok"] and done["stdout"] == [str([f"File {number}" for number in range(5)])], done
    assert (place / "large.bin").read_bytes() == data == (place / "copy.bin").read_bytes() == storage.get("copy.bin")


def test_a_storage_on_the_mounted_directory_needs_no_server(base, unique, monkeypatch):
    new_storage(unique)
    with roma.E2BToolkit(timeout=300) as toolkit:
        toolkit.run_command(f"echo inside > {base}/executions/{unique}/artifacts/a.txt")
        monkeypatch.setenv("E2B_API_URL", "http://127.0.0.1:9")
        local = roma.SyncFileStorage(roma.StorageConfig(base_path=str(base), backend="local"), unique)
        assert local.get_text("a.txt") == "inside\n"
        written = local.put_text("results/b.txt", "from the host", metadata={"by": "host"})
        assert local.list_keys() == ["artifacts/a.txt", "results/b.txt"]
        for number in range(3):
            local.put_text(f"temp/{number}.txt", "x")
        assert local.cleanup_execution_temp_files() == 3 and local.list_keys("temp/") == []
        assert toolkit.run_command(f"cat {written}").data["stdout"] == "from the host"
