"""Structured forms of values: the columns of a table (`e2b/data`), the chart of a figure, the JSON of a list or dict."""

from . import charts, results

MAX_CELLS = results.MAX_NODES


def register(interpreter):
    interpreter.add_formatter("e2b/data", "pandas.core.frame.DataFrame", columns)
    # Newer versions of pandas report another module for the class.
    interpreter.add_formatter("e2b/data", "pandas.DataFrame", columns)
    interpreter.add_formatter("e2b/chart", "matplotlib.figure.Figure", charts.of_figure)
    interpreter.add_formatter("application/json", "builtins.list", as_json)
    interpreter.add_formatter("application/json", "builtins.dict", as_json)


def columns(frame):
    """Maps column names to lists of values. Times become ISO text, missing values null."""
    try:
        if frame.size > MAX_CELLS:
            return results.Omitted("a table of %d cells is more than the limit of %d" % (frame.size, MAX_CELLS))
        return {results.key_text(name): column_values(column) for name, column in frame.items()}
    except Exception:
        # A table of values that JSON cannot hold still has its text and HTML.
        return None


def column_values(column):
    return [cell_value(value) for value in column.tolist()]


def cell_value(value):
    try:
        return results.clean(value)
    except TypeError:
        return str(value)


def as_json(value):
    """The value as JSON, or None if JSON cannot hold it. The client then gets only the text."""
    try:
        return results.clean(value)
    except results.TooLarge as problem:
        return results.Omitted(str(problem))
    except (TypeError, ValueError, RecursionError):
        return None
