"""A kernel with IPython: what cells can do, and what they cannot do to the kernel."""

import os
import random
import signal
import tempfile
import time
import unittest

from support import Forkserver, KernelCase


def started_by(pid):
    with open("/proc/%d/task/%d/children" % (pid, pid), encoding="utf-8") as children:
        return [int(child) for child in children.read().split()]


class Cells(KernelCase):
    def test_names_stay_from_cell_to_cell(self):
        self.run_ok("x = 41")
        self.assertEqual(self.run_ok("x + 1").text, "42")

    def test_the_count_goes_up_by_one(self):
        self.assertEqual([self.run_ok("1").count for _ in range(3)], [1, 2, 3])

    def test_only_the_last_expression_is_the_main_result(self):
        cell = self.run_ok("display('shown')\n1\n2")
        self.assertEqual([(r["text"], r["is_main_result"]) for r in cell.results], [("shown", False), ("2", True)])

    def test_a_semicolon_suppresses_the_result(self):
        self.assertEqual(self.run_ok("1 + 1;").results, [])

    def test_none_is_not_a_result(self):
        self.assertEqual(self.run_ok("None").results, [])

    def test_an_empty_cell_ends(self):
        self.assertEqual(self.run_ok("").order[-1], "end_of_execution")

    def test_a_string_is_shown_without_its_quotes(self):
        self.assertEqual(self.run_ok("'it is'").text, "it is")

    def test_the_module_is_main(self):
        self.assertEqual(self.run_ok("__name__").text, "__main__")

    def test_underscore_is_the_last_value(self):
        self.run_ok("6 * 7")
        self.assertEqual(self.run_ok("_").text, "42")

    def test_the_driver_is_not_on_the_path_of_user_code(self):
        self.assertEqual(self.run_ok("import sys; [p for p in sys.path if 'driver' in p and 'venv' not in p]").text, "[]")
        self.assertEqual(self.run_ok("sys.path[0]").text, "")

    def test_packages_that_another_process_installs_can_be_imported(self):
        with tempfile.TemporaryDirectory() as home:
            kernel = self.start(context="installs", env={"HOME": home})
            user_site = kernel.run("import site; site.getusersitepackages()").text
            self.assertTrue(user_site.startswith(home), user_site)
            self.assertEqual(kernel.run("import tiny").error["name"], "ModuleNotFoundError")
            os.makedirs(user_site)
            with open(os.path.join(user_site, "tiny.py"), "w") as module:
                module.write("answer = 42")
            self.assertEqual(kernel.run("import tiny; tiny.answer").text, "42")

    def test_contexts_share_nothing(self):
        other = self.start(context="other")
        self.run_ok("mine = 1")
        self.assertEqual(other.run("mine").error["name"], "NameError")


class Printing(KernelCase):
    def test_prints_results_and_ends_keep_their_order(self):
        cell = self.run_ok("print('a')\ndisplay(1)\nprint('b')\n2")
        self.assertEqual(
            cell.order, ["number_of_executions", "stdout", "result", "stdout", "result", "end_of_execution"]
        )
        self.assertEqual(cell.stdout, b"a\nb\n")

    def test_a_line_is_written_at_once(self):
        self.kernel.send("print('first', 'line')\nimport time\ntime.sleep(60)")
        self.assertEqual(os.read(self.kernel.stdout, 100), b"first line\n")
        self.kernel.interrupt()
        self.assertEqual(self.kernel.finish().error["name"], "KeyboardInterrupt")

    def test_an_incomplete_line_does_not_wait_for_its_end(self):
        self.kernel.send("print('working', end='')\nimport time\ntime.sleep(60)")
        self.assertEqual(os.read(self.kernel.stdout, 100), b"working")
        self.kernel.interrupt()
        self.kernel.finish()

    def test_children_and_c_code_write_to_the_same_streams(self):
        cell = self.run_ok("import os, subprocess\nos.write(1, b'c\\n')\nsubprocess.run(['sh', '-c', 'echo out; echo err >&2'])\n0")
        self.assertEqual((cell.stdout, cell.stderr), (b"c\nout\n", b"err\n"))

    def test_threads_print(self):
        cell = self.run_ok("import threading\nt = threading.Thread(target=print, args=('from a thread',)); t.start(); t.join()")
        self.assertEqual(cell.stdout, b"from a thread\n")

    def test_warnings_go_to_stderr(self):
        self.assertIn(b"UserWarning: careful", self.run_ok("import warnings; warnings.warn('careful')").stderr)

    def test_large_output_arrives_whole(self):
        cell = self.run_ok("for i in range(200_000): print(i)")
        self.assertEqual(cell.stdout, b"".join(b"%d\n" % i for i in range(200_000)))

    def test_an_incomplete_line_after_very_many_lines_does_not_wait_either(self):
        self.kernel.send("for i in range(5000): print(i)\nprint('working', end='')\nimport time\ntime.sleep(60)")
        read = b""
        while not read.endswith(b"working"):
            read += os.read(self.kernel.stdout, 1 << 16)
        self.kernel.interrupt()
        self.kernel.finish()
        self.assertEqual(self.run_ok("print('next')").stdout, b"next\n")

    def test_it_is_not_a_terminal(self):
        self.assertEqual(self.run_ok("import sys; (sys.stdout.isatty(), sys.stdin.isatty())").text, "(False, False)")

    def test_a_replaced_stdout_does_no_harm(self):
        self.run_ok("import sys; sys.stdout = None")
        self.assertEqual(self.run_ok("sys.stdout = sys.__stdout__; 5").text, "5")

    def test_characters_that_cannot_be_encoded_do_not_fail(self):
        self.assertEqual(self.run_ok("print('\\ud800')").stdout, b"\\ud800\n")


