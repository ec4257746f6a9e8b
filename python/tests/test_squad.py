"""The second seed: the service that its plan describes, against a live server."""

import asyncio
import re

import pytest
import seedtext

from isopod.compat import squad
from isopod.errors import (
    BackendUnavailableError,
    InvalidKeyError,
    InvalidRequestError,
    NotFoundError,
    QuotaExceededError,
    UnreachableError,
)
from isopod.service import SandboxService


def test_every_method_of_the_seeds_service_is_there_with_its_parameters():
    plan = seedtext.block(1, "python", "class E2BSandboxService")
    planned = re.findall(r"async def (\w+)\((.*?)\)", plan)
    assert len(planned) == 7, planned
    import inspect

    for name, parameters in planned:
        for kind in (squad.E2BSandboxService, SandboxService):
            method = getattr(kind, name)
            assert inspect.iscoroutinefunction(method) == (kind is squad.E2BSandboxService)
            taken = list(inspect.signature(method).parameters)[1:]
            wanted = [one.strip() for one in parameters.split(",") if one.strip()]
            assert taken[: len(wanted)] == wanted, (name, taken)


def test_a_task_from_create_to_destroy(unique, tmp_path, alive):
    async def use():
        service = squad.E2BSandboxService()
        sandbox = await squad.create_sandbox_with_retry("ada", unique)
        assert (sandbox.agent_id, sandbox.task_id, sandbox.status) == ("ada", unique, "running")
        result = await service.execute_command(sandbox.id, "echo out; echo err >&2; exit 3")
        assert (result.stdout, result.stderr, result.exit_code, result.success) == ("out\n", "err\n", 3, False)
        safe = await service.execute_command(sandbox.sandbox_id, ["echo", "$HOME; rm"], env={"A": "b"}, cwd="/tmp")
        assert safe.stdout == "$HOME; rm\n"
        late = await service.execute_command(sandbox.id, "sleep 60", timeout=1)
        assert late.timed_out and not late.success
        local = tmp_path / "up.bin"
        local.write_bytes(bytes(range(256)))
        assert await service.upload_file(sandbox.id, str(local), "/home/user/up.bin") == 256
        assert await service.download_file(sandbox.id, "/home/user/up.bin", str(tmp_path / "down.bin")) == 256
        assert (tmp_path / "down.bin").read_bytes() == local.read_bytes()
        with pytest.raises(NotFoundError):
            await service.download_file(sandbox.id, "/none", str(tmp_path / "none"))
        assert (await service.pause_sandbox(sandbox.id)).status == "paused"
        assert (await service.resume_sandbox(sandbox.id)).status == "running"
        assert [one.id for one in await service.list_sandboxes(task_id=unique)] == [sandbox.id]
        await service.destroy_sandbox(sandbox.id)
        await service.destroy_sandbox(sandbox.id)
        status = await service.get_status(sandbox.id)
        assert (status.status, status.reason) == ("stopped", "destroyed") and status.destroyed_at
        assert await service.list_sandboxes(task_id=unique) == []
        assert len(await service.list_sandboxes(task_id=unique, include_ended=True)) == 1
        return sandbox.sandbox_id

    assert not alive(asyncio.run(use()))


def test_errors_have_types(unique, monkeypatch):
    service = SandboxService()
    with pytest.raises(NotFoundError) as missing:
        service.get_status("no-such-sandbox")
    assert (missing.value.status, missing.value.code) == (404, "sandbox_not_found")
    with pytest.raises(InvalidRequestError):
        service.create_sandbox("ada", unique, timeout=-1)
    with pytest.raises(InvalidKeyError) as key:
        SandboxService(api_key="e2b_" + "0" * 40).get_status("x")
    assert key.value.code == "invalid_key"
    with pytest.raises(UnreachableError):
        SandboxService(api_url="http://127.0.0.1:9").get_status("x")
    monkeypatch.delenv("E2B_API_KEY")
    with pytest.raises(ValueError, match="E2B_API_KEY"):
        squad.E2BSandboxService()


def test_transient_failures_are_retried_and_others_are_not():
    class Flaky:
        def __init__(self, errors):
            self.errors, self.calls = list(errors), 0

        def run(self, _):
            self.calls += 1
            if self.errors:
                raise self.errors.pop(0)
            return "made"

    def attempt(*errors):
        service, pauses = SandboxService(), []
        service._client = Flaky(errors)
        try:
            return service._retried(lambda: None, pauses.append), service._client.calls, pauses
        except Exception as error:
            return type(error), service._client.calls, pauses

    down = BackendUnavailableError("down", status=503)
    made, calls, pauses = attempt(down, UnreachableError("gone"))
    assert (made, calls) == ("made", 3) and 1 <= pauses[0] <= 1.5 and 2 <= pauses[1] <= 3
    assert attempt(down, down, down)[:2] == (BackendUnavailableError, 3)
    full = QuotaExceededError("full", status=429)
    assert attempt(full)[:2] == (QuotaExceededError, 1)
    assert attempt(QuotaExceededError("full", status=429, retry_after=2)) == ("made", 2, [2.0])
    assert attempt(InvalidRequestError("no", status=400))[:2] == (InvalidRequestError, 1)


def test_attempts_at_one_sandbox_make_one(unique):
    from isopod._service import operations

    service = SandboxService()
    make = operations.create("ada", unique, None, None, None, None, None, unique)
    first, second = service._client.run(make()), service._client.run(make())
    assert first.id == second.id
    service.destroy_sandbox(first.id)


def test_old_sandboxes_of_the_service_are_cleaned_up_and_no_others(unique, sandbox_factory, alive):
    service, other = SandboxService(), sandbox_factory(template="base")
    sandbox = service.create_sandbox("ada", unique)
    assert service.cleanup_stale_sandboxes() == 0
    assert service.cleanup_stale_sandboxes(older_than_hours=0) >= 1
    assert service.get_status(sandbox.id).status == "stopped"
    assert alive(other.sandbox_id)


def test_git_in_a_sandbox(unique):
    service = SandboxService()
    sandbox = service.create_sandbox("ada", unique)
    setup = "git init -q --bare /tmp/r.git && git clone -q /tmp/r.git /tmp/c && cd /tmp/c && git checkout -qb main && "
    setup += "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m 'chore: begin' && git push -q -u origin main"
    made = service.execute_command(sandbox.id, setup)
    assert made.success, made
    service.git_clone(sandbox.id, "file:///tmp/r.git", branch="main")
    service.git_branch(sandbox.id, "task-1")
    service.execute_command(sandbox.id, "echo x > /workspace/repo/x")
    with pytest.raises(InvalidRequestError):
        service.git_commit(sandbox.id, "no conventional message")
    service.git_commit(sandbox.id, "feat: add x")
    service.git_push(sandbox.id)
    assert "feat: add x" in str(service.git_history(sandbox.id).data)
    pushed = service.execute_command(sandbox.id, "git -C /tmp/r.git log -1 --format=%s task-1")
    assert pushed.stdout == "feat: add x\n", pushed
    service.destroy_sandbox(sandbox.id)
