"""Create, kill, info, timeouts, connect, sessions, idempotency, errors."""

import datetime
import time

import e2b
from harness.cases import Absent, case
from kit import exception, go, has, raises, takes, unique, until


@case("create", core=True)
async def created_without_a_template_it_runs_and_is_killed_once(sdk):
    sandbox = await go(sdk.Sandbox.create())
    assert (await go(sandbox.commands.run("echo Hello"))).stdout == "Hello\n"
    assert await go(sandbox.is_running()) is True
    assert await go(sandbox.kill()) is True
    assert await go(sandbox.is_running()) is False
    assert await go(sdk.Sandbox.kill(sandbox.sandbox_id)) is False


@case("create", core=True)
async def environment_and_metadata_of_the_create_hold(sdk):
    async with sdk.sandbox("base", envs={"GREETING": "hi there"}, metadata={"who": "me ü"}) as sandbox:
        assert (await go(sandbox.commands.run("echo $GREETING"))).stdout == "hi there\n"
        about = await go(sandbox.commands.run("echo $E2B_SANDBOX:$E2B_SANDBOX_ID"))
        assert about.stdout == f"true:{sandbox.sandbox_id}\n"
        assert (await go(sandbox.get_info())).metadata == {"who": "me ü"}


@case("create")
async def a_with_block_kills_the_sandbox_at_its_end(sdk):
    if sdk.name == "async":
        async with await sdk.Sandbox.create() as sandbox:
            assert await sandbox.is_running()
    else:
        with sdk.Sandbox.create() as sandbox:
            assert sandbox.is_running()
    assert await go(sandbox.is_running()) is False


@case("create")
async def twenty_created_at_once_are_all_different(sdk):
    made = await sdk.together([lambda: sdk.Sandbox.create(timeout=60)] * 20)
    try:
        assert len({sandbox.sandbox_id for sandbox in made}) == 20
    finally:
        killed = await sdk.together([sandbox.kill for sandbox in made])
    assert killed == [True] * 20


@case("info", core=True)
async def info_tells_what_was_asked_for(sdk):
    async with sdk.sandbox("base", timeout=90, metadata={"a": "b"}) as sandbox:
        info = await go(sandbox.get_info())
        assert info.sandbox_id == sandbox.sandbox_id
        assert (info.template_id, info.name) == ("base", "base")
        assert info.state == e2b.SandboxState.RUNNING
        assert 88 <= (info.end_at - info.started_at).total_seconds() <= 92
        assert info.cpu_count >= 1 and info.memory_mb >= 128
        assert info.envd_version
        again = await go(sdk.Sandbox.get_info(sandbox.sandbox_id))
        assert (again.sandbox_id, again.started_at) == (info.sandbox_id, info.started_at)


@case("info")
async def info_tells_the_lifecycle_and_the_network(sdk):
    options = {"lifecycle": {"on_timeout": "pause"}, "network": {"deny_out": ["192.0.2.0/24"]}}
    async with sdk.sandbox(allow_internet_access=True, **options) as sandbox:
        info = await go(sandbox.get_info())
        assert info.lifecycle["on_timeout"] == "pause"
        assert info.allow_internet_access is True
        assert info.network["deny_out"] == ["192.0.2.0/24"]


@case("timeouts", core=True)
async def a_sandbox_ends_when_its_time_is_over(sdk):
    start = time.monotonic()
    sandbox = await go(sdk.Sandbox.create(timeout=2))
    assert await go(sandbox.is_running())

    async def is_gone():
        return not await go(sandbox.is_running())

    # The upper bound is for a machine that is busy with all the other cases.
    await until(is_gone, seconds=10)
    assert time.monotonic() - start >= 1.5
    async with raises(exception("NotFoundException")):
        await go(sdk.Sandbox.get_info(sandbox.sandbox_id))


