"""Cases with PyPI's `e2b-desktop`. Words select cases by name."""

import contextlib
import re
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from e2b import CommandExitException
from e2b_desktop import Sandbox

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "templates"))

from chromium import Chromium  # noqa: E402

from stream import fetch, first_message, security_types  # noqa: E402

DEADLINE = 60
PAGE = "<title>A page for the browser</title><h1>Hello</h1>"
IS_CONNECTED = "document.documentElement.classList.contains('noVNC_connected')"


@contextlib.contextmanager
def desktop(**options):
    sandbox = Sandbox.create(timeout=600, **options)
    try:
        yield sandbox
    finally:
        sandbox.kill()


def until(what, look):
    """Waits until `look` returns something true. A command that fails counts as false: the window may not be there yet."""
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            if found := look():
                return found
        except CommandExitException:
            pass
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.2)


def window(sandbox, application, title=""):
    """Waits for a window of the application with that text in its title."""

    def look():
        for one in sandbox.get_application_windows(application):
            if title in sandbox.get_window_title(one):
                return one

    return until(f"a window of {application} with {title!r} in its title", look)


def focused(sandbox, application):
    found = window(sandbox, application)
    until(f"{application} has the focus", lambda: sandbox.get_current_window_id() == found)
    return found


def png_size(image):
    assert bytes(image[:8]) == b"\x89PNG\r\n\x1a\n", bytes(image[:16])
    return struct.unpack(">II", image[16:24])


def a_screenshot_is_a_png_of_the_screen():
    with desktop(resolution=(1280, 720)) as sandbox:
        assert sandbox.get_screen_size() == (1280, 720)
        assert png_size(sandbox.screenshot()) == (1280, 720)
        assert png_size(b"".join(sandbox.screenshot(format="stream"))) == (1280, 720)


def what_is_typed_reaches_the_terminal_and_the_screenshot():
    with desktop() as sandbox:
        assert sandbox.get_screen_size() == (1024, 768)
        before = sandbox.screenshot()
        sandbox.launch("xfce4-terminal")
        terminal = focused(sandbox, "xfce4-terminal")
        assert "Terminal" in sandbox.get_window_title(terminal)
        text = "It's \"typed\": 100% & <more> than 25 characters"
        sandbox.write("cat > /tmp/typed", delay_in_ms=20)
        sandbox.press("enter")
        sandbox.write(text, delay_in_ms=20)
        sandbox.press("enter")
        sandbox.press(["ctrl", "d"])
        until("the text is in the file", lambda: sandbox.files.exists("/tmp/typed") and sandbox.files.read("/tmp/typed") == f"{text}\n")
        after = sandbox.screenshot()
        assert png_size(after) == (1024, 768) and after != before


def the_mouse_clicks_scrolls_and_drags():
    with desktop() as sandbox:
        sandbox.commands.run("stdbuf -oL xev -geometry 500x400+200+200 -event button > /tmp/events", background=True, timeout=0)
        xev = until("xev's window", lambda: sandbox.commands.run("xdotool search --onlyvisible --name 'Event Tester'").stdout.strip())
        until("xev has the focus", lambda: sandbox.get_current_window_id() == xev)
        seen = []

        def gives(act, *expected):
            act()
            seen.extend(expected)
            until(f"the events {expected}", lambda: button_events(sandbox.files.read("/tmp/events")) == seen)

        def click(button, x, y):
            return [("Press", button, x, y), ("Release", button, x, y)]

        sandbox.move_mouse(400, 450)
        assert sandbox.get_cursor_position() == (400, 450)
        gives(sandbox.left_click, *click(1, 400, 450))
        gives(lambda: sandbox.left_click(410, 460), *click(1, 410, 460))
        assert sandbox.get_cursor_position() == (410, 460)
        gives(lambda: sandbox.double_click(420, 470), *click(1, 420, 470) * 2)
        gives(lambda: sandbox.right_click(430, 480), *click(3, 430, 480))
        gives(lambda: sandbox.middle_click(440, 490), *click(2, 440, 490))
        gives(lambda: sandbox.scroll("up", 2), *click(4, 440, 490) * 2)
        gives(lambda: sandbox.scroll("down"), *click(5, 440, 490))
        gives(lambda: sandbox.drag((350, 400), (450, 500)), ("Press", 1, 350, 400), ("Release", 1, 450, 500))


