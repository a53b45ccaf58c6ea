def _cubicle_run(file):
    # Runs a file as `python3 file` does, but with the working directory in front of the path, and says how to exit.
    # Nothing is imported that a fresh interpreter has not imported already, so that modules of the code may have any name.
    import sys
    import os
    if not getattr(sys.flags, "safe_path", False):
        try:
            sys.path[0] = os.getcwd()
        except OSError:
            sys.path[0] = ""
    sys.argv[:] = [file]
    if getattr(sys, "orig_argv", None):
        sys.orig_argv[:] = [sys.orig_argv[0], file]
    loader = sys.modules["_frozen_importlib_external"].SourceFileLoader
    # A module of its own: that of this program may be one that the collector no longer looks at.
    main = type(sys)("__main__")
    space = main.__dict__
    space.update(
        __loader__=loader("__main__", file), __builtins__=sys.modules["builtins"], __file__=file, __cached__=None,
    )
    sys.modules["__main__"] = main
    del main
    if sys.version_info < (3, 14):
        space["__annotations__"] = {}

    def display(error, trace):
        sys.__excepthook__(type(error), error.with_traceback(trace), trace)

    def report(error, trace):
        # What the interpreter does with an exception that nobody caught.
        error = error.with_traceback(trace)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        if sys.version_info >= (3, 12):
            sys.last_exc = error
        hook = getattr(sys, "excepthook", None)
        if hook is None:
            if sys.stderr is not None:
                sys.stderr.write("sys.excepthook is missing, printing original exception\n")
            display(error, trace)
            return
        second = None
        try:
            hook(type(error), error, trace)
        except SystemExit:
            raise
        except BaseException as raised:
            second = raised
        if second is not None and sys.stderr is not None:
            sys.stderr.write("Error in sys.excepthook:\n")
            display(second, second.__traceback__.tb_next)
            sys.stderr.write("\nOriginal exception was:\n")
            display(error, trace)

    def end_by_interrupt():
        # Whoever started the code sees that it was interrupted, and after everything that comes with an exit.
        threading = sys.modules.get("threading")
        if threading is not None:
            threading._shutdown()
        import atexit
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        import _signal
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        os.kill(os.getpid(), _signal.SIGINT)

    caught = code = None
    try:
        with open(file, "rb") as source:
            code = compile(source.read(), file, "exec", 0, True)
    except BaseException as error:
        caught = error.with_traceback(None)
    if code is not None:
        try:
            exec(code, space)
        except SystemExit:
            raise
        except BaseException as error:
            caught = error.with_traceback(error.__traceback__.tb_next)
    if caught is None:
        return 0
    report(caught, caught.__traceback__)
    if isinstance(caught, KeyboardInterrupt):
        end_by_interrupt()
    return 1
