"""Copies of a kernel: what they have of it, what they do not share with it, and what user code can do about it."""

import os
import signal
import time
import unittest

from support import Kernel, KernelCase, send_ends


class CopyCase(KernelCase):
    def fork(self, count=1, kernel=None):
        copies = (kernel or self.kernel).fork(count)
        for copy in copies:
            self.addCleanup(copy.close)
        return copies

    def copy(self, kernel=None):
        return self.fork(1, kernel)[0]

    def value(self, kernel, code):
        cell = kernel.run(code)
        self.assertEqual(cell.errors, [], code)
        return cell.text


class Copies(CopyCase):
    def test_a_copy_has_the_variables_and_goes_on_by_itself(self):
        self.run_ok("x = [1]; def_ = lambda: len(x)")
        copy = self.copy()
        copy.run("x.append(2)")
        self.run_ok("x.extend('abc')")
        self.assertEqual((self.value(copy, "def_()"), self.run_ok("def_()").text), ("2", "4"))

    def test_history_and_counts_go_on(self):
        self.run_ok("6 * 7")
        copy = self.copy()
        cell = copy.run("_, In[1], Out")
        self.assertEqual((cell.count, cell.text), (2, "(42, '6 * 7', {1: 42})"))
        self.assertEqual(self.run_ok("1").count, 2)

    def test_many_copies_and_copies_of_copies(self):
        self.run_ok("depth = 0")
        kernels = self.fork(20)
        self.assertEqual(len({kernel.pid for kernel in kernels}), 20)
        kernel = self.kernel
        # Deeper than Python's limit of nested calls would allow, if each copy ran inside its original.
        for depth in range(1, 60):
            kernel = self.copy(kernel)
            self.assertEqual(self.value(kernel, "depth += 1\ndepth"), str(depth))

    def test_a_copy_is_nobodys_child_and_has_its_own_session(self):
        copy = self.copy()
        with open("/proc/%d/stat" % copy.pid, encoding="utf-8") as stat:
            fields = stat.read().rpartition(")")[2].split()
        parent, group, session = (int(field) for field in fields[1:4])
        self.assertNotEqual(parent, self.kernel.pid)
        self.assertEqual((group, session), (copy.pid, copy.pid))
        cell = self.kernel.run("import os; os.waitpid(-1, 0)")
        self.assertEqual(cell.error["name"], "ChildProcessError")

    def test_either_outlives_the_other(self):
        self.run_ok("kept = 1")
        first, second = self.fork(2)
        os.kill(first.pid, signal.SIGKILL)
        self.assertEqual((self.run_ok("kept").text, self.value(second, "kept")), ("1", "1"))
        other = self.start(context="other")
        other.run("kept = 2")
        copy = self.copy(other)
        os.kill(other.pid, signal.SIGKILL)
        self.assertIsNone(other.stream.receive())
        self.assertEqual(self.value(copy, "kept"), "2")

    def test_an_interrupt_stops_one_of_them(self):
        copy = self.copy()
        copy.send("import time\nprint('go')\ntime.sleep(1000)")
        self.assertEqual(os.read(copy.stdout, 10), b"go\n")
        self.kernel.send("import time\nprint('go')\ntime.sleep(1000)")
        self.assertEqual(os.read(self.kernel.stdout, 10), b"go\n")
        copy.interrupt()
        self.assertEqual(copy.finish().error["name"], "KeyboardInterrupt")
        self.assertEqual(self.value(copy, "1 + 1"), "2")
        self.kernel.interrupt()
        self.assertEqual(self.kernel.finish().error["name"], "KeyboardInterrupt")

    def test_a_copy_ends_with_its_stream_and_leaves_nothing_open(self):
        first, second = self.kernel.fork(2)
        first.stream.connection.close()
        # The pipes end when nobody holds them: neither the kernel nor the other copy.
        self.assertEqual((os.read(first.stdout, 1), os.read(first.stderr, 1)), (b"", b""))
        descriptors = "import os; sorted(os.listdir('/proc/self/fd'))"
        self.assertEqual(self.value(second, descriptors), self.run_ok(descriptors).text)
        os.close(first.stdout)
        os.close(first.stderr)
        second.close()