def button_events(text):
    """Kind, button and place on the screen of the events that xev printed."""
    pattern = r"^Button(Press|Release) event.*\n.*root:\((\d+),(\d+)\).*\n.*button (\d+)"
    return [(kind, int(button), int(x), int(y)) for kind, x, y, button in re.findall(pattern, text, re.MULTILINE)]


def files_and_pages_open_in_their_programs():
    with desktop() as sandbox:
        sandbox.files.write("/home/user/note.txt", "a note")
        sandbox.open("/home/user/note.txt")
        window(sandbox, "mousepad", "note.txt")
        sandbox.files.write("/home/user/www/index.html", PAGE)
        sandbox.commands.run("cd /home/user/www && python3 -m http.server 8000", background=True, timeout=0)
        sandbox.open("http://127.0.0.1:8000/")
        window(sandbox, "chromium", "A page for the browser")


def the_browser_starts_by_other_names_and_for_root():
    with desktop() as sandbox:
        sandbox.files.write("/home/user/page.html", PAGE)
        sandbox.launch("google-chrome", "file:///home/user/page.html")
        window(sandbox, "chromium", "A page for the browser")
        dump = "chromium --headless --user-data-dir=/tmp/profile --dump-dom file:///home/user/page.html"
        assert "<h1>Hello</h1>" in sandbox.commands.run(dump, user="root", timeout=DEADLINE).stdout


def the_stream_shows_the_desktop_until_it_is_stopped():
    with desktop() as sandbox:
        sandbox.stream.start()
        url = sandbox.stream.get_url()
        status, page = fetch(url)
        assert status == 200 and "noVNC" in page
        assert first_message(url).startswith(b"RFB 003.")
        assert security_types(url) == [1], "no password"
        with Chromium("--ignore-certificate-errors") as browser:
            browser.open(url)
            until("noVNC is connected", lambda: browser.value(IS_CONNECTED))
        try:
            sandbox.stream.start()
            raise AssertionError("the stream started twice")
        except RuntimeError as error:
            assert "already running" in str(error)
        sandbox.stream.stop()
        until("the page is gone", lambda: fetch(url)[0] == 502)
        sandbox.stream.start(vnc_port=5901, port=6081)
        assert "6081-" in sandbox.stream.get_url() and first_message(sandbox.stream.get_url()).startswith(b"RFB 003.")


def the_stream_of_a_window_asks_for_its_key():
    with desktop() as sandbox:
        sandbox.launch("xfce4-terminal")
        terminal = focused(sandbox, "xfce4-terminal")
        sandbox.stream.start(require_auth=True, window_id=terminal)
        key = sandbox.stream.get_auth_key()
        url = sandbox.stream.get_url(auth_key=key)
        assert security_types(url) == [2], "a password"
        with Chromium("--ignore-certificate-errors") as browser:
            browser.open(sandbox.stream.get_url(auth_key="a wrong one"))
            browser.until("password check failed")
            assert not browser.value(IS_CONNECTED)
            browser.open(url)
            until("noVNC is connected", lambda: browser.value(IS_CONNECTED))


def the_program_of_the_page_works():
    page = (Path(__file__).resolve().parents[2] / "docs" / "desktop.md").read_text()
    program = page.split("```python\n")[1].split("```")[0]
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run([sys.executable, "-c", program], cwd=place, capture_output=True, text=True, timeout=DEADLINE * 2)
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(r"https://6080-\S+/vnc\.html\?autoconnect=true&resize=scale\n", done.stdout), done.stdout
        assert png_size((Path(place) / "screen.png").read_bytes()) == (1280, 720)


CASES = [
    a_screenshot_is_a_png_of_the_screen,
    what_is_typed_reaches_the_terminal_and_the_screenshot,
    the_mouse_clicks_scrolls_and_drags,
    files_and_pages_open_in_their_programs,
    the_browser_starts_by_other_names_and_for_root,
    the_stream_shows_the_desktop_until_it_is_stopped,
    the_stream_of_a_window_asks_for_its_key,
    the_program_of_the_page_works,
]


def main():
    failed = 0
    for case in CASES:
        name = f"python: {case.__name__}"
        if sys.argv[1:] and not any(text in name for text in sys.argv[1:]):
            continue
        try:
            case()
            print(f"ok {name}", flush=True)
        except Exception:
            failed += 1
            print(f"{traceback.format_exc()}FAILED {name}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
