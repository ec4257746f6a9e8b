"""Watching directories: by polling in the sync SDK, by a stream in the async one."""

import asyncio

import e2b
from e2b import FilesystemEventType as Kind
from harness.cases import Absent, case
from kit import exception, go, raises, until


async def started(sdk, sandbox, path, **options):
    """Returns a function for all events so far, and one that stops the watch."""
    seen = []
    try:
        if sdk.name == "async":
            handle = await sandbox.files.watch_dir(path, seen.append, **options)
            return lambda: seen, handle.stop
        handle = sandbox.files.watch_dir(path, **options)
    except TypeError:
        raise Absent("no such option")

    def events():
        seen.extend(handle.get_new_events())
        return seen

    async def stop():
        handle.stop()

    return events, stop


def saw(events, name, kind):
    return lambda: any(e.name == name and e.type == kind for e in events())


async def run(sandbox, command):
    result = sandbox.commands.run(command)
    return await result if asyncio.iscoroutine(result) else result


@case("watch", core=True)
async def every_kind_of_change_is_seen(sdk):
    async with sdk.sandbox() as sandbox:
        await run(sandbox, "mkdir /tmp/w")
        events, stop = await started(sdk, sandbox, "/tmp/w")
        await run(sandbox, "cd /tmp/w; echo a > f; chmod 600 f; mv f g; rm g")
        for name, kind in [
            ("f", Kind.CREATE),
            ("f", Kind.WRITE),
            ("f", Kind.CHMOD),
            ("f", Kind.RENAME),
            ("g", Kind.CREATE),
            ("g", Kind.REMOVE),
        ]:
            await until(saw(events, name, kind), seconds=10)
        await stop()


@case("watch")
async def only_a_recursive_watch_sees_below(sdk):
    async with sdk.sandbox() as sandbox:
        await run(sandbox, "mkdir -p /tmp/w/old")
        deep, stop_deep = await started(sdk, sandbox, "/tmp/w", recursive=True)
        flat, stop_flat = await started(sdk, sandbox, "/tmp/w")
        await run(sandbox, "echo x > /tmp/w/old/f; mkdir /tmp/w/new")
        await until(saw(deep, "old/f", Kind.CREATE))
        await until(saw(deep, "new", Kind.CREATE))
        await run(sandbox, "echo x > /tmp/w/new/g; touch /tmp/w/last")
        await until(saw(deep, "new/g", Kind.WRITE))
        await until(saw(flat, "last", Kind.CREATE))
        assert not any("/" in event.name for event in flat())
        await stop_deep()
        await stop_flat()


@case("watch")
async def a_new_file_gives_each_event_once(sdk):
    async with sdk.sandbox() as sandbox:
        await run(sandbox, "sudo mkdir -m 700 /tmp/w")
        events, stop = await started(sdk, sandbox, "/tmp/w")
        for round in range(20):
            await go(sandbox.files.write(f"/tmp/w/{round}", "text"))

            def of_round():
                return [e.type for e in events() if e.name == str(round)]

            if sdk.name == "async":
                await until(lambda: len(of_round()) >= 3, every=0.01)
            assert of_round() == [Kind.CREATE, Kind.CHMOD, Kind.WRITE], (round, of_round())
        await stop()


@case("watch")
async def events_can_carry_the_entry(sdk):
    async with sdk.sandbox() as sandbox:
        await run(sandbox, "mkdir /tmp/w")
        events, stop = await started(sdk, sandbox, "/tmp/w", include_entry=True)
        await run(sandbox, "echo hello > /tmp/w/f")

        def entry():
            return next((e.entry for e in events() if e.type == Kind.WRITE and e.entry), None)

        found = await until(entry)
        assert (found.name, found.path) == ("f", "/tmp/w/f")
        await stop()


@case("watch")
async def what_cannot_be_watched_is_refused(sdk):
    async with sdk.sandbox() as sandbox:
        async with raises(exception("NotFoundException")):
            await started(sdk, sandbox, "/no/such")
        await run(sandbox, "touch /tmp/f")
        async with raises(exception("InvalidArgumentException")):
            await started(sdk, sandbox, "/tmp/f")


@case("watch", only="sync")
async def a_stopped_watch_gives_no_more_events(sdk):
    async with sdk.sandbox() as sandbox:
        handle = sandbox.files.watch_dir("/tmp")
        handle.stop()
        async with raises(e2b.SandboxException):
            handle.get_new_events()


@case("watch", only="async")
async def a_watch_ends_at_its_timeout_or_stop_and_tells(sdk):
    async with sdk.sandbox() as sandbox:
        ended, seen = [], []
        await sandbox.files.watch_dir("/tmp", lambda _: None, on_exit=ended.append, timeout=1)
        await until(lambda: ended, seconds=10)
        assert isinstance(ended[0], e2b.TimeoutException)
        handle = await sandbox.files.watch_dir("/tmp", seen.append, on_exit=ended.append, timeout=0)
        await run(sandbox, "touch /tmp/new")
        await until(lambda: seen)
        await handle.stop()
        await until(lambda: len(ended) == 2, seconds=10)
        assert ended[1] is None
