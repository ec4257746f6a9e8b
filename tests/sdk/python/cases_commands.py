"""Commands: results, callbacks, users, background, standard input."""

import hashlib
import time

import e2b
from harness.cases import Absent, case
from kit import exception, go, has, raises, until


@case("commands", core=True)
async def output_and_exit_code_come_back(sdk):
    async with sdk.sandbox() as sandbox:
        result = await go(sandbox.commands.run("echo out; echo err >&2"))
        assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)
        assert not result.error


@case("commands", core=True)
async def a_failing_command_raises_with_its_output(sdk):
    async with sdk.sandbox() as sandbox:
        async with raises(e2b.CommandExitException) as seen:
            await go(sandbox.commands.run("echo a; echo b >&2; exit 7"))
        error = seen.error
        assert (error.exit_code, error.stdout, error.stderr) == (7, "a\n", "b\n")
        assert error.error == "exit status 7"
        async with raises(e2b.CommandExitException) as seen:
            await go(sandbox.commands.run("no-such-program"))
        assert seen.error.exit_code == 127 and "not found" in seen.error.stderr


@case("commands")
async def processes_have_an_age(sdk):
    async with sdk.sandbox() as sandbox:
        # `ps` cuts the uptime to hundredths by way of a float, so a process of the same hundredth can be younger than nothing.
        line = "sleep 0.05; ps -o etimes= -p $$; cut -d. -f1 /proc/uptime; date -d \"$(ps -o lstart= -p $$)\" +%s; date +%s"
        shell, uptime, started, now = map(int, (await go(sandbox.commands.run(line))).stdout.split())
        assert 0 <= shell <= uptime, (shell, uptime)
        assert abs(now - shell - started) < 30, (now, shell, started)


@case("commands", core=True)
async def envs_cwd_and_user_hold(sdk):
    async with sdk.sandbox(envs={"A": "1", "B": "1"}) as sandbox:
        run = sandbox.commands.run
        assert (await go(run("echo $A$B", envs={"B": "2"}))).stdout == "12\n"
        assert (await go(run("pwd"))).stdout == "/home/user\n"
        assert (await go(run("pwd", cwd="/tmp"))).stdout == "/tmp\n"
        assert (await go(run("whoami; echo $HOME"))).stdout == "user\n/home/user\n"
        assert (await go(run("whoami; echo $HOME; id -u", user="root"))).stdout == "root\n/root\n0\n"
        assert (await go(run("sudo whoami"))).stdout == "root\n"


@case("commands")
async def a_missing_directory_or_user_is_refused(sdk):
    async with sdk.sandbox() as sandbox:
        async with raises(exception("InvalidArgumentException")) as seen:
            await go(sandbox.commands.run("true", cwd="/no/such/place"))
        assert "does not exist" in str(seen.error)
        async with raises(e2b.AuthenticationException) as seen:
            await go(sandbox.commands.run("true", user="nobody-here"))
        assert "invalid username" in str(seen.error)


@case("commands", core=True)
async def callbacks_hear_the_output_as_it_comes(sdk):
    async with sdk.sandbox() as sandbox:
        heard, errors, times = [], [], []

        def on_stdout(text):
            heard.append(text)
            times.append(time.monotonic())

        command = "for i in 1 2 3; do echo $i; echo e$i >&2; sleep 0.3; done"
        result = await go(sandbox.commands.run(command, on_stdout=on_stdout, on_stderr=errors.append))
        assert "".join(heard) == result.stdout == "1\n2\n3\n"
        assert "".join(errors) == result.stderr == "e1\ne2\ne3\n"
        assert times[-1] - times[0] > 0.4


@case("commands", core=True)
async def large_output_arrives_whole(sdk):
    async with sdk.sandbox() as sandbox:
        result = await go(sandbox.commands.run("seq 1 1000000"))
        assert len(result.stdout) == 6888896
        assert result.stdout.endswith("\n1000000\n")
        both = await go(sandbox.commands.run("seq 1 50000; seq 1 50000 >&2"))
        assert both.stdout == both.stderr


