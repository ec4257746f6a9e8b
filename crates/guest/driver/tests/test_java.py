"""Java through our own kernel. Skipped where no JDK is installed."""

import os
import select
import tempfile

from support import TIMEOUT
from test_bridge import LanguageCase

INTERRUPTED = "KeyboardInterrupt"


class Java(LanguageCase):
    language = "java"
    kernel_language = "java"

    def test_values_and_state(self):
        bridge = self.bridge()
        self.assertEqual(bridge.run("int x = 20").results, [])
        cell = bridge.run("x * 2 + 2")
        self.assertEqual((cell.text, cell.count), ("42", 2))
        self.assertEqual(bridge.run("int twice(int a) {\n  return 2 * a;\n}\nclass Pair { int a = 1; }\ntwice(x) + new Pair().a").text, "41")
        self.assertEqual(bridge.run("List.of(1, 2).stream().map(i -> i * 2).collect(Collectors.toList())").text, "[2, 4]")
        self.assertEqual(bridge.run("x = 7").text, "7")
        self.assertEqual(bridge.run("// nothing\n").results, [])
        self.assertEqual(bridge.run("System.gc()").results, [])

    def test_texts_are_shown_as_they_are(self):
        bridge = self.bridge()
        self.assertEqual(bridge.run('"plain"').text, "plain")
        cell = bridge.run(r'String s = "a\"b\\c\n\tü😀"; s')
        self.assertEqual(cell.text, 'a"b\\c\n\tü😀')
        self.assertEqual(bridge.run('s + "!"').text, 'a"b\\c\n\tü😀!')
        self.assertEqual(bridge.run("(String) null").text, "null")

    def test_output_is_streamed_and_complete(self):
        bridge = self.bridge()
        printed = bridge.run('System.out.println("ü"); System.err.print("err"); 1')
        self.assertEqual((printed.stdout, printed.stderr, printed.text), ("ü\n".encode(), b"err", "1"))
        cell = bridge.run("for (int i = 0; i < 20000; i++) System.out.println(i);")
        self.assertEqual(cell.stdout, b"".join(b"%d\n" % i for i in range(20000)))

    def test_output_of_programs_is_the_cells(self):
        bridge = self.bridge()
        start = 'new ProcessBuilder("sh", "-c", "%s").inheritIO().start().waitFor()'
        for number in (1, 2):
            cell = bridge.run('System.out.println("java"); ' + start % ("echo out%d; echo err%d >&2" % (number, number)))
            self.assertEqual((cell.stderr, cell.text), (b"err%d\n" % number, "0"))
            self.assertEqual(sorted(cell.stdout.splitlines()), [b"java", b"out%d" % number])
        cell = bridge.run(start % "head -c 3000000 /dev/zero | tr '\\\\0' x")
        self.assertEqual(cell.stdout, b"x" * 3_000_000)

    def test_errors_of_the_compiler(self):
        bridge = self.bridge()
        error = bridge.run('int good = 1;\nint y =\n  "a";\nSystem.out.println(2);').error
        self.assertEqual(error["name"], "CompilationError")
        self.assertIn("incompatible types", error["value"])
        self.assertIn('  "a";\n  ^', error["traceback"])
        self.assertEqual(bridge.run("good").text, "1")
        self.assertEqual(bridge.run("int broken(").error["name"], "CompilationError")
        self.assertIn("method later()", bridge.run("int early() { return later(); }").stderr.decode())
        self.assertIn("later()", bridge.run("early()").error["value"])
        self.assertEqual(bridge.run("int later() { return 5; }\nearly()").text, "5")

    def test_exceptions(self):
        bridge = self.bridge()
        cell = bridge.run('int f() {\n  throw new IllegalStateException("wrong", new RuntimeException("deep"));\n}\nf();\nSystem.out.println("after");')
        self.assertEqual((cell.error["name"], cell.error["value"]), ("java.lang.IllegalStateException", "wrong"))
        self.assertIn("\tat f (#", cell.error["traceback"])
        self.assertIn("deep", cell.error["traceback"])
        self.assertEqual(cell.stdout, b"")
        self.assertEqual(bridge.run("throw new Error()").error["value"], "")

    def test_the_environment_and_the_directory(self):
        with tempfile.TemporaryDirectory() as directory:
            bridge = self.bridge(cwd=directory, env={"BASE": "sandbox"})
            self.assertEqual(bridge.run('System.getenv("BASE")').text, "sandbox")
            self.assertEqual(bridge.run('Path.of("").toAbsolutePath().toString()').text, directory)
            # As on E2B, variables of a call are properties.
            code = 'System.getProperty("CALL")'
            self.assertEqual(bridge.run(code, {"CALL": "it's"}).text, "it's")
            self.assertEqual(bridge.run(code).text, "null")

    def test_an_interrupt_keeps_the_state(self):
        for code in ("while (true) {}", "Thread.sleep(600_000)", "int[] waits = {0}; synchronized (waits) { waits.wait(); }"):
            # On a machine that is too busy to stop a cell within ten seconds, the kernel ends, and the error says so.
            kept = any(self.outlives_an_interrupt(code) for _ in range(3))
            self.assertTrue(kept, code)

    def outlives_an_interrupt(self, code):
        bridge = self.bridge()
        bridge.run("int kept = 1")
        bridge.send(code)
        bridge.interrupt_when_counted()
        error = bridge.finish().error
        self.assertEqual(error["name"], INTERRUPTED, code)
        if "state is lost" in error["value"]:
            return False
        cell = bridge.run("kept++; System.out.println(kept)")
        self.assertEqual((cell.errors, cell.stdout), ([], b"2\n"), code)
        return True

    def test_an_interrupt_ends_what_prints_without_an_end(self):
        """If it hits a write between the two virtual machines, the state is lost."""
        bridge = self.bridge()
        bridge.run("1")
        bridge.send("while (true) System.out.println(1);")
        bridge.interrupt_when_counted()
        self.assertEqual(bridge.finish().error["name"], INTERRUPTED)
        self.assertEqual(bridge.run("1 + 1").text, "2")

    def test_a_cell_that_cannot_be_interrupted_ends_its_kernel(self):
        bridge = self.bridge()
        bridge.run("int lost = 1")
        bridge.send("while (true) try { Thread.sleep(1); } catch (Throwable all) {}")
        bridge.interrupt_when_counted()
        error = bridge.finish().error
        self.assertEqual(error["name"], INTERRUPTED)
        self.assertIn("state is lost", error["value"])
        self.assertEqual(bridge.run("1 + 1").text, "2")

    def test_an_exit_ends_the_kernel(self):
        bridge = self.bridge()
        bridge.run("1")
        bridge.send("System.exit(3)")
        self.assertEqual(bridge.finish().order[-1], "gone")
        self.assertEqual(bridge.process.wait(TIMEOUT), 1)

    def test_a_cell_that_stops_its_own_kernel_continues(self):
        bridge = self.bridge()
        stop = 'new ProcessBuilder("kill", "-STOP", "" + ProcessHandle.current().pid()).start().waitFor()'
        self.assertEqual(bridge.run(stop).text, "0")

    def test_the_end_of_the_stream_ends_both_virtual_machines(self):
        bridge = self.bridge()
        machine = int(bridge.run("ProcessHandle.current().pid()").text)
        kernels = [*self.children_of(bridge), machine]
        self.assertEqual(len(kernels), 2)
        watched = [os.pidfd_open(pid) for pid in kernels]
        bridge.close()
        for one in watched:
            # Readable once the process has exited.
            self.assertTrue(select.select([one], [], [], TIMEOUT)[0])
            os.close(one)
