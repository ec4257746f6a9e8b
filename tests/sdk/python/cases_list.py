"""Lists: pages, filters, states, order."""

import datetime

import e2b
from harness.cases import case
from kit import go, pages, raises, takes, unique


def query(**fields):
    return e2b.SandboxQuery(**fields)


@case("list", core=True)
async def a_new_sandbox_is_in_the_list_until_it_is_killed(sdk):
    mark = {"mark": unique()}
    async with sdk.sandbox(metadata=mark) as sandbox:
        found = sum(await pages(sdk.Sandbox.list(query=query(metadata=mark))), [])
        assert [item.sandbox_id for item in found] == [sandbox.sandbox_id]
        assert found[0].metadata == mark and found[0].state == e2b.SandboxState.RUNNING
    assert sum(await pages(sdk.Sandbox.list(query=query(metadata=mark))), []) == []


@case("list", core=True)
async def metadata_with_odd_characters_is_found(sdk):
    mark = {"a key & more": f"{unique()} b=c&d%20 ü+/?"}
    async with sdk.sandbox(metadata=mark) as sandbox:
        found = sum(await pages(sdk.Sandbox.list(query=query(metadata=mark))), [])
        assert [item.sandbox_id for item in found] == [sandbox.sandbox_id]


@case("list", core=True)
async def pages_hold_every_sandbox_once_newest_first(sdk):
    mark = {"mark": unique()}
    made = [await go(sdk.Sandbox.create(metadata=mark, timeout=60)) for _ in range(5)]
    try:
        found = await pages(sdk.Sandbox.list(query=query(metadata=mark), limit=2))
        assert [len(page) for page in found] == [2, 2, 1]
        ids = [item.sandbox_id for page in found for item in page]
        assert ids == [sandbox.sandbox_id for sandbox in reversed(made)]
    finally:
        for sandbox in made:
            await go(sandbox.kill())


@case("list")
async def order_start_time_and_template_filter(sdk):
    takes(sdk.Sandbox.list, "order")
    mark = {"mark": unique()}
    made = [await go(sdk.Sandbox.create(metadata=mark, timeout=60)) for _ in range(3)]
    try:
        rising = sum(await pages(sdk.Sandbox.list(query=query(metadata=mark), order="asc", limit=2)), [])
        assert [item.sandbox_id for item in rising] == [sandbox.sandbox_id for sandbox in made]
        later = query(metadata=mark, started_after=rising[2].started_at)
        assert made[2].sandbox_id in [i.sandbox_id for i in sum(await pages(sdk.Sandbox.list(query=later)), [])]
        future = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
        assert sum(await pages(sdk.Sandbox.list(query=query(metadata=mark, started_after=future))), []) == []
        assert len(sum(await pages(sdk.Sandbox.list(query=query(metadata=mark, template="base"))), [])) == 3
        assert sum(await pages(sdk.Sandbox.list(query=query(metadata=mark, template="other"))), []) == []
    finally:
        for sandbox in made:
            await go(sandbox.kill())


@case("list")
async def states_are_told_apart(sdk):
    mark = {"mark": unique()}
    running, paused = e2b.SandboxState.RUNNING, e2b.SandboxState.PAUSED

    async def ids(*states):
        found = await pages(sdk.Sandbox.list(query=query(metadata=mark, state=list(states) or None)))
        return {item.sandbox_id for item in sum(found, [])}

    async with sdk.sandbox(metadata=mark) as first, sdk.sandbox(metadata=mark) as second:
        await go(second.pause())
        assert await ids(running) == {first.sandbox_id}
        assert await ids(paused) == {second.sandbox_id}
        assert await ids(running, paused) == await ids() == {first.sandbox_id, second.sandbox_id}


@case("list")
async def a_token_of_another_server_is_refused(sdk):
    async with raises(e2b.SandboxException):
        await go(sdk.Sandbox.list(next_token="nonsense").next_items())