@case("commands")
async def characters_split_over_chunks_stay_whole(sdk):
    async with sdk.sandbox() as sandbox:
        slow = r"printf '\xf0\x9f'; sleep 0.3; printf '\x92\xa9'; sleep 0.1; printf 'ü%.0s' $(seq 1 40000)"
        result = await go(sandbox.commands.run(slow))
        assert result.stdout == "💩" + "ü" * 40000
        broken = await go(sandbox.commands.run(r"printf 'a\xffb'"))
        assert broken.stdout == "a\ufffdb"


@case("commands", core=True)
async def a_command_that_takes_too_long_is_ended(sdk):
    async with sdk.sandbox() as sandbox:
        start = time.monotonic()
        async with raises(e2b.TimeoutException):
            await go(sandbox.commands.run("sleep 4711", timeout=1))
        assert time.monotonic() - start < 5

        async def is_gone():
            done = await go(sandbox.commands.run("pgrep -fc '^sleep 471[1]$' || true"))
            return done.stdout.strip() == "0"

        await until(is_gone, seconds=5)


@case("commands")
async def many_commands_at_once_do_not_mix(sdk):
    async with sdk.sandbox() as sandbox:
        calls = [lambda i=i: sandbox.commands.run(f"sleep 0.1; echo {i}") for i in range(30)]
        results = await sdk.together(calls)
        assert [result.stdout for result in results] == [f"{i}\n" for i in range(30)]


@case("commands")
async def a_result_can_go_without_its_output(sdk):
    async with sdk.sandbox() as sandbox:
        try:
            result = await go(sandbox.commands.run("echo x", retain_output=False))
        except TypeError:
            raise Absent("no retain_output")
        assert result.stdout is None and result.exit_code == 0


@case("commands")
async def a_command_ended_by_a_signal_says_so(sdk):
    async with sdk.sandbox() as sandbox:
        async with raises(e2b.CommandExitException) as seen:
            await go(sandbox.commands.run("exec kill -9 $$"))
        assert seen.error.exit_code != 0 and "kill" in seen.error.error


@case("commands")
async def the_memory_limit_is_visible_inside(sdk):
    """Java, Go, .NET and Node.js size themselves by it."""
    # On hosts with cgroup v2, or with v1.
    read = "cd /sys/fs/cgroup; if [ -e memory.max ]; then cat memory.max; else cat memory/memory.limit_in_bytes; fi"
    async with sdk.sandbox() as sandbox:
        info = await go(sandbox.get_info())
        assert int((await go(sandbox.commands.run(read))).stdout) == info.memory_mb << 20


@case("commands")
async def endings_and_refusals_are_those_of_e2bs_daemon(sdk):
    """The code, the error and the message, which programs look for."""
    async with sdk.sandbox() as sandbox:
        for signal, name in (("TERM", "terminated"), ("KILL", "killed"), ("HUP", "hangup")):
            async with raises(e2b.CommandExitException) as seen:
                await go(sandbox.commands.run(f"kill -{signal} $$"))
            assert (seen.error.exit_code, seen.error.error) == (-1, f"signal: {name}"), repr(seen.error)
        async with raises(e2b.CommandExitException) as seen:
            await go(sandbox.commands.run("bash -c 'kill -TERM $$'; exit $?"))
        assert (seen.error.exit_code, seen.error.error) == (143, "exit status 143"), repr(seen.error)
        refusals = [
            ("true " + "x" * 200_000, {}, "argument list too long"),
            ("true", {"envs": {"A": "x" * 200_000}}, "argument list too long"),
            ("true", {"cwd": "/root"}, "permission denied"),
            ("true", {"cwd": "/etc/passwd"}, "not a directory"),
            ("true", {"cwd": "/no/such"}, "cwd '/no/such' does not exist"),
        ]
        for command, options, words in refusals:
            async with raises(e2b.InvalidArgumentException) as seen:
                await go(sandbox.commands.run(command, **options))
            assert words in str(seen.error) and len(str(seen.error)) < 1000, repr(seen.error)


