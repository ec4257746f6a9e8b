"""Contexts: created, listed, restarted, removed; each with its own state, directory and language."""

import asyncio
import time

import e2b
from harness.cases import case
from kit import exception, go, has, raises


@case("contexts", core=True)
async def contexts_have_their_own_state_and_directory(sdk):
    async with sdk.sandbox() as sandbox:
        context = await go(sandbox.create_code_context(cwd="/tmp"))
        assert (context.language, context.cwd) == ("python", "/tmp") and context.id
        await go(sandbox.run_code("x = 1"))
        await go(sandbox.run_code("x = 2", context=context))
        assert (await go(sandbox.run_code("x"))).text == "1"
        assert (await go(sandbox.run_code("x", context=context))).text == "2"
        assert (await go(sandbox.run_code("import os; os.getcwd()", context=context))).text == "/tmp"


@case("contexts", core=True)
async def contexts_are_listed_and_removed(sdk):
    async with sdk.sandbox() as sandbox:
        listed = await go(has(sandbox, "list_code_contexts")())
        assert "python" in [context.language for context in listed]
        context = await go(sandbox.create_code_context(cwd="/home/user"))
        assert context.id in [found.id for found in await go(sandbox.list_code_contexts())]
        await go(sandbox.remove_code_context(context))
        assert context.id not in [found.id for found in await go(sandbox.list_code_contexts())]
        async with raises(exception("NotFoundException")):
            await go(sandbox.run_code("1", context=context))


@case("contexts", core=True)
async def contexts_are_listed_in_e2bs_order(sdk):
    """First the two that E2B creates at the start, then by creation, however a context was created."""
    async with sdk.sandbox() as sandbox:
        first = await go(sandbox.create_code_context(cwd="/tmp"))
        await go(sandbox.run_code("echo made by its first use", language="bash"))
        last = await go(sandbox.create_code_context(language="javascript", cwd="/tmp"))
        listed = await go(has(sandbox, "list_code_contexts")())
        languages = [context.language for context in listed]
        assert languages == ["python", "javascript", "python", "bash", "javascript"], languages
        assert (listed[2].id, listed[4].id) == (first.id, last.id)


@case("contexts", core=True)
async def a_restart_forgets_the_state_and_keeps_the_context(sdk):
    async with sdk.sandbox() as sandbox:
        context = await go(sandbox.create_code_context(cwd="/tmp"))
        await go(sandbox.run_code("x = 1", context=context))
        await go(has(sandbox, "restart_code_context")(context.id))
        assert (await go(sandbox.run_code("x", context=context))).error.name == "NameError"
        assert (await go(sandbox.run_code("import os; os.getcwd()", context=context))).text == "/tmp"
        assert context.id in [found.id for found in await go(sandbox.list_code_contexts())]


@case("contexts")
async def unknown_contexts_and_languages_are_refused_by_name(sdk):
    async with sdk.sandbox() as sandbox:
        for call in (has(sandbox, "restart_code_context"), sandbox.remove_code_context):
            async with raises(exception("NotFoundException")) as seen:
                await go(call("no-such-context"))
            assert "no-such-context" in str(seen.error)
        async with raises(e2b.SandboxException) as seen:
            await go(sandbox.create_code_context(language="klingon"))
        assert "klingon" in str(seen.error)
        for language in ("bash", "javascript", "python", "typescript"):
            assert language in str(seen.error), str(seen.error)


@case("contexts")
async def a_missing_directory_is_refused(sdk):
    async with sdk.sandbox() as sandbox:
        async with raises(e2b.SandboxException) as seen:
            await go(sandbox.create_code_context(cwd="/no/such/place"))
        assert "/no/such/place" in str(seen.error)


@case("contexts", only="async")
async def contexts_run_at_the_same_time_and_one_in_its_order(sdk):
    async with sdk.sandbox() as sandbox:
        contexts = [await sandbox.create_code_context() for _ in range(3)]
        start = time.monotonic()
        await asyncio.gather(*(sandbox.run_code("import time; time.sleep(2)", context=c) for c in contexts))
        assert time.monotonic() - start < 5.5
        await sandbox.run_code("seen = []")
        await asyncio.gather(*(sandbox.run_code(f"seen.append({i})") for i in range(5)))
        assert sorted((await sandbox.run_code("seen")).results[0].json) == [0, 1, 2, 3, 4]
