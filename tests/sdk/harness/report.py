"""The report of a run: a summary for people, and the compatibility page."""

import datetime
import re

from harness.features import FEATURES

KINDS = {
    "python": "Python `e2b`",
    "js": "JavaScript `e2b`",
    "cli": "`@e2b/cli`",
    "python-interpreter": "Python `e2b-code-interpreter`",
    "js-interpreter": "JavaScript `@e2b/code-interpreter`",
}


# Features that are promised and not there yet. Their cases run and stand as failing on the compatibility page; they do
# not stop a change from landing, and a case that begins to work must be taken out of this list.
KNOWN_GAPS = {}


# Of a failed case's error on the page.
MAX_REASON = 200


# Their template takes too long to build for this run.
DESKTOP = [
    "## Python `e2b-desktop`, JavaScript `@e2b/desktop`",
    "",
    "The suite `desktop` tests them apart from this page: see [desktop sandboxes](desktop.md#tested-versions).",
    "",
]


# Its template is apart from the one that this run uses.
R_AND_JAVA = [
    "## R and Java",
    "",
    "The template of the SDKs for `run_code` has Python, JavaScript, TypeScript and Bash. E2B's also has R and Java: here, create the",
    "sandbox from the template [`code-interpreter-full`](interpreter.md#the-template) ([why](decisions/0025-full-interpreter.md)). The",
    "suite `languages` tests it with the newest and the oldest of the versions above.",
    "",
]


def print_suite(suite):
    absent = f", {suite.count('absent')} not in this version" if suite.count("absent") else ""
    scope = "all" if suite.full else "core"
    print(f"{suite.name} ({scope}): {suite.count('passed')} passed, {suite.count('failed')} failed{absent}", end="")
    print(f" in {suite.seconds:.0f} s", flush=True)
    for result in suite.results:
        if result["outcome"] == "failed":
            print(f"  FAILED {result['feature']}: {result['name']}")
            print("\n".join(f"    {line}" for line in (result["error"] or "").strip().splitlines()[-25:]), flush=True)


def print_total(suites, problems):
    for problem in problems:
        print(f"FAILED {problem}")
    results = [result for suite in suites for result in suite.results]
    gaps = [result for result in results if result["name"] in KNOWN_GAPS]
    for closed in (result for result in gaps if result["outcome"] == "passed"):
        problems = [*problems, f"{closed['name']} works now: take it out of KNOWN_GAPS"]
    for gap in (result for result in gaps if result["outcome"] == "failed"):
        print(f"known gap: {gap['name']}: {KNOWN_GAPS[gap['name']]}")
    passed = sum(suite.count("passed") for suite in suites)
    open_gaps = sum(result["outcome"] == "failed" for result in gaps)
    failed = sum(suite.count("failed") for suite in suites) - open_gaps + len(problems)
    print(f"{passed} passed, {failed} failed, {open_gaps} skipped")
    return failed == 0


def compatibility_page(suites, problems, version):
    """Returns the page as text. Everything in it comes from the run."""
    today = datetime.date.today().isoformat()
    lines = [
        "# Compatibility with E2B's SDKs and CLI",
        "",
        "This page lists which features of the official packages work, by version. A test run wrote it: it installed the",
        "unmodified packages, set the three variables of [the guide](e2b.md), and ran every case.",
        "",
        f"Run on {today} with {version}. Columns without TLS use plain HTTP. To generate the page again (don't edit it):",
        "",
        "```sh",
        "sudo python3 tests/sdk/run.py --isopod PATH --full --write-docs",
        "```",
        "",
        "- **works**: all cases passed, with their number",
        "- **fails**: some cases failed, with their number",
        "- *absent*: this version of the SDK doesn't have the feature",
        "- –: not tested with this version",
        "",
    ]
    for kind, title in KINDS.items():
        chosen = [suite for suite in suites if suite.kind == kind and not suite.among]
        if chosen:
            lines += [f"## {title}", "", *table(chosen), ""]
            lines += older_over_tls([suite for suite in suites if suite.kind == kind and suite.among])
    failures = [(suite, result) for suite in suites for result in suite.results if result["outcome"] == "failed"]
    lines += DESKTOP
    lines += R_AND_JAVA
    lines += not_supported(suites)
    lines += ["## Failures", ""]
    lines += [f"- {suite.name}: {result['name'].replace('_', ' ')}{reason(result['error'])}" for suite, result in failures]
    lines += [f"- {problem.splitlines()[0]}" for problem in problems]
    if not failures and not problems:
        lines.append("None.")
    return "\n".join(lines) + "\n"


def reason(error):
    """The last line of an error, for the end of its line on the page. The lines of a JavaScript stack are left out."""
    lines = [line.strip() for line in (error or "").splitlines()]
    told = [line for line in lines if line and not line.startswith("at ")]
    if not told:
        return ""
    shown = told[-1].replace("`", "'")
    return f": `{shown[:MAX_REASON]}…`" if len(shown) > MAX_REASON else f": `{shown}`"


def older_over_tls(suites):
    """A sentence on the suites that run a few cases only."""
    failing = [f"{suite.version} {suite.flavour}".strip() for suite in suites if suite.count("failed")]
    passed = sum(suite.count("passed") for suite in suites)
    if not passed and not failing:
        return []
    result = f"fails with {', '.join(failing)}" if failing else f"works ({passed} cases)"
    return [f"Over TLS with the older versions, a sandbox that is killed while a client waits: {result}.", ""]


def not_supported(suites):
    """What the server refused in the run, each once and in an order that no run changes."""
    results = (result for suite in suites for result in suite.results if result["outcome"] == "passed")
    refused = {what for result in results for what in result.get("refused", ())}
    lines = [
        "## Not supported",
        "",
        "These parts of E2B's API return 501 with a message that names them. The run tried each of them.",
        "",
    ]
    return [*lines, *(f"- {what}" for what in sorted(refused, key=lambda what: what.strip("`").lower())), ""]


def other_sections(page):
    """What other suites wrote at the end of the page, each between two comments. It stays."""
    found = re.search(r"\n<!-- \w+: begin -->.*", page.read_text(), re.DOTALL) if page.exists() else None
    return found.group() if found else ""


def table(suites):
    heads = [" ".join(filter(None, (suite.version, suite.flavour, suite.tls and "TLS"))) for suite in suites]
    lines = ["| | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    for feature, title in FEATURES.items():
        cells = [cell(suite, feature) for suite in suites]
        if any(text != "–" for text in cells):
            lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return lines


def cell(suite, feature):
    outcomes = [result["outcome"] for result in suite.results if result["feature"] == feature]
    failed, passed = outcomes.count("failed"), outcomes.count("passed")
    if failed:
        return f"**fails** {failed} of {failed + passed}"
    if passed:
        return f"works ({passed})"
    return "*absent*" if outcomes else "–"
