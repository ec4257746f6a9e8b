"""Files: contents, streams, gzip, metadata, entries."""

import io
import os

from e2b.sandbox.filesystem import filesystem
from e2b.sandbox.filesystem.filesystem import FileType
from harness.cases import Absent, case
from kit import exception, go, has, raises


@case("files", core=True)
async def text_is_written_and_read_back(sdk):
    async with sdk.sandbox() as sandbox:
        files = sandbox.files
        info = await go(files.write("notes/ä b.txt", "hällo\n"))
        assert info.path == "/home/user/notes/ä b.txt" and info.name == "ä b.txt"
        assert await go(files.read("notes/ä b.txt")) == "hällo\n"
        assert await go(files.read("/home/user/notes/ä b.txt")) == "hällo\n"
        owners = await go(sandbox.commands.run("stat -c '%U %a' 'notes/ä b.txt' notes"))
        assert owners.stdout == "user 644\nuser 755\n"
        await go(files.write("notes/ä b.txt", "x"))
        assert await go(files.read("notes/ä b.txt")) == "x"
        await go(files.write("empty", ""))
        assert await go(files.read("empty")) == ""


@case("files", core=True)
async def bytes_are_kept_as_they_are(sdk):
    async with sdk.sandbox() as sandbox:
        content = bytes(range(256)) * 9000
        await go(sandbox.files.write("/tmp/b", content))
        assert bytes(await go(sandbox.files.read("/tmp/b", format="bytes"))) == content


@case("files", core=True)
async def many_files_are_written_at_once(sdk):
    async with sdk.sandbox() as sandbox:
        write = has(sandbox.files, "write_files")
        wanted = [{"path": f"/tmp/many/{i}/f{i}", "data": f"content {i}"} for i in range(20)]
        infos = await go(write(wanted))
        assert [info.path for info in infos] == [entry["path"] for entry in wanted]
        for entry in wanted:
            assert await go(sandbox.files.read(entry["path"])) == entry["data"]
        assert await go(write([])) == []


@case("files")
async def a_file_of_root_is_for_root(sdk):
    async with sdk.sandbox() as sandbox:
        info = await go(sandbox.files.write("mine", "secret", user="root"))
        assert info.path == "/root/mine"
        assert await go(sandbox.files.read("mine", user="root")) == "secret"
        assert (await go(sandbox.commands.run("stat -c %U /root/mine", user="root"))).stdout == "root\n"
        async with raises(exception("NotFoundException")):
            await go(sandbox.files.read("mine"))


@case("files", core=True)
async def files_of_root_are_written_and_read_by_anyone(sdk):
    async with sdk.sandbox() as sandbox:
        files = sandbox.files
        made = "sudo mkdir -m 700 of-root && echo old | sudo tee of-root/f && sudo chmod 600 of-root/f"
        await go(sandbox.commands.run(f"{made} && ln -s of-root link"))
        assert await go(files.read("of-root/f")) == "old\n"
        await go(files.write("of-root/f", "new"))
        await go(files.write("link/below/g", "x"))
        owners = await go(sandbox.commands.run("sudo stat -c %U of-root of-root/f of-root/below of-root/below/g"))
        assert owners.stdout == "root\nuser\nuser\nuser\n"
        assert sorted(entry.name for entry in await go(files.list("of-root"))) == ["below", "f"]
        assert await go(files.make_dir("of-root/d")) is True
        await go(files.rename("of-root/f", "of-root/d/f"))
        assert await go(files.exists("of-root/d/f")) is True
        assert await go(files.read("of-root/d/f")) == "new"
        await go(files.remove("of-root"))
        assert await go(files.exists("of-root")) is False


@case("files", core=True)
async def a_missing_file_is_not_found(sdk):
    async with sdk.sandbox() as sandbox:
        async with raises(exception("NotFoundException")) as seen:
            await go(sandbox.files.read("/no/such/file"))
        assert "does not exist" in str(seen.error)


@case("files")
async def a_directory_is_not_read_or_written_as_a_file(sdk):
    kind = exception("InvalidArgumentException")
    async with sdk.sandbox() as sandbox:
        async with raises(kind):
            await go(sandbox.files.read("/tmp"))
        async with raises(kind):
            await go(sandbox.files.write("/tmp", "x"))


@case("streams", core=True)
async def a_file_is_read_as_a_stream(sdk):
    async with sdk.sandbox() as sandbox:
        content = os.urandom(3_000_000)
        await go(sandbox.files.write("/tmp/s", content))
        assert await gathered(await go(sandbox.files.read("/tmp/s", format="stream"))) == content


