"""Volumes: their content through the SDK, and in sandboxes."""

import io
import uuid

import e2b
from harness.cases import Absent, case
from kit import go, raises


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
