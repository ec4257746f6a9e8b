"""One run, from creating the directory to the end of the report."""

import faulthandler
import signal
import sys
import traceback

from chaos import report
from chaos.campaign import Campaign
from chaos.checks import residue
from chaos.context import Context
from chaos.ledger import Ledger
from chaos.options import Options, parse
from chaos.platform import Platform
from chaos.sweep import sweep
from chaos.violations import Violations

# For everything besides the faults: preparation, the last checks, removal.
AROUND = 900


def main() -> int:
    options = parse()
    _bound(int(options.minutes * 60) + AROUND)
    platform = Platform(options)
    context = Context(options.seed, platform, Ledger(), Violations(options.seed, options.max_violations))
    campaign = None
    try:
        campaign = _play(context, options)
    finally:
        _remove(context)
    if campaign is None:
        return 1
    told = report.result(options, campaign, platform.database_kind)
    report.write(options, told)
    print("\n" + report.summary(told))
    return 1 if context.violations.all else 0


def _play(context: Context, options: Options) -> Campaign | None:
    campaign = None
    try:
        context.platform.open()
        # It imports the SDK, which reads its address from the environment.
        campaign = Campaign(context, options)
        campaign.run()
    except Exception:
        context.violations.add("suite", "the run comes to its end", traceback.format_exc()[-480:])
        traceback.print_exc()
    return campaign


def _remove(context: Context) -> None:
    context.stop.set()
    platform = context.platform
    platform.end_lasting_faults()
    tag = platform.tag()
    try:
        residue.remove(context, tag)
    finally:
        sweep(platform.processes, tag, platform.volume.path)
        for problem in platform.close():
            context.violations.add("residue", "the suite can remove what it made", problem)


def _bound(seconds: int) -> None:
    """Ends the run, whatever hangs."""
    faulthandler.enable()

    def over(*_: object) -> None:
        faulthandler.dump_traceback(all_threads=True)
        raise TimeoutError(f"the run did not end within {seconds} s")

    signal.signal(signal.SIGALRM, over)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    signal.alarm(seconds)


if __name__ == "__main__":
    sys.exit(main())
