

# Values by media type, and showing them.

METHODS = [
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("text/latex", "_repr_latex_"),
    ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("application/json", "_repr_json_"),
    ("application/javascript", "_repr_javascript_"),
    ("application/pdf", "_repr_pdf_"),
]
CANARY = "_ipython_canary_method_should_not_exist_"
# These have nothing but their text.
BARE = frozenset((bool, bytes, complex, dict, float, frozenset, int, list, set, str, tuple))


def method_of(value, name):
    """The value's own method, unless it is a class or pretends to have every method."""
    if isinstance(value, type):
        return None
    try:
        if getattr(value, CANARY, None) is not None:
            return None
        method = getattr(value, name, None)
    except Exception:
        return None
    return method if callable(method) else None


def bundle(value):
    """Everything a value says of itself, by media type."""
    if type(value) in BARE:
        text = tried(lambda: pretty(value))
        return {"text/plain": "<%s object>" % type(value).__name__ if text is None else text}
    data = {}
    method = method_of(value, "_repr_mimebundle_")
    if method:
        made = tried(lambda: method(include=None, exclude=None))
        if isinstance(made, tuple):
            made = made[0] if made else None
        if isinstance(made, dict):
            data.update((str(media), item) for media, item in made.items())
    for media, name in METHODS:
        if media in data:
            continue
        method = method_of(value, name)
        made = tried(method) if method else None
        if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], dict):
            made = made[0]
        if made is not None:
            data[media] = made
    known = kind_of(value)
    if known == "figure" and "image/png" not in data:
        made = tried(lambda: png_of(value))
        if made is not None:
            data["image/png"] = made
    if known == "frame" and "application/json" not in data:
        made = tried(lambda: rows_of(value))
        if made is not None:
            data["application/json"] = made
    if "text/plain" not in data:
        text = tried(lambda: pretty(value))
        data["text/plain"] = "<%s object>" % type(value).__name__ if text is None else text
    return {media: item for media, item in ((media, plain(item)) for media, item in data.items()) if item is not None}


def tried(make):
    """A value that cannot say what it is does not fail the cell; its author sees why."""
    try:
        return make()
    except KeyboardInterrupt:
        raise
    except NotImplementedError:
        return None
    except Exception:
        traceback.print_exc()
        return None


def plain(item):
    """As it goes into JSON; bytes in base64. None when it has no such form."""
    if isinstance(item, (bytes, bytearray)):
        import base64

        return base64.b64encode(item).decode("ascii")
    if isinstance(item, str):
        return item
    if too_deep(item, 0):
        return None
    try:
        return json.loads(json.dumps(item, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return None


def too_deep(item, depth):
    if depth > DEEPEST_JSON:
        return True
    if isinstance(item, dict):
        return any(too_deep(inner, depth + 1) for inner in item.values())
    if isinstance(item, (list, tuple)):
        return any(too_deep(inner, depth + 1) for inner in item)
    return False


def kind_of(value):
    """Whether it is a figure of matplotlib or a frame of pandas, without importing either."""
    for base in type(value).__mro__:
        module, name = base.__module__, base.__name__
        if name == "Figure" and module == "matplotlib.figure":
            return "figure"
        if name in ("DataFrame", "Series") and module.partition(".")[0] == "pandas":
            return "frame"
    return None


def png_of(figure):
    import io

    image = io.BytesIO()
    figure.savefig(image, format="png", bbox_inches="tight")
    return image.getvalue()


def rows_of(frame):
    rows = json.loads(frame.head(MOST_ROWS).to_json(orient="split", date_format="iso", default_handler=str))
    rows["rows"] = len(frame)
    rows["truncated"] = len(frame) > MOST_ROWS
    return rows


class Handle:
    """What `display` gives back where it is asked for an id."""

    def __init__(self, display_id):
        self.display_id = display_id

    def display(self, *values, **options):
        display(*values, **options)

    update = display


def display(*values, include=None, exclude=None, metadata=None, transient=None, display_id=None, raw=False, **options):
    """Shows values in the richest form they have."""
    for value in values:
        if raw and isinstance(value, dict):
            data = {str(media): plain(item) for media, item in value.items()}
        else:
            data = bundle(value)
        if include:
            data = {media: item for media, item in data.items() if media in include}
        if exclude:
            data = {media: item for media, item in data.items() if media not in exclude}
        channel.send_and_wait({"event": "display", "data": data})
    if display_id:
        return Handle(display_id if isinstance(display_id, str) else os.urandom(8).hex())
    return None


def update_display(value, *, display_id=None, **options):
    display(value, **options)


def clear_output(wait=False):
    """A journal forgets nothing."""


def show_figures(close=True):
    """Shows the figures that are open, and closes them as the inline backend of Jupyter does."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or not hasattr(pyplot, "get_fignums"):
        return
    try:
        for number in list(pyplot.get_fignums()):
            display(pyplot.figure(number))
    finally:
        if close:
            pyplot.close("all")
