"""Runs actions right after a package is imported, by any code and at any time.

For packages that may not be preloaded: matplotlib must get our backend before pyplot chooses one.
"""

import importlib.util
import os
import sys

from . import pictures


def watch():
    actions = {
        "matplotlib": use_our_backend,
        "PIL.Image": pictures.show_saved_images,
        "plotly.basedatatypes": pictures.show_plotly_figures,
    }
    for name in list(actions):
        if name in sys.modules:
            actions.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, AfterImport(actions))


class AfterImport:
    """A finder that finds nothing itself. It wraps the loader that another finder returns."""

    def __init__(self, actions):
        self.actions = actions

    def find_spec(self, name, path=None, target=None):
        action = self.actions.pop(name, None)
        if action is None:
            return None
        # `actions` no longer has this name, so the real finders answer.
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            self.actions[name] = action
            return None
        spec.loader = LoaderWithAction(spec.loader, action)
        return spec


class LoaderWithAction:
    def __init__(self, loader, action):
        self.loader = loader
        self.action = action

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.action(module)

    def __getattr__(self, name):
        return getattr(self.loader, name)


def use_our_backend(matplotlib):
    if not os.environ.get("MPLBACKEND"):
        matplotlib.rcParams["backend"] = "module://isopod_driver.backend"
