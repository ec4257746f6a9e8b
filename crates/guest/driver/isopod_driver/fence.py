"""Waits for output that arrives after a kernel has reported `idle`.

Deno sends output and `idle` from different tasks, so one may overtake the other. A second, hidden cell prints a mark to both
streams. When both marks have arrived, so has everything printed before them.
"""

import uuid

CODE = "console.log(%(mark)r); console.error(%(mark)r); undefined"


class Fence:
    def __init__(self):
        self.mark = "\x01%s\x02" % uuid.uuid4().hex
        self.open = {"stdout", "stderr"}

    @staticmethod
    def needed(spec):
        return "deno" in spec.name.lower()

    def code(self):
        return CODE % {"mark": self.mark}

    @property
    def is_reached(self):
        return not self.open

    def without_mark(self, content):
        """The stream message without the mark, or None if nothing is left."""
        name, text = content.get("name"), str(content.get("text", ""))
        if self.mark in text:
            self.open.discard(name)
            text = text.replace(self.mark + "\n", "")
        return {**content, "text": text} if text else None
