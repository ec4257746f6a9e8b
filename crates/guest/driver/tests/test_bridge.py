"""Other languages through their Jupyter kernels. Tests of a language whose kernel is not installed are skipped."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

from support import DRIVER, TIMEOUT, Cell, Stream

sys.path.insert(0, os.path.dirname(DRIVER))
from isopod_driver import jupyter  # noqa: E402

# A kernel whose cells can be interrupted only so that they have no reply.
SILENT = """
import time
from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel

class Silent(Kernel):
    implementation, implementation_version, banner = "silent", "1", ""
    language_info = {"name": "silent", "mimetype": "text/plain", "file_extension": ".txt"}

    async def do_execute(self, *arguments, **options):
        time.sleep(600)

IPKernelApp.launch_instance(kernel_class=Silent)
"""


def languages():
    listed = subprocess.run([sys.executable, "-s", DRIVER, "kernels"], stdout=subprocess.PIPE, check=True)
    return {row["language"].lower() for row in json.loads(listed.stdout)}


class Bridge:
    def __init__(self, language, cwd="/tmp", env=None):
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-s", DRIVER, "jupyter", language, "--fd", str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=cwd, stdin=subprocess.DEVNULL)
        theirs.close()
        self.stream = Stream(ours)
        self.hello = self.stream.receive()
        usual = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
        if self.hello["type"] == "hello":
            self.stream.send({"op": "begin", "env": {**usual, **(env or {})}, "seed": ""})

    def run(self, code, env=None):
        self.send(code, env)
        return self.finish()

    def send(self, code, env=None):
        self.stream.send({"op": "execute", "code": code, "env": env})

    def finish(self):
        cell = Cell()
        while not cell.ended:
            event = self.stream.receive()
            if event is not None and event["type"] in ("stdout", "stderr"):
                assert event["timestamp"]
                cell.printed(event["type"], event["text"].encode())
            else:
                cell.take(event)
        return cell

    def interrupt_when_counted(self):
        """Interrupts the cell once it runs."""
        first = self.stream.receive()
        assert first["type"] == "number_of_executions", first
        os.kill(self.process.pid, signal.SIGINT)

    def close(self):
        self.stream.connection.close()
        self.process.wait(TIMEOUT)


class LanguageCase(unittest.TestCase):
    language = None

    @classmethod
    def setUpClass(cls):
        if cls.language is None or cls.kernel_language not in languages():
            raise unittest.SkipTest("no kernel for %s is installed" % cls.language)

    def bridge(self, **options):
        bridge = Bridge(self.language, **options)
        self.addCleanup(bridge.close)
        return bridge

    def children_of(self, bridge):
        with open("/proc/%d/task/%d/children" % (bridge.process.pid, bridge.process.pid), encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]


class TypeScript(LanguageCase):
    language = "ts"
    kernel_language = "typescript"

    def test_a_conversation(self):
        bridge = self.bridge(env={"BASE": "old"})
        self.assertEqual(bridge.run("const x: number = 20").results, [])
        cell = bridge.run("x * 2 + 2")
        self.assertEqual((cell.text, cell.count), ("42", 2))
        self.assertEqual(bridge.run("'text'").text, "text")
        self.assertEqual(bridge.run("await Promise.resolve(7)").text, "7")
        self.assertEqual(bridge.run("import path from 'node:path'; path.basename('/a/b')").text, "b")
        printed = bridge.run("console.log('out'); console.error('err'); 1")
        self.assertEqual((printed.stdout, printed.stderr, printed.text), (b"out\n", b"err\n", "1"))
        self.assertEqual(bridge.run("Deno.env.get('BASE') + Deno.env.get('CALL')", {"CALL": "it's", "BASE": "new"}).text, "newit's")
        self.assertEqual(bridge.run("Deno.env.get('BASE') + Deno.env.get('CALL')").text, "oldundefined")
        error = bridge.run("throw new RangeError('far')").error
        self.assertEqual((error["name"], error["value"]), ("RangeError", "far"))
        self.assertTrue(bridge.run("let = ;").error["name"])
        self.assertEqual(bridge.run("x").text, "20")

    def test_nothing_printed_is_lost(self):
        bridge = self.bridge()
        for _ in range(5):
            cell = bridge.run("for (let i = 0; i < 2000; i++) console.log(i)")
            self.assertEqual(cell.stdout, b"".join(b"%d\n" % i for i in range(2000)))

    def test_the_directory_is_the_bridges(self):
        with tempfile.TemporaryDirectory() as directory:
            self.assertEqual(self.bridge(cwd=directory).run("Deno.cwd()").text, directory)

    def test_a_kernel_that_cannot_be_interrupted_is_replaced_with_a_message(self):
        bridge = self.bridge()
        bridge.send("while (true) {}")
        bridge.interrupt_when_counted()
        error = bridge.finish().error
        self.assertEqual(error["name"], "KeyboardInterrupt")
        self.assertIn("state is lost", error["value"])
        self.assertEqual(bridge.run("1 + 1").text, "2")

    def test_a_cell_that_stops_its_own_kernel_continues(self):
        bridge = self.bridge()
        stop = "Deno.kill(Deno.pid, 'SIGSTOP'); 7"
        self.assertEqual(bridge.run(stop).text, "7")

    def test_the_bridge_exits_when_the_kernel_dies(self):
        bridge = self.bridge()
        bridge.run("1")
        bridge.send("await new Promise(() => {})")
        for pid in self.children_of(bridge):
            os.kill(pid, signal.SIGKILL)
        self.assertEqual(bridge.finish().order[-1], "gone")
        self.assertEqual(bridge.process.wait(TIMEOUT), 1)

    def test_the_end_of_the_stream_ends_the_kernel(self):
        bridge = self.bridge()
        bridge.run("1")
        kernels = self.children_of(bridge)
        self.assertTrue(kernels)
        bridge.close()
        self.assertEqual([pid for pid in kernels if os.path.exists("/proc/%d" % pid)], [])


    def test_a_killed_bridge_leaves_no_kernel(self):
        # Its connection file stays behind, so put it into a temporary directory.
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        os.environ["TMPDIR"] = directory.name
        self.addCleanup(os.environ.pop, "TMPDIR")
        bridge = self.bridge()
        bridge.run("1")
        kernels = [os.pidfd_open(pid) for pid in self.children_of(bridge)]
        bridge.process.kill()
        for kernel in kernels:
            # Readable once the process has exited.
            self.assertTrue(select.select([kernel], [], [], TIMEOUT)[0])
            os.close(kernel)


class JavaScript(LanguageCase):
    """The TypeScript kernel serves it if it has none of its own."""

    language = "JavaScript"
    kernel_language = "typescript"

    def test_it_answers(self):
        self.assertEqual(self.bridge().run("const a = [1, 2]; a.map(v => v * 2).join()").text, "2,4")


class Bash(LanguageCase):
    language = "bash"
    kernel_language = "bash"

    def test_a_conversation(self):
        bridge = self.bridge(env={"BASE": "old"})
        bridge.run("x=5")
        self.assertEqual(bridge.run("echo $x").stdout, b"5\n")
        self.assertEqual(bridge.run("echo $BASE $CALL", {"CALL": "it's", "BASE": "new"}).stdout, b"new it's\n")
        self.assertEqual(bridge.run("echo $BASE [$CALL]").stdout, b"old []\n")
        self.assertTrue(bridge.run("false").errors)

    def test_an_interrupt_keeps_the_state(self):
        bridge = self.bridge()
        bridge.run("kept=1")
        bridge.send("sleep 600")
        bridge.interrupt_when_counted()
        bridge.finish()
        self.assertEqual(bridge.run("echo $kept").stdout, b"1\n")


    def test_a_cell_that_stops_its_own_kernel_continues(self):
        bridge = self.bridge()
        self.assertEqual(bridge.run("kill -STOP $$; echo after").stdout, b"after\n")
        self.assertEqual(bridge.run("kill -STOP $PPID; echo again").stdout, b"again\n")

    def test_what_a_cell_stopped_stays_stopped(self):
        bridge = self.bridge()
        state = "sleep 600 & kill -STOP $!; sleep 2; cut -d' ' -f3 /proc/$!/stat; kill -KILL $!"
        self.assertIn(b"T\n", bridge.run(state).stdout)


class R(LanguageCase):
    language = "r"
    kernel_language = "r"

    def test_a_conversation(self):
        bridge = self.bridge(env={"BASE": "old"})
        bridge.run("x <- 20")
        # R displays values itself, so none is the main result.
        self.assertEqual([result["text"] for result in bridge.run("x * 2 + 2").results], ["[1] 42"])
        self.assertEqual(bridge.run("cat('out\\n')").stdout, b"out\n")
        code = "cat(Sys.getenv('BASE'), Sys.getenv('CALL'))"
        self.assertEqual(bridge.run(code, {"CALL": "it's", "BASE": "new"}).stdout, b"new it's")
        self.assertEqual(bridge.run(code).stdout.strip(), b"old")
        self.assertIn("wrong", bridge.run("stop('wrong')").error["value"])
        self.assertNotIn("\n", bridge.run("plot(1:3)").results[0]["png"])


class Missing(unittest.TestCase):
    def test_an_unknown_language_is_named(self):
        bridge = Bridge("nosuchlanguage")
        self.addCleanup(bridge.close)
        self.assertEqual(bridge.hello["type"], "failed")
        self.assertIn("nosuchlanguage", bridge.hello["message"])

    def test_a_kernel_that_does_not_start_says_why(self):
        bridge = self.bridge_to("broken", ["sh", "-c", "echo its own words; exit 3"])
        self.assertIn("its own words", bridge.run("1").error["value"])

    def test_an_interrupt_that_costs_the_kernels_reply_ends_the_cell(self):
        bridge = self.bridge_to("silent", [sys.executable, "-c", SILENT, "-f", "{connection_file}"])
        for _ in range(2):
            bridge.send("anything")
            bridge.interrupt_when_counted()
            self.assertEqual(bridge.finish().error["name"], "KeyboardInterrupt")

    def bridge_to(self, name, argv):
        """A bridge to a kernel that is only installed for this test."""
        home = tempfile.TemporaryDirectory()
        self.addCleanup(home.cleanup)
        spec = os.path.join(home.name, "kernels", name)
        os.makedirs(spec)
        with open(os.path.join(spec, "kernel.json"), "w", encoding="utf-8") as file:
            json.dump({"argv": argv, "language": name, "display_name": name.title()}, file)
        os.environ["JUPYTER_PATH"] = home.name
        self.addCleanup(os.environ.pop, "JUPYTER_PATH")
        bridge = Bridge(name)
        self.addCleanup(bridge.close)
        return bridge


class Interrupted(unittest.TestCase):
    def test_an_interrupt_waits_until_the_cell_has_begun(self):
        cell = jupyter.Cell(["request"])
        begun = {"parent_header": {"msg_id": "request"}, "msg_type": "execute_input", "content": {}}
        self.assertFalse(cell.begin_interrupt())
        self.assertFalse(cell.interrupt_is_due())
        cell.receive(begun)
        self.assertEqual([cell.interrupt_is_due(), cell.interrupt_is_due()], [True, False])
        self.assertTrue(cell.begin_interrupt(), "another one")


if __name__ == "__main__":
    unittest.main()
