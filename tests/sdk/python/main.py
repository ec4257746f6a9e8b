"""Runs the Python cases with the SDK of the interpreter that runs this: `main.py sync|async [--core] [--only TEXT]`."""

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
warnings.simplefilter("ignore")

import cases_commands  # noqa: F401, E402
import cases_ends  # noqa: F401, E402
import cases_files  # noqa: F401, E402
import cases_git  # noqa: F401, E402
import cases_lifecycle  # noqa: F401, E402
import cases_list  # noqa: F401, E402
import cases_missing  # noqa: F401, E402
import cases_network  # noqa: F401, E402
import cases_pause  # noqa: F401, E402
import cases_pause_disk  # noqa: F401, E402
import cases_pty  # noqa: F401, E402
import cases_snapshots  # noqa: F401, E402
import cases_templates  # noqa: F401, E402
import cases_together  # noqa: F401, E402
import cases_urls  # noqa: F401, E402
import cases_volumes  # noqa: F401, E402
import cases_watch  # noqa: F401, E402
from kit import Flavour  # noqa: E402

from harness.cases import main  # noqa: E402

main(Flavour, workers=6)
