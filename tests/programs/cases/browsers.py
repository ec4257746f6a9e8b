"""Chromium, by itself and driven by Playwright."""

from runner.box import quoted
from runner.outcome import Unreachable
from runner.program import Program

PAGE = """<p id="out"></p><script>
fetch('data:text/plain,fetched').then(answer => answer.text()).then(text => { out.textContent = text + ' ' + 6 * 7 })
</script>"""
SEEN = '<p id="out">fetched 42</p>'
PNG = b"\x89PNG\r\n\x1a\n"
VERSION = "chromium --version 2>/dev/null | awk '{print $2}'"


def chromium(box, account, flags, code=0):
    """What it says about a page after its script has run, and its errors."""
    box.write("page.html", PAGE, account)
    command = f"timeout 100 chromium --headless --disable-gpu --virtual-time-budget=5000 {flags} file://$HOME/page.html"
    return box.sh(f"{command} 2>errors || {{ code=$?; cat errors; exit $code; }}", account, code=code)


class Chromium(Program):
    name, title = "chromium", "Chromium"
    packages = ("chromium",)
    version = VERSION
    note = "with `--no-sandbox`; without it, Chromium says that no sandbox is usable"

    def use(self, box, account):
        assert SEEN in chromium(box, account, "--no-sandbox --dump-dom")
        chromium(box, account, "--no-sandbox --screenshot=$HOME/shot.png")
        assert box.read_bytes("shot.png", account).startswith(PNG)
        # It refuses to run for root without the flag, before it looks for namespaces.
        told = box.sh("timeout 100 chromium --headless --disable-gpu --dump-dom about:blank 2>&1 || true", account)
        assert {"root": "Running as root without --no-sandbox", "user": "No usable sandbox"}[account] in told, told


class ChromiumOwnSandbox(Program):
    name, title = "chromium-userns", "Chromium with its own sandbox"
    packages = ("chromium",)
    features = ("userns",)
    version = VERSION
    note = "needs `userns`; Chromium never does it for root"

    def use(self, box, account):
        if account == "root":
            told = box.sh("timeout 100 chromium --headless --disable-gpu --dump-dom about:blank 2>&1 || true", "root")
            assert "Running as root without --no-sandbox is not supported" in told, told
            return "refused by Chromium"
        assert SEEN in chromium(box, account, "--dump-dom")
        return None


class Playwright(Program):
    name, title = "playwright", "Playwright"
    packages = ("chromium",)
    version = "node -p \"require('./play/node_modules/playwright/package.json').version\""

    def use(self, box, account):
        box.download("mkdir play; cd play; npm init -y >/dev/null; npm install --silent playwright", account)
        box.write("play/run.mjs", PLAYWRIGHT, account)
        program = self.browser(box, account)
        told = box.sh(f"cd play; BROWSER={quoted(program)} node run.mjs", account)
        assert told == "clicked 3 times\n", told
        assert box.read_bytes("play/shot.png", account).startswith(PNG)

    def browser(self, box, account):
        """Playwright's own browser if it can be downloaded, otherwise Debian's."""
        try:
            box.download("cd play; timeout 300 npx playwright install --only-shell chromium", account)
            self.note = "with its own Chromium"
            return ""
        except Unreachable:
            self.note = "with Debian's Chromium: Playwright's own browsers are not reachable from the machine of this run"
            return "/usr/bin/chromium"


PLAYWRIGHT = """
import { chromium } from 'playwright'

const browser = await chromium.launch({ executablePath: process.env.BROWSER || undefined })
const page = await browser.newPage()
await page.setContent(`<button onclick="this.textContent = 'clicked ' + (this.n = (this.n ?? 0) + 1) + ' times'">click</button>`)
for (let i = 0; i < 3; i++) await page.getByRole('button').click()
console.log(await page.getByRole('button').textContent())
await page.screenshot({ path: 'shot.png' })
await browser.close()
"""
