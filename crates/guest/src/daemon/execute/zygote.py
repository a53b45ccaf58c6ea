

def _cubicle_zygote():
    # An interpreter that is ready: it forks a process that waits for a job whenever it is asked for one. Returns only in
    # such a process, with the file to run. Arguments: the program that runs a file in a fresh interpreter, then the
    # modules to import ahead.
    import sys
    import os
    cold, modules = sys.argv[1], sys.argv[2:]
    control = os.dup(0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    first = sys.path.pop(0) if not getattr(sys.flags, "safe_path", False) else None
    for module in modules:
        try:
            __import__(module)
        except BaseException:
            # The code that needs it gets to see why.
            pass
    if first is not None:
        sys.path.insert(0, first)

    def places():
        # What decides which modules a fresh interpreter would find.
        site = sys.modules.get("site")
        seen = []
        for place in sys.path[1:] + [getattr(site, "USER_SITE", None) or "/"]:
            try:
                seen.append(os.stat(place).st_mtime_ns)
            except OSError:
                seen.append(None)
        return seen

    own = [name for name in ("gc", "_socket") if name not in sys.modules]
    import _socket
    import gc
    control = _socket.socket(fileno=control)
    if modules:
        # Threads do not survive a fork. Some libraries end theirs before one, so that is tried first.
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        if len(os.listdir("/proc/self/task")) != 1:
            control.send(b"threads")
            os._exit(0)
    before = places()
    gc.collect()
    gc.freeze()
    control.send(b"ready")
    while True:
        asked, beside, _, _ = control.recvmsg(16, 64)
        if not asked:
            os._exit(0)
        if places() != before:
            control.send(b"stale")
            os._exit(0)
        line = int.from_bytes(beside[0][2][:4], sys.byteorder)
        child = os.fork()
        if child == 0:
            # Its maker ends at once, so that it belongs to the process that reaps.
            maker = os.getpid()
            if os.fork():
                os._exit(0)
            break
        os.close(line)
        os.waitpid(child, 0)
    control.close()
    os.setsid()
    while os.getppid() == maker:
        os.sched_yield()
    line = _socket.socket(fileno=line)
    import io
    encoding, errors = sys.__stdout__.encoding, sys.__stdout__.errors

    def stream(number, mode, errors, by_line, name):
        # As the interpreter makes them when it starts.
        buffered = io.open(number, mode + "b", -1, closefd=False)
        buffered.raw.name = name
        text = io.TextIOWrapper(buffered, encoding, errors, "\n", by_line)
        text.mode = mode
        return text

    # The module `random` does this by itself.
    if "numpy.random" in sys.modules:
        try:
            sys.modules["numpy.random"].seed()
        except Exception:
            pass
    for name in own:
        sys.modules.pop(name, None)
    known = set(sys.modules)
    # A rehearsal: memory that every run changes is copied now, and not while somebody waits.
    imports = ["import " + module for module in modules if module in sys.modules]
    exec(compile("\n".join(["import sys, os"] + imports), "<rehearsal>", "exec"), {"__name__": "__main__"})
    stream(0, "r", errors, False, "<stdin>")
    print(1, file=stream(1, "w", errors, False, "<stdout>"), flush=True)
    places()
    gc.collect()
    line.send(b"waiting")
    job, beside, _, _ = line.recvmsg(1 << 18, 64)
    if not job:
        os._exit(0)
    numbers = beside[0][2]
    for target in range(3):
        number = int.from_bytes(numbers[4 * target:4 * target + 4], sys.byteorder)
        os.dup2(number, target)
        os.close(number)
    file, cwd, *variables = job.split(b"\0")
    file = os.fsdecode(file)
    os.environ.clear()
    for variable in variables:
        name, _, value = variable.partition(b"=")
        os.environb[name] = value
    if "time" in sys.modules:
        sys.modules["time"].tzset()
    sys.stdin = sys.__stdin__ = stream(0, "r", errors, False, "<stdin>")
    sys.stdout = sys.__stdout__ = stream(1, "w", errors, False, "<stdout>")
    sys.stderr = sys.__stderr__ = stream(2, "w", "backslashreplace", True, "<stderr>")
    try:
        os.chdir(cwd)
    except OSError as error:
        os.write(2, b"cannot enter the working directory: %s\n" % str(error).encode())
        os._exit(126)
    go = line.recv(16)
    line.close()
    if not go:
        os._exit(0)
    if places() != before:
        # Something was installed meanwhile that a fresh interpreter would see.
        os.execv(sys.executable, [sys.orig_argv[0], "-c", cold, file])
    return file, known, gc


def _cubicle_end(status, before, gc):
    # Ends the process as an interpreter does, but leaves what was there before the fork: taking it down object by object
    # would copy all the memory that is shared with the zygote, and takes longer than most code runs. Returns when the
    # interpreter itself must do it.
    import sys
    import os
    fresh = [name for name in sys.modules if name not in before]
    for name in fresh:
        spec = getattr(sys.modules[name], "__spec__", None)
        origin = getattr(spec, "origin", None) or ""
        if not isinstance(origin, str) or (".so" in origin and "lib-dynload" not in origin):
            # Libraries may have something to do when a process exits.
            return
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    if "atexit" in sys.modules:
        sys.modules["atexit"]._run_exitfuncs()

    def flush():
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()

    try:
        flush()
    except BaseException:
        # It fails there again, and is told of.
        return
    sys.last_type = sys.last_value = sys.last_traceback = sys.last_exc = None
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    sys.modules["__main__"] = None
    for name in fresh:
        sys.modules[name] = None
    gc.collect()
    # Whatever still has something to write, wherever it is kept.
    io = sys.modules["_io"]
    for thing in gc.get_objects():
        if type(thing) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
            try:
                thing.flush()
            except BaseException:
                pass
    try:
        flush()
    except BaseException:
        os._exit(120)
    os._exit(status)


def _cubicle_main():
    import sys
    file, before, gc = _cubicle_zygote()
    try:
        status = _cubicle_run(file)
    except SystemExit as exit:
        status = exit.code
    if status is None:
        status = 0
    if isinstance(status, int) and 0 <= status <= 255:
        _cubicle_end(int(status), before, gc)
    # Also what is no plain code: the interpreter knows what to make of it.
    sys.exit(status)


_cubicle_main()
