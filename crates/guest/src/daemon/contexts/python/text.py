

# Values as text, as IPython prints them.

def pretty(value):
    """A value as IPython prints it."""
    text = formatted(value, 0, WIDTH, [])
    if len(text) > LONGEST_TEXT:
        text = "%s… (%d more characters)" % (text[:LONGEST_TEXT], len(text) - LONGEST_TEXT)
    return text


BRACKETS = {list: ("[", "]"), tuple: ("(", ")"), set: ("{", "}"), frozenset: ("frozenset({", "})"), dict: ("{", "}")}


def formatted(value, depth, room, around):
    kind = type(value)
    if kind in BRACKETS:
        return formatted_container(value, kind, depth, room, around)
    if isinstance(value, type):
        if kind.__repr__ is type.__repr__:
            return qualified(value)
    elif kind in (types.FunctionType, types.BuiltinFunctionType):
        return "<function %s%s>" % (qualified(value), signature(value))
    elif hasattr(kind, "_repr_pretty_"):
        printer = Printer(depth, room, around)
        value._repr_pretty_(printer, False)
        return printer.result()
    elif kind.__name__ == "defaultdict" and kind.__module__ == "collections":
        inner = formatted(dict(value), depth + 1, room - 13, around)
        return "defaultdict(%s, %s)" % (formatted(value.default_factory, depth, room, around), inner)
    text = repr(value)
    return text.replace("\n", "\n" + " " * depth) if depth else text


def formatted_container(value, kind, depth, room, around):
    if any(value is other for other in around):
        return "<Recursion on %s with id=%d>" % (kind.__name__, id(value))
    opening, closing = BRACKETS[kind]
    if not value:
        return repr(value)
    if len(around) >= 200:
        return "..."
    around.append(value)
    try:
        items = value
        if kind in (set, frozenset):
            try:
                items = sorted(value)
            except Exception:
                items = value
        parts, length = [], 0
        for item in items:
            if len(parts) == MOST_ELEMENTS or length > LONGEST_TEXT:
                parts.append("...")
                break
            if kind is dict:
                key = formatted(item, depth + 1, room, around)
                part = "%s: %s" % (key, formatted(value[item], depth + 1, room - 1 - len(key) - 2, around))
            else:
                part = formatted(item, depth + 1, room - 1, around)
            length += len(part)
            parts.append(part)
    finally:
        around.pop()
    if kind is tuple and len(parts) == 1:
        closing = ",)"
    line = opening + ", ".join(parts) + closing
    if len(line) <= room - depth and "\n" not in line:
        return line
    indent = len(opening) if kind is frozenset else 1
    return opening + (",\n" + " " * (depth + indent)).join(parts) + closing


def qualified(value):
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "?")
    return name if module in (None, "builtins", "exceptions") else "%s.%s" % (module, name)


def signature(value):
    import inspect

    try:
        return str(inspect.signature(value))
    except (ValueError, TypeError):
        return ""


class Printer:
    """What `_repr_pretty_` is given, as far as it is usually used."""

    def __init__(self, depth, room, around):
        self.pieces, self.depth, self.room, self.around = [], depth, room, around

    def text(self, text):
        self.pieces.append(text)

    def pretty(self, value):
        self.pieces.append(formatted(value, self.depth, self.room, self.around))

    def breakable(self, sep=" "):
        self.pieces.append(sep)

    def break_(self):
        self.pieces.append("\n")

    def begin_group(self, indent=0, open=""):
        self.pieces.append(open)

    def end_group(self, dedent=0, close=""):
        self.pieces.append(close)

    def group(self, indent=0, open="", close=""):
        import contextlib

        @contextlib.contextmanager
        def grouped():
            self.begin_group(indent, open)
            yield
            self.end_group(indent, close)

        return grouped()

    def result(self):
        return "".join(self.pieces)
