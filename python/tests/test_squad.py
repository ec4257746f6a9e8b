"""The second seed: the service that its plan describes, against a live server."""

import asyncio
import contextlib
import http.server
import json
import re
import subprocess
import threading

import httpx
import pytest
import seedtext
from conftest import done_by, program

from isopod.compat import squad
from isopod._service import operations
from isopod.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    ConflictError,
    InvalidKeyError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    QuotaExceededError,
    ReplyTimeoutError,
    TimedOutError,
    TransientError,
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


class Admin:
    """What only the operator may do, with a key that is created on the server's machine."""

    def __init__(self, server):
        words = [program(), "--state-dir", str(server.state), "key", "create", "--local", "--scope", "admin"]
        key = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
        self.client = httpx.Client(base_url=server.url, headers={"X-API-Key": key}, trust_env=False)

    @contextlib.contextmanager
    def limit(self, **limits):
        """The tests' team has these limits for a while."""
        path = f"/api/v1/teams/{self.client.get('/api/v1/quota').json()['team_id']}/quota"
        self.client.put(path, json={"limits": limits}).raise_for_status()
        try:
            yield
        finally:
            self.client.delete(path).raise_for_status()


def test_a_full_quota_is_an_error_of_its_own_with_what_is_full(unique, server):
    async def use():
        return await squad.create_sandbox_with_retry("ada", unique)

    with Admin(server).limit(concurrent=0):
        for create in (lambda: SandboxService().create_sandbox("ada", unique), lambda: asyncio.run(use())):
            with pytest.raises(squad.QuotaExceededError) as full:
                create()
            assert (full.value.status, full.value.code, full.value.retry_after) == (429, "quota_exceeded", None)
            assert full.value.details | {"owner": "team", "what": "concurrent", "limit": 0} == full.value.details
            assert not isinstance(full.value, TransientError)
    sandbox = asyncio.run(use())
    SandboxService().destroy_sandbox(sandbox.id)


def test_a_wrong_key_is_an_error_of_its_own_and_is_not_tried_again(unique, monkeypatch):
    monkeypatch.setenv("E2B_API_KEY", "e2b_" + "0" * 40)
    pauses = []
    with pytest.raises(squad.InvalidKeyError) as refused:
        service = SandboxService()
        service._retried(operations.create("ada", unique, None, None, None, None, None, unique), pauses.append)
    assert (refused.value.status, refused.value.code, pauses) == (401, "invalid_key", [])

    async def use():
        await squad.create_sandbox_with_retry("ada", unique)

    with pytest.raises(squad.InvalidKeyError):
        asyncio.run(use())


class TimedOutBackend(http.server.BaseHTTPRequestHandler):
    """The service of a server whose backend does not answer, in its words."""

    requests = []

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.requests.append(self.command)
        body = json.dumps({"code": 504, "error_code": "backend_timeout", "message": "the backend did not answer"}).encode()
        self.send_response(504)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def log_message(self, *_):
        pass


def test_a_backend_that_does_not_answer_in_time_is_an_error_of_its_own(monkeypatch):
    monkeypatch.setattr(TimedOutBackend, "requests", [])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), TimedOutBackend) as away:
        threading.Thread(target=away.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{away.server_address[1]}"
        try:
            with pytest.raises(squad.BackendTimeoutError) as late:
                SandboxService(api_url=url).get_status("x")
            assert (late.value.status, late.value.code) == (504, "backend_timeout")
            with pytest.raises(squad.TimedOutError, match="the backend did not answer"):
                asyncio.run(squad.E2BSandboxService(api_url=url).get_status("x"))
            pauses = []
            with pytest.raises(squad.TimedOutError):
                service = SandboxService(api_url=url)
                service._retried(operations.create(None, None, None, None, None, None, None, "once"), pauses.append)
            assert TimedOutBackend.requests == ["GET", "GET", "POST", "POST", "POST"] and len(pauses) == 2
        finally:
            away.shutdown()


def test_a_reply_that_takes_too_long_is_an_error_of_its_own(unique, monkeypatch):
    service = SandboxService()
    sandbox = service.create_sandbox("ada", unique)
    monkeypatch.setattr(operations, "_COMMAND_SECONDS", 0)
    monkeypatch.setattr(operations, "_MARGIN", 0.5)
    with pytest.raises(squad.ReplyTimeoutError, match=f"POST http.*/{sandbox.id}/execute"):
        service.execute_command(sandbox.id, "sleep 60")
    with pytest.raises(squad.TimedOutError):
        asyncio.run(squad.E2BSandboxService().execute_command(sandbox.id, "sleep 60"))
    assert service.get_status(sandbox.id).is_running, "only who waited has given up"
    service.destroy_sandbox(sandbox.id)


def test_each_kind_of_error_can_be_told_from_the_others():
    """Quota, time, not found, key, and a backend that is down: a program that handles one must not get another."""
    kinds = [QuotaExceededError, TimedOutError, NotFoundError, InvalidKeyError, PermissionDeniedError, ConflictError]
    assert not [(one, other) for one in kinds for other in kinds if one is not other and issubclass(one, other)]
    for late in (BackendTimeoutError, ReplyTimeoutError):
        assert all(issubclass(late, kind) for kind in (TimedOutError, TransientError, TimeoutError, squad.SandboxServiceError))
    assert issubclass(BackendTimeoutError, BackendUnavailableError) and issubclass(ReplyTimeoutError, UnreachableError)
    assert not issubclass(BackendUnavailableError, TimedOutError) and not issubclass(UnreachableError, TimedOutError)


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


@pytest.mark.parametrize("kind", [SandboxService, squad.E2BSandboxService], ids=["blocking", "awaited"])
def test_git_in_a_sandbox(unique, kind):
    asyncio.run(use_git(kind(), unique))


async def use_git(service, unique):
    def call(name, *arguments, **named):
        """With either class, something to await."""
        return done_by(getattr(service, name)(*arguments, **named))

    sandbox = await call("create_sandbox", "ada", unique)
    setup = "git init -q --bare /tmp/r.git && git clone -q /tmp/r.git /tmp/c && cd /tmp/c && git checkout -qb main && "
    setup += "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m 'chore: begin' && git push -q -u origin main"
    made = await call("execute_command", sandbox.id, setup)
    assert made.success, made
    await call("git_clone", sandbox.id, "file:///tmp/r.git", branch="main")
    await call("git_branch", sandbox.id, "task-1")
    await call("execute_command", sandbox.id, "echo x > /workspace/repo/x")
    with pytest.raises(InvalidRequestError):
        await call("git_commit", sandbox.id, "no conventional message")
    await call("git_commit", sandbox.id, "feat: add x")
    await call("git_push", sandbox.id)
    assert "feat: add x" in str((await call("git_history", sandbox.id)).data)
    pushed = await call("execute_command", sandbox.id, "git -C /tmp/r.git log -1 --format=%s task-1")
    assert pushed.stdout == "feat: add x\n", pushed
    await call("destroy_sandbox", sandbox.id)
