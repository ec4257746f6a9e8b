"""The matplotlib backend of a kernel: Agg, without windows. matplotlib loads it by name."""

from matplotlib.backend_bases import FigureManagerBase, _Backend
from matplotlib.backends.backend_agg import FigureCanvasAgg

from . import box_plots, pictures

box_plots.record()


class FigureManager(FigureManagerBase):
    @classmethod
    def pyplot_show(cls, *, block=None):
        pictures.show_all()

    def show(self):
        # `figure.show()` shows this figure only, and leaves it open for more drawing.
        from . import current

        current.display(self.canvas.figure)


class FigureCanvas(FigureCanvasAgg):
    manager_class = FigureManager


@_Backend.export
class _Ours(_Backend):
    FigureCanvas = FigureCanvas
    FigureManager = FigureManager

    @staticmethod
    def show(*_, **__):
        pictures.show_all()