class Errors(KernelCase):
    def test_an_error_has_name_value_and_a_plain_traceback(self):
        error = self.kernel.run("def f():\n    raise ValueError('wrong')\nf()").error
        self.assertEqual((error["name"], error["value"]), ("ValueError", "wrong"))
        self.assertIn("Cell In[1], line 3", error["traceback"])
        self.assertNotIn("\x1b", error["traceback"])

    def test_a_syntax_error_is_an_error_event(self):
        self.assertEqual(self.kernel.run("for").error["name"], "SyntaxError")

    def test_leaving_is_reported_and_the_kernel_stays(self):
        for code in ("import sys; sys.exit(3)", "exit()", "quit()", "exit", "raise SystemExit"):
            self.assertEqual(self.kernel.run(code).error["name"], "SystemExit", code)
        self.assertEqual(self.run_ok("1").text, "1")

    def test_input_is_refused_at_once(self):
        for code in ("input('name?')", "import getpass; getpass.getpass()"):
            error = self.kernel.run(code).error
            self.assertEqual(error["name"], "StdinNotImplementedError")
            self.assertIn("keyboard", error["value"])

    def test_an_error_without_a_readable_message_does_not_end_the_kernel(self):
        code = "class E(Exception):\n    def __str__(self): raise RuntimeError('no')\nraise E()"
        self.assertIn(self.kernel.run(code).errors[-1]["name"], ("E", "RuntimeError"))
        self.assertEqual(self.run_ok("1").text, "1")

    def test_code_that_breaks_its_own_shell_is_an_error_of_its_cell(self):
        self.kernel.run("get_ipython().run_cell_async = None")
        self.assertEqual(self.kernel.run("1").order[-2:], ["error", "end_of_execution"])

    def test_the_forkserver_reports_the_death_of_a_kernel(self):
        kernel = self.forkserver.start(context="dying")
        kernel.run("import os; os._exit(7)")
        self.assertEqual(self.forkserver.receive(), {"op": "exited", "context": "dying", "status": 7})
        kernel.close()

    def test_a_kernel_killed_by_a_signal_has_a_negative_status(self):
        kernel = self.forkserver.start(context="killed")
        os.kill(kernel.pid, signal.SIGKILL)
        self.assertEqual(self.forkserver.receive(), {"op": "exited", "context": "killed", "status": -9})
        kernel.close()

    def test_a_missing_directory_fails_the_start(self):
        kernel = self.forkserver.start(context="nowhere", cwd="/nowhere/at/all", begin=False)
        self.assertEqual(kernel.hello["type"], "failed")
        self.assertIn("/nowhere/at/all", kernel.hello["message"])
        self.assertEqual(self.forkserver.receive()["status"], 1)
        kernel.close()


