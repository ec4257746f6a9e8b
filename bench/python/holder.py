"""Holds as many megabytes as its argument says, and then counts its longest pause in milliseconds."""

import os
import sys
import time

held = os.urandom(int(sys.argv[1]) << 20)
longest, last = 0, time.monotonic()
while True:
    now = time.monotonic()
    longest, last = max(longest, now - last), now
    if os.path.exists("/tmp/reset"):
        os.unlink("/tmp/reset")
        longest = 0
    with open("/tmp/next", "w") as file:
        file.write(str(longest * 1e3))
    os.rename("/tmp/next", "/tmp/longest")
    time.sleep(0.001)
