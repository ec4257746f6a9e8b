"""The parts of the suite that need no server: `python3 tests/chaos/test_pure.py`."""

import itertools
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "sdk"))

from chaos.checks.output import Heard
from chaos.clients.hang_up import sandbox_in
from chaos.faults import NAMES
from chaos.ledger import Content, File, Ledger, Life, Owned
from chaos.outages import Outages
from chaos.report import page
from chaos.schedule import LASTING, WEIGHTS, steps
from harness.paths import names


class Schedule(unittest.TestCase):
    def test_a_seed_gives_the_same_steps_again(self):
        first, second = (list(itertools.islice(steps(7, NAMES), 300)) for _ in range(2))
        self.assertEqual(first, second)
        self.assertNotEqual(first, list(itertools.islice(steps(8, NAMES), 300)))

    def test_every_fault_is_drawn_and_every_lasting_one_ends_before_it_begins_again(self):
        drawn, is_open = set(), set()
        for step in itertools.islice(steps(3, NAMES), 1000):
            is_open -= set(step.ends)
            for strike in step.strikes:
                drawn.add(strike.fault)
                if strike.fault in LASTING:
                    self.assertFalse(is_open, step)
                    is_open.add(strike.fault)
        self.assertEqual(drawn, set(NAMES))
        self.assertEqual(set(WEIGHTS), set(NAMES))

    def test_the_seed_of_ci_has_every_fault_early(self):
        early = {strike.fault for step in itertools.islice(steps(43, NAMES), 20) for strike in step.strikes}
        self.assertEqual(early, set(NAMES))

    def test_only_faults_that_were_asked_for_are_drawn(self):
        found = {strike.fault for step in itertools.islice(steps(3, ("guest", "store")), 200) for strike in step.strikes}
        self.assertEqual(found, {"guest", "store"})


class Output(unittest.TestCase):
    def heard(self, out, err=("e0\ne1\ne2\n",)):
        return Heard(list(out), list(err)).differences(3)

    def test_complete_output_in_any_pieces_has_no_differences(self):
        self.assertEqual(self.heard(["o0\no", "1\n", "o2\n"]), "")

    def test_gaps_repeats_and_broken_lines_are_told(self):
        self.assertEqual(self.heard(["o0\no2\n"]), "stdout: lost line o1")
        self.assertEqual(self.heard(["o0\no1\no1\no2\n"]), "stdout: repeated line o1")
        self.assertEqual(self.heard(["o0\no\no2\n"]), "stdout: lost line o1, broken line o")
        self.assertEqual(self.heard(["o1\no0\no2\n"]), "stdout: lines are in another order")
        self.assertEqual(self.heard(["o0\no1\no2\n"], []), "stderr: lost 3 lines (e0 to e2)")


class Files(unittest.TestCase):
    def test_an_acknowledged_write_must_be_there_as_it_was(self):
        content = Content("a", 10)
        file = File("/f", acknowledged=content)
        self.assertIsNone(file.difference(content.bytes()))
        self.assertEqual(file.difference(None)[1], "no such file")
        self.assertIn("from byte 4 on", file.difference(content.bytes()[:4])[1])

    def test_a_write_without_an_answer_happened_as_a_whole_or_not_at_all(self):
        old, new = Content("a", 10), Content("b", 20)
        file = File("/f", pending=[new])
        self.assertIsNone(file.difference(None))
        self.assertIsNone(file.difference(new.bytes()))
        self.assertEqual(file.difference(b"")[1], "0 bytes")
        file.acknowledged = old
        self.assertIsNone(file.difference(old.bytes()))
        self.assertIsNotNone(file.difference(None))


