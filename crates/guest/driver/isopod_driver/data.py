"""What a value is besides its text: a table's columns (`e2b/data`), a figure's chart, the JSON of a list or a dict."""

from . import charts, results

MAX_CELLS = results.MAX_NODES


def register(interpreter):
    interpreter.add_formatter("e2b/data", "pandas.core.frame.DataFrame", columns)
    # Newer versions of pandas name the class's home differently.
    interpreter.add_formatter("e2b/data", "pandas.DataFrame", columns)
    interpreter.add_formatter("e2b/chart", "matplotlib.figure.Figure", charts.of_figure)
    interpreter.add_formatter("application/json", "builtins.list", as_json)
    interpreter.add_formatter("application/json", "builtins.dict", as_json)


def columns(frame):
    """Column name to list of values; times as ISO text, missing values as null."""
    try:
        if frame.size > MAX_CELLS:
            return results.LeftOut("a table of %d cells is more than the limit of %d" % (frame.size, MAX_CELLS))
        return {results.key_text(name): column_values(column) for name, column in frame.items()}
    except Exception:
        # A table of things that JSON has no word for still has its text and HTML.
        return None


def column_values(column):
    return [cell_value(value) for value in column.tolist()]


def cell_value(value):
    try:
        return results.clean(value)
    except TypeError:
        return str(value)


def as_json(value):
    """The value itself, or None when JSON cannot hold it; then the text is all there is."""
    try:
        return results.clean(value)
    except results.TooLarge as problem:
        return results.LeftOut(str(problem))
    except (TypeError, ValueError, RecursionError):
        return None
