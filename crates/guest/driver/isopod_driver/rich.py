"""The MIME forms of a value without IPython: from its `_repr_*_` methods and the driver's formatters."""

METHODS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_pdf_": "application/pdf",
    "_repr_latex_": "text/latex",
    "_repr_json_": "application/json",
    "_repr_javascript_": "application/javascript",
}


def bundle(value, formatters):
    found = {"text/plain": repr(value)}
    if isinstance(value, type):
        # A class has the methods of its instances, but they need an instance.
        return found
    found.update(from_mimebundle(value))
    for method, mime in METHODS.items():
        form = from_method(value, method)
        if form is not None:
            found.setdefault(mime, form)
    for mime, by_class in formatters.items():
        form = from_formatters(value, by_class)
        if form is not None:
            found[mime] = form
    return found


def from_mimebundle(value):
    form = from_method(value, "_repr_mimebundle_")
    if isinstance(form, tuple):
        form = form[0]
    return form if isinstance(form, dict) else {}


def from_method(value, name):
    method = getattr(value, name, None)
    if not callable(method):
        return None
    try:
        form = method()
    except Exception:
        return None
    return form[0] if isinstance(form, tuple) and name != "_repr_mimebundle_" else form


def from_formatters(value, by_class):
    for ancestor in type(value).__mro__:
        function = by_class.get("%s.%s" % (ancestor.__module__, ancestor.__qualname__))
        if function is not None:
            return function(value)
    return None
