

# What a cell can call: commands, magics, help.

class SList(list):
    """Lines of output."""

    @property
    def n(self):
        return "\n".join(self)

    @property
    def s(self):
        return " ".join(self)

    @property
    def l(self):  # noqa: E743
        return self

    nlstr, spstr, list = n, s, l


class Shell:
    """What `get_ipython()` gives."""

    def __init__(self):
        self.config = {}

    @property
    def user_ns(self):
        return runner.names

    @property
    def execution_count(self):
        return runner.count

    def system(self, command):
        flush()
        runner.names["_exit_code"] = run_process(shell_of(filled_in(command, 2)))

    def getoutput(self, command, split=True):
        import subprocess

        flush()
        process = subprocess.Popen(
            shell_of(filled_in(command, 2)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        try:
            output = process.communicate()[0]
        except BaseException:
            process.kill()
            process.wait()
            raise
        runner.names["_exit_code"] = process.returncode
        text = output.decode("utf-8", "replace")
        return SList(text.splitlines()) if split else text

    def run_line_magic(self, name, line, _stack_depth=1):
        function = LINE_MAGICS.get(name)
        if function is None:
            hint = ""
            if name in CELL_MAGICS:
                hint = " But cell magic `%%%%%s` exists, did you mean that instead?" % name
            raise UsageError("Line magic function `%%%s` not found.%s" % (name, hint))
        return function(filled_in(line, 2) if name in EXPANDED else line)

    def run_cell_magic(self, name, line, cell):
        function = CELL_MAGICS.get(name)
        if function is None:
            raise UsageError("Cell magic `%%%%%s` not found." % name)
        return function(line, cell)

    magic = run_line_magic

    def run_cell(self, code, **options):
        return runner.evaluate(code, "<run_cell>")

    def help(self, what, detail=0):
        show_help(what, detail)


def shell_of(command):
    return [os.environ.get("SHELL") or "/bin/sh", "-c", command]


def run_process(arguments, script=None):
    """Runs something whose output is ours. An interrupt reaches it too, because it is of our process group."""
    import subprocess

    process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL if script is None else subprocess.PIPE)
    try:
        if script is not None:
            process.communicate(script.encode("utf-8", "surrogateescape"))
        return process.wait()
    except BaseException:
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


def filled_in(command, depth):
    """A command with `{expression}` and `$name` replaced, where they mean something."""
    if "{" not in command and "$" not in command:
        return command
    frame = sys._getframe(depth)
    names = dict(runner.names)
    if frame.f_code.co_filename != KERNEL_FILE:
        names.update(frame.f_locals)

    def expression(match):
        if match.group() in ("{{", "}}"):
            return match.group()[0]
        try:
            return str(eval(match.group(1), names))
        except Exception:
            return match.group()

    def variable(match):
        if match.group() == "$$":
            return "$"
        name = match.group(1)
        return str(names[name]) if name in names and not name.startswith("__") else match.group()

    command = re.sub(r"\{\{|\}\}|\{([^{}]+)\}", expression, command)
    return re.sub(r"\$\$|\$([A-Za-z_]\w*)", variable, command)


def show_help(what, detail):
    import inspect

    if "*" in what:
        pattern = re.compile(what.replace(".", r"\.").replace("*", ".*") + "$")
        found = sorted(set(name for name in list(runner.names) + dir(builtins) if pattern.match(name)))
        print("\n".join(found))
        return
    if what.startswith("%"):
        function = LINE_MAGICS.get(what.lstrip("%")) or CELL_MAGICS.get(what.lstrip("%"))
        print(function.__doc__ if function else "Object `%s` not found." % what)
        return
    try:
        value = eval(what, runner.names)
    except Exception:
        print("Object `%s` not found." % what)
        return
    lines = []
    if callable(value) and signature(value):
        lines.append("Signature: %s%s" % (what, signature(value)))
    if not callable(value):
        lines += ["Type:        %s" % type(value).__name__, "String form: %s" % str(value)[:1000]]
    try:
        source = inspect.getsource(value) if detail else None
    except Exception:
        source = None
    if source:
        lines += ["Source:", source.rstrip()]
    else:
        lines.append("Docstring: %s" % (inspect.getdoc(value) or "<no docstring>"))
    if callable(value):
        lines.append("Type:      %s" % type(value).__name__)
    print("\n".join(lines))
