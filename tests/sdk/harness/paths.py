"""Paths in texts of the kernel."""

import re


def names(text, directory):
    """Whether a text names this directory or something below it, as opposed to one whose name starts alike."""
    return re.search(re.escape(str(directory)) + r"(?=[/\s]|$)", text) is not None