class Output(CopyCase):
    def test_each_prints_to_its_own_pipes(self):
        self.run_ok("import os, sys; saved = os.dup(1); log = os.fdopen(os.dup(2), 'w')")
        copy = self.copy()
        cell = copy.run("print('a'); os.write(saved, b'b'); os.system('echo c'); print('d', file=log, flush=True)")
        self.assertEqual((cell.stdout, cell.stderr), (b"a\nbc\n", b"d\n"))
        cell = self.run_ok("print('e'); sys.stderr.write('f')")
        self.assertEqual((cell.stdout, cell.stderr), (b"e\n", b"f"))

    def test_what_was_printed_before_is_not_printed_again(self):
        self.run_ok("import threading, time, sys")
        self.run_ok("def late():\n    time.sleep(.2)\n    sys.stdout.write('late')\nthread = threading.Thread(target=late)")
        self.run_ok("thread.start()")
        time.sleep(0.3)
        copy = self.copy()
        self.assertEqual(copy.run("print('mine')").stdout, b"mine\n")

    def test_a_redirection_stays(self):
        self.run_ok("import io, sys; before, sys.stdout = sys.stdout, io.StringIO()\nprint('kept')")
        copy = self.copy()
        self.assertEqual(self.value(copy, "sys.stdout.getvalue().strip()"), "kept")
        self.assertEqual(copy.run("sys.stdout = before\nprint('on')").stdout, b"on\n")

    def test_streams_that_a_cell_closed_are_reopened(self):
        self.run_ok("import os, sys; os.closerange(0, 3); sys.stdout.close()")
        self.assertEqual(self.copy().run("print('heard')").stdout, b"heard\n")

    def test_results_and_errors_go_to_its_own_stream(self):
        copy = self.copy()
        cell = copy.run("display(1)\nprint(2)\n3")
        self.assertEqual(cell.order, ["number_of_executions", "result", "stdout", "result", "end_of_execution"])
        self.assertEqual(copy.run("1 / 0").error["name"], "ZeroDivisionError")
        self.assertEqual(self.run_ok("4").order, ["number_of_executions", "result", "end_of_execution"])


class State(CopyCase):
    def test_random_numbers_and_temporary_names_differ(self):
        self.run_ok("import random, tempfile, uuid; random.seed(1); tempfile.NamedTemporaryFile().name")
        draw = "random.random(), tempfile.NamedTemporaryFile().name"
        drawn = [self.value(kernel, draw) for kernel in [self.kernel, *self.fork(3)]]
        self.assertEqual(len(set(drawn)), 4)

    def test_a_generator_of_the_users_own_is_copied(self):
        self.run_ok("import random; mine = random.Random(1)")
        copy = self.copy()
        self.assertEqual(self.value(copy, "mine.random()"), self.run_ok("mine.random()").text)

    def test_the_directory_and_the_environment_are_copied(self):
        self.run_ok("import os; os.chdir('/usr'); os.environ['MINE'] = '1'")
        copy = self.copy()
        self.assertEqual(self.value(copy, "os.getcwd(), os.environ['MINE']"), "('/usr', '1')")
        copy.run("os.chdir('/')")
        self.assertEqual(self.run_ok("os.getcwd()").text, "/usr")

    def test_threads_are_not_copied(self):
        self.run_ok("import threading, time; thread = threading.Thread(target=time.sleep, args=(60,), daemon=True)")
        self.run_ok("thread.start()")
        copy = self.copy()
        self.assertEqual(self.value(copy, "threading.active_count(), thread.is_alive()"), "(1, False)")
        self.assertEqual(self.run_ok("thread.is_alive()").text, "True")
        self.assertEqual(copy.run("threading.Thread(target=print, args=('new',)).start()").errors, [])

    def test_both_can_await_and_their_loops_are_separate(self):
        self.run_ok("import asyncio; await asyncio.sleep(0); loop = asyncio.get_running_loop()")
        copy = self.copy()
        fetch = """
async def serve(reader, writer):
    writer.write(b'%s'); await writer.drain(); writer.close()
server = await asyncio.start_server(serve, '127.0.0.1', 0)
reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
(await reader.read()).decode()"""
        self.assertEqual(self.value(copy, fetch % "copy"), "copy")
        self.assertEqual(self.value(self.kernel, fetch % "kernel"), "kernel")
        copy.run("del loop; import gc; gc.collect()")
        self.assertEqual(self.run_ok("await asyncio.sleep(0.01, 'on')").text, "on")
        # Another thread wakes the loop through the descriptor that both share.
        wake = "await asyncio.to_thread(lambda: 'woken')"
        self.assertEqual((self.run_ok(wake).text, self.value(copy, wake)), ("woken", "woken"))