@case("streams")
async def a_file_object_is_uploaded_as_a_stream(sdk):
    async with sdk.sandbox() as sandbox:
        content = os.urandom(5_000_000)
        await go(sandbox.files.write("/tmp/up", io.BytesIO(content)))
        assert bytes(await go(sandbox.files.read("/tmp/up", format="bytes"))) == content
        await go(sandbox.files.write("/tmp/text", io.StringIO("ünicode")))
        assert await go(sandbox.files.read("/tmp/text")) == "ünicode"


@case("streams")
async def pieces_are_uploaded_as_they_are_made(sdk):
    async with sdk.sandbox() as sandbox:
        has(filesystem, "SyncWriteEntry")
        pieces = [os.urandom(70_000) for _ in range(20)]

        async def later():
            for piece in pieces:
                yield piece

        await go(sandbox.files.write("/tmp/p", later() if sdk.name == "async" else iter(pieces)))
        assert bytes(await go(sandbox.files.read("/tmp/p", format="bytes"))) == b"".join(pieces)


@case("streams")
async def gzip_goes_both_ways(sdk):
    async with sdk.sandbox() as sandbox:
        text = "compressible " * 50_000
        try:
            await go(sandbox.files.write("/tmp/z", text, gzip=True))
        except TypeError:
            raise Absent("no gzip option")
        assert (await go(sandbox.commands.run("stat -c %s /tmp/z"))).stdout.strip() == str(len(text))
        assert await go(sandbox.files.read("/tmp/z", gzip=True)) == text
        content = os.urandom(200_000)
        await go(sandbox.files.write("/tmp/y", io.BytesIO(content), gzip=True))
        assert await gathered(await go(sandbox.files.read("/tmp/y", format="stream", gzip=True))) == content


@case("streams")
async def octet_stream_uploads_work_for_text_and_many(sdk):
    async with sdk.sandbox() as sandbox:
        try:
            await go(sandbox.files.write("/tmp/o", "text", use_octet_stream=True))
        except TypeError:
            raise Absent("no use_octet_stream option")
        entries = [{"path": f"/tmp/o{i}", "data": str(i)} for i in range(3)]
        infos = await go(sandbox.files.write_files(entries, use_octet_stream=True))
        assert [info.path for info in infos] == ["/tmp/o0", "/tmp/o1", "/tmp/o2"]
        assert await go(sandbox.files.read("/tmp/o")) + await go(sandbox.files.read("/tmp/o2")) == "text2"


async def parts(stream):
    """The parts of a stream of either SDK."""
    if hasattr(stream, "__aiter__"):
        async for part in stream:
            yield part
    else:
        for part in stream:
            yield part


async def gathered(stream):
    return b"".join([part async for part in parts(stream)])


@case("metadata")
async def metadata_of_a_file_is_kept(sdk):
    async with sdk.sandbox() as sandbox:
        try:
            written = await go(sandbox.files.write("/tmp/m", "x", metadata={"Author": "me", "kind": "note"}))
        except TypeError:
            raise Absent("no metadata option")
        expected = {"author": "me", "kind": "note"}
        assert written.metadata == expected
        assert (await go(sandbox.files.get_info("/tmp/m"))).metadata == expected
        listed = [e for e in await go(sandbox.files.list("/tmp")) if e.name == "m"]
        assert listed[0].metadata == expected
        assert (await go(sandbox.files.rename("/tmp/m", "/tmp/n"))).metadata == expected
        await go(sandbox.files.write("/tmp/n", "y"))
        assert not (await go(sandbox.files.get_info("/tmp/n"))).metadata


@case("metadata")
async def metadata_goes_with_octet_streams_and_bad_keys_are_refused(sdk):
    async with sdk.sandbox() as sandbox:
        try:
            info = await go(sandbox.files.write("/tmp/m", b"x", metadata={"a": "b"}, use_octet_stream=True))
        except TypeError:
            raise Absent("no metadata option")
        assert info.metadata == {"a": "b"}
        async with raises(exception("InvalidArgumentException")):
            await go(sandbox.files.write("/tmp/m", "x", metadata={"big": "v" * 5000}))