@case("background", core=True)
async def a_background_command_is_waited_for(sdk):
    async with sdk.sandbox() as sandbox:
        handle = await go(sandbox.commands.run("sleep 0.5; echo done", background=True))
        assert handle.pid > 0
        assert (await go(handle.wait())).stdout == "done\n"


@case("background", core=True)
async def running_commands_are_listed_and_killed(sdk):
    async with sdk.sandbox() as sandbox:
        handle = await go(sandbox.commands.run("sleep 300", background=True, cwd="/tmp", envs={"A": "b"}))
        found = [p for p in await go(sandbox.commands.list()) if p.pid == handle.pid]
        assert len(found) == 1
        assert found[0].cmd == "/bin/bash" and found[0].args == ["-l", "-c", "sleep 300"]
        assert found[0].cwd == "/tmp" and found[0].envs.get("A") == "b"
        assert await go(sandbox.commands.kill(handle.pid)) is True
        async with raises(e2b.CommandExitException) as seen:
            await go(handle.wait())
        assert seen.error.exit_code != 0
        assert handle.pid not in [p.pid for p in await go(sandbox.commands.list())]
        assert await go(sandbox.commands.kill(handle.pid)) is False


@case("background")
async def what_was_killed_is_gone_with_its_children(sdk):
    async with sdk.sandbox() as sandbox:
        for round in range(10):
            script = f"sleep 300 & sleep 300 & echo $$ $! > /tmp/new; mv /tmp/new /tmp/pids-{round}; wait"
            handle = await go(sandbox.commands.run(script, background=True))
            await until(lambda: sandbox.files.exists(f"/tmp/pids-{round}"), every=0.02)
            pids = (await go(sandbox.files.read(f"/tmp/pids-{round}"))).split()
            assert int(pids[0]) == handle.pid and len(pids) == 2
            assert await go(sandbox.commands.kill(handle.pid)) is True
            # The file API checks before the next command starts, with nothing else in between.
            for pid in pids:
                assert await go(sandbox.files.exists(f"/proc/{pid}/stat")) is False, round
            left = await go(sandbox.commands.run(f"kill -0 {pids[0]} || kill -0 -- -{pids[0]} || echo gone"))
            assert left.stdout == "gone\n"


@case("background")
async def a_handle_kills_its_command(sdk):
    async with sdk.sandbox() as sandbox:
        handle = await go(sandbox.commands.run("sleep 300", background=True))
        assert await go(handle.kill()) is True
        async with raises(e2b.CommandExitException):
            await go(handle.wait())
        assert await go(handle.kill()) is False


@case("background", core=True)
async def a_command_survives_a_disconnect_and_is_found_by_pid(sdk):
    async with sdk.sandbox() as sandbox:
        script = "echo early; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo late; exit 3"
        handle = await go(sandbox.commands.run(script, background=True))
        await go(handle.disconnect())
        again = await go(sandbox.commands.connect(handle.pid))
        assert again.pid == handle.pid
        await go(sandbox.files.write("/tmp/go", ""))
        async with raises(e2b.CommandExitException) as seen:
            await go(again.wait())
        assert seen.error.exit_code == 3 and seen.error.stdout.endswith("late\n")


@case("background")
async def another_client_connects_by_pid_and_both_hear(sdk):
    async with sdk.sandbox() as sandbox:
        script = "while [ ! -e /tmp/go ]; do sleep 0.05; done; echo word"
        handle = await go(sandbox.commands.run(script, background=True))
        second = await go(sdk.Sandbox.connect(sandbox.sandbox_id))
        other = await go(second.commands.connect(handle.pid))
        await go(sandbox.files.write("/tmp/go", ""))
        assert (await go(handle.wait())).stdout == "word\n"
        assert (await go(other.wait())).stdout == "word\n"


