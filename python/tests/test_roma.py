"""The fourth seed: its own code with other imports, and what its storage and toolkit promise."""

import asyncio
import json
import logging
import os
import re
import sys
import types
from datetime import datetime, timezone

import pytest
import seedtext
from conftest import done_by
from seedtext import PACKAGE

from isopod.compat import roma
from isopod.errors import ConfigurationError, FileTooLargeError
from isopod.toolkit import TOOLS

EXECUTION = "test_e2b_001"
both_storages = pytest.mark.parametrize("storage_class", [roma.FileStorage, roma.SyncFileStorage])
both_toolkits = pytest.mark.parametrize("toolkit_class", [roma.E2BToolkit, roma.AsyncE2BToolkit])


@pytest.fixture
def seed(monkeypatch, capsys):
    """Runs code blocks of the seed one after the other, with ROMA's imports going to our module."""
    for name in ("roma_dspy.tools.core", "roma_dspy.config.manager", "roma_dspy.core.storage"):
        monkeypatch.setitem(sys.modules, name, roma)
    for name in ("roma_dspy", "roma_dspy.tools", "roma_dspy.config", "roma_dspy.core"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setenv("STORAGE_BASE_PATH", "/opt/sentient")
    monkeypatch.setenv("ROMA_S3_BUCKET", "your-s3-bucket-name")
    monkeypatch.setenv("E2B_TEMPLATE_ID", "code-interpreter-v1")
    # The blocks use these without importing them.
    namespace = {"os": os, "json": json, "logger": logging.getLogger("seed")}

    async def run(*markers):
        for marker in markers:
            await seedtext.run(seedtext.block(3, "python", marker), namespace)
        return capsys.readouterr().out

    return types.SimpleNamespace(run=run, names=namespace)


def test_the_seeds_step_4_1_prints_what_it_promises(seed):
    printed = asyncio.run(seed.run("test_data = b"))
    path = f"/opt/sentient/executions/{EXECUTION}/artifacts/test.txt"
    assert printed.splitlines()[0] == f"Wrote to: {path}"
    expected = json.loads(seedtext.block(3, "json", '"success"'))
    result = json.loads(printed.splitlines()[1])
    assert result.pop("sandbox_id") and expected.pop("sandbox_id") == "..."
    assert {name: result[name] for name in expected} == expected
    seed.names["e2b"].close()


def test_all_python_of_the_seed_runs(seed):
    everything = ["S3 bucket:", "test_data = b", "status = e2b.get_sandbox_status()", "get_storage_info()"]
    assert len(seedtext.blocks(3, "python")) == len(everything) + 2, "the seed has other blocks"
    printed = asyncio.run(seed.run(*everything, "cleanup_execution_temp_files()", "result_data[\"success\"]"))
    assert "Storage path: /opt/sentient\nS3 bucket: your-s3-bucket-name\n" in printed
    assert re.search(r"Total size: [\d.]+ MB\nFile count: \d+\n", printed)
    status = json.loads(next(line for line in printed.splitlines() if '"status"' in line))
    assert status["success"] and "your-s3-bucket-name" not in printed.split("S3 bucket:")[1].split("\n", 1)[1]
    seed.names["e2b"].close()


@pytest.fixture(params=["server", "directory", "flat"])
def place(request, unique, tmp_path):
    """Where files are: the configuration, the root, and whether the root has an execution's directories."""
    if request.param == "server":
        return types.SimpleNamespace(config=None, root=f"/opt/sentient/executions/{unique}", flat=False)
    flat = request.param == "flat"
    config = roma.StorageConfig(base_path=str(tmp_path / "files"), flat_structure=flat, backend="local")
    root = tmp_path / "files" if flat else tmp_path / "files" / "executions" / unique
    return types.SimpleNamespace(config=config, root=str(root), flat=flat)


@both_storages
def test_files_come_back_as_they_went_on_the_server_and_in_a_directory(unique, place, storage_class):
    storage, root = storage_class(place.config, unique), place.root
    artifacts = "" if place.flat else "artifacts/"

    async def use():
        assert await done_by(storage.put("test.bin", bytes(range(256)), {"by": "ada"})) == f"{root}/{artifacts}test.bin"
        assert str(storage.get_artifacts_path("test.bin")) == f"{root}/{artifacts}test.bin"
        assert str(storage.get_full_path("test.bin")) == f"{root}/{artifacts}test.bin"
        assert str(storage.get_full_path("temp/deep/x")) == f"{root}/temp/deep/x"
        assert str(storage.get_plots_path("p.png")) == (f"{root}/p.png" if place.flat else f"{root}/results/plots/p.png")
        assert await done_by(storage.get("test.bin")) == bytes(range(256))
        assert await done_by(storage.get_metadata("test.bin")) == {"by": "ada"}
        assert await done_by(storage.exists("test.bin")) and await done_by(storage.get_size("test.bin")) == 256
        await done_by(storage.put_text("results/reports/ä.txt", "Grüße"))
        assert await done_by(storage.get_text("results/reports/ä.txt")) == "Grüße"
        await done_by(storage.put_json("outputs/x.json", {"a": [1, None]}))
        assert await done_by(storage.get_json("outputs/x.json")) == {"a": [1, None]}
        keys = sorted([f"{artifacts}test.bin", "outputs/x.json", "results/reports/ä.txt"])
        assert await done_by(storage.list_keys()) == keys
        assert await done_by(storage.list_keys("results/")) == ["results/reports/ä.txt"]
        assert await done_by(storage.list_keys("test")) == [f"{artifacts}test.bin"]
        assert await done_by(storage.copy("test.bin", "logs/copy.bin")) == f"{root}/logs/copy.bin"
        assert await done_by(storage.move("logs/copy.bin", "moved.bin")) == f"{root}/{artifacts}moved.bin"
        assert not await done_by(storage.exists("logs/copy.bin")) and await done_by(storage.exists("test.bin"))
        assert await done_by(storage.get("moved.bin")) == bytes(range(256))
        assert await done_by(storage.get_metadata("moved.bin")) == {"by": "ada"}
        info = await done_by(storage.get_storage_info())
        # Two of them have metadata, which is in files of its own.
        assert (info["execution_id"], info["root_path"], info["file_count"]) == (unique, root, 4 + 2)
        assert info["plots_path"] == str(storage.get_plots_path()) and info["total_size_mb"] == 0.0
        assert await done_by(storage.delete("moved.bin")) and not await done_by(storage.delete("moved.bin"))
        assert not await done_by(storage.exists("moved.bin"))
        for look in (storage.get, storage.get_text, storage.get_json, storage.get_size, storage.get_metadata):
            assert await done_by(look("moved.bin")) is None, look

    asyncio.run(use())


DIRECTORIES = ["artifacts", "temp", "results", "results/plots", "results/reports", "outputs", "logs"]


def paths_of(storage, key=""):
    """What the seven methods return, in the order of `DIRECTORIES`."""
    return [str(getattr(storage, f"get_{directory.split('/')[-1]}_path")(key)) for directory in DIRECTORIES]


@both_storages
def test_what_is_no_text_or_json_is_none_and_logged(unique, place, storage_class, caplog):
    storage = storage_class(place.config, unique)

    async def use():
        await done_by(storage.put("temp/binary", b"\xff"))
        assert await done_by(storage.get_text("temp/binary")) is None
        assert await done_by(storage.get_json("temp/binary")) is None
        assert await done_by(storage.get_text("temp/binary", "latin-1")) == "ÿ", "it is text in another encoding"
        await done_by(storage.put_text("temp/broken", "{"))
        assert await done_by(storage.get_json("temp/broken")) is None
        assert await done_by(storage.get_text("temp/none")) is None and await done_by(storage.get_json("temp/none")) is None

    asyncio.run(use())
    told = [record.message.split(": ")[0] for record in caplog.records if record.name == "isopod.storage"]
    assert told == ["temp/binary is not text", "temp/binary is not JSON", "temp/broken is not JSON"]


def test_an_execution_has_seven_directories_unless_its_structure_is_flat(unique, place):
    storage = roma.SyncFileStorage(place.config, unique)
    if place.flat:
        assert set(paths_of(storage)) == {place.root} and set(paths_of(storage, "a/x")) == {f"{place.root}/a/x"}
        assert os.listdir(place.root) == [], "a flat structure has only the directories of its keys"
        assert storage.generate_key("plot", ".png").startswith("plot_") and storage.normalize_key("x") == "x"
        assert storage.put("temp/deep/x", b"x") == str(storage.get_full_path("temp/deep/x")) == f"{place.root}/temp/deep/x"
    else:
        assert paths_of(storage) == [f"{place.root}/{directory}" for directory in DIRECTORIES]
        assert paths_of(storage, "x") == [f"{place.root}/{directory}/x" for directory in DIRECTORIES]
        assert storage.normalize_key("x") == "artifacts/x"
    if place.config and not place.flat:
        assert all(os.path.isdir(path) for path in paths_of(storage))
    info = storage.get_storage_info()
    assert [info[f"{directory.split('/')[-1]}_path"] for directory in DIRECTORIES] == paths_of(storage)


def test_a_storage_has_the_attributes_of_romas(unique, place):
    storage = roma.FileStorage(place.config, unique)
    assert str(storage.base_path) == (place.config.base_path if place.config else "/opt/sentient")
    assert str(storage.root) == place.root and (place.flat or storage.root == storage.base_path / "executions" / unique)
    assert (storage.max_file_size, storage.buffer_size) == (100 * 1024 * 1024, 1024 * 1024)
    storage.max_file_size = 3
    with pytest.raises(FileTooLargeError, match="max_file_size is 3"):
        asyncio.run(storage.put("x", b"four"))


@both_storages
def test_temporary_files_go_and_local_files_come(unique, tmp_path, place, storage_class):
    storage, artifacts = storage_class(place.config, unique), "" if place.flat else "artifacts/"

    async def use():
        begun = datetime.now(timezone.utc)
        for number in range(3):
            await done_by(storage.put_text(f"temp/deep/test_{number}.txt", "x"))
        assert len(await done_by(storage.list_keys("temp/"))) == 3
        assert await done_by(storage.cleanup_temp_files()) == 0
        assert await done_by(storage.cleanup_execution_temp_files()) == 3
        assert await done_by(storage.list_keys("temp/")) == []
        local = tmp_path / "local.csv"
        local.write_text("1,2")
        assert await done_by(storage.copy_local(local, "a.csv")) == f"{place.root}/{artifacts}a.csv"
        assert local.read_text() == "1,2" and await done_by(storage.get_text("a.csv")) == "1,2"
        assert await done_by(storage.move_local(local, "b/a.csv")) == f"{place.root}/{artifacts}b/a.csv"
        assert not local.exists() and await done_by(storage.get_text("b/a.csv")) == "1,2"
        created = [entry.key for entry in await done_by(storage.list_files(modified_since=begun))]
        assert created == [f"{artifacts}a.csv", f"{artifacts}b/a.csv"]

    asyncio.run(use())
    keys = {storage.generate_key("plot", ".png") for _ in range(50)}
    pattern = rf"{artifacts}plot_\d{{8}}_\d{{6}}_[0-9a-f]{{8}}\.png"
    assert len(keys) == 50 and all(re.fullmatch(pattern, key) for key in keys)


@pytest.mark.parametrize("flat", [False, True])
def test_keys_and_ids_that_lead_out_are_refused(unique, tmp_path, flat):
    config = roma.StorageConfig(base_path=str(tmp_path), flat_structure=flat, backend="local")
    storage = roma.SyncFileStorage(config, unique)
    for key in ("../x", "a/../../x", "", "/", "x\0y"):
        with pytest.raises(ConfigurationError):
            storage.put(key, b"")
    storage.get_artifacts_path("out").symlink_to("/etc")
    with pytest.raises(ConfigurationError):
        storage.get("out/hostname")
    with pytest.raises(ConfigurationError):
        storage.get_artifacts_path("../x")
    with pytest.raises(ConfigurationError):
        roma.SyncFileStorage(None, "../escape")
    small = roma.SyncFileStorage(roma.StorageConfig(max_file_size=10), unique)
    with pytest.raises(FileTooLargeError):
        small.put("x", b"x" * 11)


def test_another_base_path_than_the_servers_is_told(unique):
    with pytest.raises(ConfigurationError, match="path mismatch"):
        roma.FileStorage(roma.StorageConfig(base_path="/srv/elsewhere"), unique)


def test_the_twelve_tools_work_in_one_sandbox(unique, tmp_path, alive):
    with roma.E2BToolkit(execution_id=unique) as toolkit:
        assert tuple(toolkit.get_enabled_tools()) == TOOLS
        assert toolkit.get_sandbox_status().data["status"] == "no_sandbox"
        code = toolkit.run_python_code("x = 6\nprint(x)\nx * 7").data
        assert (code["success"], code["ok"], code["stdout"], code["results"]) == (True, True, ["6"], ["42"])
        wrong = toolkit.run_python_code("1/0").data
        assert wrong["success"] and not wrong["ok"] and wrong["error"] == "ZeroDivisionError: division by zero"
        command = toolkit.run_command("echo out; echo err >&2; exit 3").data
        assert (command["exit_code"], command["stdout"], command["stderr"]) == (3, "out\n", "err\n")
        assert toolkit.create_directory("/home/user/a b; touch pwned").data["ok"]
        assert toolkit.write_file_content("/home/user/a b; touch pwned/t.txt", "täxt").data["size_bytes"] == 5
        assert toolkit.read_file_content("/home/user/a b; touch pwned/t.txt").data["content"] == "täxt"
        assert "pwned" in toolkit.list_files().data["output"]
        assert not toolkit.read_file_content("/home/user/pwned").data["ok"]
        binary = tmp_path / "b.bin"
        binary.write_bytes(os.urandom(5 << 20))
        sent = toolkit.upload_file(str(binary), "/home/user/b.bin").data
        assert (sent["ok"], sent["size_bytes"], sent["sandbox_id"]) == (True, 5 << 20, code["sandbox_id"])
        got = toolkit.download_file("/home/user/b.bin", str(tmp_path / "down" / "b.bin")).data
        assert got["ok"] and (tmp_path / "down" / "b.bin").read_bytes() == binary.read_bytes()
        assert not toolkit.upload_file(str(tmp_path / "none"), "/x").data["success"]
        assert toolkit.get_sandbox_url(8000).data["url"].startswith("8000-")
        assert not toolkit.install_package("x; touch /tmp/pwned").data["ok"]
        toolkit.run_python_code(PACKAGE)
        assert toolkit.install_package("/home/user/tiny-1.0-py3-none-any.whl").data["ok"]
        assert toolkit.run_python_code("import tiny; tiny.answer").data["results"] == ["42"]
        status = toolkit.get_sandbox_status().data
        assert (status["status"], status["sandbox_id"], status["timeout"]) == ("running", code["sandbox_id"], 300)
        restarted = toolkit.restart_sandbox().data
        assert restarted["old_sandbox_id"] == code["sandbox_id"] != restarted["new_sandbox_id"]
        assert "NameError" in toolkit.run_python_code("x").data["error"]
    assert not alive(code["sandbox_id"]) and not alive(restarted["new_sandbox_id"])


def test_the_tools_can_be_awaited_and_a_lost_sandbox_is_told(unique, tmp_path, alive):
    async def use():
        async with roma.AsyncE2BToolkit(execution_id=unique, timeout=120) as toolkit:
            first = (await toolkit.run_python_code("x = 1")).data
            both = await asyncio.gather(toolkit.run_command("sleep 1; echo a"), toolkit.run_python_code("x + 1"))
            assert (both[0].data["stdout"], both[1].data["results"]) == ("a\n", ["2"])
            reached = (await toolkit.get_sandbox_url(8000)).data
            assert reached["url"].startswith("8000-") and reached["sandbox_id"] == first["sandbox_id"]
            (tmp_path / "in.bin").write_bytes(b"\0\xff")
            assert (await toolkit.upload_file(str(tmp_path / "in.bin"), "in.bin")).data["ok"]
            assert (await toolkit.download_file("in.bin", str(tmp_path / "out.bin"))).data["size_bytes"] == 2
            assert len(await toolkit.definitions("mcp")) == 12
            assert (await toolkit.call("write_file_content", '{"path": "n.txt", "content": "n"}')).data["ok"]
            from e2b import AsyncSandbox

            await AsyncSandbox.kill(first["sandbox_id"])
            again = (await toolkit.run_python_code("1")).data
            assert again["restarted"] and again["old_sandbox_id"] == first["sandbox_id"]
            return again["sandbox_id"]

    assert not alive(asyncio.run(use()))


def test_code_written_to_await_the_tools_runs_with_the_blocking_class(unique):
    async def use():
        async with roma.E2BToolkit(execution_id=unique) as toolkit:
            return json.loads(await toolkit.run_python_code("print(1)"))

    assert asyncio.run(use())["stdout"] == ["1"]


def test_configuration_before_environment_before_default(unique, monkeypatch):
    monkeypatch.setenv("E2B_TEMPLATE_ID", "from-env")
    assert roma.E2BToolkit(template="mine", execution_id=unique).template == "mine"
    assert roma.E2BToolkit(execution_id=unique).template == "from-env"
    monkeypatch.delenv("E2B_TEMPLATE_ID")
    with roma.E2BToolkit(execution_id=unique) as toolkit:
        assert toolkit.template is None
        toolkit.run_command("true")
        assert toolkit.get_sandbox_status().data["template"] == "code-interpreter-v1"
    unknown = roma.E2BToolkit(execution_id=unique, template="no-such-template").run_command("true").data
    assert not unknown["success"] and "no-such-template" in unknown["error"]
    for wrong in ({"timeout": 0}, {"max_lifetime_hours": 25}, {"max_lifetime_hours": 0}, {"max_lifetime_hours": float("nan")}):
        with pytest.raises(ConfigurationError):
            roma.E2BToolkit(execution_id=unique, **wrong)
    monkeypatch.delenv("E2B_API_KEY")
    with pytest.raises(ValueError, match="E2B_API_KEY"):
        roma.E2BToolkit()


@both_toolkits
def test_only_chosen_tools_can_be_called(unique, toolkit_class):
    chosen = {"include_tools": ["run_command", "upload_file"], "exclude_tools": ["upload_file"]}

    async def use():
        async with toolkit_class(execution_id=unique, **chosen) as toolkit:
            assert list(toolkit.get_enabled_tools()) == ["run_command"]
            assert [one["name"] for one in await done_by(toolkit.definitions("anthropic"))] == ["run_command"]
            assert "not enabled" in (await toolkit.run_python_code("1")).data["error"]
            assert "not enabled" in (await toolkit.upload_file("/etc/hostname", "x")).data["error"]
            unknown = await toolkit.call("run_python_code", {"code": "1"})
            assert unknown.data["error"] == "Unknown tool: run_python_code"
            assert "wrong arguments" in (await toolkit.call("run_command", {"nope": 1})).data["error"]

    asyncio.run(use())
    with pytest.raises(ConfigurationError, match="unknown tools: nope"):
        toolkit_class(execution_id=unique, include_tools=["nope"])


@both_toolkits
def test_without_auto_reinitialize_a_lost_sandbox_is_an_error_until_a_restart(unique, tmp_path, alive, toolkit_class):
    from e2b import AsyncSandbox

    async def use():
        async with toolkit_class(execution_id=unique, auto_reinitialize=False) as toolkit:
            first = (await toolkit.run_python_code("x = 1")).data
            assert first["ok"], "the first sandbox replaces none"
            await AsyncSandbox.kill(first["sandbox_id"])
            (tmp_path / "up.bin").write_bytes(b"x")
            for refused in (
                await toolkit.run_python_code("1"),
                await toolkit.run_command("true"),
                await toolkit.upload_file(str(tmp_path / "up.bin"), "up.bin"),
            ):
                assert not refused.data["success"] and not refused.data["ok"], refused
                assert "auto_reinitialize is off; restart_sandbox creates a new one" in refused.data["error"], refused
            assert (await toolkit.get_sandbox_status()).data["status"] == "stopped"
            restarted = (await toolkit.restart_sandbox()).data
            assert restarted["old_sandbox_id"] == first["sandbox_id"] != restarted["new_sandbox_id"]
            again = (await toolkit.run_python_code("x")).data
            assert again["error"].startswith("NameError") and again["sandbox_id"] == restarted["new_sandbox_id"]
            return again["sandbox_id"]

    assert not alive(asyncio.run(use()))


def test_a_sandbox_is_replaced_before_it_is_too_old(unique):
    # It may live 3.6 s. No call comes 3 s after the one before, so that it never ends by its timeout.
    with roma.E2BToolkit(execution_id=unique, timeout=3, max_lifetime_hours=0.001) as toolkit:
        first = toolkit.run_python_code("x = 1").data
        done = first
        while not done.get("restarted"):
            assert done["ok"] and done["sandbox_id"] == first["sandbox_id"], done
            done = toolkit.run_command("sleep 0.2").data
        assert done["ok"] and done["old_sandbox_id"] == first["sandbox_id"] != done["sandbox_id"]


@both_toolkits
def test_the_steps_of_romas_integration_test(unique, tmp_path, alive, toolkit_class):
    """Its steps in its order, awaited as there: ROMA's own class is asynchronous, and code for it must run with both of ours."""

    async def use():
        toolkit = toolkit_class(execution_id=unique, timeout=300)
        assert toolkit.get_available_tool_names() == set(TOOLS)
        described = toolkit.get_tool_metadata("run_python_code")
        assert described["name"] == "run_python_code" and "Python code" in described["description"]
        assert described["async_supported"] is (toolkit_class is roma.AsyncE2BToolkit)
        assert all(toolkit.get_tool_metadata(name)["description"] for name in TOOLS)
        assert toolkit.get_tool_metadata("close") is None

        assert (await toolkit.get_sandbox_status()).data["status"] == "no_sandbox"
        assert toolkit._sandbox is None
        first = (await toolkit.run_python_code("x = 10")).data
        assert first["success"] and toolkit._sandbox.sandbox_id == first["sandbox_id"]
        status = (await toolkit.get_sandbox_status()).data
        assert (status["status"], status["sandbox_id"]) == ("running", first["sandbox_id"])

        assert (await toolkit.run_python_code("print(x + 5)")).data["stdout"] == ["15"]
        slow = (await toolkit.run_python_code("import time\nfor second in range(3):\n    time.sleep(1)\n    print(second)")).data
        assert (slow["ok"], slow["stdout"], slow["sandbox_id"]) == (True, ["0", "1", "2"], first["sandbox_id"])
        wrong = (await toolkit.run_python_code("this is no Python !!!")).data
        assert wrong["success"] and not wrong["ok"] and wrong["error"].startswith("SyntaxError")
        command = (await toolkit.run_command("echo 'Hello from E2B'")).data
        assert (command["success"], command["exit_code"], command["stdout"]) == (True, 0, "Hello from E2B\n")

        binary = bytes(range(256)) * 5
        (tmp_path / "up.bin").write_bytes(binary)
        assert (await toolkit.upload_file(str(tmp_path / "up.bin"), "/home/user/up.bin")).data["remote_path"] == "/home/user/up.bin"
        assert (await toolkit.download_file("/home/user/up.bin", str(tmp_path / "down.bin"))).data["success"]
        assert (tmp_path / "down.bin").read_bytes() == binary
        assert (await toolkit.write_file_content("/home/user/test.txt", "from the host")).data["success"]
        read = (await toolkit.read_file_content("/home/user/test.txt")).data
        assert (read["content"], read["is_text"]) == ("from the host", True)
        assert (await toolkit.create_directory("/home/user/outer/inner")).data["success"]
        assert "outer" in (await toolkit.list_files("/home/user")).data["output"]
        await toolkit.run_python_code(PACKAGE)
        installed = (await toolkit.install_package("/home/user/tiny-1.0-py3-none-any.whl")).data
        assert (installed["success"], installed["exit_code"]) == (True, 0), installed
        assert (await toolkit.run_python_code("import tiny; print(tiny.answer)")).data["stdout"] == ["42"]

        async def one_of_many(number):
            return (await toolkit.run_python_code(f"print({number})")).data

        many = await asyncio.gather(*(one_of_many(number) for number in range(5)))
        assert [one["stdout"] for one in many] == [[str(number)] for number in range(5)]
        assert {one["sandbox_id"] for one in many} == {first["sandbox_id"]}

        restarted = (await toolkit.restart_sandbox()).data
        assert restarted["old_sandbox_id"] == first["sandbox_id"] != restarted["new_sandbox_id"]
        assert toolkit._sandbox.sandbox_id == restarted["new_sandbox_id"]
        assert (await toolkit.run_python_code("x")).data["error"].startswith("NameError")
        assert await toolkit.aclose() and toolkit._sandbox is None
        assert not await toolkit.aclose(), "there is nothing left to end"
        return restarted["new_sandbox_id"]

    assert not alive(asyncio.run(use()))


@both_toolkits
def test_a_lifetime_shorter_than_the_timeout_wins_and_the_workspace_stays(unique, alive, toolkit_class):
    """ROMA's own values: a lifetime of 0.36 s, which the next call after it notices although 30 s are not over."""
    storage = roma.SyncFileStorage(None, unique)
    storage.put("outputs/kept.bin", b"from the host")
    kept = f"/opt/sentient/executions/{unique}/outputs/kept.bin"

    async def use():
        async with toolkit_class(file_storage=storage, timeout=30, max_lifetime_hours=0.0001) as toolkit:
            write = f"for path in ('/home/user/lost.bin', '{kept}'): open(path, 'wb').write(bytes(range(256)))"
            first = (await toolkit.run_python_code(write)).data
            assert first["ok"] and not first["restarted"], first
            done = first
            while not done["restarted"]:
                assert done["sandbox_id"] == first["sandbox_id"], done
                done = (await toolkit.run_python_code("1")).data
            assert done["ok"] and done["old_sandbox_id"] == first["sandbox_id"] != done["sandbox_id"]
            look = f"import os; print(os.path.exists('/home/user/lost.bin'), open('{kept}', 'rb').read() == bytes(range(256)))"
            assert (await toolkit.run_python_code(look)).data["stdout"] == ["False True"]
            return first["sandbox_id"], toolkit._sandbox.sandbox_id

    first, last = asyncio.run(use())
    assert first != last and not alive(first) and not alive(last)
    assert storage.get("outputs/kept.bin") == bytes(range(256))


@pytest.mark.parametrize("has_snappy, used", [(True, "SNAPPY"), (False, "GZIP")])
def test_tables_are_compressed_by_what_there_is(unique, tmp_path, monkeypatch, has_snappy, used):
    import pyarrow
    from pyarrow import parquet

    codec = types.SimpleNamespace(is_available=lambda name: has_snappy)
    monkeypatch.setattr(pyarrow, "Codec", codec)
    storage = roma.FileStorage(roma.StorageConfig(base_path=str(tmp_path), flat_structure=True), unique)
    path, size = asyncio.run(roma.DataStorage(storage, "t").store_parquet([{"a": 1}, {"a": 2}], "d", "p"))
    blocking = roma.SyncDataStorage(roma.SyncFileStorage(storage.config, unique), "t", threshold_kb=0.001)
    assert blocking.load_parquet(path) == [{"a": 1}, {"a": 2}]
    assert blocking.store_if_large({"a": 1}, "d", "p")["rows"] == 1
    assert parquet.ParquetFile(path).metadata.row_group(0).column(0).compression == used
    assert size == round(os.path.getsize(path) / 1024, 2)


both_data = pytest.mark.parametrize(
    "storage_class, data_class", [(roma.FileStorage, roma.DataStorage), (roma.SyncFileStorage, roma.SyncDataStorage)]
)


@both_data
def test_a_dictionary_is_one_row_as_in_roma(unique, tmp_path, storage_class, data_class):
    """An answer with lists of several lengths, such as prices and volumes, is one row with these lists."""
    storage = storage_class(roma.StorageConfig(base_path=str(tmp_path), flat_structure=True), unique)
    data = data_class(storage, "coingecko", threshold_kb=0.001)

    async def row_of(stored):
        answer = await done_by(data.store_if_large(stored, "charts", "btc"))
        assert answer["stored"] and answer["rows"] == 1, answer
        [row] = await done_by(data.load_parquet(answer["file_path"]))
        frame = await done_by(data.load_frame(answer["file_path"]))
        assert (len(frame), list(frame.columns)) == (1, list(row))
        return row

    async def use():
        row = await row_of({"prices": [1.5, 2.5, 3.5], "volumes": [10], "of": {"coin": "btc"}})
        assert ([*row["prices"]], [*row["volumes"]], row["of.coin"]) == ([1.5, 2.5, 3.5], [10], "btc")
        row = await row_of({"a": [1, 2], "b": [3, 4]})
        assert ([*row["a"]], [*row["b"]]) == ([1, 2], [3, 4]), "lists of one length are no columns either"
        assert await row_of({"coin": "btc", "usd": 1.5}) == {"coin": "btc", "usd": 1.5}

    asyncio.run(use())


def test_large_data_becomes_a_table_that_the_sandbox_reads(unique):
    pandas = pytest.importorskip("pandas")

    async def use():
        storage = roma.FileStorage(None, unique)
        data = roma.DataStorage(storage, "defillama")
        small = [{"name": "a", "tvl": 1.5}]
        assert await data.store_if_large(small, "protocols", "tvl") == {"stored": False, "data": small}
        assert not data.should_store("x" * (1000 * 1024 - 2)) and data.should_store("x" * (1000 * 1024))
        rows = [{"name": f"protocol-{number}", "tvl": number * 1.5} for number in range(40_000)]
        answer = await data.store_if_large(rows, "protocols", "tvl")
        pattern = rf"/opt/sentient/executions/{unique}/artifacts/defillama/protocols/tvl_\d{{8}}_\d{{6}}_[0-9a-f]{{8}}\.parquet"
        assert answer["stored"] and answer["rows"] == 40_000 and re.fullmatch(pattern, answer["file_path"])
        assert await data.load_parquet(answer["file_path"]) == rows
        pandas.testing.assert_frame_equal(await data.load_frame(answer["file_path"]), pandas.DataFrame(rows))
        with pytest.raises(FileNotFoundError):
            await data.load_parquet("artifacts/none.parquet")
        async with roma.AsyncE2BToolkit(file_storage=storage) as toolkit:
            seen = await toolkit.run_command(f"head -c 4 {answer['file_path']}")
            assert seen.data["stdout"] == "PAR1"

    asyncio.run(use())

