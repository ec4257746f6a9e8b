"""Templates: the SDK's builder, tags, and sandboxes created from them."""

import contextlib
import os
import tempfile
from pathlib import Path

import e2b
from harness.cases import Absent, case
from kit import URL, fetch, go, has, raises, unique, until

KEY = {"X-API-Key": os.environ["E2B_API_KEY"]}
IS_FULL = os.environ.get("ISOPOD_FULL") == "1"


class Templates:
    """The builder of a flavour, with names that are removed at the end."""

    def __init__(self, sdk):
        name = "AsyncTemplate" if sdk.name == "async" else "Template"
        self.Template = has(e2b, name)
        self.made = []

    async def build(self, template, name=None, **options):
        name = name or self.name()
        return name, await go(self.Template.build(template, name, **options))

    def name(self):
        name = unique("tpl")
        self.made.append(name)
        return name


@contextlib.asynccontextmanager
async def builder(sdk):
    templates = Templates(sdk)
    if not hasattr(templates.Template, "assign_tags"):
        raise Absent("no tags in this version")
    try:
        yield templates
    finally:
        for name in templates.made:
            fetch(f"{URL}/templates/{name}", method="DELETE", headers=KEY)


@contextlib.contextmanager
def directory(**files):
    with tempfile.TemporaryDirectory() as place:
        for name, text in files.items():
            path = Path(place) / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        yield place


@case("builds")
async def every_kind_of_step_leaves_its_mark(sdk):
    """Copy, run, env, workdir, user and the helpers made of them."""
    async with builder(sdk) as templates:
        with directory(hello_dot_txt="hello\n", app__main_dot_py="print('main')\n") as place:
            template = (
                templates.Template(file_context_path=place)
                .from_image("debian:12")
                .copy("hello.txt", "/srv/data/")
                .copy("app", "app", user="root", mode=0o755)
                .set_envs({"GREETING": "good day"})
                .run_cmd("whoami > /tmp/who; pwd > /tmp/where; echo $GREETING > /tmp/greeting")
                .run_cmd("id -u > /root/uid", user="root")
                .set_workdir("/srv/work")
                .run_cmd("pwd > /tmp/work || true")
                .make_dir("/tmp/made/deep")
                .rename("/tmp/who", "/tmp/me")
                .remove("/tmp/where")
                .make_symlink("/tmp/me", "/tmp/link")
            )
            lines = []
            name, built = await templates.build(template, cpu_count=1, memory_mb=512, on_build_logs=lines.append)
        assert built.template_id and built.build_id and built.name == name
        assert any("GREETING" in str(line) for line in lines), [str(line) for line in lines]
        async with sdk.sandbox(name) as sandbox:
            info = await go(sandbox.get_info())
            assert (info.template_id, info.name, info.cpu_count, info.memory_mb) == (built.template_id, name, 1, 512)
            script = "cat /srv/data/hello.txt /tmp/me /tmp/greeting /tmp/work; readlink /tmp/link; echo $GREETING; pwd; ls -d /tmp/made/deep"
            done = await go(sandbox.commands.run(script))
            expected = ["hello", "user", "good day", "/srv/work", "/tmp/me", "good day", "/srv/work", "/tmp/made/deep"]
            assert done.stdout.split("\n")[:-1] == expected, done.stdout
            assert (await go(sandbox.commands.run("cat /root/uid", user="root"))).stdout == "0\n"


@case("builds")
async def a_pattern_copies_all_that_it_means(sdk):
    """Several files make the destination a directory; links are copied as links, wherever they lead."""
    async with builder(sdk) as templates:
        with directory(folder__a_dot_txt="a\n", folder__b_dot_txt="b\n", folder__sub__c_dot_txt="c\n") as place:
            for name, target in (("near", "a.txt"), ("nowhere", "gone"), ("absolute", "/etc/hostname")):
                os.symlink(target, Path(place) / "folder" / name)
            template = (
                templates.Template(file_context_path=place)
                .from_image("debian:12")
                .copy("folder/*", "out", force_upload=True)
                .copy("folder/**/*.txt", "/srv/texts")
                .copy("folder/near", "link")
                .copy("folder/near", "followed", resolve_symlinks=True)
            )
            name, _ = await templates.build(template)
        async with sdk.sandbox(name) as sandbox:
            script = """cat out/a.txt out/b.txt out/sub/c.txt /srv/texts/a.txt /srv/texts/sub/c.txt followed
                readlink out/near out/nowhere out/absolute link"""
            done = await go(sandbox.commands.run(script))
            assert done.stdout.split() == "a b c a c a a.txt gone /etc/hostname a.txt".split(), done.stdout


