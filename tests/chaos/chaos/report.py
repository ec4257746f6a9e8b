"""The report of a run: JSON for programs, a summary for people, and the page in the documentation."""

import datetime
import json
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.faults import KILLS, NAMES, STOPS
from chaos.options import Options

if TYPE_CHECKING:
    # It imports the SDK.
    from chaos.campaign import Campaign

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "chaos.md"
DATABASES = ("sqlite", "postgres")


def result(options: Options, campaign: "Campaign", database: str) -> dict:
    context = campaign.context
    minutes = campaign.seconds / 60
    return {
        "seed": options.seed,
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpus": os.cpu_count(),
        "database": database,
        "faults": list(options.faults),
        "steps": campaign.steps,
        "ended": campaign.ended_because or "early, because the suite failed",
        "minutes": round(minutes, 1),
        "kills": campaign.kills,
        "kills_per_minute": round(campaign.kills / minutes, 1) if minutes else 0.0,
        "struck": {name: campaign.struck.get(name, 0) for name in NAMES},
        "server_starts": context.platform.server.starts,
        "slowest_server_start_seconds": round(campaign.slowest_start, 2),
        "counts": dict(sorted(context.ledger.counts.items())),
        "violations_by_check": context.violations.counts(),
        "violations": context.violations.as_data(),
    }


def write(options: Options, told: dict) -> None:
    (options.output / f"chaos-{options.seed}.json").write_text(json.dumps(told, indent=1) + "\n")
    (options.output / f"chaos-{options.seed}.md").write_text(summary(told))
    if options.write_docs:
        PAGE.write_text(page(told, PAGE.read_text()))


def summary(told: dict) -> str:
    lines = [
        f"Seed {told['seed']}, {told['minutes']} minutes, commit {told['commit']}, {told['date']}.",
        f"It ended {told['ended']}. {told['cpus']} CPUs, records in {told['database']}, faults: {', '.join(told['faults'])}.",
        "",
        f"**{told['kills']} kills ({told['kills_per_minute']} a minute), {_violations(len(told['violations']))}.**",
        "",
        "| fault | times |",
        "|---|---|",
        *[f"| {_what_happened(name)} | {count} |" for name, count in told["struck"].items()],
        "",
        "| what clients did and checks compared | count |",
        "|---|---|",
        *[f"| {name} | {count:,} |" for name, count in told["counts"].items()],
        f"| starts of the server, slowest {told['slowest_server_start_seconds']} s | {told['server_starts']} |",
        "",
    ]
    if told["violations"]:
        lines += ["| first step | times | check | expected, for example | found |", "|---|---|---|---|---|"]
        for alike in _alike(told["violations"]):
            one = alike[0]
            lines.append(f"| {one['step']} | {len(alike)} | {one['check']} | {_cell(one['expected'])} | {_cell(one['found'])} |")
    return "\n".join(lines).rstrip() + "\n"


def page(told: dict, before: str) -> str:
    """Updates the page with this run. Results with another database stay."""
    written = (Path(__file__).parent / "page.md").read_text()
    for database in DATABASES:
        result = summary(told).rstrip() if told["database"] == database else _recorded(before, database)
        begin, end = _marks(database)
        written = written.replace(f"{{{{{database}}}}}", f"{begin}\n{result}\n{end}")
    return written


def _recorded(page: str, database: str) -> str:
    begin, end = _marks(database)
    return page.partition(f"{begin}\n")[2].partition(f"\n{end}")[0] or "None yet."


def _marks(database: str) -> tuple[str, str]:
    return f"<!-- {database} -->", f"<!-- end of {database} -->"


def _violations(count: int) -> str:
    return "1 violation" if count == 1 else f"{count} violations"


def _what_happened(fault: str) -> str:
    if fault in STOPS:
        return "server stopped (SIGTERM)"
    return f"{fault} killed" if fault in KILLS else f"{fault} cut off or full"


def _alike(violations: list[dict]) -> list[list[dict]]:
    """Groups those that differ only in names and numbers."""
    groups: dict[tuple[str, ...], list[dict]] = {}
    for one in violations:
        key = (one["check"], *[re.sub(r"\S*\d\S*", "#", one[part])[:80] for part in ("expected", "found")])
        groups.setdefault(key, []).append(one)
    return list(groups.values())


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())[:300]


def _commit() -> str:
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    dirty = subprocess.run(["git", "-C", str(ROOT), "status", "--porcelain"], capture_output=True, text=True).stdout.strip()
    return (done.stdout.strip() or "unknown") + (" with changes" if dirty else "")
