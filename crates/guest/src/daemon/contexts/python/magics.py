

# The magics of lines and cells.

def options_of(line, letters):
    """Options at the beginning of a magic's line, as in `-n 5 -r2 statement`. A letter with a colon has a value."""
    given = {}
    while True:
        match = re.match(r"\s*-([A-Za-z])(?=[\s\d]|$)", line)
        if not match or match.group(1) not in letters:
            return given, line.strip()
        letter, line = match.group(1), line[match.end() :]
        if letter + ":" in letters:
            value = re.match(r"\s*(\S+)", line)
            if not value:
                raise UsageError("option -%s requires argument" % letter)
            given[letter], line = value.group(1), line[value.end() :]
        else:
            given[letter] = True


def magic_pip(line):
    """Install packages for this interpreter: %pip install NAME."""
    import importlib.util
    import shlex
    import site
    import subprocess

    words = shlex.split(line)
    own = site.getusersitepackages()
    if words[:1] == ["install"] and not os.access(site_directory(), os.W_OK):
        if not {"--user", "--target", "-t", "--prefix"} & set(words):
            # What this interpreter has is not ours to change; an environment knows no packages of a user.
            words[1:1] = ["--user"] if sys.prefix == sys.base_prefix else ["--target", own, "--upgrade"]
    # An environment may come without pip; the interpreter that it was made with has the same version.
    has_pip = importlib.util.find_spec("pip") is not None
    interpreter = sys.executable if has_pip else getattr(sys, "_base_executable", sys.executable)
    command = [interpreter, "-m", "pip"] + words
    if words[:1] in (["install"], ["uninstall"]) and "--disable-pip-version-check" not in words:
        command.insert(3, "--disable-pip-version-check")
    flush()
    environment = {"PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_NO_INPUT": "1"}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**environment, **os.environ})
    try:
        status = process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
    if os.path.isdir(own) and own not in sys.path:
        # It did not exist when the interpreter was started.
        sys.path.append(own)
    importlib.invalidate_caches()
    runner.names["_exit_code"] = status
    if status != 0:
        raise subprocess.CalledProcessError(status, "pip " + line)


def site_directory():
    import sysconfig

    return sysconfig.get_path("purelib")


def magic_cd(line):
    """Change the working directory."""
    given, target = options_of(line, ["q"])
    target = target.strip("'\"")
    before = os.getcwd()
    if target == "-":
        target = runner.last_directory or before
    os.chdir(os.path.expanduser(target or "~"))
    runner.last_directory = before
    if "q" not in given:
        print(os.getcwd())


def magic_pwd(line):
    """The working directory."""
    return os.getcwd()


def magic_env(line):
    """Get or set environment variables: %env, %env NAME, %env NAME=VALUE."""
    line = line.strip()
    if not line:
        return dict(os.environ)
    name, sign, value = line.partition("=") if "=" in line else line.partition(" ")
    name, value = name.strip(), value.strip()
    if not sign:
        if name not in os.environ:
            raise UsageError("Environment does not have key: %s" % name)
        return os.environ[name]
    os.environ[name] = value
    print("env: %s=%s" % (name, value))
    return None


def magic_time(line, cell=None):
    """Run a statement, or the cell, and say how long it took."""
    import time

    code = cell if cell is not None else line
    wall, before = time.perf_counter(), os.times()
    try:
        return runner.evaluate(code, runner.file)
    finally:
        wall, after = time.perf_counter() - wall, os.times()
        user, system = after[0] - before[0], after[1] - before[1]
        spans = (as_time(user), as_time(system), as_time(user + system))
        print("CPU times: user %s, sys: %s, total: %s" % spans)
        print("Wall time: %s" % as_time(wall))


def magic_timeit(line, cell=None):
    """Run a statement, or the cell, many times and say how long it takes."""
    import timeit

    given, statement = options_of(line, ["n", "n:", "r", "r:", "q", "o", "p", "p:"])
    setup = "pass"
    if cell is not None:
        setup, statement = statement or "pass", cell
    timer = timeit.Timer(statement, setup, globals=runner.names)
    runs = int(given.get("r", 7))
    loops = int(given.get("n", 0))
    if not loops:
        loops = 1
        while timer.timeit(loops) < 0.02 and loops < 10**9:
            loops *= 10
    times = [span / loops for span in timer.repeat(runs, loops)]
    mean = sum(times) / len(times)
    deviation = (sum((span - mean) ** 2 for span in times) / len(times)) ** 0.5
    if "q" not in given:
        values = (as_time(mean), as_time(deviation), runs, "" if runs == 1 else "s", loops, "" if loops == 1 else "s")
        print("%s ± %s per loop (mean ± std. dev. of %d run%s, %s loop%s each)" % (values[:4] + (format(loops, ","), values[5])))
    return times if "o" in given else None


