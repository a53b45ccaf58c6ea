

# Modules that are completed as they are imported.

class Media:
    """Something to show, as the classes of `IPython.display`."""

    media = "text/plain"

    def __init__(self, data=None, url=None, filename=None, metadata=None, **options):
        if filename is not None:
            with open(filename, "rb") as file:
                data = file.read()
        self.data, self.url, self.filename, self.options = data, url, filename, options

    def _repr_mimebundle_(self, include=None, exclude=None):
        data = self.data
        if isinstance(data, bytes) and not self.media.startswith("image/"):
            data = data.decode("utf-8", "replace")
        return {self.media: data, "text/plain": "<IPython.core.display.%s object>" % type(self).__name__}


class Image(Media):
    media = "image/png"

    def __init__(self, data=None, url=None, filename=None, format=None, **options):
        if isinstance(data, str) and os.path.exists(data):
            data, filename = None, data
        super().__init__(data, url, filename, **options)
        if isinstance(self.data, bytes) and self.data[:2] == b"\xff\xd8":
            self.media = "image/jpeg"

    def _repr_mimebundle_(self, include=None, exclude=None):
        if self.data is None:
            return {"text/html": '<img src="%s"/>' % self.url, "text/plain": "<IPython.core.display.Image object>"}
        return super()._repr_mimebundle_()


def media_class(name, media):
    return type(name, (Media,), {"media": media, "__module__": "IPython.core.display"})


def display_module():
    module = types.ModuleType("IPython.display")
    module.display, module.update_display, module.clear_output = display, update_display, clear_output
    module.DisplayHandle, module.DisplayObject, module.Image = Handle, Media, Image
    for name, media in (
        ("HTML", "text/html"),
        ("Markdown", "text/markdown"),
        ("Latex", "text/latex"),
        ("Math", "text/latex"),
        ("SVG", "image/svg+xml"),
        ("JSON", "application/json"),
        ("Javascript", "application/javascript"),
        ("Pretty", "text/plain"),
    ):
        setattr(module, name, media_class(name, media))
    for media, name in METHODS:
        short = "display" + name[len("_repr") : -1]
        setattr(module, short, lambda *values, **options: display(*values))
    return module


class Completing:
    """Completes modules as they are imported: what shows things shows them here."""

    def __init__(self):
        self.busy = set()

    def find_spec(self, name, path=None, target=None):
        if name not in COMPLETED or name in self.busy:
            return None
        import importlib.util

        self.busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            spec = None
        finally:
            self.busy.discard(name)
        if spec is None or not hasattr(spec.loader, "exec_module"):
            return None
        loaded = spec.loader.exec_module

        def exec_module(module):
            loaded(module)
            COMPLETED[name](module)

        spec.loader.exec_module = exec_module
        return spec


class StandingIn:
    """Stands in for `IPython.display` where there is no IPython."""

    NAMES = ("IPython", "IPython.display", "IPython.core", "IPython.core.display")

    def find_spec(self, name, path=None, target=None):
        if name not in self.NAMES:
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self, is_package=name in ("IPython", "IPython.core"))

    def create_module(self, spec):
        if spec.name in ("IPython.display", "IPython.core.display"):
            return display_module()
        module = types.ModuleType(spec.name)
        # A library that asks gets the answer that it runs in no IPython.
        module.get_ipython = lambda: None
        module.version_info, module.__version__ = (8, 0, 0), "8.0.0"
        return module

    def exec_module(self, module):
        pass


def complete_pyplot(module):
    def show(*arguments, **options):
        show_figures()

    module.show = show


def complete_display(module):
    module.display, module.update_display, module.clear_output = display, update_display, clear_output


COMPLETED = {
    "matplotlib.pyplot": complete_pyplot,
    "IPython.core.display_functions": complete_display,
}
