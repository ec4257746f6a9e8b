"""Records the statistics of box plots while they are drawn: afterwards only lines are left."""

import functools
import weakref

# Axes -> list of (statistics, drawn artists, horizontal)
drawn = weakref.WeakKeyDictionary()


def record():
    """Wraps the function that draws all boxes, also for pandas and seaborn."""
    from matplotlib.axes import Axes

    bxp = Axes.bxp
    if getattr(bxp, "recorded", False):
        return

    @functools.wraps(bxp)
    def recording_bxp(self, bxpstats, *arguments, **options):
        statistics = list(bxpstats)
        artists = bxp(self, statistics, *arguments, **options)
        drawn.setdefault(self, []).append((statistics, artists, is_horizontal(options)))
        return artists

    recording_bxp.recorded = True
    Axes.bxp = recording_bxp


def is_horizontal(options):
    if options.get("orientation") is not None:
        return options["orientation"] == "horizontal"
    return options.get("vert") is False


def of_axes(axes):
    """The boxes that are still on these axes: (statistics of one box, its position, horizontal)."""
    found = []
    lines = set(axes.lines)
    for statistics, artists, horizontal in drawn.get(axes, []):
        for box, median in zip(statistics, artists.get("medians", [])):
            if median in lines:
                found.append((box, middle(median, horizontal), horizontal))
    return found


def middle(median, horizontal):
    values = median.get_ydata() if horizontal else median.get_xdata()
    return float(sum(values)) / max(len(values), 1)
