#!/usr/bin/env python3
"""The parts of the suite of fresh systems that need neither root nor a network."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import run  # noqa: E402
from runner import archives, clients, page, readme, toolchain  # noqa: E402
from runner.attempt import judge_tests  # noqa: E402
from runner.outcome import FAILED, PASSED, SKIPPED, Outcome, total  # noqa: E402
from runner.systems import SYSTEMS  # noqa: E402

DEBIAN, UBUNTU, PACKAGED = SYSTEMS[0], SYSTEMS[2], SYSTEMS[3]


class Directory(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)


class Commands(unittest.TestCase):
    def test_the_readme_has_two_commands_and_the_first_prints_something(self):
        first, second = readme.commands()
        self.assertTrue(first.startswith("cargo run ") and second.startswith("cargo "), (first, second))
        self.assertIn(readme.printed_by(first), first)

    def test_lines_outside_of_the_block_are_no_commands(self):
        text = "## Two commands\n\n# no\n```console\n# one\nout\n# two\n```\n\n```console\n# no\n```\n## More\n"
        self.assertEqual(readme.commands(text), ["one", "two"])
        with self.assertRaisesRegex(RuntimeError, "has 1 commands"):
            readme.commands(text.replace("# two\n", ""))

    def test_names_choose_systems(self):
        self.assertEqual(run.chosen([]), SYSTEMS)
        self.assertEqual(run.chosen(["debian-12"]), [DEBIAN])
        self.assertEqual(run.chosen(["ubuntu"]), [UBUNTU, PACKAGED])

    def test_only_debian_12_runs_all_tests(self):
        self.assertEqual([system.name for system in SYSTEMS if not system.tiers], ["debian-12"])


class Verdicts(unittest.TestCase):
    TOLD = "x\n812 tests in 96 jobs, 0 of them failed\n"

    def test_tests_that_ran_are_counted(self):
        self.assertEqual(judge_tests("c", 0, self.TOLD), "812 tests in 96 jobs")

    def test_a_failure_a_tier_that_was_left_out_and_no_tests_are_failures(self):
        for status, told in [(1, self.TOLD), (0, f"skipped: the sdk tests cannot run here:\n{self.TOLD}"), (0, "")]:
            with self.subTest(told=told), self.assertRaises(RuntimeError):
                judge_tests("c", status, told)

    def test_what_was_skipped_is_not_passed(self):
        passed, failed, skipped = (Outcome(DEBIAN, "first", word) for word in (PASSED, FAILED, SKIPPED))
        self.assertEqual(total([passed, skipped]), ("1 passed, 0 failed, 1 skipped", True))
        self.assertEqual(total([passed, failed]), ("1 passed, 1 failed, 0 skipped", False))
        self.assertEqual(total([skipped]), ("0 passed, 0 failed, 1 skipped", False))


class Archives(unittest.TestCase):
    def test_the_archive_of_this_machine_is_used_for_its_distribution(self):
        listed = ["http://mirror.invalid/debian-security/", "http://mirror.invalid/debian/"]
        self.assertEqual(archives.pick("debian", listed), "http://mirror.invalid/debian")
        self.assertEqual(archives.pick("debian-security", listed), "http://mirror.invalid/debian-security")
        self.assertEqual(archives.pick("ubuntu", listed), archives.DEFAULTS["ubuntu"])


class Clients(Directory):
    def test_only_variables_of_package_clients_are_passed_on(self):
        own = {"PIP_INDEX_URL": "a", "https_proxy": "b", "SSL_CERT_FILE": "c"}
        other = {"HOME": "/x", "CARGO_TARGET_DIR": "/y", "RUSTUP_HOME": "/z", "E2B_API_KEY": "k", "PIPELINE": "1"}
        self.assertEqual(clients.variables(own | other), own)

    def test_only_authorities_that_the_system_lacks_are_copied(self):
        one, two = (f"-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----\n" for name in ("one", "two"))
        theirs = self.place / "etc/ssl/certs/ca-certificates.crt"
        theirs.parent.mkdir(parents=True)
        theirs.write_text(one)
        ours = self.place / "bundle"
        ours.write_text(f"# a comment\n{one}# another\n{two}")
        clients.copy_authorities(self.place, ours)
        copied = [file.read_text() for file in (self.place / clients.AUTHORITIES).iterdir()]
        self.assertEqual(copied, [two])


class Toolchain(Directory):
    def test_a_component_is_removed_from_all_records(self):
        kept, gone = "rust-std-x86_64-unknown-linux-gnu", f"rust-std-{toolchain.MUSL}"
        for name in (kept, gone):
            (self.place / f"manifest-{name}").touch()
        (self.place / "components").write_text(f"{gone}\n{kept}\n")
        block = '[[components]]\npkg = "rust-std"\ntarget = "{}"\nis_extension = false\n\n'
        records = self.place / "multirust-config.toml"
        first, last = block.format(toolchain.MUSL), block.format("x86_64-unknown-linux-gnu")
        records.write_text(f'config_version = "1"\n\n{first}{last}')
        toolchain.forget_component(self.place, gone)
        self.assertEqual((self.place / "components").read_text(), f"{kept}\n")
        self.assertEqual(records.read_text(), f'config_version = "1"\n\n{last}')
        self.assertEqual([file.name for file in self.place.glob("manifest-*")], [f"manifest-{kept}"])

    def test_the_newest_versioned_cargo_is_taken(self):
        names = ["cargo-1.9", "cargo-1.97", "cargo-1.85", "cargo-1.97-doc", "cargo-audit", "cargo"]
        self.assertEqual(toolchain.newest_packaged(names), "1.97")
        self.assertIsNone(toolchain.newest_packaged(["cargo"]))


class Page(Directory):
    def setUp(self):
        super().setUp()
        self.file = self.place / "page.md"
        self.file.write_text(f"# Title\n\n{page.BEGIN}\n{page.END}\n\nThe end.\n")

    def write(self, system, *outcomes, rust="rustup, 1.95.0", commit="0123456789", today="2026-01-01"):
        page.write(system, rust, commit, outcomes, SYSTEMS, self.file, today)
        return self.file.read_text()

    def test_a_command_that_did_not_run_keeps_its_result(self):
        self.write(DEBIAN, Outcome(DEBIAN, "first", PASSED, 61, "guest with musl"), Outcome(DEBIAN, "second", PASSED, 1800, "9 tests in 2 jobs"))
        text = self.write(DEBIAN, Outcome(DEBIAN, "first", FAILED, 5, "no | such"), today="2026-02-02", commit="abcdef012")
        second = "2026-01-01, 0123456: passed in 30 min, 9 tests in 2 jobs"
        self.assertIn(f"| Debian 12 | rustup, 1.95.0 | 2026-02-02, abcdef0: **failed** | {second} |", text)
        self.assertTrue(text.startswith("# Title\n") and text.endswith("\nThe end.\n"))

    def test_two_kinds_of_rust_on_one_system_have_a_row_each_in_order(self):
        passed = Outcome(None, "first", PASSED, 61, "guest with glibc")
        self.write(PACKAGED, passed, rust="the package `cargo-1.97`")
        text = self.write(UBUNTU, passed)
        rows = list(page.rows_of(text).values())
        self.assertEqual([row[1] for row in rows], ["rustup, 1.95.0", "the package `cargo-1.97`"])
        self.assertEqual(rows[0][2:], ["2026-01-01, 0123456: passed in 61 s, guest with glibc", "not yet"])

    def test_what_was_skipped_changes_nothing(self):
        before = self.file.read_text()
        self.assertEqual(self.write(UBUNTU, Outcome(UBUNTU, "first", SKIPPED, detail="no way"), rust=None, commit=None), before)


if __name__ == "__main__":
    unittest.main()
