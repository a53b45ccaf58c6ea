

# Errors, as IPython shows them.

def traceback_of(error):
    """A traceback in the form of IPython, without colours; one entry for each frame."""
    parts = []
    for link, opening in chain_of(error):
        if opening:
            parts.append(opening)
        parts += one_traceback(link)
    total = 0
    for index, part in enumerate(parts):
        total += len(part)
        if total > LONGEST_TRACEBACK and index < len(parts) - 1:
            return parts[:index] + ["[... the rest of the traceback is too long ...]", parts[-1][:LONGEST_TEXT]]
    return parts


def chain_of(error):
    chain, seen = [], set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if error.__cause__ is not None:
            chain.append((error, "\nThe above exception was the direct cause of the following exception:\n"))
            error = error.__cause__
        elif error.__context__ is not None and not error.__suppress_context__:
            chain.append((error, "\nDuring handling of the above exception, another exception occurred:\n"))
            error = error.__context__
        else:
            chain.append((error, None))
            break
    return list(reversed(chain))


def one_traceback(error):
    name = type(error).__name__
    if isinstance(error, SyntaxError) and is_of_cell(error):
        return ["".join(traceback.format_exception_only(type(error), error)).rstrip().replace(*cell_place(error), 1)]
    frames = [one for one in traceback.walk_tb(error.__traceback__) if one[0].f_code.co_filename != KERNEL_FILE]
    if isinstance(error, UsageError):
        return ["UsageError: %s" % error]
    parts = ["-" * 75, "%s%s" % (name, "Traceback (most recent call last)".rjust(75 - len(name)))]
    if len(frames) > MOST_FRAMES:
        half = MOST_FRAMES // 2
        skipped = "[... skipping %d frames ...]" % (len(frames) - 2 * half)
        shown = [one_frame(*frame) for frame in frames[:half]] + [skipped]
        parts += shown + [one_frame(*frame) for frame in frames[-half:]]
    else:
        parts += [one_frame(*frame) for frame in frames]
    parts.append(last_line(error))
    return parts


def is_of_cell(error):
    return bool(error.filename) and error.filename.startswith("<cell ")


def cell_place(error):
    return 'File "%s", line %s' % (error.filename, error.lineno), "Cell In[%s], line %s" % (error.filename[6:-1], error.lineno)


def one_frame(frame, line):
    code = frame.f_code
    if code.co_filename.startswith("<cell "):
        place = "Cell In[%s], line %d" % (code.co_filename[6:-1], line)
        if code.co_name != "<module>":
            place += ", in %s" % called(code)
    else:
        place = "File %s:%d, in %s" % (code.co_filename, line, called(code))
    shown = [place]
    for number in range(max(1, line - 2), line + 3):
        text = linecache.getline(code.co_filename, number, frame.f_globals).rstrip("\n")
        if not text and number != line:
            continue
        mark = "----> %d" % number if number == line else "%7d" % number
        shown.append(("%7s %s" % (mark, text[:1000])).rstrip())
    return "\n".join(shown)


def called(code):
    names = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    return "%s(%s)" % (code.co_name, ", ".join(names)) if code.co_name.isidentifier() else code.co_name


def last_line(error):
    try:
        return "".join(traceback.format_exception_only(type(error), error)).rstrip()
    except Exception:
        return "%s: <unprintable>" % type(error).__name__


def text_of(error):
    try:
        return str(error)[:LONGEST_TEXT]
    except Exception:
        return "<unprintable>"
