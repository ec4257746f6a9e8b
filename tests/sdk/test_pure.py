#!/usr/bin/env python3
"""The parts of the SDK suite that need neither a server nor an SDK."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness.report import MAX_REASON, compatibility_page, reason
from harness.suites import Suite


class Failures(unittest.TestCase):
    def test_the_page_names_the_last_line_of_each_error(self):
        suite = Suite("js", "2.51.0")
        suite.results = [{"feature": "code", "name": "a_case", "outcome": "failed", "error": "Traceback:\n  f()\nKeyError: 'k'\n"}]
        page = compatibility_page([suite], ["the run broke off:\nhere"], "isopod 0")
        self.assertIn("## Failures\n\n- js 2.51.0: a case: `KeyError: 'k'`\n- the run broke off:\n", page)

    def test_the_frames_of_a_javascript_stack_are_no_reason(self):
        error = "AssertionError: not equal:\n\n2 !== `3`\n\n    at TestContext.<anonymous> (file.mjs:1:1)\n    at run"
        self.assertEqual(reason(error), ": `2 !== '3'`")

    def test_a_long_reason_is_cut_and_none_is_left_out(self):
        self.assertEqual(reason("x" * 1000), f": `{'x' * MAX_REASON}…`")
        self.assertEqual((reason(None), reason("")), ("", ""))


if __name__ == "__main__":
    unittest.main()