class Excuses(unittest.TestCase):
    def test_only_what_was_away_meanwhile_is_an_excuse(self):
        outages = Outages()
        outages.begin("server")
        self.assertTrue(outages.is_away("server", "disk"))
        self.assertFalse(outages.is_away("disk"))
        outages.end("server", grace=60)
        self.assertFalse(outages.is_away("server"))
        self.assertTrue(outages.excuses(0.0, "server"))
        outages.begin("disk")
        outages.end("disk", grace=0)
        self.assertFalse(outages.excuses(1e18, "disk"))


class Leaving(unittest.TestCase):
    def test_only_a_whole_answer_names_a_sandbox(self):
        head = b"HTTP/1.1 201 Created\r\ncontent-length: 21\r\n\r\n"
        self.assertEqual(sandbox_in(head + b'{"sandboxID": "iabc"}'), "iabc")
        for cut in (b"", head, head + b'{"sandboxID": "ia', b"HTTP/1.1 503 Full\r\n\r\n{}"):
            self.assertIsNone(sandbox_in(cut), cut)


class Bucket(unittest.TestCase):
    def test_files_of_ended_sandboxes_are_kept_and_writes_that_died_with_them_are_not(self):
        ledger, content = Ledger(), Content("a", 1)
        for life in (Life.ALIVE, Life.ENDED, Life.VICTIM):
            sandbox = Owned(life.value, "base", life=life)
            known = File("/w/known", acknowledged=content, in_workspace=True)
            broken = File("/w/broken", pending=[content], in_workspace=True)
            sandbox.files = {file.path: file for file in (known, broken, File("/home/x", acknowledged=content))}
            ledger.add(sandbox)
        found = sorted((sandbox.id, file.path) for sandbox, file in ledger.workspace_files())
        both = [("alive", "/w/broken"), ("alive", "/w/known")]
        self.assertEqual(found, [*both, ("ended", "/w/known"), ("victim", "/w/known")])


class Page(unittest.TestCase):
    def test_a_run_replaces_what_was_recorded_with_its_own_database_only(self):
        told = {"seed": 1, "minutes": 1.0, "commit": "c", "date": "d", "ended": "e", "cpus": 2, "faults": [], "kills": 1}
        told |= {"kills_per_minute": 1.0, "struck": {"stop": 3}, "counts": {}, "violations": []}
        told |= {"server_starts": 1, "slowest_server_start_seconds": 1.0}
        first = page(told | {"database": "sqlite"}, "")
        self.assertIn("records in sqlite", first)
        self.assertIn("None yet.", first)
        both = page(told | {"database": "postgres", "seed": 2}, first)
        self.assertIn("records in sqlite", both)
        self.assertIn("records in postgres", both)
        self.assertIn("| server stopped (SIGTERM) | 3 |", both)
        self.assertNotIn("None yet.", both)
        self.assertEqual(page(told | {"database": "postgres", "seed": 2}, both), both)


class Use(unittest.TestCase):
    def test_whoever_has_a_sandbox_alone_keeps_others_out(self):
        sandbox = Owned("i", "base")
        self.assertTrue(sandbox.enter())
        self.assertFalse(sandbox.reserve())
        sandbox.leave()
        self.assertTrue(sandbox.reserve())
        self.assertFalse(sandbox.enter())
        sandbox.release()
        sandbox.life = Life.ENDING
        self.assertFalse(sandbox.enter())

    def test_contents_can_be_made_again(self):
        self.assertEqual(Content("a", 9).bytes(), Content("a", 9).bytes())
        self.assertNotEqual(Content("a", 9).bytes(), Content("b", 9).bytes())


class Residue(unittest.TestCase):
    def test_a_directory_whose_name_begins_alike_is_another(self):
        for own in ("/tmp/a", "/tmp/a/disk.btrfs (deleted)\n", "x /tmp/a y", "/tmp/ab /tmp/a/x"):
            self.assertTrue(names(own, Path("/tmp/a")), own)
        for other in ("", "/tmp/ab/disk", "/tmp/a-other", "/tmp"):
            self.assertFalse(names(other, Path("/tmp/a")), other)


if __name__ == "__main__":
    unittest.main()