class Sabotage(CopyCase):
    def test_what_user_code_replaces_does_not_matter(self):
        self.run_ok("import os, json, builtins, socket; os.fork = os.setsid = json.dumps = None; builtins.len = None")
        self.assertEqual(self.value(self.copy(), "6 * 7"), "42")

    def test_a_fork_that_fails_is_reported_and_the_others_are_made(self):
        self.run_ok(
            """
import os, sys
copies = sys.modules['isopod_driver.copies']
real, count = copies.fork, 0
def fork():
    global count
    count += 1
    if count == 3:
        raise BlockingIOError(11, 'Resource temporarily unavailable')
    return real()
copies.fork = fork"""
        )
        first, second, third = self.fork(3)
        self.assertEqual((self.value(first, "1"), self.value(third, "3")), ("1", "3"))
        self.assertEqual(second.hello["type"], "failed")
        self.assertIn("Resource temporarily unavailable", second.hello["message"])
        self.run_ok("count = 2")
        self.assertEqual({copy.hello["type"] for copy in self.fork(2)}, {"failed"})
        self.assertEqual(self.run_ok("count").text, "3")

    def test_functions_that_fail_at_a_fork_do_no_harm(self):
        self.run_ok("import os; os.register_at_fork(after_in_child=lambda: 1 / 0, before=lambda: 1 / 0)")
        self.assertEqual(self.value(self.copy(), "1"), "1")

    def test_functions_that_block_at_a_fork_cost_only_the_copy(self):
        self.run_ok("import os, time; os.register_at_fork(after_in_child=lambda: time.sleep(1000))")
        copy = Kernel()
        self.addCleanup(copy.close)
        send_ends(self.kernel.stream.connection, b'{"op": "fork", "seeds": ["00"]}\n', [copy])
        self.assertEqual(self.run_ok("1 + 1").text, "2")
        self.assertIsNone(copy.stream.receive())

    def test_ignored_children_and_bad_handlers_do_not_matter(self):
        for handler in ("signal.SIG_IGN", "lambda *_: 1 / 0"):
            self.run_ok("import signal; signal.signal(signal.SIGCHLD, %s)" % handler)
            self.assertEqual(self.value(self.copy(), "1"), "1")
            self.assertEqual(self.run_ok("2").text, "2")

    def test_malformed_requests_are_ignored(self):
        for message in (b'{"op": "fork"}\n', b'{"op": "fork", "seeds": 3}\n', b'{"op": "fork", "seeds": ["", ""]}\n'):
            self.kernel.stream.connection.sendall(message)
        self.assertEqual(self.run_ok("1 + 1").text, "2")


class Packages(CopyCase):
    warm = "full"

    def test_figures_and_tables_go_on(self):
        self.run_ok("import matplotlib.pyplot as plt, pandas as pd; table = pd.DataFrame({'a': [1, 2]})")
        # Cells close what they show, so the figure is kept by name.
        self.run_ok("figure, axes = plt.subplots(); axes.plot([1, 2]); plt.close(figure)")
        copy = self.copy()
        cell = copy.run("axes.plot([2, 1]); display(figure); table")
        self.assertEqual(cell.errors, [])
        self.assertIn("png", cell.results[0])
        self.assertIn("<table", cell.main["html"])

    def test_numpy_works_on_all_cores_and_its_numbers_differ(self):
        self.run_ok("import numpy as np; a = np.random.rand(400, 400); (a @ a).sum()")
        copies = self.fork(3)
        product = "float((a @ a).sum()) == float((a @ a).sum())"
        self.assertEqual([self.value(kernel, product) for kernel in [self.kernel, *copies]], ["True"] * 4)
        drawn = {self.value(kernel, "np.random.rand()") for kernel in [self.kernel, *copies]}
        self.assertEqual(len(drawn), 4)

    def test_scikit_learn_does_not_wait_for_threads_of_the_kernel(self):
        self.run_ok("import numpy as np; from sklearn.ensemble import HistGradientBoostingClassifier as Classifier")
        self.run_ok("x = np.random.rand(500, 5); y = x[:, 0] > 0.5; fit = lambda: Classifier(max_iter=2).fit(x, y)")
        self.run_ok("fit()")
        self.assertEqual(self.value(self.copy(), "fit().score(x, y) > 0.9"), "True")
        self.run_ok("fit()")

    def test_a_generator_that_cannot_be_seeded_does_no_harm(self):
        self.run_ok("import numpy as np; np.random.set_bit_generator(np.random.PCG64(1))")
        self.assertEqual(self.value(self.copy(), "1"), "1")


if __name__ == "__main__":
    unittest.main()
