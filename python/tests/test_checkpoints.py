"""Checkpoints of a run, in both forms of the session: what they keep, by their names, and what goes with the run."""

import asyncio

import pytest
from conftest import done_by

import isopod
from isopod.errors import InvalidRequestError, NotFoundError


@pytest.fixture(params=[isopod.session, isopod.asession], ids=["sync", "async"])
def opened(request):
    return request.param


def test_a_run_goes_back_to_the_checkpoint_of_that_name(opened, unique):
    async def use():
        run = opened(unique)

        async def state():
            listed = await done_by(run.run_command("cd /tmp/checkpoints && head *.txt"))
            running = await done_by(run.run_command("pgrep -fxc 'sleep 6000'"))
            return (await done_by(run.execute("rows"))).text, listed.stdout.split(), running.stdout.strip()

        await done_by(run.execute("rows = ['first']"))
        await done_by(run.run_command("mkdir /tmp/checkpoints && echo 1 > /tmp/checkpoints/a.txt"))
        await done_by(run.run_command("setsid --fork sleep 6000 < /dev/null > /dev/null 2>&1"))
        first = await state()
        assert first == ("['first']", ["1"], "1")
        await done_by(run.checkpoint("first"))
        await done_by(run.execute("rows.append('second')"))
        await done_by(run.run_command("cd /tmp/checkpoints && echo 2 > a.txt && pkill -fx 'sleep 6000'"))
        second = await state()
        assert second == ("['first', 'second']", ["2"], "0")
        await done_by(run.checkpoint("second"))
        before = await done_by(run.sandbox_id())
        for name, then in [("first", first), ("second", second), ("first", first)]:
            await done_by(run.execute("rows.clear()"))
            await done_by(run.rollback(name))
            assert await state() == then, name
        assert await done_by(run.sandbox_id()) == before
        assert await done_by(run.cleanup())

    asyncio.run(use())


def test_a_checkpoint_without_a_name_takes_the_place_of_the_last_one(opened, unique):
    async def use():
        run = opened(unique)
        for number in (1, 2):
            await done_by(run.execute(f"n = {number}"))
            await done_by(run.checkpoint())
        await done_by(run.execute("n = 3"))
        await done_by(run.rollback())
        assert (await done_by(run.execute("n"))).text == "2"
        assert await done_by(run.cleanup())

    asyncio.run(use())


def test_a_name_that_no_checkpoint_has_is_not_found_also_after_the_run_has_ended(opened, unique):
    async def use():
        run = opened(unique)
        await done_by(run.execute("n = 1"))
        await done_by(run.checkpoint("kept"))
        with pytest.raises(NotFoundError, match="no checkpoint 'other'"):
            await done_by(run.rollback("other"))
        with pytest.raises(InvalidRequestError, match="name must have 1 to"):
            await done_by(run.checkpoint(""))
        assert (await done_by(run.execute("n"))).text == "1", "nothing was undone"
        assert await done_by(run.cleanup())
        await done_by(run.execute("n = 2"))
        with pytest.raises(NotFoundError, match="no checkpoint 'kept'"):
            await done_by(run.rollback("kept"))
        assert await done_by(run.cleanup())

    asyncio.run(use())
