"""The pytest plugin, in test runs of its own."""

import pytest

PLUGIN = "-p", "isopod.pytest_plugin"
LIVE = """
import pytest

def test_passes(sandbox):
    print("ID", sandbox.sandbox_id)
    assert sandbox.run_code("6 * 7").text == "42"

def test_fails(sandbox):
    print("ID", sandbox.sandbox_id)
    assert False

@pytest.mark.sandbox(template="base", envs={"A": "b"}, timeout=60)
def test_arguments(sandbox):
    print("ID", sandbox.sandbox_id)
    assert sandbox.commands.run("echo $A").stdout == "b\\n"
    assert sandbox.get_info().metadata["pytest"].endswith("::test_arguments")

def test_more(sandbox_factory, isopod_session):
    for sandbox in (sandbox_factory(), sandbox_factory(template="base")):
        print("ID", sandbox.sandbox_id)
    assert isopod_session.execute("1 + 1").text == "2"
    print("ID", isopod_session.sandbox_id())
"""


def test_every_sandbox_is_gone_after_its_test(pytester, alive):
    pytester.makepyfile(LIVE)
    done = pytester.runpytest_subprocess("-rA", *PLUGIN)
    done.assert_outcomes(passed=3, failed=1)
    made = [line.split()[1] for line in done.outlines if line.startswith("ID ")]
    assert len(set(made)) == 6 and not any(alive(one) for one in made)


def test_a_sandbox_that_is_gone_already_is_no_error(pytester):
    pytester.makepyfile("def test_kills(sandbox):\n    sandbox.kill()\n")
    pytester.runpytest_subprocess(*PLUGIN).assert_outcomes(passed=1)


@pytest.mark.parametrize("option, outcome", [([], {"skipped": 1}), (["--require-sandbox"], {"errors": 1})])
def test_without_a_server_tests_are_skipped_or_fail(pytester, monkeypatch, option, outcome):
    monkeypatch.delenv("E2B_API_KEY")
    pytester.makepyfile("def test_it(sandbox):\n    pass\n")
    done = pytester.runpytest_subprocess("-rs", *PLUGIN, *option)
    done.assert_outcomes(**outcome)
    done.stdout.fnmatch_lines(["*E2B_API_KEY is not set*"])
