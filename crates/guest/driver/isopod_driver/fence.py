"""Output that comes after a kernel has said it is done.

Deno passes on what was printed from another task than the one that says `idle`, so the two overtake each other. A second,
unseen cell prints a mark on both streams: when both marks have come, so has everything printed before.
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
        """The text of a stream message, less the mark; None when nothing is left."""
        name, text = content.get("name"), str(content.get("text", ""))
        if self.mark in text:
            self.open.discard(name)
            text = text.replace(self.mark + "\n", "")
        return {**content, "text": text} if text else None
