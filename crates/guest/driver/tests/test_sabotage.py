"""Cells that break the interpreter: each of them ends, and the next one runs and has output."""

import unittest

from support import KernelCase

# Each is followed by a cell in the same kernel.
HARMLESS = {
    "json replaced": "import json; json.dumps = json.loads = lambda *_, **__: 'nonsense'",
    "json's classes replaced": "import json; json.JSONEncoder.encode = json.JSONDecoder.decode = None",
    "builtins replaced": "import builtins\nfor name in ('len', 'open', 'isinstance', 'str', 'dict'): setattr(builtins, name, None)",
    "print raises": "import builtins\ndef bad(*_): raise KeyError\nbuiltins.print = builtins.open = bad",
    "print replaced": "import builtins; builtins.print = None; del builtins.print",
    "time stands still": "import time; time.monotonic = lambda: 0; time.sleep = lambda *_: None",
    "os replaced": "import os; os.getpid = lambda: 0; os._exit = None",
    "descriptor 0 closed": "import os; os.close(0)",
    "descriptor 1 closed": "import os; os.close(1)",
    "descriptor 2 closed": "import os; os.close(2)",
    "descriptors 0 to 2 closed": "import os; os.closerange(0, 3)",
    "the copy closed": "import os, sys; os.close(sys.stdout.fileno()); os.close(sys.stderr.fileno())",
    "another file at 1": "import os; os.close(1); held = open('/dev/null', 'w')",
    "streams closed": "import sys; sys.stdout.close(); sys.stderr.close()",
    "streams gone": "import sys; sys.stdout = sys.stderr = None",
    "a stream that raises": "import sys\nclass Bad:\n    closed = True\n    def flush(self): raise KeyError\nsys.stdout = Bad()",
    "signals ignored": "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
    "forked": "import os; child = os.fork(); child and os.waitpid(child, 0)",
}

# A cell that needs nothing of what may be broken.
NEXT = "import sys as _s; _s.stdout.write('heard\\n'); _s.stderr.write('too\\n'); 6 * 7"


class Sabotage(KernelCase):
    def test_the_next_cell_runs_and_has_output(self):
        for name, code in HARMLESS.items():
            with self.subTest(name):
                kernel = self.start()
                first = kernel.run(code)
                self.assertEqual(first.events[-1]["type"], "end_of_execution")
                second = kernel.run(NEXT)
                self.assertEqual((second.stdout, second.stderr), (b"heard\n", b"too\n"))
                self.assertEqual(second.events[-1]["type"], "end_of_execution")
                self.assertTrue("42" in str(second.events), second.events)

    def test_programs_print_after_a_cell_has_closed_the_descriptors(self):
        self.kernel.run("import os; os.closerange(0, 3)")
        cell = self.kernel.run("import os; os.system('echo out; echo err >&2; read line')")
        self.assertEqual((cell.stdout, cell.stderr), (b"out\n", b"err\n"))

    def test_a_file_that_took_the_number_of_a_stream_keeps_it(self):
        self.run_ok("import os; os.close(1); held = open('/dev/null', 'w'); print('kept')")
        cell = self.run_ok("held.write('x'); held.flush(); print(held.fileno())")
        self.assertEqual(cell.stdout, b"1\n")

    def test_a_kernel_that_cannot_reach_the_guest_exits_before_it_runs_anything(self):
        kernel = self.forkserver.start()
        kernel.run("import os, sys; a, b = sys.stdout.fileno(), sys.stderr.fileno(); [os.close(fd) for fd in (1, 2, a, b)]")
        cell = kernel.run("open('/tmp/never', 'w')")
        self.assertEqual(cell.order, ["gone"])
        self.end(kernel)

    def test_a_kernel_without_any_descriptor_is_gone(self):
        kernel = self.forkserver.start()
        cell = kernel.run("import os; os.closerange(0, 4096)")
        self.assertEqual(cell.order[-1], "gone")
        self.end(kernel)

    def test_a_thread_that_ends_the_process_ends_the_kernel(self):
        kernel = self.forkserver.start()
        cell = kernel.run("import os, threading; threading.Thread(target=os._exit, args=(3,)).start()\nwhile True: pass")
        self.assertEqual(cell.order[-1], "gone")
        self.end(kernel)


if __name__ == "__main__":
    unittest.main()
