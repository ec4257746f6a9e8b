"""Volumes: their content through the SDK, and in sandboxes."""

import io
import uuid

import e2b
from harness.cases import Absent, case
from kit import go, has, raises, until


def volume_of(sdk):
    """The SDK's class."""
    kind = getattr(e2b, "AsyncVolume" if sdk.name == "async" else "Volume", None)
    if kind is None:
        raise Absent("no volumes")
    return kind


class Made:
    """A volume for the duration of a block."""

    def __init__(self, sdk):
        self.kind = volume_of(sdk)

    async def __aenter__(self):
        self.volume = await go(self.kind.create("v-" + uuid.uuid4().hex[:12]))
        return self.volume

    async def __aexit__(self, *_):
        await go(self.kind.destroy(self.volume.volume_id))


@case("volumes")
async def a_volume_is_made_found_and_destroyed(sdk):
    kind = volume_of(sdk)
    async with Made(sdk) as volume:
        assert volume.token
        again = await go(kind.connect(volume.volume_id))
        assert (again.name, again.token) == (volume.name, volume.token)
        listed = {one.volume_id: one.name for one in await go(kind.list())}
        assert listed[volume.volume_id] == volume.name
        async with raises(Exception):
            await go(kind.create(volume.name))
        assert await go(kind.destroy(volume.volume_id))
        assert not await go(kind.destroy(volume.volume_id))
        async with raises(e2b.NotFoundException):
            await go(kind.get_info(volume.volume_id))


@case("volumes")
async def files_are_written_and_read(sdk):
    async with Made(sdk) as volume:
        written = await go(volume.write_file("/hello.txt", "grüße"))
        assert (written.name, written.path, written.size) == ("hello.txt", "/hello.txt", 7), written
        assert await go(volume.read_file("/hello.txt")) == "grüße"
        data = bytes(range(256)) * 4096
        await go(volume.write_file("/big.bin", io.BytesIO(data)))
        assert await go(volume.read_file("/big.bin", format="bytes")) == data
        stream = await go(volume.read_file("/big.bin", format="stream"))
        chunks = [chunk async for chunk in stream] if sdk.name == "async" else list(stream)
        assert b"".join(chunks) == data
        await go(volume.write_file("/hello.txt", b"again"))
        assert await go(volume.read_file("/hello.txt")) == "again"
        async with raises(e2b.NotFoundException):
            await go(volume.read_file("/nothing"))
        await go(volume.write_file("/empty", b""))
        assert await go(volume.read_file("/empty", format="bytes")) == b""


@case("volumes")
async def directories_are_made_listed_and_removed(sdk):
    async with Made(sdk) as volume:
        async with raises(e2b.NotFoundException):
            await go(volume.make_dir("/a/b"))
        made = await go(volume.make_dir("/a/b", force=True, mode=0o750, uid=1000, gid=1000))
        assert (made.type.value, made.mode & 0o777, made.uid) == ("directory", 0o750, 1000), made
        await go(volume.write_file("/a/b/c.txt", "c", mode=0o640))
        assert [one.path for one in await go(volume.list("/"))] == ["/a"]
        assert [one.path for one in await go(volume.list("/", depth=3))] == ["/a", "/a/b", "/a/b/c.txt"]
        changed = await go(volume.update_metadata("/a/b/c.txt", mode=0o600, uid=7, gid=8))
        assert (changed.mode & 0o777, changed.uid, changed.gid) == (0o600, 7, 8), changed
        assert await go(volume.exists("/a/b/c.txt"))
        await go(volume.remove("/a"))
        assert not await go(volume.exists("/a/b/c.txt"))
        async with raises(e2b.NotFoundException):
            await go(volume.remove("/a"))


@case("volumes")
async def a_volume_is_shared_by_sandboxes_and_outlives_them(sdk):
    async with Made(sdk) as volume:
        await go(volume.write_file("/from-outside", "outside"))
        async with sdk.sandbox(volume_mounts={"/mnt/data": volume}) as first:
            assert (await go(first.files.read("/mnt/data/from-outside"))) == "outside"
            await go(first.commands.run("echo -n inside > /mnt/data/from-inside"))
            assert await go(volume.read_file("/from-inside")) == "inside"
            async with sdk.sandbox(volume_mounts={"/srv/v": volume.name}) as second:
                assert (await go(second.commands.run("cat /srv/v/from-inside"))).stdout == "inside"
                info = await go(second.get_info())
                mounts = getattr(info, "volume_mounts", None)
                assert mounts is None or [(one["name"], one["path"]) for one in mounts] == [(volume.name, "/srv/v")]
        assert await go(volume.read_file("/from-inside")) == "inside"
        async with raises(Exception):
            await go(sdk.Sandbox.create(volume_mounts={"/mnt": "there-is-no-such-volume"}))


# A file that is open, a working directory, and a file that is only mapped.
USES = {
    "exec sleep 600 < /mnt/data/file": "has /mnt/data/file open",
    "cd /mnt/data/folder && exec sleep 600": "has /mnt/data/folder open",
    'exec python3 -c "import ctypes, os, time; mmap = ctypes.CDLL(None).mmap; mmap.restype = ctypes.c_void_p;'
    " fd = os.open('/mnt/data/file', os.O_RDONLY); mmap(None, ctypes.c_size_t(4096), 1, 2, fd, ctypes.c_long(0));"
    ' os.close(fd); time.sleep(600)"': "has /mnt/data/file in its memory",
}


@case("volumes")
async def memory_of_a_program_that_uses_a_volume_is_not_saved_and_the_program_goes_on(sdk):
    has(sdk.Sandbox, "create_snapshot")
    async with Made(sdk) as volume, sdk.sandbox(volume_mounts={"/mnt/data": volume}) as sandbox:
        await go(sandbox.commands.run("mkdir /mnt/data/folder && echo text > /mnt/data/file"))
        for command, reason in USES.items():
            program = await go(sandbox.commands.run(command, background=True, timeout=0))

            async def refused():
                """A program takes a moment until it is there, and what it maps is open before."""
                try:
                    taken = await go(sandbox.create_snapshot())
                except e2b.SandboxException as error:
                    return str(error) if reason in str(error) else None
                assert await go(sdk.Sandbox.delete_snapshot(taken.snapshot_id))
                return None

            message = await until(refused)
            assert "409" in message and "a volume" in message, message
            assert program.pid in [process.pid for process in await go(sandbox.commands.list())]
            assert await go(program.kill())
        taken = await go(sandbox.create_snapshot())
        assert await go(sdk.Sandbox.delete_snapshot(taken.snapshot_id))