@case("builds")
async def a_template_is_built_on_another(sdk):
    async with builder(sdk) as templates:
        lower, _ = await templates.build(templates.Template().from_template("base").run_cmd("echo 1 > /tmp/one"))
        upper, _ = await templates.build(templates.Template().from_template(lower).run_cmd("cp /tmp/one /tmp/two"))
        async with sdk.sandbox(upper) as sandbox:
            assert (await go(sandbox.commands.run("cat /tmp/one /tmp/two"))).stdout == "1\n1\n"
        async with raises(e2b.BuildException, e2b.TemplateException) as seen:
            await templates.build(templates.Template().from_template("no-such-template:v1"))
        assert "not found" in str(seen.error), repr(seen.error)


@case("builds")
async def a_dockerfile_is_taken_apart_by_the_sdk(sdk):
    """FROM, RUN, COPY, ENV, WORKDIR; later steps see earlier files."""
    async with builder(sdk) as templates:
        text = "FROM debian:12\nENV A=1\nWORKDIR /opt/app\nCOPY a.txt .\nRUN cat a.txt > b.txt && \\\n    echo $A >> b.txt\n"
        with directory(a_dot_txt="from here\n") as place:
            name, _ = await templates.build(templates.Template(file_context_path=place).from_dockerfile(text))
        async with sdk.sandbox(name) as sandbox:
            assert (await go(sandbox.commands.run("cat /opt/app/b.txt"))).stdout == "from here\n1\n"


@case("builds")
async def a_pattern_in_a_dockerfile_copies_all_that_it_means(sdk):
    """As in `a_pattern_copies_all_that_it_means`, the destination is a directory, without a slash at its end."""
    async with builder(sdk) as templates:
        text = "FROM debian:12\nWORKDIR /opt/app\nCOPY folder/* out\n"
        with directory(folder__a_dot_txt="a\n", folder__b_dot_txt="b\n", folder__sub__c_dot_txt="c\n") as place:
            name, _ = await templates.build(templates.Template(file_context_path=place).from_dockerfile(text))
        async with sdk.sandbox(name) as sandbox:
            done = await go(sandbox.commands.run("cd /opt/app/out; cat a.txt b.txt sub/c.txt"))
            assert done.stdout == "a\nb\nc\n", done.stdout


@case("builds")
async def a_start_command_is_up_when_the_sandbox_is_there(sdk):
    """Started, and ready by its port."""
    async with builder(sdk) as templates:
        template = templates.Template().from_image("python:3.11").run_cmd("echo served > /home/user/index.html")
        template = template.set_start_cmd("cd /home/user && python3 -m http.server 8123", e2b.wait_for_port(8123))
        name, _ = await templates.build(template)
        for _ in range(2):
            async with sdk.sandbox(name) as sandbox:
                done = await go(sandbox.commands.run("curl -s http://localhost:8123/index.html"))
                assert done.stdout == "served\n"
                headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8123"}
                assert fetch(f"{URL}/index.html", headers=headers)[2] == b"served\n"


@case("builds")
async def what_a_start_command_says_is_in_the_logs(sdk):
    """The logs of a start-up script can be looked at."""
    async with builder(sdk) as templates:
        template = templates.Template().from_template("base")
        template = template.set_start_cmd("echo start-up says hello; sleep 600", e2b.wait_for_timeout(500))
        name, _ = await templates.build(template)
        async with sdk.sandbox(name) as sandbox:

            async def told():
                return b"start-up says hello" in fetch(f"{URL}/sandboxes/{sandbox.sandbox_id}/logs", headers=KEY)[2]

            await until(told)


@case("builds")
async def a_step_that_fails_is_told(sdk):
    """The output of the step is reported, and the template stays as it was."""
    async with builder(sdk) as templates:
        name, _ = await templates.build(templates.Template().from_image("debian:12").run_cmd("echo good > /tmp/x"))
        lines = []
        async with raises(e2b.BuildException) as seen:
            bad = templates.Template().from_image("debian:12").run_cmd("true").run_cmd("echo to the log; exit 7")
            await templates.build(bad, name, on_build_logs=lines.append)
        assert "7" in str(seen.error), repr(seen.error)
        assert any("to the log" in str(line) for line in lines)
        async with sdk.sandbox(name) as sandbox:
            assert (await go(sandbox.commands.run("cat /tmp/x"))).stdout == "good\n"


@case("builds")
async def an_unknown_user_is_told_in_e2bs_words(sdk):
    async with builder(sdk) as templates:
        async with raises(e2b.BuildException) as seen:
            await templates.build(templates.Template().from_image("debian:12").run_cmd("whoami", user="root123"))
        words = "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'"
        assert words in str(seen.error), repr(seen.error)


