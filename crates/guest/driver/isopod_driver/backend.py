"""The matplotlib backend of a kernel: Agg, without windows. Loaded by matplotlib, by its name."""

from matplotlib.backend_bases import FigureManagerBase, _Backend
from matplotlib.backends.backend_agg import FigureCanvasAgg

from . import boxes, pictures

boxes.record()


class FigureManager(FigureManagerBase):
    @classmethod
    def pyplot_show(cls, *, block=None):
        pictures.show_all()

    def show(self):
        # `figure.show()`: this one only, and it stays open for more drawing.
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