def as_time(seconds):
    if seconds >= 60:
        return "%dmin %ds" % (seconds // 60, seconds % 60)
    for unit, scale in (("s", 1), ("ms", 1e3), ("µs", 1e6), ("ns", 1e9)):
        if seconds * scale >= 1 or unit == "ns":
            return "%.3g %s" % (seconds * scale, unit)
    return "0 ns"


def magic_matplotlib(line):
    """Accepted: figures are always shown."""


def magic_nothing(line):
    """Accepted without effect."""


def magic_who(line):
    """The names that cells have defined."""
    print("\t".join(sorted(runner.own_names())) or "Interactive namespace is empty.")


def magic_whos(line):
    """The names that cells have defined, with what they are."""
    names = sorted(runner.own_names())
    if not names:
        print("Interactive namespace is empty.")
        return
    for name in names:
        value = runner.names[name]
        print("%-12s %-12s %s" % (name, type(value).__name__, repr(value)[:60].replace("\n", " ")))


def magic_reset(line):
    """Forget everything that cells have defined."""
    for name in runner.own_names():
        del runner.names[name]


def magic_run(line):
    """Run a file in this namespace: %run FILE [ARGUMENTS]."""
    import shlex

    words = shlex.split(line)
    words = [word for word in words if word != "-i"] if words[:1] == ["-i"] else words
    if not words:
        raise UsageError("you must provide at least a filename.")
    with open(os.path.expanduser(words[0]), "rb") as file:
        code = compile(file.read(), words[0], "exec")
    before = sys.argv
    sys.argv = words
    try:
        exec(code, runner.names)
    finally:
        sys.argv = before


def magic_ls(line):
    """List files."""
    get_ipython().system("ls " + line)


def magic_lsmagic(line):
    """The magics that there are."""
    print("Available line magics:\n%s\n" % "  ".join("%" + name for name in sorted(LINE_MAGICS)))
    print("Available cell magics:\n%s" % "  ".join("%%" + name for name in sorted(CELL_MAGICS)))


def magic_tb(line):
    """The last traceback."""
    if runner.last_error is not None:
        print("\n".join(traceback_of(runner.last_error)), file=sys.stderr)


def magic_history(line):
    """The cells so far."""
    for cell in runner.names["In"][1:-1]:
        print(cell)


def script_magic(program):
    def run(line, cell):
        flush()
        arguments = [program] if program else line.split()
        status = run_process(arguments + (line.split() if program else []), cell)
        if status != 0:
            import subprocess

            raise subprocess.CalledProcessError(status, cell.encode("utf-8", "replace"))

    run.__doc__ = "Run the cell with %s." % (program or "the program that is named")
    return run


def magic_writefile(line, cell):
    """Write the cell to a file: %%writefile [-a] FILE."""
    given, name = options_of(line, ["a"])
    name = os.path.expanduser(filled_in(name, 3).strip("'\""))
    print("%s %s" % ("Appending to" if given else "Overwriting" if os.path.exists(name) else "Writing", name))
    with open(name, "a" if given else "w", encoding="utf-8") as file:
        file.write(cell)


def magic_capture(line, cell):
    """Run the cell and keep what it prints: %%capture [NAME]."""
    import contextlib
    import io

    class Captured:
        def __init__(self, stdout, stderr):
            self.stdout, self.stderr = stdout, stderr

        def show(self):
            sys.stdout.write(self.stdout)
            sys.stderr.write(self.stderr)

        __call__ = show

        def __str__(self):
            return self.stdout

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        runner.evaluate(cell, runner.file)
    words = [word for word in line.split() if not word.startswith("-")]
    if words:
        runner.names[words[0]] = Captured(out.getvalue(), err.getvalue())


def media_magic(media):
    def show(line, cell):
        channel.send_and_wait({"event": "display", "data": {media: cell, "text/plain": "<%s>" % media}})

    show.__doc__ = "Show the cell as %s." % media
    return show


LINE_MAGICS = {
    "pip": magic_pip,
    "cd": magic_cd,
    "pwd": magic_pwd,
    "env": magic_env,
    "set_env": magic_env,
    "time": magic_time,
    "timeit": magic_timeit,
    "matplotlib": magic_matplotlib,
    "pylab": magic_matplotlib,
    "config": magic_nothing,
    "load_ext": magic_nothing,
    "reload_ext": magic_nothing,
    "autoreload": magic_nothing,
    "xmode": magic_nothing,
    "colors": magic_nothing,
    "who": magic_who,
    "whos": magic_whos,
    "reset": magic_reset,
    "run": magic_run,
    "ls": magic_ls,
    "lsmagic": magic_lsmagic,
    "tb": magic_tb,
    "history": magic_history,
}
CELL_MAGICS = {
    "time": magic_time,
    "timeit": magic_timeit,
    "bash": script_magic("bash"),
    "sh": script_magic("sh"),
    "python": script_magic(sys.executable),
    "python3": script_magic(sys.executable),
    "script": script_magic(None),
    "writefile": magic_writefile,
    "file": magic_writefile,
    "capture": magic_capture,
    "html": media_magic("text/html"),
    "HTML": media_magic("text/html"),
    "markdown": media_magic("text/markdown"),
    "latex": media_magic("text/latex"),
    "svg": media_magic("image/svg+xml"),
    "SVG": media_magic("image/svg+xml"),
    "javascript": media_magic("application/javascript"),
    "js": media_magic("application/javascript"),
}
AUTOMAGIC = ("pip", "cd", "pwd", "env", "time", "timeit", "matplotlib", "who", "whos", "ls", "lsmagic", "run")
EXPANDED = ("cd", "env", "set_env", "ls", "pip", "run")
