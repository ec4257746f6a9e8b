"""A small test runner: cases register themselves, run a few at a time, and each prints one line of JSON."""

import argparse
import asyncio
import contextvars
import inspect
import json
import os
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

from harness.features import FEATURES

CASES = []
# What the server refused as unsupported in the case that runs. The page lists it.
REFUSED = contextvars.ContextVar("refused")
# Of a coroutine. The suite has a deadline of its own, for everything.
SECONDS = 90


class Absent(Exception):
    """This version of the SDK does not have the tested feature."""


class Case:
    def __init__(self, feature, function, core, only, seconds):
        assert feature in FEATURES, f"unknown feature {feature!r}"
        self.feature, self.function, self.core, self.only, self.seconds = feature, function, core, only, seconds
        self.name = function.__name__


def case(feature, core=False, only=None, when=True, seconds=SECONDS):
    """Registers a case. `core`: also for older versions. `only`: for one flavour of the SDK. `when`: for such runs. `seconds`: the
    limit of one that installs something from the network."""

    def register(function):
        if when:
            CASES.append(Case(feature, function, core, only, seconds))
        return function

    return register


def main(flavour, workers):
    """The command line of a set of cases: `sync|async [--core] [--only TEXT] [--among TEXT] [--workers N]`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("flavour", choices=["sync", "async"])
    parser.add_argument("--core", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--among", action="append", default=[])
    parser.add_argument("--workers", type=int, default=workers)
    args = parser.parse_args()
    good = run_all(flavour(args.flavour), args.core, [args.only, args.among], args.workers)
    # All results are printed. Threads of the SDK may still run, and have crashed Python during its shutdown.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if good else 1)


def run_all(context, core_only, chosen, workers):
    """Runs the cases with a text of each of the lists, and prints a line for each. Returns True if none failed."""
    cases = [c for c in CASES if (c.core or not core_only) and c.only in (None, context.name)]
    for texts in filter(None, chosen):
        cases = [c for c in cases if any(text in f"{c.feature}:{c.name}" for text in texts)]
    with ThreadPoolExecutor(workers) as pool:
        outcomes = list(pool.map(lambda c: _run(c, context), cases))
    return all(outcomes)


def _run(case, context):
    start = time.monotonic()
    outcome, error, refused = "passed", None, []
    REFUSED.set(refused)
    try:
        result = case.function(context)
        if inspect.iscoroutine(result):
            asyncio.run(asyncio.wait_for(result, case.seconds))
    except Absent as absent:
        outcome, error = "absent", str(absent)
    except BaseException:
        outcome, error = "failed", traceback.format_exc()
    line = {
        "feature": case.feature,
        "name": case.name,
        "outcome": outcome,
        "seconds": round(time.monotonic() - start, 2),
        "error": error,
        "refused": refused,
    }
    sys.stdout.write(json.dumps(line) + os.linesep)
    sys.stdout.flush()
    return outcome != "failed"
