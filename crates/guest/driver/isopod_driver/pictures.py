"""Shows figures and images as a notebook would.

Open matplotlib figures appear at the end of the cell, as PNG and chart, and are closed; a PIL image that is saved to a
file, or shown, appears too, as on E2B.
"""

import functools
import io
import json
import os
import sys

from . import current
from .optional import import_or_none

BACKEND = "module://isopod_driver.backend"


def register(shell):
    """Adds figures to IPython's formatters, and `%config InlineBackend...` if that is installed."""
    shell.display_formatter.formatters["image/png"].for_type_by_name("matplotlib.figure", "Figure", png)
    shell.events.register("post_execute", flush_figures)
    inline = import_or_none("matplotlib_inline.config")
    if inline is not None:
        settings = inline.InlineBackend.instance(parent=shell)
        settings.shell = shell
        shell.configurables.append(settings)


def enable_inline(_shell, gui):
    """`%matplotlib` with any argument: there is no screen, so it always means inline."""
    matplotlib = import_or_none("matplotlib")
    if matplotlib is None:
        raise ImportError("matplotlib is not installed: pip install matplotlib")
    matplotlib.use(BACKEND)
    return gui, BACKEND


def flush_figures():
    """Shows and closes the figures that a cell left open. Does nothing if the user chose another backend."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or sys.modules["matplotlib"].rcParams._get("backend") != BACKEND:
        return
    show_all()


def show_all():
    from matplotlib._pylab_helpers import Gcf

    managers = Gcf.get_all_fig_managers()
    try:
        for manager in managers:
            current.display(manager.canvas.figure)
    finally:
        Gcf.destroy_all()


def png(figure):
    """The figure as PNG, trimmed, or None if it is empty."""
    if not figure.axes and not figure.lines and not figure.texts and not figure.images:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = figure.canvas
    if not hasattr(canvas, "print_png"):
        canvas = FigureCanvasAgg(figure)
    written = io.BytesIO()
    canvas.print_figure(
        written,
        format="png",
        dpi=figure.dpi,
        facecolor=figure.get_facecolor(),
        edgecolor=figure.get_edgecolor(),
        bbox_inches="tight",
    )
    return written.getvalue()


def show_saved_images(module):
    """Patches PIL.Image after its import: saving to a path also displays the image, and so does `show()`."""
    image_class = module.Image
    save = image_class.save

    @functools.wraps(save)
    def save_and_display(self, fp, *arguments, **options):
        save(self, fp, *arguments, **options)
        if isinstance(fp, (str, os.PathLike)) and called_by_user(sys._getframe(1)):
            current.display(self)

    def show(self, *_, **__):
        """Displays the image in the cell's results."""
        current.display(self)

    image_class.save = save_and_display
    image_class.show = show


def called_by_user(frame):
    # `savefig` saves through PIL, but its figure is shown at the end of the cell anyway.
    return not str(frame.f_globals.get("__name__", "")).startswith("matplotlib")


def show_plotly_figures(module):
    """Patches plotly after its import: figures become results, as HTML and as plotly's own JSON.

    Plotly's renderers would send several megabytes of script with each figure, or ask for a package to be installed.
    """
    figure_class = module.BaseFigure

    def mimebundle(self, *_, **__):
        return {
            "text/plain": "<plotly figure with %d traces>" % len(self.data),
            "text/html": self.to_html(include_plotlyjs="cdn", full_html=False),
            "application/vnd.plotly.v1+json": json.loads(self.to_json()),
        }

    def show(self, *_, **__):
        """Displays the figure in the cell's results."""
        current.display(self)

    if hasattr(figure_class, "_ipython_display_"):
        del figure_class._ipython_display_
    if hasattr(figure_class, "_repr_html_"):
        del figure_class._repr_html_
    figure_class._repr_mimebundle_ = mimebundle
    figure_class.show = show
