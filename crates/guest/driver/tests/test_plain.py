"""Kernels without IPython."""

import os
import sys
import tempfile
import unittest

from support import Forkserver, KernelCase


class WithoutIPython(KernelCase):
    @classmethod
    def setUpClass(cls):
        # A broken package of the same name comes before the real one on the path.
        cls.hidden = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.hidden.cleanup)
        os.makedirs(os.path.join(cls.hidden.name, "IPython"))
        with open(os.path.join(cls.hidden.name, "IPython", "__init__.py"), "w", encoding="utf-8") as file:
            file.write("raise ImportError('hidden by a test')\n")
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = cls.hidden.name
        try:
            cls.forkserver = Forkserver("full", sys.executable)
        finally:
            if before is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = before
        cls.addClassCleanup(cls.forkserver.close)

    def test_the_forkserver_says_so(self):
        self.assertFalse(self.forkserver.ready["ipython"])

    def test_state_results_and_counts(self):
        self.run_ok("x = 20")
        cell = self.run_ok("y = 1\nx * 2 + 2")
        self.assertEqual((cell.text, cell.count), ("42", 2))
        self.assertEqual(self.run_ok("x;").results, [])
        self.assertEqual(self.run_ok("__name__").text, "__main__")

    def test_errors_show_only_the_cell(self):
        error = self.kernel.run("def f():\n    raise ValueError('wrong')\nf()").error
        self.assertEqual((error["name"], error["value"]), ("ValueError", "wrong"))
        self.assertIn('File "Cell In[1]", line 2, in f', error["traceback"])
        self.assertIn("raise ValueError('wrong')", error["traceback"])
        self.assertNotIn("isopod_driver", error["traceback"])
        self.assertEqual(self.kernel.run("for").error["name"], "SyntaxError")
        self.assertEqual(self.kernel.run("import sys; sys.exit(1)").error["name"], "SystemExit")

    def test_await_works_at_the_top(self):
        self.assertEqual(self.run_ok("import asyncio\nawait asyncio.sleep(0, 'done')").text, "done")

    def test_display_and_rich_values(self):
        code = "class H:\n    def _repr_html_(self): return '<b>'\ndisplay(H(), 2)\nH()"
        cell = self.run_ok(code)
        self.assertEqual([result.get("html") for result in cell.results], ["<b>", None, "<b>"])
        self.assertEqual([result["is_main_result"] for result in cell.results], [False, False, True])
        self.assertEqual(self.run_ok("[1, 2]").main["json"], [1, 2])

    def test_tables_and_figures(self):
        self.assertEqual(self.run_ok("import pandas\npandas.DataFrame({'a': [1]})").main["data"], {"a": [1]})
        result = self.run_ok("import matplotlib.pyplot as plt\nplt.plot([1, 2]);").results[0]
        self.assertEqual(result["chart"]["type"], "line")
        self.assertIn("png", result)

    def test_commands_and_pip(self):
        self.assertEqual(self.run_ok("!echo hi").stdout, b"hi\n")
        self.assertIn(b"Name: pip", self.run_ok("pip show pip").stdout)

    def test_copies(self):
        self.run_ok("import asyncio; x = 1; await asyncio.sleep(0)")
        (copy,) = self.kernel.fork()
        self.addCleanup(copy.close)
        cell = copy.run("await asyncio.sleep(0); x + 1")
        self.assertEqual((cell.text, cell.count), ("2", 2))
        self.assertEqual(self.run_ok("await asyncio.sleep(0); x").text, "1")

    def test_interrupts_and_input(self):
        self.kernel.send("print('started')\nwhile True: pass")
        os.read(self.kernel.stdout, 100)
        self.kernel.interrupt()
        self.assertEqual(self.kernel.finish().error["name"], "KeyboardInterrupt")
        self.assertEqual(self.kernel.run("input()").error["name"], "StdinNotImplementedError")


if __name__ == "__main__":
    unittest.main()
