"""Pause and resume, with memory and with files only, explicitly, by timeout and by traffic."""

import asyncio

import e2b
from harness.cases import Absent, case
from kit import exception, go, raises, takes, until

COUNTER = "i=0; while true; do i=$((i+1)); echo $i > /tmp/next; mv /tmp/next /tmp/count; sleep 0.05; done"


def pause(sandbox, **options):
    """`pause`, or its former name."""
    for name in ("pause", "beta_pause"):
        if hasattr(sandbox, name):
            return getattr(sandbox, name)(**options)
    raise Absent("no pause")


async def state(sdk, sandbox):
    return (await go(sdk.Sandbox.get_info(sandbox.sandbox_id))).state


async def count(sandbox):
    is_there = await go(sandbox.files.exists("/tmp/count"))
    return int(await go(sandbox.files.read("/tmp/count"))) if is_there else 0


@case("pause", core=True)
async def memory_and_processes_survive_a_pause(sdk):
    async with sdk.sandbox() as sandbox:
        handle = await go(sandbox.commands.run(COUNTER, background=True, timeout=0))
        await go(sandbox.files.write("kept", "yes"))
        await go(pause(sandbox))
        assert await state(sdk, sandbox) == e2b.SandboxState.PAUSED
        again = await go(sdk.Sandbox.connect(sandbox.sandbox_id, timeout=60))
        assert again.sandbox_id == sandbox.sandbox_id
        assert await state(sdk, sandbox) == e2b.SandboxState.RUNNING
        assert await go(again.files.read("kept")) == "yes"
        assert handle.pid in [p.pid for p in await go(again.commands.list())]

        before = await count(again)

        async def moves():
            return await count(again) > before

        await until(moves)


@case("pause")
async def pausing_twice_is_false_and_ids_suffice(sdk):
    async with sdk.sandbox() as sandbox:
        assert await go(sdk.Sandbox.pause(sandbox.sandbox_id)) is True
        assert await go(sandbox.pause()) is False
        assert await go(sandbox.is_running()) is False
        resumed = await go(sandbox.connect(timeout=60))
        assert resumed.sandbox_id == sandbox.sandbox_id
        assert (await go(sandbox.commands.run("echo awake"))).stdout == "awake\n"


@case("pause")
async def a_paused_sandbox_does_not_answer_and_can_be_killed(sdk):
    sandbox = await go(sdk.Sandbox.create(timeout=60))
    await go(sandbox.pause())
    async with raises(e2b.SandboxException):
        await go(sandbox.commands.run("true"))
    assert await go(sandbox.kill()) is True
    async with raises(exception("NotFoundException")):
        await go(sdk.Sandbox.connect(sandbox.sandbox_id))


@case("pause")
async def a_pause_outlives_the_time_and_resume_starts_a_new_one(sdk):
    async with sdk.sandbox(timeout=2) as sandbox:
        await go(sandbox.pause())
        await asyncio.sleep(2.5)
        assert await state(sdk, sandbox) == e2b.SandboxState.PAUSED
        again = await go(sdk.Sandbox.connect(sandbox.sandbox_id, timeout=60))
        assert await go(again.is_running())


@case("pause")
async def ten_cycles_lose_nothing(sdk):
    async with sdk.sandbox() as sandbox:
        handle = await go(sandbox.commands.run("read x; echo got $x", background=True, stdin=True, timeout=0))
        for i in range(10):
            assert await go(sandbox.pause()) is True
            sandbox = await go(sdk.Sandbox.connect(sandbox.sandbox_id, timeout=60))
            await go(sandbox.files.write(f"f{i}", str(i)))
        again = await go(sandbox.commands.connect(handle.pid))
        await go(sandbox.commands.send_stdin(handle.pid, "it\n"))
        assert (await go(again.wait())).stdout == "got it\n"
        assert len([e for e in await go(sandbox.files.list(".")) if e.name.startswith("f")]) == 10


@case("pause")
async def a_command_under_a_pause_is_told_or_goes_on(sdk):
    async with sdk.sandbox() as sandbox:
        handle = await go(sandbox.commands.run("sleep 1; echo end > /tmp/end; echo end", background=True))
        await go(sandbox.pause())
        again = await go(sdk.Sandbox.connect(sandbox.sandbox_id, timeout=60))

        async def is_done():
            return await go(again.files.exists("/tmp/end"))

        await until(is_done)
        try:
            assert (await go(handle.wait())).stdout == "end\n"
        except Exception:
            # The pause has cut the stream. What the SDK makes of that depends on the transport and on whether the
            # sandbox runs again when it looks; that it does not hang is what matters here.
            pass