class Interrupting(KernelCase):
    SLEEPERS = (
        "print('started')\nimport time\ntime.sleep(600)",
        "print('started')\nwhile True: pass",
        "print('started')\n!sleep 600",
        "print('started')\nimport asyncio\nawait asyncio.sleep(600)",
        "print('started')\nimport subprocess\nsubprocess.run(['sleep', '600'])",
    )

    def test_an_interrupt_ends_the_cell_and_keeps_the_state(self):
        self.run_ok("kept = 1")
        for code in self.SLEEPERS:
            self.kernel.send(code)
            os.read(self.kernel.stdout, 100)
            self.kernel.interrupt()
            self.assertEqual(self.kernel.finish().error["name"], "KeyboardInterrupt", code)
        self.assertEqual(self.run_ok("kept").text, "1")

    def test_an_interrupt_while_a_process_is_started_is_not_lost(self):
        moments = random.Random(4)
        for turn in range(40):
            code = self.SLEEPERS[2] if turn % 2 else self.SLEEPERS[4]
            self.kernel.send(code)
            os.read(self.kernel.stdout, 100)
            time.sleep(moments.random() * 0.004)
            self.kernel.interrupt()
            self.assertEqual(self.kernel.finish().error["name"], "KeyboardInterrupt", code)
        for pid in started_by(self.kernel.pid):
            # A process whose start was interrupted has no one to wait for it.
            os.kill(pid, signal.SIGKILL)

    def test_an_interrupt_between_cells_is_harmless(self):
        for _ in range(20):
            self.kernel.interrupt()
            self.assertEqual(self.run_ok("1 + 1").text, "2")

    def test_many_interrupts_never_tear_a_line(self):
        # Every event must parse, whenever the signal arrives.
        for _ in range(30):
            self.kernel.send("print('started')\nfor i in range(100000): display('x' * 1000)")
            os.read(self.kernel.stdout, 100)
            self.kernel.interrupt()
            cell = self.kernel.finish()
            self.assertEqual(cell.order[-1], "end_of_execution")
        self.assertEqual(self.run_ok("2").text, "2")


class Environment(KernelCase):
    def test_begin_gives_exactly_the_environment(self):
        self.kernel.begin({"GIVEN": "yes"})
        self.assertEqual(self.run_ok("import os; os.environ['GIVEN']").text, "yes")
        self.assertEqual(self.run_ok("[n for n in os.environ if 'THREADS' in n or 'PYTHON' in n]").text, "[]")

    def test_variables_of_a_call_end_with_it(self):
        self.kernel.begin({"BASE": "old"})
        cell = self.run_ok("import os; (os.environ['BASE'], os.environ['CALL'])", env={"BASE": "new", "CALL": "it's"})
        self.assertEqual(cell.text, "('new', \"it's\")")
        self.assertEqual(self.run_ok("(os.environ['BASE'], os.environ.get('CALL'))").text, "('old', None)")

    def test_variables_reach_child_processes(self):
        self.assertEqual(self.run_ok("!echo $CALL", env={"CALL": "there"}).stdout, b"there\n")

    def test_the_directory_is_the_contexts_and_a_change_stays(self):
        with tempfile.TemporaryDirectory() as directory:
            kernel = self.start(context="elsewhere", cwd=directory)
            self.assertEqual(kernel.run("import os; os.getcwd()").text, directory)
        self.run_ok("import os; os.chdir('/usr')")
        self.assertEqual(self.run_ok("os.getcwd()").text, "/usr")


class Forking(KernelCase):
    def test_multiprocessing_works(self):
        cell = self.run_ok(
            "import multiprocessing as m\ndef square(x): return x * x\n"
            "with m.get_context('fork').Pool(2) as pool: print(pool.map(square, [1, 2, 3]))"
        )
        self.assertEqual(cell.stdout, b"[1, 4, 9]\n")

    def test_a_forked_child_cannot_speak_for_the_kernel(self):
        code = "import os\npid = os.fork()\nif pid == 0: display('child'); 'child'\nelse: os.waitpid(pid, 0)\n'end'"
        cell = self.run_ok(code)
        self.assertEqual([result["text"] for result in cell.results], ["end"])
        self.assertEqual(self.run_ok("1").text, "1")

    def test_the_stream_ends_with_the_kernel_although_a_child_lives(self):
        kernel = self.forkserver.start(context="parent")
        cell = kernel.run("import os\nif os.fork() == 0:\n    import time; time.sleep(2); os._exit(0)\nos._exit(0)")
        self.assertEqual(cell.order[-1], "gone")
        self.assertEqual(self.forkserver.receive()["status"], 0)
        kernel.close()


