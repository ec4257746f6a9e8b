#!/usr/bin/env python3
"""The parts of the suite of programs that need neither a server nor an SDK."""

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "sdk")]

from harness import report  # noqa: E402

import run  # noqa: E402
from runner import page  # noqa: E402
from runner.outcome import ABSENT, FAILS, WORKS, Outcome  # noqa: E402


def outcome(title, root=WORKS, user=WORKS, **more):
    return Outcome(title.lower(), title, cells={"root": root, "user": user}, **more)


class Outcomes(unittest.TestCase):
    def test_a_program_that_works_or_refuses_as_meant_is_no_problem(self):
        self.assertEqual(outcome("Nginx").problems, [])
        self.assertEqual(outcome("Chromium", root="refused by Chromium").problems, [])

    def test_a_failure_is_a_problem_unless_it_is_known(self):
        error = {"errors": {"user": "no such file"}}
        self.assertEqual(outcome("Cron", user=FAILS, **error).problems, ["cron as user: no such file"])
        self.assertEqual(outcome("Cron", user=FAILS, gaps={"user": "no files"}, **error).problems, [])

    def test_a_gap_is_known_by_its_error(self):
        known = {"gaps": {"user": "no files"}, "known_error": "such file"}
        self.assertEqual(outcome("Cron", user=FAILS, errors={"user": "no such file"}, **known).problems, [])
        found = outcome("Cron", user=FAILS, errors={"user": "not installed"}, **known).problems
        self.assertEqual(found, ["cron as user: not installed"])

    def test_a_gap_that_has_closed_is_a_problem(self):
        found = outcome("Cron", gaps={"user": "no files"}).problems
        self.assertEqual(found, ["cron as user works now: take it out of its gaps"])

    def test_what_cannot_be_downloaded_is_no_problem_and_not_passed(self):
        absent = outcome("Vite", root=ABSENT, user=ABSENT)
        self.assertEqual((absent.problems, absent.is_absent), ([], True))

    def test_outcomes_travel_as_a_line(self):
        whole = outcome("Vite", version="1.2", note="a | b", errors={"user": "two\nlines"}, gaps={"root": "x"})
        self.assertNotIn("\n", whole.to_json())
        self.assertEqual(Outcome.parse(whole.to_json()), whole)


class Total(unittest.TestCase):
    def total(self, outcomes, problems=()):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            is_good = run.print_total(outcomes, list(problems))
        return is_good, printed.getvalue().splitlines()[-1]

    def test_a_program_out_of_reach_is_skipped_and_most_of_them_are_a_failure(self):
        absent = outcome("Vite", root=ABSENT, user=ABSENT)
        self.assertEqual(self.total([outcome("Cron"), absent]), (True, "1 passed, 0 failed, 1 skipped"))
        self.assertEqual(self.total([outcome("Cron"), absent, absent]), (False, "1 passed, 1 failed, 2 skipped"))

    def test_a_failure_or_a_leftover_or_nothing_at_all_is_a_failure(self):
        self.assertEqual(self.total([outcome("Cron"), outcome("Vite", user=FAILS)]), (False, "1 passed, 1 failed, 0 skipped"))
        self.assertEqual(self.total([outcome("Cron")], ["left: a mount"]), (False, "1 passed, 1 failed, 0 skipped"))
        self.assertEqual(self.total([]), (False, "0 passed, 1 failed, 0 skipped"))


class Page(unittest.TestCase):
    TITLES = ["Express", "Vite", "Cron"]

    def write(self, file, *outcomes, today="2026-01-01"):
        page.write(list(outcomes), self.TITLES, file, today)
        return file.read_text()

    def test_a_run_of_some_programs_keeps_the_rows_of_the_others(self):
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / "page.md"
            file.write_text("# Title\n")
            self.write(file, outcome("Cron", version="3"), outcome("Express", version="4"))
            text = self.write(file, outcome("Vite", note="a | b"), outcome("Cron", version="5"), today="2026-02-02")
            self.assertEqual(list(page.rows_of(text)), ["Express", "Vite", "Cron"])
            self.assertIn("| Express | 4 | works | works | – | 2026-01-01 |", text)
            self.assertIn("| Cron | 5 | works | works | – | 2026-02-02 |", text)
            self.assertEqual(page.rows_of(text)["Vite"][4], r"a \| b")
            self.assertEqual(self.write(file, today="2026-03-03"), text)

    def test_a_program_that_left_the_suite_leaves_the_page(self):
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / "page.md"
            file.write_text("# Title\n")
            self.write(file, outcome("Cron"), outcome("Vite"))
            page.write([], ["Vite"], file, "2026-01-01")
            self.assertEqual(list(page.rows_of(file.read_text())), ["Vite"])

    def test_a_known_failure_says_why(self):
        failing = outcome("Cron", user=FAILS, gaps={"user": "no files"}, note="at night")
        self.assertEqual(page.cells(failing, "today")[3:5], ["**fails**", "at night; as user: no files"])

    def test_the_sdk_suite_keeps_the_section(self):
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / "page.md"
            file.write_text("# Title\n\n<!-- frameworks: begin -->\n## F\n<!-- frameworks: end -->\n")
            text = self.write(file, outcome("Cron"))
            self.assertEqual("# Title\n" + report.other_sections(file), text)


if __name__ == "__main__":
    unittest.main()