@case("background")
async def connecting_to_no_process_is_not_found(sdk):
    async with sdk.sandbox() as sandbox:
        async with raises(exception("NotFoundException")) as seen:
            await go(sandbox.commands.connect(999_999))
        assert "not found" in str(seen.error)


@case("background", only="sync")
async def a_handle_can_be_iterated(sdk):
    async with sdk.sandbox() as sandbox:
        handle = sandbox.commands.run("echo a; sleep 0.2; echo b >&2", background=True)
        parts = list(handle)
        assert "".join(out or "" for out, _, _ in parts) == "a\n"
        assert "".join(err or "" for _, err, _ in parts) == "b\n"


@case("stdin", core=True)
async def text_sent_to_standard_input_is_read(sdk):
    async with sdk.sandbox() as sandbox:
        try:
            handle = await go(sandbox.commands.run("read line; echo got $line", background=True, stdin=True))
        except TypeError:
            raise Absent("no stdin option")
        await go(sandbox.commands.send_stdin(handle.pid, "hello\n"))
        assert (await go(handle.wait())).stdout == "got hello\n"


@case("stdin")
async def a_closed_standard_input_ends_the_reader(sdk):
    async with sdk.sandbox() as sandbox:
        handle = await go(sandbox.commands.run("wc -c", background=True, stdin=True))
        await go(has(handle, "send_stdin")("a" * 1000))
        await go(handle.send_stdin(b"\x00\xff" * 500))
        await go(handle.close_stdin())
        assert (await go(handle.wait())).stdout.strip() == "2000"


@case("stdin")
async def streamed_input_arrives_in_order(sdk):
    async with sdk.sandbox() as sandbox:
        handle = await go(sandbox.commands.run("sha256sum", background=True, stdin=True))
        stream = has(sandbox.commands, "stream_input")
        parts = [f"line {i}\n" * 100 for i in range(200)]
        if sdk.name == "async":
            given = stream(handle.pid)
            for part in parts:
                await given.send(part)
            await given.close()
        else:
            stream(handle.pid, iter(parts))
        await go(sandbox.commands.close_stdin(handle.pid))
        expected = hashlib.sha256("".join(parts).encode()).hexdigest()
        assert (await go(handle.wait())).stdout.split()[0] == expected


@case("stdin")
async def without_standard_input_a_reader_sees_its_end(sdk):
    async with sdk.sandbox() as sandbox:
        assert (await go(sandbox.commands.run("cat; echo end"))).stdout == "end\n"
        async with raises(e2b.SandboxException):
            handle = await go(sandbox.commands.run("sleep 5", background=True))
            await go(sandbox.commands.send_stdin(handle.pid, "x"))


@case("stdin")
async def input_for_no_process_is_not_found(sdk):
    async with sdk.sandbox() as sandbox:
        async with raises(exception("NotFoundException")):
            await go(sandbox.commands.send_stdin(999_999, "x"))


@case("commands")
async def a_package_that_the_host_has_is_installed_with_its_settings(sdk):
    """Of the host's packages, sandboxes have only what is below /usr."""
    async with sdk.sandbox() as sandbox:
        quiet = "DEBIAN_FRONTEND=noninteractive apt-get install -y -qq redis-server"
        await go(sandbox.commands.run(f"(apt-get update -qq && {quiet}) 2>&1", user="root", timeout=80))
        start = "redis-server /etc/redis/redis.conf --daemonize yes && timeout 10 sh -c 'until redis-cli ping; do sleep 0.1; done'"
        await go(sandbox.commands.run(start, user="root"))
        assert (await go(sandbox.commands.run("redis-cli set a 1; redis-cli get a"))).stdout == "OK\n1\n"