@case("builds")
async def a_user_step_adds_the_user(sdk):
    async with builder(sdk) as templates:
        template = templates.Template().from_image("debian:12").set_user("app").run_cmd("whoami > /tmp/who; touch ~/mine")
        name, _ = await templates.build(template)
        async with sdk.sandbox(name) as sandbox:
            done = await go(sandbox.commands.run("cat /tmp/who; whoami; stat -c %U /home/app/mine"))
            assert done.stdout == "app\napp\napp\n", done.stdout


@case("builds")
async def a_build_in_the_background_is_asked_for(sdk):
    """Its status is building from the moment it was accepted."""
    async with builder(sdk) as templates:
        name = templates.name()
        template = templates.Template().from_image("debian:12").run_cmd("sleep 1; echo done")
        info = await go(templates.Template.build_in_background(template, name, skip_cache=True))
        assert (await go(templates.Template.get_build_status(info))).status.value == "building"

        async def ended():
            status = await go(templates.Template.get_build_status(info, logs_offset=0))
            assert status.status.value in ("waiting", "building", "ready"), status
            return status if status.status.value == "ready" else None

        status = await until(ended, seconds=80)
        assert any("done" in entry.message for entry in status.log_entries)


@case("builds")
async def what_was_built_once_is_not_built_again(sdk):
    async with builder(sdk) as templates:
        mark = unique("mark")
        make = lambda: templates.Template().from_image("debian:12").run_cmd(f"date +%s%N > /tmp/{mark}")  # noqa: E731
        stamps = []
        for skip_cache in (False, False, True):
            name, _ = await templates.build(make(), skip_cache=skip_cache)
            async with sdk.sandbox(name) as sandbox:
                stamps.append((await go(sandbox.commands.run(f"cat /tmp/{mark}"))).stdout)
        assert stamps[0] == stamps[1] != stamps[2], stamps


@case("builds", when=IS_FULL)
async def packages_are_installed(sdk):
    """apt, npm and pip with the network."""
    async with builder(sdk) as templates:
        template = templates.Template().from_python_image("3.11").pip_install(["cowsay==6.1"]).apt_install(["tree"])
        template = template.npm_install(["is-odd@3.0.1"], g=True)
        name, _ = await templates.build(template)
        async with sdk.sandbox(name) as sandbox:
            done = await go(sandbox.commands.run("python3 -c 'import cowsay; cowsay.cow(\"moo\")' && tree --version"))
            assert "moo" in done.stdout and "tree v" in done.stdout


@case("tags")
async def tags_name_versions_and_go_back(sdk):
    """Versions, rollback, and a rebuild that leaves running sandboxes alone."""
    async with builder(sdk) as templates:
        base = lambda text: templates.Template().from_image("debian:12").run_cmd(f"echo {text} > /tmp/version")  # noqa: E731
        name = templates.name()
        _, one = await templates.build(base("one"), f"{name}:v1", tags=["stable"])
        assert sorted(one.tags) == ["stable", "v1"]
        async with sdk.sandbox(f"{name}:v1") as running:
            _, two = await templates.build(base("two"), name)
            assert two.template_id == one.template_id and two.build_id != one.build_id

            async def version(reference):
                async with sdk.sandbox(reference) as sandbox:
                    return (await go(sandbox.commands.run("cat /tmp/version"))).stdout.strip()

            assert [await version(name), await version(f"{name}:stable")] == ["two", "one"]
            assert (await go(running.commands.run("cat /tmp/version"))).stdout == "one\n"
        moved = await go(templates.Template.assign_tags(f"{name}:v1", ["default", "old"]))
        assert moved.build_id == one.build_id
        assert await version(name) == "one"
        tags = {tag.tag: tag.build_id for tag in await go(templates.Template.get_tags(name))}
        assert set(tags) == {"v1", "stable", "default", "old"} and set(tags.values()) == {one.build_id}
        await go(templates.Template.remove_tags(name, ["old"]))
        async with raises(e2b.SandboxException, e2b.NotFoundException) as seen:
            await go(sdk.Sandbox.create(f"{name}:old"))
        assert "old" in str(seen.error), repr(seen.error)


@case("tags")
async def exists_tells(sdk):
    """A missing template is a clear error."""
    async with builder(sdk) as templates:
        name = templates.name()
        assert not await go(templates.Template.exists(name))
        await templates.build(templates.Template().from_image("debian:12"), name)
        assert await go(templates.Template.exists(name))
        assert await go(templates.Template.exists("base"))
        async with raises(e2b.SandboxException, e2b.NotFoundException) as seen:
            await go(sdk.Sandbox.create(unique("nothing")))
        assert "not found" in str(seen.error), repr(seen.error)