class Seeds(KernelCase):
    warm = "full"

    NUMBERS = "import random, uuid, tempfile\n(random.random(), next(tempfile._get_candidate_names()))"

    def test_kernels_of_one_forkserver_draw_different_numbers(self):
        drawn = set()
        for seed in ("01", "02", ""):
            kernel = self.start(context=seed or "none", begin=False)
            kernel.begin(seed=seed)
            drawn.add(kernel.run(self.NUMBERS).text)
            drawn.add(kernel.run("import numpy; numpy.random.random()").text)
        self.assertEqual(len(drawn), 6)


class Commands(KernelCase):
    def test_a_command_streams_and_leaves_its_status(self):
        self.assertEqual(self.run_ok("!echo hi; exit 3").stdout, b"hi\n")
        self.assertEqual(self.run_ok("_exit_code").text, "3")

    def test_output_of_a_command_can_be_kept(self):
        self.assertEqual(self.run_ok("lines = !printf 'a\\nb'\nlen(lines)").text, "2")

    def test_magics_work(self):
        self.assertIn(b"Wall time", self.run_ok("%time 1").stdout)
        self.assertEqual(self.run_ok("%%bash\necho from bash").stdout, b"from bash\n")

    def test_bare_pip_is_this_pythons(self):
        cell = self.run_ok("pip --version")
        self.assertIn(b"pip ", cell.stdout)
        self.assertIn(os.path.dirname(os.path.dirname(os.sys.executable)).encode(), cell.stdout)

    def test_what_pip_installed_can_be_imported_at_once(self):
        with tempfile.TemporaryDirectory() as directory:
            package = os.path.join(directory, "source")
            os.makedirs(package)
            with open(os.path.join(package, "setup.py"), "w", encoding="utf-8") as file:
                file.write("from setuptools import setup\nsetup(name='isopod-probe', version='1', py_modules=['isopod_probe'])\n")
            with open(os.path.join(package, "isopod_probe.py"), "w", encoding="utf-8") as file:
                file.write("answer = 42\n")
            target = os.path.join(directory, "target")
            self.run_ok("import sys; sys.path.insert(0, %r)" % target)
            self.run_ok("pip install -q --no-build-isolation --no-index --target %s %s" % (target, package))
            self.assertEqual(self.run_ok("import isopod_probe; isopod_probe.answer").text, "42")


class Awaiting(KernelCase):
    def test_await_works_at_the_top(self):
        self.assertEqual(self.run_ok("import asyncio\nawait asyncio.sleep(0, 'done')").text, "done")

    def test_a_loop_of_ones_own_works(self):
        self.assertEqual(self.run_ok("import asyncio\nasyncio.run(asyncio.sleep(0, 'done'))").text, "done")

    def test_an_error_in_a_coroutine_names_its_line(self):
        error = self.kernel.run("async def f():\n    raise KeyError('k')\nawait f()").error
        self.assertIn("line 2, in f()", error["traceback"])


class Requests(KernelCase):
    def test_nonsense_on_the_stream_is_skipped(self):
        self.kernel.stream.connection.sendall(b"not json\n[1]\n{\"op\": \"dance\"}\n\n")
        self.assertEqual(self.run_ok("1").text, "1")

    def test_code_of_another_type_does_not_end_the_kernel(self):
        self.assertEqual(self.kernel.run(["no", "code"]).order[-1], "end_of_execution")
        self.assertEqual(self.run_ok("1").text, "1")

    def test_a_forkserver_refuses_what_is_not_a_start(self):
        self.forkserver.socket.send(b'{"op": "start", "context": "x"}')
        self.assertEqual(self.forkserver.receive()["op"], "refused")
        self.forkserver.socket.send(b"nonsense")
        self.assertEqual(self.forkserver.receive()["op"], "refused")


class Forkservers(unittest.TestCase):
    def test_a_forkserver_ends_with_its_socket_and_kernels_live_on(self):
        forkserver = Forkserver("shell")
        kernel = forkserver.start()
        forkserver.close()
        self.assertEqual(forkserver.process.returncode, 0)
        self.assertEqual(kernel.run("1 + 1").text, "2")
        kernel.close()

    def test_ready_describes_the_python(self):
        forkserver = Forkserver("none")
        self.addCleanup(forkserver.close)
        self.assertEqual((forkserver.ready["op"], forkserver.ready["ipython"]), ("ready", True))
        self.assertEqual(forkserver.ready["pid"], forkserver.process.pid)

    def test_a_forkserver_has_one_thread(self):
        forkserver = Forkserver("full")
        self.addCleanup(forkserver.close)
        self.assertEqual(len(os.listdir("/proc/%d/task" % forkserver.process.pid)), 1)


if __name__ == "__main__":
    unittest.main()