@case("pause-files")
async def files_only_keeps_files_and_drops_processes(sdk):
    async with sdk.sandbox() as sandbox:
        takes(sandbox.pause, "mode")
        handle = await go(sandbox.commands.run("sleep 1000", background=True, timeout=0))
        await go(sandbox.files.write("kept", "yes"))
        await go(sandbox.commands.run("echo root > /opt/kept", user="root"))
        assert await go(sandbox.pause(mode="filesystem")) is True
        assert await state(sdk, sandbox) == e2b.SandboxState.PAUSED
        again = await go(sdk.Sandbox.connect(sandbox.sandbox_id, timeout=60))
        assert await go(again.files.read("kept")) == "yes"
        assert await go(again.files.read("/opt/kept")) == "root\n"
        assert handle.pid not in [p.pid for p in await go(again.commands.list())]
        assert (await go(again.commands.run("pgrep -fc '^sleep 100[0]$' || true"))).stdout == "0\n"
        assert (await go(again.commands.run("echo $E2B_SANDBOX_ID"))).stdout == f"{sandbox.sandbox_id}\n"


@case("pause-files")
async def a_boot_id_belongs_to_one_boot_of_one_sandbox(sdk):
    path = "/proc/sys/kernel/random/boot_id"
    async with sdk.sandbox() as sandbox, sdk.sandbox() as other:
        takes(sandbox.pause, "mode")
        first = await go(sandbox.files.read(path))
        with open(path) as host:
            assert first not in (host.read(), await go(other.files.read(path)))
        await go(sandbox.pause())
        again = await go(sdk.Sandbox.connect(sandbox.sandbox_id, timeout=60))
        assert (await go(again.commands.run(f"cat {path}"))).stdout == first
        await go(again.pause(mode="filesystem"))
        booted = await go(sdk.Sandbox.connect(sandbox.sandbox_id, timeout=60))
        assert await go(booted.files.read(path)) != first


@case("pause-files")
async def a_paused_sandbox_can_be_started_from_its_files(sdk):
    async with sdk.sandbox() as sandbox:
        takes(sandbox.connect, "on_resume")
        await go(sandbox.files.write("kept", "yes"))
        handle = await go(sandbox.commands.run("sleep 1000", background=True, timeout=0))
        await go(sandbox.pause())
        again = await go(sdk.Sandbox.connect(sandbox.sandbox_id, timeout=60, on_resume="reboot"))
        assert await go(again.files.read("kept")) == "yes"
        assert handle.pid not in [p.pid for p in await go(again.commands.list())]


@case("pause-files")
async def keep_memory_false_is_the_same(sdk):
    async with sdk.sandbox(envs={"KEPT": "env"}) as sandbox:
        await go(sandbox.pause(keep_memory=False))
        again = await go(sdk.Sandbox.connect(sandbox.sandbox_id, timeout=60))
        assert (await go(again.commands.run("echo $KEPT"))).stdout == "env\n"


@case("auto-pause")
async def the_end_of_the_time_pauses(sdk):
    async with sdk.sandbox(timeout=2, lifecycle={"on_timeout": "pause"}) as sandbox:
        await go(sandbox.commands.run(COUNTER, background=True, timeout=0))

        async def is_paused():
            return await state(sdk, sandbox) == e2b.SandboxState.PAUSED

        await until(is_paused, seconds=12)
        async with raises(e2b.SandboxException):
            await go(sandbox.commands.run("true"))
        again = await go(sdk.Sandbox.connect(sandbox.sandbox_id, timeout=60))
        assert await count(again) > 0


@case("auto-pause")
async def traffic_wakes_a_sandbox_that_resumes_by_itself(sdk):
    lifecycle = {"on_timeout": "pause", "auto_resume": True}
    async with sdk.sandbox(timeout=2, lifecycle=lifecycle) as sandbox:
        assert (await go(sandbox.get_info())).lifecycle["auto_resume"] is True
        await go(sandbox.files.write("kept", "yes"))

        async def is_paused():
            return await state(sdk, sandbox) == e2b.SandboxState.PAUSED

        await until(is_paused, seconds=12)
        assert (await go(sandbox.commands.run("cat kept"))).stdout == "yes"
        assert await state(sdk, sandbox) == e2b.SandboxState.RUNNING


@case("auto-pause")
async def the_end_of_the_time_can_pause_with_files_only(sdk):
    lifecycle = {"on_timeout": {"action": "pause", "mode": "filesystem"}}
    async with sdk.sandbox(timeout=2, lifecycle=lifecycle) as sandbox:
        takes(sandbox.pause, "mode")
        await go(sandbox.files.write("kept", "yes"))
        handle = await go(sandbox.commands.run("sleep 1000", background=True, timeout=0))

        async def is_paused():
            return await state(sdk, sandbox) == e2b.SandboxState.PAUSED

        await until(is_paused, seconds=12)
        again = await go(sdk.Sandbox.connect(sandbox.sandbox_id, timeout=60))
        assert await go(again.files.read("kept")) == "yes"
        assert handle.pid not in [p.pid for p in await go(again.commands.list())]
