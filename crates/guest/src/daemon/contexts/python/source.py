

# Cells that are not Python yet.

ASSIGNMENT = re.compile(r"^(\s*)([\w.\[\]'\", ]+?)\s*=\s*([!%])(.*)$", re.S)
HELP = re.compile(r"^(\s*)(\?{0,2})\s*([\w.*%]+(?:\[[^\]]*\])?)\s*(\?{0,2})\s*;?\s*$")


def as_python(code):
    """The cell in plain Python. Nothing is changed that is Python already, so a string is never taken for a magic."""
    first = code.lstrip()
    if first.startswith("%%"):
        line, _, rest = first.partition("\n")
        name, _, arguments = line[2:].partition(" ")
        return call("run_cell_magic", name.strip(), arguments.strip(), rest)
    lines = without_prompts(code).splitlines()
    if automagic(code):
        name, _, rest = code.strip().partition(" ")
        return call("run_line_magic", name, rest.strip()) + "\n"
    for _ in range(len(lines) + 1):
        source = "\n".join(lines) + "\n"
        problem = problem_of(source)
        if problem is None:
            return source
        at = (problem.lineno or 1) - 1
        # An error may be found a line later than what causes it.
        for index in (at, at - 1):
            if 0 <= index < len(lines) and translate(lines, index):
                break
        else:
            break
    return "\n".join(lines) + "\n"


def problem_of(source):
    try:
        compile(source, KERNEL_FILE, "exec", ast.PyCF_ONLY_AST | AWAIT, True)
        return None
    except SyntaxError as problem:
        return problem
    except (ValueError, RecursionError, MemoryError, OverflowError):
        return None


def without_prompts(code):
    """Without the prompts and the indentation of code that was pasted."""
    import textwrap

    lines = code.split("\n")
    full = [line for line in lines if line.strip()]
    if full and full[0].lstrip().startswith(">>>"):
        lines = [re.sub(r"^\s*(>>>|\.\.\.)( |$)", "", line) for line in lines]
    elif full and re.match(r"^\s*In \[\d+\]: ", full[0]):
        lines = [re.sub(r"^\s*(In \[\d+\]: |\.\.\.+: ?)", "", line) for line in lines]
    elif full and full[0][:1] in " \t":
        return textwrap.dedent("\n".join(lines))
    return "\n".join(lines)


def call(name, *arguments):
    return "get_ipython().%s(%s)" % (name, ", ".join(map(repr, arguments)))


def translate(lines, index):
    """Makes Python of a line that is a command, a magic or a question. False: it is none of these."""
    line = lines[index]
    end = index
    while line.endswith("\\") and end + 1 < len(lines) and line.lstrip()[:1] in ("!", "%"):
        end += 1
        line = line[:-1] + lines[end].lstrip()
    indent = line[: len(line) - len(line.lstrip())]
    text = line.strip()
    assigned = ASSIGNMENT.match(line)
    asked = HELP.match(line)
    if text.startswith("!!"):
        made = indent + call("getoutput", text[2:].strip())
    elif text.startswith("!"):
        made = indent + call("system", text[1:].strip())
    elif text.startswith("%") and not text.startswith("%%") and text[1:2].isalpha():
        name, _, rest = text[1:].partition(" ")
        if rest == "" and name.endswith("?"):
            made = indent + call("help", "%" + name.rstrip("?"), 0)
        else:
            made = indent + call("run_line_magic", name, rest.strip())
    elif assigned:
        indent, target, sign, rest = assigned.groups()
        if sign == "!":
            value = call("getoutput", rest.strip())
        else:
            name, _, rest = rest.strip().partition(" ")
            value = call("run_line_magic", name, rest.strip())
        made = "%s%s = %s" % (indent, target, value)
    elif asked and (asked.group(2) or asked.group(4)):
        made = indent + call("help", asked.group(3), max(len(asked.group(2)), len(asked.group(4))) - 1)
    else:
        return False
    if made == lines[index]:
        return False
    lines[index : end + 1] = [made] + [""] * (end - index)
    return True


def automagic(code):
    """Whether a cell is one line with a magic without its sign. A variable of that name comes first."""
    words = code.split(None, 1)
    if not words or words[0] not in AUTOMAGIC or "\n" in code.strip() or words[0] in runner.names:
        return False
    return len(words) == 1 or words[1][0] not in "=,"
