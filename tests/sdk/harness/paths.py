"""Paths in what the kernel says."""

import re


def names(text, directory):
    """Whether a text names this directory or something below it, and not only one whose name begins alike."""
    return re.search(re.escape(str(directory)) + r"(?=[/\s]|$)", text) is not None