@case("timeouts", core=True)
async def set_timeout_goes_both_ways(sdk):
    async with sdk.sandbox(timeout=60) as sandbox:
        await go(sandbox.set_timeout(600))
        assert 590 <= await seconds_left(sandbox) <= 601
        await go(sdk.Sandbox.set_timeout(sandbox.sandbox_id, 30))
        assert 25 <= await seconds_left(sandbox) <= 31
        await go(sandbox.set_timeout(1))

        async def is_gone():
            return not await go(sandbox.is_running())

        await until(is_gone, seconds=12)


@case("timeouts")
async def connect_extends_and_never_shortens(sdk):
    async with sdk.sandbox(timeout=100) as sandbox:
        before = (await go(sandbox.get_info())).end_at
        await go(sdk.Sandbox.connect(sandbox.sandbox_id, timeout=10))
        assert (await go(sandbox.get_info())).end_at == before
        await go(sdk.Sandbox.connect(sandbox.sandbox_id, timeout=400))
        assert 390 <= await seconds_left(sandbox) <= 401


@case("timeouts")
async def more_than_the_longest_life_is_refused(sdk):
    async with raises(e2b.SandboxException) as seen:
        await go(sdk.Sandbox.create(timeout=30 * 24 * 3600))
    assert "400" in str(seen.error) and "hours" in str(seen.error)


async def seconds_left(sandbox):
    info = await go(sandbox.get_info())
    return (info.end_at - datetime.datetime.now(datetime.timezone.utc)).total_seconds()


@case("connect", core=True)
async def a_second_client_sees_the_same_sandbox(sdk):
    async with sdk.sandbox() as first:
        await go(first.files.write("shared.txt", "one"))
        second = await go(sdk.Sandbox.connect(first.sandbox_id))
        assert second.sandbox_id == first.sandbox_id
        assert await go(second.files.read("shared.txt")) == "one"
        assert (await go(second.commands.run("cat shared.txt"))).stdout == "one"


@case("session")
async def twenty_racing_callers_get_one_sandbox(sdk):
    metadata = {"isopod.session": unique("session"), "also": "this"}
    made = await sdk.together([lambda: sdk.Sandbox.create(metadata=metadata, timeout=60)] * 20)
    try:
        assert len({sandbox.sandbox_id for sandbox in made}) == 1
        await go(made[0].files.write("x", "1"))
        assert await go(made[19].files.read("x")) == "1"
    finally:
        await go(made[0].kill())
    after = await go(sdk.Sandbox.create(metadata=metadata, timeout=60))
    assert after.sandbox_id != made[0].sandbox_id
    await go(after.kill())


@case("session")
async def a_paused_session_is_resumed_and_another_template_refused(sdk):
    metadata = {"isopod.session": unique("session")}
    async with sdk.sandbox(metadata=metadata) as sandbox:
        await go(sandbox.pause())
        again = await go(sdk.Sandbox.create(metadata=metadata, timeout=60))
        assert again.sandbox_id == sandbox.sandbox_id
        assert await go(again.is_running())
        async with raises(e2b.SandboxException) as seen:
            await go(sdk.Sandbox.create(metadata=metadata, allow_internet_access=False))
        assert "409" in str(seen.error)


@case("idempotency")
async def one_key_makes_one_sandbox(sdk):
    takes(sdk.Sandbox.create, "idempotency_key")
    key = unique("key")
    first = await go(sdk.Sandbox.create(idempotency_key=key, timeout=60))
    second = await go(sdk.Sandbox.create(idempotency_key=key, timeout=60))
    try:
        assert first.sandbox_id == second.sandbox_id
        assert (await go(second.commands.run("echo same"))).stdout == "same\n"
        async with raises(e2b.SandboxException) as seen:
            await go(sdk.Sandbox.create(idempotency_key=key, timeout=61))
        assert "idempotency" in str(seen.error).lower()
    finally:
        await go(first.kill())


