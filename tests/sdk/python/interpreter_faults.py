"""Timeouts, crashes, restarts during execution, killed and reconnected sandboxes."""

import asyncio
import threading
import time

import e2b
from harness.cases import case
from kit import exception, go, has, raises, until
from on_disk import pause_to_disk


@case("interrupts", core=True)
async def a_timeout_interrupts_the_code_and_keeps_the_state(sdk):
    async with sdk.sandbox() as sandbox:
        await go(sandbox.run_code("kept = 1"))
        async with raises(e2b.TimeoutException):
            await go(sandbox.run_code("import time\nwhile True: time.sleep(0.1)", timeout=1))
        start = time.monotonic()
        assert (await go(sandbox.run_code("kept"))).text == "1"
        assert time.monotonic() - start < 15


@case("interrupts")
async def a_command_under_way_ends_with_its_call(sdk):
    async with sdk.sandbox() as sandbox:
        async with raises(e2b.TimeoutException):
            await go(sandbox.run_code("!sleep 4712", timeout=1))

        async def is_gone():
            found = await go(sandbox.commands.run("pgrep -fc '^sleep 471[2]$' || true"))
            return found.stdout.strip() == "0"

        await until(is_gone)


@case("interrupts", only="async")
async def a_cancelled_call_interrupts_the_code(sdk):
    async with sdk.sandbox() as sandbox:
        await sandbox.run_code("n = 0")
        running = asyncio.create_task(sandbox.run_code("import time\nwhile True:\n    n += 1\n    time.sleep(0.05)"))
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        first = (await sandbox.run_code("n")).text
        assert int(first) > 0 and (await sandbox.run_code("n")).text == first


@case("recovery", core=True)
async def a_dead_kernel_is_reported_and_replaced(sdk):
    async with sdk.sandbox() as sandbox:
        await go(sandbox.run_code("x = 1"))
        start = time.monotonic()
        error = (await go(sandbox.run_code("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))).error
        assert error.name and error.value
        assert time.monotonic() - start < 10
        assert (await go(sandbox.run_code("1 + 1"))).text == "2"
        assert (await go(sandbox.run_code("x"))).error.name == "NameError"


@case("recovery")
async def a_kernel_killed_from_outside_is_reported_too(sdk):
    async with sdk.sandbox() as sandbox:
        pid = (await go(sandbox.run_code("import os; os.getpid()"))).text
        killer = threading.Timer(1.5, lambda: None)
        if sdk.name == "async":
            run = asyncio.create_task(sandbox.run_code("import time; time.sleep(60)"))
            await asyncio.sleep(1)
            await sandbox.commands.run(f"kill -9 {pid}", user="root")
            execution = await run
        else:
            killer = threading.Timer(1, lambda: sandbox.commands.run(f"kill -9 {pid}", user="root"))
            killer.start()
            execution = sandbox.run_code("import time; time.sleep(60)")
            killer.join()
        assert execution.error is not None
        assert (await go(sandbox.run_code("1"))).text == "1"


@case("recovery", only="async")
async def a_restart_ends_the_call_under_way(sdk):
    async with sdk.sandbox() as sandbox:
        context = await sandbox.create_code_context()
        running = asyncio.create_task(sandbox.run_code("import time; time.sleep(60)", context=context))
        await asyncio.sleep(1)
        await has(sandbox, "restart_code_context")(context)
        execution = await asyncio.wait_for(running, 20)
        assert execution.error.name == "ContextRestarting", execution.error
        assert (await sandbox.run_code("1", context=context)).text == "1"


@case("recovery", core=True)
async def a_killed_sandbox_is_not_found(sdk):
    async with sdk.sandbox() as sandbox:
        await go(sandbox.run_code("1"))
        await go(sandbox.kill())
        async with raises(e2b.SandboxException, e2b.TimeoutException):
            await go(sandbox.run_code("1"))


@case("recovery", core=True)
async def a_sandbox_killed_under_code_is_told_in_the_sdks_own_words(sdk):
    async with sdk.sandbox() as sandbox:
        code = "import time; print('up'); time.sleep(60)"
        async with raises(e2b.TimeoutException) as seen:
            await go(sandbox.run_code(code, on_stdout=lambda _: sandbox.kill()))
        assert "killed while the request was in progress" in str(seen.error), repr(seen.error)


@case("recovery", core=True)
async def a_template_without_an_interpreter_says_so_at_once(sdk):
    async with sdk.sandbox("base") as sandbox:
        start = time.monotonic()
        async with raises(exception("NotFoundException")) as seen:
            await go(sandbox.run_code("1"))
        assert "no code interpreter" in str(seen.error) and "code-interpreter-v1" in str(seen.error), repr(seen.error)
        assert time.monotonic() - start < 5


@case("recovery", core=True)
async def another_client_finds_the_state(sdk):
    async with sdk.sandbox() as sandbox:
        await go(sandbox.run_code("x = 7"))
        again = await go(sdk.Sandbox.connect(sandbox.sandbox_id))
        assert (await go(again.run_code("x"))).text == "7"


@case("recovery")
async def the_state_survives_a_pause(sdk):
    async with sdk.sandbox() as sandbox:
        await go(sandbox.run_code("x = 7"))
        await go(has(sandbox, "pause")())
        again = await go(sdk.Sandbox.connect(sandbox.sandbox_id))
        assert (await go(again.run_code("x"))).text == "7"


@case("recovery", core=True)
async def variables_and_contexts_go_on_after_their_memory_was_on_disk(sdk):
    async with sdk.sandbox() as sandbox:
        await go(sandbox.run_code("import numpy; x = numpy.arange(3)"))
        context = await go(sandbox.create_code_context())
        await go(sandbox.run_code("y = 8", context=context))
        await pause_to_disk(sandbox)
        again = await go(sdk.Sandbox.connect(sandbox.sandbox_id))
        assert (await go(again.run_code("int(x.sum())"))).text == "3"
        assert (await go(again.run_code("y", context=context))).text == "8"


@case("snapshots")
async def variables_and_contexts_go_on_in_a_sandbox_from_a_snapshot(sdk):
    async with sdk.sandbox() as sandbox:
        make = has(sandbox, "create_snapshot")
        await go(sandbox.run_code("x = [7]"))
        context = await go(sandbox.create_code_context())
        await go(sandbox.run_code("y = 8", context=context))
        taken = await go(make())
        try:
            await go(sandbox.run_code("x.append(1)"))
            async with sdk.sandbox(taken.snapshot_id) as copy:
                assert (await go(copy.run_code("x"))).text == "[7]"
                assert (await go(copy.run_code("y", context=context))).text == "8"
        finally:
            await go(sdk.Sandbox.delete_snapshot(taken.snapshot_id))


@case("fork")
async def variables_go_on_in_a_fork(sdk):
    async with sdk.sandbox() as sandbox:
        fork = has(sandbox, "fork")
        await go(sandbox.run_code("import random; x = [7]"))
        copies = await go(fork(count=2, timeout=60))
        try:
            seen = [(await go(copy.run_code("x.append(len(x)); x"))).text for copy in copies]
            assert seen == ["[7, 1]", "[7, 1]"], seen
            assert (await go(sandbox.run_code("x"))).text == "[7]"
            drawn = {(await go(one.run_code("random.random()"))).text for one in [sandbox, *copies]}
            assert len(drawn) == 3, "each draws other random numbers"
        finally:
            for copy in copies:
                await go(copy.kill())
