

# Running cells.

# What a line with one of these is, is most often no expression.
SIGNS = frozenset("=;%!?")
STATEMENTS = frozenset("assert async class def del for from global if import pass raise return try while with".split())


def as_expression(code, file, flags):
    """A cell that is one line with one expression, compiled without making a tree first. None: it may be anything."""
    if "\n" in code or code[:1] in " \t" or not SIGNS.isdisjoint(code):
        return None
    if code.partition(" ")[0] in STATEMENTS or automagic(code):
        return None
    try:
        return compile(code, file, "eval", flags, True)
    except (SyntaxError, ValueError):
        return None


class Runner:
    def __init__(self):
        self.module = types.ModuleType("__main__")
        self.names = self.module.__dict__
        sys.modules["__main__"] = self.module
        self.count = 0
        self.file = "<cell 0>"
        self.flags = 0
        self.loop = None
        self.is_running = False
        self.is_interrupted = False
        self.quiet = False
        self.last_error = None
        self.last_directory = None
        self.unders = [None, None, None]
        self.names.update(
            __builtins__=builtins,
            In=[""],
            Out={},
            _i="",
            _ii="",
            _iii="",
            _="",
            __="",
            ___="",
            get_ipython=get_ipython,
            display=display,
            exit=leave_cell,
            quit=leave_cell,
        )
        self.unders = ["", "", ""]
        self.names.update(_ih=self.names["In"], _oh=self.names["Out"])
        self.hidden = set(self.names)

    def own_names(self):
        return [name for name in self.names if name not in self.hidden and not name.startswith("_")]

    def run(self, count, code):
        """Runs a cell and returns the events that tell how it ended."""
        self.count, self.file, self.quiet = count, "<cell %d>" % count, False
        events, status = [], "success"
        try:
            self.is_running = True
            if self.is_interrupted:
                self.is_interrupted = False
                raise KeyboardInterrupt
            value = self.run_code(code)
            if value is not None and not self.quiet:
                events.append({"event": "result", "data": bundle(value)})
                self.keep(value)
            value = None
            show_figures()
        except BaseException as error:
            self.is_running = False
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "error"
            events = [self.error(error)]
            try:
                show_figures()
            except BaseException:
                pass
        finally:
            self.is_running = False
        flush()
        events.append(SUCCESS if status == "success" else {"event": "end", "status": status})
        return events

    def run_code(self, code):
        if not code.strip():
            return None
        names = self.names
        names["_iii"], names["_ii"], names["_i"] = names["_ii"], names["_i"], names["In"][-1]
        names["In"].append(code)
        names["_i%d" % self.count] = code
        return self.evaluate(code, self.file, self.ends_quietly(code))

    def ends_quietly(self, code):
        last = code.rstrip().rpartition("\n")[2]
        if ";" not in last or code.lstrip().startswith("%%"):
            return False
        import io
        import tokenize

        skipped = (tokenize.COMMENT, tokenize.NEWLINE, tokenize.NL, tokenize.ENDMARKER, tokenize.DEDENT, tokenize.INDENT)
        try:
            tokens = [one for one in tokenize.generate_tokens(io.StringIO(code).readline) if one.type not in skipped]
        except Exception:
            return last.rstrip().endswith(";")
        return bool(tokens) and tokens[-1].string == ";"

    def evaluate(self, code, file, quiet=False):
        """Runs code and returns the value of its last expression."""
        flags = self.flags | AWAIT
        expression = as_expression(code, file, flags)
        if expression is not None:
            linecache.cache[file] = (len(code), None, code.splitlines(True), file)
            value = self.call(expression)
            self.quiet = self.quiet or quiet
            return value
        try:
            if automagic(code):
                raise SyntaxError
            source, tree = code, compile(code, file, "exec", ast.PyCF_ONLY_AST | flags, True)
        except SyntaxError:
            source = as_python(code)
            linecache.cache[file] = (len(source), None, source.splitlines(True), file)
            tree = compile(source, file, "exec", ast.PyCF_ONLY_AST | flags, True)
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
        if tree.body:
            compiled = compile(tree, file, "exec", flags, True)
            self.flags |= compiled.co_flags & FUTURE_FLAGS
            self.call(compiled)
        if last is None:
            return None
        value = self.call(compile(last, file, "eval", flags, True))
        self.quiet = self.quiet or quiet
        return value

    def call(self, compiled):
        made = eval(compiled, self.names)
        if compiled.co_flags & CO_COROUTINE:
            return self.wait_for(made)
        return made

    def wait_for(self, coroutine):
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        task = self.loop.create_task(coroutine)
        try:
            return self.loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()
            try:
                self.loop.run_until_complete(task)
            except BaseException:
                pass
            raise

    def keep(self, value):
        names = self.names
        if value is names.get("Out"):
            return
        names["Out"][self.count] = value
        names["_%d" % self.count] = value
        current = [names.get("_"), names.get("__"), names.get("___")]
        # Whoever uses these names for something else keeps them.
        if all(mine is theirs for mine, theirs in zip(self.unders, current)):
            self.unders = [value, self.unders[0], self.unders[1]]
            names["_"], names["__"], names["___"] = self.unders

    def error(self, error):
        self.last_error = error
        name, value = type(error).__name__, text_of(error)
        try:
            if isinstance(error, SystemExit):
                print("UserWarning: To exit: use 'exit', 'quit', or Ctrl-D.", file=sys.stderr)
                lines = ["An exception has occurred, use %tb to see the full traceback.", "\n" + last_line(error)]
            else:
                lines = traceback_of(error)
        except Exception:
            lines = ["%s: %s" % (name, value)]
        return {"event": "error", "name": name, "value": value, "traceback": lines}