@case("entries", core=True)
async def a_directory_is_listed(sdk):
    async with sdk.sandbox() as sandbox:
        await go(sandbox.files.write("/tmp/d/a.txt", "abc"))
        await go(sandbox.files.make_dir("/tmp/d/sub"))
        found = {entry.name: entry for entry in await go(sandbox.files.list("/tmp/d"))}
        assert set(found) == {"a.txt", "sub"}
        assert (found["a.txt"].type, found["sub"].type) == (FileType.FILE, FileType.DIR)
        assert found["a.txt"].path == "/tmp/d/a.txt"
        # On btrfs an empty one has no bytes.
        assert (found["a.txt"].size, found["sub"].size) == (3, 4096), found


@case("entries")
async def depth_limits_the_listing(sdk):
    async with sdk.sandbox() as sandbox:
        await go(sandbox.files.write("/tmp/t/1/2/3/f", ""))

        async def names(depth):
            return [entry.path for entry in await go(sandbox.files.list("/tmp/t", depth=depth))]

        assert await names(1) == ["/tmp/t/1"]
        assert await names(2) == ["/tmp/t/1", "/tmp/t/1/2"]
        assert await names(9) == ["/tmp/t/1", "/tmp/t/1/2", "/tmp/t/1/2/3", "/tmp/t/1/2/3/f"]
        async with raises(exception("InvalidArgumentException")):
            await go(sandbox.files.list("/tmp/t", depth=0))


@case("entries")
async def listing_what_is_no_directory_is_refused(sdk):
    async with sdk.sandbox() as sandbox:
        async with raises(exception("NotFoundException")):
            await go(sandbox.files.list("/no/such"))
        await go(sandbox.files.write("/tmp/f", ""))
        async with raises(exception("InvalidArgumentException")):
            await go(sandbox.files.list("/tmp/f"))


@case("entries")
async def info_of_files_directories_and_links(sdk):
    async with sdk.sandbox() as sandbox:
        await go(sandbox.files.write("/tmp/f", "12345"))
        await go(sandbox.commands.run("chmod 640 /tmp/f; mkdir /tmp/dir; ln -s /tmp/f /tmp/link"))
        info = await go(has(sandbox.files, "get_info")("/tmp/f"))
        assert (info.name, info.type, info.path, info.size) == ("f", FileType.FILE, "/tmp/f", 5)
        assert (info.mode, info.permissions) == (0o640, "-rw-r-----")
        assert (info.owner, info.group) == ("user", "user")
        assert info.modified_time.timestamp() > 1_700_000_000
        assert (await go(sandbox.files.get_info("/tmp/dir"))).type == FileType.DIR
        link = await go(sandbox.files.get_info("/tmp/link"))
        assert link.symlink_target == "/tmp/f"
        async with raises(exception("NotFoundException")):
            await go(sandbox.files.get_info("/tmp/none"))


@case("entries", core=True)
async def entries_exist_move_and_go(sdk):
    async with sdk.sandbox() as sandbox:
        files = sandbox.files
        assert await go(files.exists("/tmp/one")) is False
        await go(files.write("/tmp/one", "1"))
        assert await go(files.exists("/tmp/one")) is True
        moved = await go(files.rename("/tmp/one", "/tmp/two"))
        assert (moved.name, moved.path) == ("two", "/tmp/two")
        assert await go(files.exists("/tmp/one")) is False
        assert await go(files.read("/tmp/two")) == "1"
        await go(files.remove("/tmp/two"))
        assert await go(files.exists("/tmp/two")) is False
        async with raises(exception("NotFoundException")):
            await go(files.rename("/tmp/none", "/tmp/x"))


@case("entries", core=True)
async def directories_are_made_once_and_removed_whole(sdk):
    async with sdk.sandbox() as sandbox:
        assert await go(sandbox.files.make_dir("/tmp/a/b/c")) is True
        assert await go(sandbox.files.make_dir("/tmp/a/b/c")) is False
        await go(sandbox.files.write("/tmp/a/b/c/f", "x"))
        await go(sandbox.files.remove("/tmp/a"))
        assert await go(sandbox.files.exists("/tmp/a")) is False
        await go(sandbox.files.remove("/tmp/a"))


@case("entries")
async def file_calls_reach_everything_and_what_they_make_is_the_users(sdk):
    async with sdk.sandbox() as sandbox:
        await go(sandbox.files.write("/root/f", "x", user="root"))
        assert await go(sandbox.files.read("/root/f")) == "x"
        await go(sandbox.files.make_dir("/etc/made"))
        await go(sandbox.files.write("/etc/made/new", "x"))
        owners = await go(sandbox.commands.run("stat -c %U /root/f /etc/made /etc/made/new", user="root"))
        assert owners.stdout == "root\nuser\nuser\n"
