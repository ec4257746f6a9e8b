"""Converts matplotlib figures to E2B's charts: line, scatter, bar, pie, box_and_whisker, superchart, unknown.

One set of axes is one chart; several are a superchart. The type depends on what is drawn; a mixture is `unknown`. Every
key that the SDKs read is always present, and numbers that JSON cannot hold become null.
"""

from . import axis, box_plots, results

MAX_POINTS = 200_000


def of_figure(figure):
    """The chart of a figure, or None if it is empty. Never raises: clients get the image in any case."""
    try:
        found = [chart_of_axes(axes) for axes in figure.axes if not is_colorbar(axes)]
        if not any(has_content(axes) for axes in figure.axes):
            return None
        if len(found) == 1:
            return results.clean(found[0])
        return results.clean({"type": "superchart", "title": figure_title(figure), "elements": found})
    except TooManyPoints as problem:
        return results.Omitted(str(problem))
    except results.TooLarge as problem:
        return results.Omitted(str(problem))
    except Exception:
        return None


class TooManyPoints(Exception):
    def __init__(self, count):
        super().__init__("a chart of %d points is more than the limit of %d" % (count, MAX_POINTS))


def has_content(axes):
    return bool(axes.lines or axes.patches or axes.collections or axes.images or axes.tables)


def is_colorbar(axes):
    return axes.get_label() == "<colorbar>"


def figure_title(figure):
    title = getattr(figure, "_suptitle", None)
    return title.get_text() if title is not None else ""


def chart_of_axes(axes):
    for make in (box_chart, pie_chart, bar_chart, scatter_chart, line_chart):
        chart = make(axes)
        if chart is not None:
            return chart
    return base(axes, "unknown", [])


def base(axes, kind, elements):
    return {"type": kind, "title": axes.get_title() or None, "elements": elements}


def planar(axes, kind, elements, swapped=False):
    """A chart with two labelled axes. A horizontal chart is described as if it were vertical."""
    x_label, y_label = axes.get_xlabel() or None, axes.get_ylabel() or None
    if swapped:
        x_label, y_label = y_label, x_label
    return {
        **base(axes, kind, elements),
        "x_label": x_label,
        "y_label": y_label,
        "x_unit": axis.unit(x_label),
        "y_unit": axis.unit(y_label),
    }


def point_chart(axes, kind, elements):
    return {
        **planar(axes, kind, elements),
        **axis.ticks_and_scale("x", axes.xaxis),
        **axis.ticks_and_scale("y", axes.yaxis),
    }


def line_chart(axes):
    lines = data_lines(axes)
    if not lines or axes.patches or axes.images or not all(is_decoration(found) for found in axes.collections):
        return None
    refuse_large(sum(len(line.get_xdata(orig=False)) for line in lines))
    elements = [
        {"label": label(line, "Line %d" % number), "points": line_points(axes, line)}
        for number, line in enumerate(lines)
    ]
    return point_chart(axes, "line", elements)


def data_lines(axes):
    # `axhline` and the like use fractions of the axes, not data coordinates.
    return [line for line in axes.lines if line.get_transform() == axes.transData]


def is_decoration(collection):
    """A band around a line, or error bars: only the line itself is described."""
    from matplotlib.collections import LineCollection, PolyCollection

    return isinstance(collection, (LineCollection, PolyCollection))


def line_points(axes, line):
    xs = axis.values(axes.xaxis, line.get_xdata(orig=True), line.get_xdata(orig=False))
    ys = axis.values(axes.yaxis, line.get_ydata(orig=True), line.get_ydata(orig=False))
    return [[x, y] for x, y in zip(xs, ys)]


def scatter_chart(axes):
    from matplotlib.collections import PathCollection

    groups = [found for found in axes.collections if isinstance(found, PathCollection)]
    if not groups or len(groups) != len(axes.collections) or axes.lines or axes.patches or axes.images:
        return None
    refuse_large(sum(len(group.get_offsets()) for group in groups))
    elements = [
        {"label": label(group, "Scatter %d" % number), "points": scatter_points(axes, group)}
        for number, group in enumerate(groups)
    ]
    return point_chart(axes, "scatter", elements)


def scatter_points(axes, group):
    offsets = group.get_offsets()
    xs = axis.values(axes.xaxis, offsets[:, 0], offsets[:, 0])
    ys = axis.values(axes.yaxis, offsets[:, 1], offsets[:, 1])
    return [[x, y] for x, y in zip(xs, ys)]


def bar_chart(axes):
    from matplotlib.container import BarContainer

    groups = [found for found in axes.containers if isinstance(found, BarContainer)]
    bars = [bar for group in groups for bar in group.patches]
    if not bars or len(bars) != len(axes.patches) or foreign_lines(axes) or axes.images:
        return None
    refuse_large(len(bars))
    horizontal = all(getattr(group, "orientation", "vertical") == "horizontal" for group in groups)
    labels = axis.Labels(axes.yaxis if horizontal else axes.xaxis)
    elements = [
        bar_element(labels, bar, label(group, "Group %d" % number), horizontal)
        for number, group in enumerate(groups)
        for bar in group.patches
    ]
    return planar(axes, "bar", elements, swapped=horizontal)


def bar_element(labels, bar, group, horizontal):
    if horizontal:
        middle, value = bar.get_y() + bar.get_height() / 2, bar.get_width()
    else:
        middle, value = bar.get_x() + bar.get_width() / 2, bar.get_height()
    return {"label": labels.at(middle), "group": group, "value": float(value)}


def foreign_lines(axes):
    """Lines that are not error bars, however they were drawn."""
    caps = set()
    for container in axes.containers:
        error_bars = getattr(container, "errorbar", None)
        if error_bars is not None:
            caps.update(error_bars.lines[1])
    return [line for line in data_lines(axes) if line not in caps and not is_stroke(line)]


def is_stroke(line):
    """Vertical, horizontal or empty lines: seaborn's error bars."""
    xs, ys = ({value for value in map(axis.number, data) if value == value} for data in line.get_data(orig=False))
    return len(xs) <= 1 or len(ys) <= 1


def pie_chart(axes):
    from matplotlib.patches import Wedge

    wedges = axes.patches
    if not wedges or not all(isinstance(wedge, Wedge) for wedge in wedges):
        return None
    elements = [
        {
            "label": wedge.get_label(),
            "angle": round(float(wedge.theta2 - wedge.theta1), 4),
            "radius": float(wedge.r),
        }
        for wedge in wedges
    ]
    return base(axes, "pie", elements)


def box_chart(axes):
    found = box_plots.of_axes(axes)
    if not found:
        return None
    horizontal = all(is_horizontal for _, _, is_horizontal in found)
    labels = axis.Labels(axes.yaxis if horizontal else axes.xaxis)
    elements = [box_element(box, labels.at(position)) for box, position, _ in found]
    return planar(axes, "box_and_whisker", elements, swapped=horizontal)


def box_element(box, place):
    return {
        "label": str(box.get("label") or place),
        "min": float(box["whislo"]),
        "first_quartile": float(box["q1"]),
        "median": float(box["med"]),
        "third_quartile": float(box["q3"]),
        "max": float(box["whishi"]),
        "outliers": [float(value) for value in box.get("fliers", [])],
    }


def label(artist, otherwise):
    text = str(artist.get_label())
    return otherwise if not text or text.startswith("_") else text


def refuse_large(count):
    if count > MAX_POINTS:
        raise TooManyPoints(count)
