"""Imports packages that may be missing or broken. Neither stops a kernel."""

import importlib


def import_or_none(name):
    try:
        return importlib.import_module(name)
    except Exception:
        return None
