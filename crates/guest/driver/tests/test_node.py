"""JavaScript through our own kernel on Node.js. Skipped where Node.js 18 or newer is not installed."""

import os
import select
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from unittest import mock

from support import DRIVER, TIMEOUT
from test_bridge import LanguageCase

sys.path.insert(0, os.path.dirname(DRIVER))
from isopod_driver import jupyter, node_kernel, specs  # noqa: E402

INTERRUPTED = "KeyboardInterrupt"
# Ends a cell only after the event loop has turned, so that what was left behind has run.
SETTLE = "await new Promise((done) => setTimeout(done, 10))"


class Node(LanguageCase):
    # By the kernel's name, because Deno serves the language where it is installed.
    language = node_kernel.NAME

    @classmethod
    def setUpClass(cls):
        node = node_kernel.find_node()
        version = subprocess.run([node, "--version"], capture_output=True, text=True).stdout if node else ""
        if not version or int(version[1:].split(".")[0]) < 18:
            raise unittest.SkipTest("Node.js 18 or newer is not installed")

    def test_values_and_state(self):
        bridge = self.bridge()
        self.assertEqual(bridge.run("const x = 20").results, [])
        cell = bridge.run("x * 2 + 2")
        self.assertEqual((cell.text, cell.count), ("42", 2))
        self.assertEqual(bridge.run("function twice(a) { return 2 * a }\nclass Pair { a = 1 }\ntwice(x) + new Pair().a").text, "41")
        self.assertEqual(bridge.run("twice(4)").text, "8")
        self.assertEqual(bridge.run("implied = 5; var older = 6; implied + older").text, "11")
        self.assertEqual(bridge.run("globalThis.implied + older").text, "11")
        for code in ("undefined", "// nothing\n", "", "let y = 1"):
            self.assertEqual(bridge.run(code).results, [], code)

    def test_names_may_be_declared_again(self):
        bridge = self.bridge()
        for value in ("1", "2"):
            self.assertEqual(bridge.run("const a = %s; let b = a; class C {}\na + b" % value).text, str(2 * int(value)))

    def test_values_as_text(self):
        bridge = self.bridge()
        values = {
            "'text'": "text",
            "'\"quoted\"'": '"quoted"',
            "({ a: { b: { c: [1, 'x'] } } })": "{\n  a: { b: { c: [ 1, 'x' ] } }\n}",
            "[1, 2].map((v) => v * 2)": "[ 2, 4 ]",
            "null": "null",
            "NaN": "NaN",
            "-0": "-0",
            "10n ** 20n": "100000000000000000000n",
            "Symbol('s')": "Symbol(s)",
            "new Map([[1, 2]])": "Map(1) { 1 => 2 }",
            "Promise.resolve(7)": "Promise { 7 }",
            "'ü😀'": "ü😀",
        }
        for code, text in values.items():
            self.assertEqual(bridge.run(code).text, text, code)

    def test_await_works_outside_of_functions(self):
        bridge = self.bridge()
        bridge.run("const waited = await new Promise((done) => setTimeout(done, 10, 7))")
        self.assertEqual(bridge.run("waited").text, "7")
        self.assertEqual(bridge.run("let sum = 0\nfor await (const n of [1, Promise.resolve(2)]) sum += n\nsum").text, "3")
        self.assertEqual(bridge.run("async function main() {\n  return 'Hello'\n}\n\nawait main()").text, "Hello")

    def test_output_is_streamed_and_complete(self):
        bridge = self.bridge()
        printed = bridge.run("console.log('ü', { a: 1 }); console.error('err'); 1")
        self.assertEqual((printed.stdout, printed.stderr, printed.text), ("ü { a: 1 }\n".encode(), b"err\n", "1"))
        cell = bridge.run("for (let i = 0; i < 20000; i++) console.log(i)")
        self.assertEqual(cell.stdout, b"".join(b"%d\n" % i for i in range(20000)))
        cell = bridge.run("process.stdout.write(Buffer.alloc(300_000, 'x')); process.stdout.write('c3bc', 'hex')")
        self.assertEqual(cell.stdout, b"x" * 300_000 + "ü".encode())
        cell = bridge.run("await new Promise((done) => require('stream').Readable.from(['a', 'b']).pipe(process.stdout).on('unpipe', done)); 1")
        self.assertEqual((cell.stdout, cell.text), (b"ab", "1"))

    def test_output_arrives_before_the_end_of_the_cell(self):
        bridge = self.bridge()
        bridge.send("console.log('first'); while (true) {}")
        seen = [bridge.stream.receive()["type"], bridge.stream.receive()]
        self.assertEqual(seen[0], "number_of_executions")
        self.assertEqual((seen[1]["type"], seen[1]["text"]), ("stdout", "first\n"))
        os.kill(bridge.process.pid, signal.SIGINT)
        self.assertEqual(bridge.finish().error["name"], INTERRUPTED)

    def test_output_of_programs_is_the_cells(self):
        bridge = self.bridge()
        start = "require('child_process').spawnSync('sh', ['-c', 'echo out; echo err >&2; ls /proc/self/fd'], { stdio: 'inherit' }).status"
        cell = bridge.run(start)
        # The kernel's own connection is not theirs: the fourth descriptor is of the directory.
        self.assertEqual((cell.stdout, cell.stderr, cell.text), (b"out\n0\n1\n2\n3\n", b"err\n", "0"))
        self.assertEqual(bridge.run("require('fs').writeSync(1, 'direct'); 1").stdout, b"direct")

    def test_errors(self):
        bridge = self.bridge()
        cell = bridge.run("function f() {\n  throw new RangeError('far')\n}\n\nf()\nconsole.log('after')")
        self.assertEqual((cell.error["name"], cell.error["value"]), ("RangeError", "far"))
        self.assertEqual(cell.error["traceback"], "RangeError: far\n    at f (cell-1.js:2:9)\n    at cell-1.js:5:1")
        self.assertEqual(cell.stdout, b"")
        error = bridge.run("class Own extends Error { name = 'Own' }\nawait Promise.reject(new Own('mine'))").error
        self.assertEqual((error["name"], error["value"]), ("Own", "mine"))
        error = bridge.run("throw { code: 5 }").error
        self.assertEqual((error["name"], error["value"]), ("Uncaught", "{ code: 5 }"))
        self.assertEqual(bridge.run("nosuch").error["name"], "ReferenceError")

    def test_errors_of_the_parser_show_their_place(self):
        bridge = self.bridge()
        error = bridge.run("const good = 1\nlet = ;").error
        self.assertEqual((error["name"], error["value"]), ("SyntaxError", "Unexpected token ';'"))
        self.assertIn("cell-1.js:2\nlet = ;\n      ^\n\nSyntaxError", error["traceback"])
        self.assertEqual(bridge.run("good").error["name"], "ReferenceError")
        self.assertEqual(bridge.run("import { from 'fs'").error["name"], "SyntaxError")

    def test_a_value_that_cannot_be_shown_is_an_error(self):
        bridge = self.bridge()
        code = "({ [Symbol.for('nodejs.util.inspect.custom')]() { throw new TypeError('hidden') } })"
        self.assertEqual(bridge.run(code).error["value"], "hidden")
        self.assertEqual(bridge.run("1 + 1").text, "2")

    def test_errors_that_nobody_awaits_do_not_end_the_kernel(self):
        bridge = self.bridge()
        bridge.run("let kept = 1")
        for code in ("setTimeout(() => { throw new Error('late') })", "Promise.reject(new Error('late'))"):
            cell = bridge.run("%s; %s; kept" % (code, SETTLE))
            self.assertIn(b"Uncaught Error: late\n    at ", cell.stderr)
            self.assertEqual((cell.errors, cell.text), ([], "1"), code)

    def test_formats_of_values(self):
        bridge = self.bridge()
        code = "({ [Symbol.for('Jupyter.display')]: async () => ({ 'application/json': { a: [1] }, 'text/plain': 'one' }) })"
        main = bridge.run(code).main
        self.assertEqual((main["json"], main["text"]), ({"a": [1]}, "one"))
        self.assertEqual(bridge.run("({ _toHtml: () => '<b>1</b>' })").main["html"], "<b>1</b>")
        cell = bridge.run("await display({ a: 1 }); await display('b'); 3")
        shown = [(result["text"], result["is_main_result"]) for result in cell.results]
        self.assertEqual(shown, [("{ a: 1 }", False), ("b", False), ("3", True)])

    def test_modules(self):
        with tempfile.TemporaryDirectory() as directory:
            self.install(directory, "older", "module.exports = { name: 'older' }")
            self.install(directory, "newer", "export default 'newer'; export const a = 1, b = 2", {"type": "module"})
            self.install(directory, "@some/scoped", "module.exports = 'scoped'")
            with open(os.path.join(directory, "near.mjs"), "w", encoding="ascii") as file:
                file.write("export const near = import.meta.url")
            bridge = self.bridge(cwd=directory)
            self.assertEqual(bridge.run("require('older').name + require('path').sep").text, "older/")
            self.assertEqual(bridge.run("import newer, { a, b as c } from 'newer'\nimport * as all from 'newer'; [newer, a, c, all.b]").text, "[ 'newer', 1, 2, 2 ]")
            # Still there, and may be imported again.
            self.assertEqual(bridge.run("import newer from 'newer'; newer + a").text, "newer1")
            self.assertEqual(bridge.run("import 'newer'; import older from 'npm:older@^1.0'; older.name").text, "older")
            self.assertEqual(bridge.run("(await import('npm:@some/scoped@1')).default").text, "scoped")
            near = "file://%s/near.mjs" % os.path.realpath(directory)
            self.assertEqual(bridge.run("import {\n  near,\n} from './near.mjs'; near").text, near)
            self.assertEqual(bridge.run("const load = async (name) => (await import(name)).default; await load('newer')").text, "newer")
            self.assertEqual(bridge.run("import {\n  near,\n} from './near.mjs'\nthrow new Error('4')").error["traceback"], "Error: 4\n    at cell-8.js:4:7")
            self.assertEqual(bridge.run("[__dirname, require('url').fileURLToPath(import.meta.url)].map((p) => p.startsWith(process.cwd()))").text, "[ true, true ]")
            # What only looks like an import.
            self.assertEqual(bridge.run("/* import x from 'y' */ const text = `import('z')`; text").text, "import('z')")
            self.assertIn("nosuch", bridge.run("import x from 'nosuch'").error["value"])
            self.assertIn("nosuch", bridge.run("require('nosuch')").error["value"])

    def install(self, directory, name, code, more=None):
        package = os.path.join(directory, "node_modules", name)
        os.makedirs(package)
        with open(os.path.join(package, "package.json"), "w", encoding="ascii") as file:
            file.write('{"name": "%s", "version": "1.0.0", "main": "main.js", "type": "%s"}' % (name, (more or {}).get("type", "commonjs")))
        with open(os.path.join(package, "main.js"), "w", encoding="ascii") as file:
            file.write(code)

    def test_the_environment_and_the_directory(self):
        with tempfile.TemporaryDirectory() as directory:
            bridge = self.bridge(cwd=directory, env={"BASE": "old"})
            self.assertEqual(bridge.run("process.cwd()").text, os.path.realpath(directory))
            code = "process.env.BASE + process.env.CALL"
            self.assertEqual(bridge.run(code, {"CALL": "it's", "BASE": "new"}).text, "newit's")
            self.assertEqual(bridge.run(code).text, "oldundefined")
            self.assertEqual(bridge.run("[process.execArgv, process.env.NODE_PATH]").text, "[ [], undefined ]")

    def test_an_interrupt_keeps_the_state(self):
        bridge = self.bridge()
        bridge.run("let kept = 0")
        cells = (
            "while (true) {}",
            "while (true) console.log(1)",
            "await new Promise(() => {})",
            "for (;;) await null",
            "await null; while (true) {}",
            "(function again() { try { for (;;); } finally { again() } })()",
            "({ [Symbol.for('nodejs.util.inspect.custom')]() { for (;;); } })",
            "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
            "require('child_process').execSync('sleep 600; echo never')",
        )
        for number, code in enumerate(cells, 1):
            bridge.send(code)
            bridge.interrupt_when_counted()
            self.assertEqual(bridge.finish().error["name"], INTERRUPTED, code)
            cell = bridge.run("%s; kept++; console.log(kept)" % SETTLE)
            self.assertEqual((cell.errors, cell.stdout), ([], b"%d\n" % number), code)

    def test_an_interrupt_stops_what_a_timer_runs(self):
        bridge = self.bridge()
        bridge.run("let kept = 1")
        for start in ("setTimeout", "setImmediate"):
            bridge.send("%s(() => { console.log('begun'); while (true) {} }); await new Promise(() => {})" % start)
            while bridge.stream.receive()["type"] != "stdout":
                pass
            os.kill(bridge.process.pid, signal.SIGINT)
            self.assertEqual(bridge.finish().error["name"], INTERRUPTED, start)
            self.assertEqual(bridge.run("%s; kept" % SETTLE).text, "1", start)

    def test_a_cell_may_wait_for_what_nobody_can_give(self):
        bridge = self.bridge()
        bridge.run("require('v8').setFlagsFromString('--expose-gc'); const gc = require('vm').runInNewContext('gc'); let kept = 1")
        collect = "setTimeout(() => { gc(); console.log('collected') })"
        for code in ("await new Promise(() => {})", "const never = new Promise(() => {}); await never"):
            bridge.send("%s; %s" % (collect, code))
            while bridge.stream.receive()["type"] != "stdout":
                pass
            os.kill(bridge.process.pid, signal.SIGINT)
            self.assertEqual(bridge.finish().error["name"], INTERRUPTED, code)
            self.assertEqual(bridge.run("gc(); kept").text, "1", code)

    def test_an_interrupt_between_cells_is_dropped(self):
        bridge = self.bridge()
        bridge.run("1")
        os.kill(bridge.process.pid, signal.SIGINT)
        self.assertEqual(bridge.run("%s; 2" % SETTLE).text, "2")

    def test_what_a_cell_leaves_running_goes_on(self):
        bridge = self.bridge()
        # More than fits into a pipe, while no cell runs.
        code = """
            const server = require('http').createServer((_, answer) => { console.log('y'.repeat(200_000)); answer.end('ok') })
            await new Promise((done) => server.listen(0, '127.0.0.1', done))
            server.address().port
        """
        port = int(bridge.run(code).text)
        for _ in range(3):
            with urllib.request.urlopen("http://127.0.0.1:%d/" % port, timeout=TIMEOUT) as answer:
                self.assertEqual(answer.read(), b"ok")
        cell = bridge.run("server.close(); 'closed'")
        self.assertEqual((cell.text, cell.stdout), ("closed", (b"y" * 200_000 + b"\n") * 3))

    def test_damage_does_not_reach_the_kernel(self):
        bridge = self.bridge()
        cell = bridge.run("JSON.stringify = console.log = globalThis.process = null; Object.prototype.kind = 'done'; 1")
        self.assertEqual(cell.text, "1")
        self.assertEqual(bridge.run("process = require('process'); 6 * 7").text, "42")

    def test_an_exit_ends_the_kernel(self):
        bridge = self.bridge()
        bridge.run("1")
        bridge.send("console.log('last'); process.exit(3)")
        cell = bridge.finish()
        self.assertEqual((cell.stdout, cell.stderr, cell.order[-1]), (b"last\n", b"", "gone"))
        self.assertEqual(bridge.process.wait(TIMEOUT), 1)

    def test_a_signal_to_itself_ends_the_kernel(self):
        for name in ("SIGTERM", "SIGSTOP"):
            bridge = self.bridge()
            bridge.send("process.kill(process.pid, '%s')" % name)
            cell = bridge.finish()
            self.assertEqual((cell.stderr, cell.order[-1]), (b"", "gone"), name)

    def test_a_cell_that_stops_its_own_kernel_continues(self):
        self.assertEqual(self.bridge().run("require('child_process').execSync('kill -STOP ' + process.pid); 7").text, "7")

    def test_the_end_of_the_stream_ends_the_kernel(self):
        bridge = self.bridge()
        bridge.run("1")
        kernels = [os.pidfd_open(pid) for pid in self.children_of(bridge)]
        self.assertEqual(len(kernels), 1)
        bridge.close()
        for kernel in kernels:
            # Readable once the process has exited.
            self.assertTrue(select.select([kernel], [], [], TIMEOUT)[0])
            os.close(kernel)


class Listed(unittest.TestCase):
    """Which kernel serves JavaScript."""

    def setUp(self):
        node = mock.patch.object(node_kernel, "find_node", lambda: "/usr/bin/node")
        node.start()
        self.addCleanup(node.stop)

    def served_by(self, registered, has_jupyter):
        known = [specs.Spec(name, "", {"argv": ["x"], "language": language}) for name, language in registered]
        with mock.patch.object(specs, "registered_specs", lambda: known):
            with mock.patch.object(jupyter, "is_available", lambda: has_jupyter):
                return specs.resolve("js").name

    def test_a_jupyter_kernel_comes_first(self):
        self.assertEqual(self.served_by([("deno", "typescript")], True), "deno")
        self.assertEqual(self.served_by([("javascript", "javascript")], True), "javascript")

    def test_node_serves_it_where_no_jupyter_kernel_can(self):
        self.assertEqual(self.served_by([("bash", "bash")], True), node_kernel.NAME)
        self.assertEqual(self.served_by([("deno", "typescript"), ("javascript", "javascript")], False), node_kernel.NAME)


if __name__ == "__main__":
    unittest.main()