def on_interrupt(number, frame):
    if not channel.is_mine():
        raise KeyboardInterrupt
    if runner.is_running and channel.is_sending:
        runner.is_interrupted = True
        return
    if runner.is_running:
        raise KeyboardInterrupt
    # It may be for a cell that is on its way, or for one that ended a moment ago.
    if channel.has_more():
        runner.is_interrupted = True


def get_ipython():
    return shell


def leave_cell(code=None):
    """Ends the cell. The interpreter's own `exit` would close its standard input, too."""
    raise SystemExit(code)


def no_input(prompt=""):
    raise StdinNotImplementedError("input() was called, but nobody can answer in a context: put the value into the code")


def serve():
    channel.send([{"event": "ready"}])
    while True:
        count, code = channel.next_cell()
        events, again = None, None
        while events is None:
            try:
                if again is None:
                    events = runner.run(count, code)
                else:
                    # Interrupted once more, while the first interrupt was told of. From here on none is heard.
                    runner.is_running = False
                    events = [runner.error(again), {"event": "end", "status": "interrupted"}]
            except KeyboardInterrupt as error:
                again = error
        if not channel.is_mine():
            # A process that the cell forked has come to the cell's end.
            failed = [event for event in events if event["event"] == "error"]
            for event in failed:
                print("\n".join(event["traceback"]), file=sys.stderr)
            flush()
            os._exit(1 if failed else 0)
        channel.send(events)


def prepare():
    signal.signal(signal.SIGINT, on_interrupt)
    os.environ.setdefault("MPLBACKEND", "agg")
    for stream in (sys.stdout, sys.stderr):
        # Bytes that are no text come out as they came in.
        stream.reconfigure(line_buffering=True, errors="surrogateescape" if stream is sys.stdout else "backslashreplace")
    sys.argv = [""]
    builtins.input = no_input
    sys.meta_path.insert(0, Completing())
    sys.meta_path.append(StandingIn())

    def forked():
        channel.lock = threading.RLock()
        try:
            os.close(channel.fd)
        except OSError:
            pass

    os.register_at_fork(after_in_child=forked)


channel = Channel(channel_fd)  # noqa: F821
shell = Shell()
runner = Runner()
prepare()
serve()
