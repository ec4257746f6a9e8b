"""One axis of a chart: its scale, ticks and unit, and its values as numbers, dates or names."""

import math
import re

UNIT = re.compile(r"\(([^()]+)\)|\[([^\[\]]+)\]")
DATE_CONVERTERS = {
    "DateConverter",
    "ConciseDateConverter",
    "_SwitchableDateConverter",
    "DatetimeConverter",
    "PeriodConverter",
    "TimeConverter",
}


def unit(label):
    """The text in the first brackets of a label: `Time (s)`, `Voltage [mV]`."""
    found = UNIT.search(label or "")
    if found is None:
        return None
    return (found.group(1) or found.group(2)).strip() or None


def scale(axis):
    converter = type(converter_of(axis)).__name__
    if converter == "StrCategoryConverter":
        return "categorical"
    if converter in DATE_CONVERTERS:
        return "datetime"
    return axis.get_scale()


def converter_of(axis):
    getter = getattr(axis, "get_converter", None)
    return getter() if getter is not None else axis.converter


def ticks_and_scale(name, axis):
    locations = [float(place) for place in axis.get_majorticklocs()]
    labels = axis.get_major_formatter().format_ticks(locations)
    kind = scale(axis)
    ticks = [date_text(place) for place in locations] if kind == "datetime" else locations
    return {"%s_ticks" % name: ticks, "%s_tick_labels" % name: list(labels), "%s_scale" % name: kind}


def values(axis, original, converted):
    """The data of an axis in its original form where possible, or else the numbers it was converted to."""
    kind = scale(axis)
    if kind == "categorical":
        names = category_names(axis)
        return [names.get(number(value), number(value)) for value in converted]
    if kind == "datetime":
        return [moment(given, value) for given, value in zip(original, converted)]
    return [number(value) for value in converted]


def number(value):
    """A float, or None for masked values and values that are not numbers."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def category_names(axis):
    mapping = getattr(axis.units, "_mapping", None) or {}
    return {float(place): name for name, place in mapping.items()}


def moment(given, converted):
    # A plain float is already converted (scatter). Anything else is a date of some library.
    if hasattr(given, "isoformat"):
        return given.isoformat()
    if type(given).__name__ == "datetime64":
        return str(given)
    if type(given).__name__ == "Period":
        return str(given)
    return date_text(number(converted))


def date_text(place):
    if place is None or not math.isfinite(place):
        return None
    from matplotlib.dates import num2date

    try:
        return num2date(place).isoformat()
    except (ValueError, OverflowError):
        return None


class Labels:
    """The name of a position on an axis: its category, the label of a fixed tick, or the number."""

    def __init__(self, axis):
        from matplotlib.ticker import FixedLocator

        self.kind = scale(axis)
        self.names = category_names(axis)
        self.ticks = []
        if isinstance(axis.get_major_locator(), FixedLocator):
            places = [float(place) for place in axis.get_majorticklocs()]
            self.ticks = list(zip(places, axis.get_major_formatter().format_ticks(places)))

    def at(self, place):
        nearest = self.nearest(self.names.items(), place) or self.nearest(self.ticks, place)
        if nearest is not None:
            return nearest
        if self.kind == "datetime":
            return date_text(float(place)) or ""
        return "%g" % place

    @staticmethod
    def nearest(named_places, place):
        # The bars of a group are side by side around their tick, within half a step.
        within = [(abs(at - place), name) for at, name in named_places if abs(at - place) < 0.5]
        return str(min(within)[1]) if within and min(within)[1] != "" else None