@case("errors", core=True)
async def a_wrong_key_is_an_authentication_error(sdk):
    async with raises(e2b.AuthenticationException):
        await go(sdk.Sandbox.create(api_key="e2b_" + "0" * 40))


@case("errors", core=True)
async def what_does_not_exist_is_not_found(sdk):
    missing = "i" + "0" * 20
    assert await go(sdk.Sandbox.kill(missing)) is False
    for call in (
        lambda: sdk.Sandbox.get_info(missing),
        lambda: sdk.Sandbox.connect(missing),
        lambda: sdk.Sandbox.set_timeout(missing, 10),
    ):
        async with raises(exception("NotFoundException")):
            await go(call())


@case("errors")
async def everything_on_a_missing_sandbox_is_sandbox_not_found(sdk):
    missing = "i" + "0" * 20
    kind = exception("SandboxNotFoundException")
    for call in (
        lambda: sdk.Sandbox.pause(missing),
        lambda: sdk.Sandbox.get_metrics(missing),
        lambda: sdk.Sandbox.update_network(missing, {"deny_out": ["192.0.2.1"]}),
    ):
        async with raises(kind):
            await go(call())


@case("create", core=True)
async def a_kernel_feature_that_the_operator_allows_is_there_on_request(sdk):
    namespace = "unshare --user --map-root-user id -u"
    async with sdk.sandbox(metadata={"isopod.allow": "userns"}) as sandbox:
        assert (await go(sandbox.commands.run(namespace))).stdout == "0\n"
    async with sdk.sandbox() as sandbox:
        async with raises(e2b.CommandExitException):
            await go(sandbox.commands.run(namespace))


@case("errors", core=True)
async def a_kernel_feature_that_the_operator_does_not_allow_is_refused(sdk):
    async with raises(e2b.SandboxException) as seen:
        await go(sdk.Sandbox.create(metadata={"isopod.allow": "fuse"}))
    assert "403" in str(seen.error) and "kernel feature fuse" in str(seen.error), repr(seen.error)


@case("errors")
async def an_unknown_template_is_named(sdk):
    async with raises(e2b.SandboxException) as seen:
        await go(sdk.Sandbox.create("no-such-template"))
    assert "404" in str(seen.error) and "no-such-template" in str(seen.error)


@case("errors", core=True)
async def a_killed_sandbox_says_so_to_its_client(sdk):
    sandbox = await go(sdk.Sandbox.create())
    await go(sandbox.kill())
    async with raises(e2b.TimeoutException):
        await go(sandbox.commands.run("true"))
    async with raises(e2b.SandboxException):
        await go(sandbox.files.read("x"))


@case("metrics")
async def metrics_are_real_numbers(sdk):
    get_metrics = has(sdk.Sandbox, "get_metrics")
    async with sdk.sandbox() as sandbox:
        info = await go(sandbox.get_info())
        await go(sandbox.commands.run("head -c 30000000 /dev/urandom > block; sync"))
        await go(sandbox.commands.run("timeout 20 python3 -c 'while True: pass'", background=True))

        async def busy():
            found = await go(sandbox.get_metrics())
            return found if any(metric.cpu_used_pct > 1 for metric in found) else None

        found = await until(busy, seconds=20, every=0.5)
        last = found[-1]
        assert last.cpu_count == info.cpu_count
        assert last.mem_total == info.memory_mb * 1024 * 1024
        assert 0 < last.mem_used < last.mem_total
        assert last.disk_total > last.disk_used >= 30_000_000
        assert info.started_at <= last.timestamp
        future = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
        assert await go(get_metrics(sandbox.sandbox_id, start=future)) == []


@case("metrics", core=True)
async def metrics_can_be_asked_for(sdk):
    if not hasattr(sdk.Sandbox, "get_metrics"):
        raise Absent("no get_metrics")
    async with sdk.sandbox() as sandbox:
        assert isinstance(await go(sandbox.get_metrics()), list)
