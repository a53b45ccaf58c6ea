//! A golden table of what IPython does: cells in one context, one after the other.

use std::io::Write;

use serde_json::{Value, json};

use super::Ran;
use crate::support::{Sandbox, wait_until};

/// A cell, and everything that comes of it. What is not said must not happen.
struct Golden {
    code: &'static str,
    stdout: &'static str,
    stdout_has: &'static [&'static str],
    result: Option<&'static str>,
    media: Vec<(&'static str, Value)>,
    shown: Vec<(&'static str, Value)>,
    error: Option<(&'static str, &'static str)>,
    traceback: &'static [&'static str],
    stderr: bool,
    counts: bool,
}

fn cell(code: &'static str) -> Golden {
    Golden {
        code,
        stdout: "",
        stdout_has: &[],
        result: None,
        media: Vec::new(),
        shown: Vec::new(),
        error: None,
        traceback: &[],
        stderr: false,
        counts: true,
    }
}

impl Golden {
    fn prints(self, stdout: &'static str) -> Self {
        Self { stdout, ..self }
    }

    fn prints_among(self, stdout_has: &'static [&'static str]) -> Self {
        Self { stdout_has, ..self }
    }

    fn gives(self, text: &'static str) -> Self {
        Self { result: Some(text), ..self }
    }

    fn with_media(mut self, media: &'static str, value: impl Into<Value>) -> Self {
        self.media.push((media, value.into()));
        self
    }

    fn shows(mut self, media: &'static str, value: impl Into<Value>) -> Self {
        self.shown.push((media, value.into()));
        self
    }

    fn raises(self, name: &'static str, value: &'static str) -> Self {
        Self { error: Some((name, value)), ..self }
    }

    fn at(self, traceback: &'static [&'static str]) -> Self {
        Self { traceback, ..self }
    }

    fn warns(self) -> Self {
        Self { stderr: true, ..self }
    }

    fn does_not_count(self) -> Self {
        Self { counts: false, ..self }
    }

    fn check(&self, ran: &Ran, count: u64) {
        let code = self.code;
        if self.stdout_has.is_empty() {
            assert_eq!(ran.stdout, self.stdout, "stdout of {code}");
        }
        for expected in self.stdout_has {
            assert!(
                ran.stdout.contains(expected),
                "{expected:?} is not in stdout of {code}: {:?}",
                ran.stdout
            );
        }
        assert_eq!(!ran.stderr.is_empty(), self.stderr, "stderr of {code}: {}", ran.stderr);
        assert_eq!(ran.text(), self.result, "result of {code}: {ran:?}");
        if let Some(result) = ran.only("result") {
            for (media, value) in &self.media {
                assert_eq!(&result["data"][media], value, "{media} of {code}");
            }
            assert_eq!(result["data"].as_object().unwrap().len(), self.media.len() + 1, "media of {code}");
        }
        let shown = ran.named("display");
        assert_eq!(shown.len(), self.shown.len(), "displays of {code}: {ran:?}");
        for (display, (media, value)) in shown.iter().zip(&self.shown) {
            assert_eq!(&display["data"][media], value, "{media} shown by {code}");
        }
        let numbered =
            |text: &str| text.replace("{n}", &count.to_string()).replace("{n-1}", &(count - 1).to_string());
        match (ran.error(), self.error) {
            (None, None) => {}
            (Some((name, value)), Some((expected, text))) => {
                assert_eq!(name, expected, "error of {code}");
                // Texts of Python differ from version to version; a star stands for the rest.
                match text.strip_suffix('*') {
                    Some(beginning) => assert!(value.starts_with(beginning), "{value:?} of {code}"),
                    None => assert_eq!(value, numbered(text), "error of {code}"),
                }
            }
            (found, expected) => panic!("{code} raised {found:?} and not {expected:?}: {ran:?}"),
        }
        if let Some(error) = ran.only("error") {
            let lines: Vec<&str> =
                error["traceback"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            let traceback = lines.join("\n");
            for expected in self.traceback {
                let expected = numbered(expected);
                assert!(
                    traceback.contains(&expected),
                    "{expected:?} is not in the traceback of {code}:\n{traceback}"
                );
            }
            assert!(!traceback.contains("<context>"), "the kernel shows itself:\n{traceback}");
        }
        assert_eq!(ran.status(), if self.error.is_some() { "error" } else { "success" }, "status of {code}");
        assert_eq!(ran.count(), count, "count of {code}");
    }
}

fn table() -> Vec<Golden> {
    vec![
        // The last expression is the result.
        cell("1+1").gives("2"),
        cell("x = 5"),
        cell("x").gives("5"),
        cell("x; x + 1").gives("6"),
        cell("x\nx = 7"),
        cell("None"),
        cell("'text'").gives("'text'"),
        cell("print('a')\n3").prints("a\n").gives("3"),
        // What was is kept: `_`, `__`, `_N`, In, Out.
        cell("_ + 1").gives("4"),
        cell("__").gives("3"),
        cell("Out[1], _1, In[1], _i1").gives("(2, 2, '1+1', '1+1')"),
        cell("_ii").gives("'__'"),
        cell("2 in Out").gives("False"),
        // A semicolon at the end keeps quiet.
        cell("10;"),
        cell("11;  # and a comment"),
        cell("'12;'").gives("'12;'"),
        cell("_").gives("'12;'"),
        // What is no statement does nothing.
        cell("").does_not_count(),
        cell("  \n").does_not_count(),
        cell("# only a comment"),
        // State of all kinds.
        cell("def double(n):\n    return 2 * n"),
        cell("double(x)").gives("14"),
        cell("class Point:\n    def __init__(self, x):\n        self.x = x\n\np = Point(3)\np.x").gives("3"),
        cell("import math, sys\nmath.floor(2.5)").gives("2"),
        cell("for i in range(3):\n    i"),
        cell("i").gives("2"),
        cell("if True:\n    i"),
        cell("with open('state.txt', 'w') as f:\n    f.write('kept')"),
        cell("open('state.txt').read()").gives("'kept'"),
        cell("__name__").gives("'__main__'"),
        cell("sys.modules['__main__'].x").gives("7"),
        // Text as IPython prints it.
        cell("[1, 'two', None]").gives("[1, 'two', None]"),
        cell("{'b': 1, 'a': (2,)}").gives("{'b': 1, 'a': (2,)}"),
        cell("{3, 1, 2}").gives("{1, 2, 3}"),
        cell("int").gives("int"),
        cell("Point").gives("__main__.Point"),
        cell("double").gives("<function __main__.double(n)>"),
        cell("len").gives("<function len(obj, /)>"),
        cell("ValueError('bad')").gives("ValueError('bad')"),
        cell("['a' * 30, 'b' * 30, 'c' * 30]").gives(
            "['aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',\n 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb',\n 'cccccccccccccccccccccccccccccc']",
        ),
        cell("{'k': ['a' * 40, 'b' * 40]}").gives(
            "{'k': ['aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',\n  'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb']}",
        ),
        cell("import collections\ncollections.defaultdict(int, a=1)").gives("defaultdict(int, {'a': 1})"),
        cell("'ä\\udc80'").gives("'ä\\udc80'"),
        // Errors, with the lines of cells.
        cell("1/0").raises("ZeroDivisionError", "division by zero").at(&[
            "Traceback (most recent call last)",
            "Cell In[{n}], line 1\n----> 1 1/0",
            "ZeroDivisionError: division by zero",
        ]),
        cell("def fail(a):\n    b = a\n    return b['no']"),
        cell("print('before')\nfail({})\nprint('never')").prints("before\n").raises("KeyError", "'no'").at(&[
            "Cell In[{n}], line 2\n      1 print('before')\n----> 2 fail({})\n      3 print('never')",
            "Cell In[{n-1}], line 3, in fail(a)\n      1 def fail(a):\n      2     b = a\n----> 3     return b['no']",
        ]),
        cell("try:\n    1/0\nexcept Exception as e:\n    raise ValueError('v') from e").raises("ValueError", "v").at(&[
            "ZeroDivisionError: division by zero",
            "The above exception was the direct cause of the following exception:",
        ]),
        cell("try:\n    1/0\nexcept Exception:\n    nope").raises("NameError", "name 'nope' is not defined").at(&[
            "During handling of the above exception, another exception occurred:",
        ]),
        cell("x = = 1")
            .raises("SyntaxError", "invalid syntax (<cell {n}>, line 1)")
            .at(&["Cell In[{n}], line 1", "x = = 1", "SyntaxError: invalid syntax"]),
        cell("print('not run')\nif True:\nx = 1")
            .raises("IndentationError", "expected an indented block*"),
        cell("def r(): r()\nr()").raises("RecursionError", "maximum recursion depth exceeded*").at(&["[... skipping"]),
        cell("class Odd(Exception):\n    def __str__(self):\n        raise RuntimeError('no text')\nraise Odd()")
            .raises("Odd", "<unprintable>"),
        cell("x").gives("7"),
        cell("raise SystemExit(3)").raises("SystemExit", "3").warns().at(&["SystemExit: 3"]),
        cell("import sys\nsys.exit()").raises("SystemExit", "").warns(),
        cell("exit()").raises("SystemExit", "None").warns(),
        cell("raise KeyboardInterrupt").raises("KeyboardInterrupt", ""),
        cell("assert x == 8, 'x is seven'").raises("AssertionError", "x is seven"),
        cell("input('name? ')").raises(
            "StdinNotImplementedError",
            "input() was called, but nobody can answer in a context: put the value into the code",
        ),
        cell("sys.stdin.read()").gives("''"),
        // Commands and magics.
        cell("!echo from a shell").prints("from a shell\n"),
        cell("!echo {x + 1} $x \"$HOMELESS\" {{literal}} $$").prints_among(&["8 7  {literal} "]),
        cell("lines = !printf 'a\\nb\\n'\nlines").gives("['a', 'b']"),
        cell("lines.n, lines.s").gives("('a\\nb', 'a b')"),
        cell("!exit 3\n_exit_code").gives("3"),
        cell("for name in ['one', 'two']:\n    !echo {name}\n    found = !echo got {name}\n    print(found[0])")
            .prints("one\ngot one\ntwo\ngot two\n"),
        cell("def shout(word):\n    !echo {word}!\nshout('hey')").prints("hey!\n"),
        cell("text = '''\n!not a command\n%nor this\n'''\n!echo but this\ntext")
            .prints("but this\n")
            .gives("'\\n!not a command\\n%nor this\\n'"),
        cell("value = (100\n  % 7)\nvalue").gives("2"),
        cell("!echo one \\\n  two").prints("one two\n"),
        cell("%env GREETING=hello").prints("env: GREETING=hello\n"),
        cell("%env GREETING").gives("'hello'"),
        cell("!echo $GREETING").prints("hello\n"),
        cell("import os\nos.mkdir('sub')\n%cd -q sub\nos.path.basename(os.getcwd())").gives("'sub'"),
        cell("%cd ..").prints_among(&["/"]),
        cell("%pwd\nNone"),
        cell("here = %pwd\nhere == os.getcwd()").gives("True"),
        cell("ls state.txt").prints("state.txt\n"),
        cell("%time sum(range(10))").prints_among(&["CPU times: user ", "Wall time: "]).gives("45"),
        cell("%%time\ny = 3\ny + 1").prints_among(&["Wall time: "]).gives("4"),
        cell("y").gives("3"),
        cell("%timeit -n 2 -r 3 x + 1").prints_among(&["per loop (mean ± std. dev. of 3 runs, 2 loops each)"]),
        cell("%%bash\nfor n in 1 2; do echo $n; done").prints("1\n2\n"),
        cell("%%bash\necho to stderr >&2").warns(),
        cell("%%bash\nexit 4").raises("CalledProcessError", "Command 'b'exit 4'' returned non-zero exit status 4."),
        cell("%%writefile made.py\nprint('made')\n").prints("Writing made.py\n"),
        cell("%run made.py").prints("made\n"),
        cell("%%capture caught\nprint('hidden')"),
        cell("caught.stdout").gives("'hidden\\n'"),
        cell("%matplotlib inline"),
        cell("%nothing").raises("UsageError", "Line magic function `%nothing` not found.").at(&["UsageError: Line magic"]),
        cell("%%nothing\nx").raises("UsageError", "Cell magic `%%nothing` not found."),
        cell("double?").prints_among(&["Signature: double(n)"]),
        cell("double??").prints_among(&["return 2 * n"]),
        cell("?nowhere").prints("Object `nowhere` not found.\n"),
        cell(">>> a = 1\n>>> a + 1").gives("2"),
        cell("    b = 2\n    b * 2").gives("4"),
        // Coroutines.
        cell("import asyncio\nawait asyncio.sleep(0, 'slept')").gives("'slept'"),
        cell("async def numbers():\n    for n in range(3):\n        yield n\n\n[n async for n in numbers()]")
            .gives("[0, 1, 2]"),
        cell("async with asyncio.Lock() as nothing:\n    print('held')").prints("held\n"),
        cell("task = asyncio.ensure_future(asyncio.sleep(0, 'done'))\nawait task").gives("'done'"),
        cell("await asyncio.wait_for(asyncio.sleep(9), 0.01)").raises("TimeoutError", ""),
        cell("from __future__ import annotations"),
        cell("def noted(a: nowhere): pass\nnoted.__annotations__").gives("{'a': 'nowhere'}"),
        // Showing things.
        cell("class Rich:\n    def __repr__(self): return 'plain'\n    def _repr_html_(self): return '<b>rich</b>'\n    def _repr_png_(self): return b'\\x89PNG'\n    def _repr_svg_(self): return '<svg/>'\n    def _repr_markdown_(self): return '**m**'\n    def _repr_latex_(self): return '$l$'\n    def _repr_json_(self): return {'j': [1]}\n    def _repr_jpeg_(self): return b'\\xff\\xd8'"),
        cell("Rich()")
            .gives("plain")
            .with_media("text/html", "<b>rich</b>")
            .with_media("image/png", "iVBORw==")
            .with_media("image/svg+xml", "<svg/>")
            .with_media("text/markdown", "**m**")
            .with_media("text/latex", "$l$")
            .with_media("application/json", json!({ "j": [1] }))
            .with_media("image/jpeg", "/9g="),
        cell("display(Rich(), 5)").shows("text/html", "<b>rich</b>").shows("text/plain", "5"),
        cell("class Bundle:\n    def _repr_mimebundle_(self, include=None, exclude=None):\n        return {'text/plain': 'bundled', 'application/x-own': {'a': 1}}\nBundle()")
            .gives("bundled")
            .with_media("application/x-own", json!({ "a": 1 })),
        cell("from IPython.display import HTML, Markdown, clear_output\ndisplay(HTML('<i>h</i>'))\nclear_output()")
            .shows("text/html", "<i>h</i>"),
        cell("Rich").gives("__main__.Rich"),
        cell("class Mock:\n    def __getattr__(self, name): return lambda *a, **k: 'anything'\n    def __repr__(self): return 'mock'\nMock()")
            .gives("mock"),
        cell("class Bad:\n    def __repr__(self): return 'bad'\n    def _repr_html_(self): return 1/0\nBad()").gives("bad").warns(),
        cell("class Mute:\n    def __repr__(self): raise ValueError\nMute()").gives("<Mute object>").warns(),
        cell("%%html\n<hr>").shows("text/html", "<hr>"),
        // Everything that writes to the descriptors is output.
        cell("import os\nos.write(1, b'raw\\n')\nprint('printed')").prints("raw\nprinted\n"),
        cell("import subprocess\nsubprocess.run(['echo', 'child']).returncode").prints("child\n").gives("0"),
        cell("print('no newline', end='')").prints("no newline"),
        cell("print('problem', file=sys.stderr)").warns(),
    ]
}

#[test]
fn a_python_context_does_what_ipython_does() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    let mut count = 0;
    let table = table();
    assert!(table.len() >= 60, "{} cells", table.len());
    for golden in &table {
        let ran = sandbox.cell(&id, golden.code);
        golden.check(&ran, count + 1);
        count += u64::from(golden.counts);
    }
    let context = sandbox.request("GET", &format!("/contexts/{id}"), b"").value();
    assert_eq!((context["execution_count"].as_u64(), context["state"].as_str()), (Some(count), Some("idle")));
}

/// Printed and shown things come in the order in which the code made them.
#[test]
fn what_is_shown_stands_where_the_code_showed_it() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    let code = "import os\nfor n in range(20):\n    print(n)\n    display(n)\n    os.write(1, b'raw %d\\n' % n)\n'last'";
    let ran = sandbox.cell(&id, code);
    let mut told = String::new();
    for frame in &ran.frames {
        match frame.kind {
            crate::support::Kind::Stdout => told.push_str(std::str::from_utf8(&frame.payload).unwrap()),
            _ => {
                let event: Value = serde_json::from_slice(&frame.payload).unwrap();
                let text = event["data"]["text/plain"].as_str().unwrap_or_default();
                told.push_str(&format!("{} {text}\n", event["event"].as_str().unwrap()));
            }
        }
    }
    let shown: String = (0..20).map(|n| format!("{n}\ndisplay {n}\nraw {n}\n")).collect();
    assert_eq!(told, format!("begin \n{shown}result 'last'\nend \n"));
}

/// More is in the pipe than the daemon reads at once, and the event is there as well.
#[test]
fn all_that_was_printed_before_something_was_shown_stands_before_it() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    let file = |name: &str| sandbox.directory.path().join(name);
    let code = "import os, threading, time\nprint('ready')\nwhile not os.path.exists('go'): time.sleep(0.005)\nprint('x' * 60000)\nthread = threading.Thread(target=display, args=(1,))\nthread.start(); thread.join()\nopen('sent', 'w').close()";
    let begun = sandbox.begin_cell(&id, code, "ready");
    let daemon = sandbox.daemon_pid() as i32;
    cubicle_sys::signal::send(daemon, 19).unwrap();
    std::fs::write(file("go"), "").unwrap();
    wait_until("both wait for the daemon", || file("sent").exists());
    cubicle_sys::signal::send(daemon, 18).unwrap();
    let ran = begun.ended();
    let shown =
        ran.frames.iter().position(|frame| String::from_utf8_lossy(&frame.payload).contains("display"));
    let before = crate::support::output(&ran.frames[..shown.unwrap()], crate::support::Kind::Stdout);
    assert_eq!(before.len(), "ready\n".len() + 60001);
}

/// Stands in for matplotlib: the same protocol, without the package.
const FAKE_PYPLOT: &str = r"
class Figure:
    def __init__(self, name): self.name = name
    def savefig(self, into, format=None, **options): into.write(b'PNG of ' + self.name.encode())
    def __repr__(self): return '<Figure %s>' % self.name
Figure.__module__ = 'matplotlib.figure'
figures = {}
def plot(name): figures[len(figures) + 1] = Figure(name); return figures[len(figures)]
def get_fignums(): return list(figures)
def figure(number): return figures[number]
def close(which): figures.clear()
def show(): raise RuntimeError('the backend cannot show')
";

#[test]
fn figures_are_shown_by_show_and_at_the_end_of_a_cell() {
    let sandbox = Sandbox::start();
    let package = sandbox.directory.path().join("matplotlib");
    std::fs::create_dir(&package).unwrap();
    std::fs::write(package.join("__init__.py"), "").unwrap();
    std::fs::write(package.join("pyplot.py"), FAKE_PYPLOT).unwrap();
    let id = sandbox.python();
    let png = |name: &str| {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD.encode(format!("PNG of {name}"))
    };
    let pictures = |ran: &Ran| -> Vec<String> {
        ran.named("display").iter().map(|shown| shown["data"]["image/png"].as_str().unwrap().into()).collect()
    };
    let ran =
        sandbox.cell(&id, "import sys\n'matplotlib' in sys.modules, __import__('os').environ['MPLBACKEND']");
    assert_eq!(ran.text(), Some("(False, 'agg')"));
    let ran =
        sandbox.cell(&id, "import matplotlib.pyplot as plt\nplt.plot('one')\nplt.show()\nplt.plot('two');");
    assert_eq!((pictures(&ran), ran.status()), (vec![png("one"), png("two")], "success"));
    let ran = sandbox.cell(&id, "f = plt.plot('three')\nplt.close('all')\nf");
    assert_eq!(pictures(&ran), Vec::<String>::new());
    assert_eq!(ran.only("result").unwrap()["data"]["image/png"], png("three"));
    let ran = sandbox.cell(&id, "plt.plot('four'); 1/0");
    assert_eq!((pictures(&ran), ran.status()), (vec![png("four")], "error"));
    let ran = sandbox.cell(&id, "plt.get_fignums()");
    assert_eq!(ran.text(), Some("[]"));
}

#[test]
fn the_real_matplotlib_and_pandas_are_shown_too() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    if sandbox.cell(&id, "import matplotlib.pyplot, pandas").error().is_some() {
        let _ = writeln!(
            std::io::stderr(),
            "skipped: the_real_matplotlib_and_pandas_are_shown_too: no matplotlib and pandas for the python here"
        );
        return;
    }
    let ran = sandbox.cell(&id, "import matplotlib.pyplot as plt\nplt.plot([1, 2]);");
    let shown = ran.named("display");
    assert!(shown[0]["data"]["image/png"].as_str().unwrap().starts_with("iVBOR"));
    let ran = sandbox.cell(&id, "import pandas\npandas.DataFrame({'a': [1, 2]})");
    let data = &ran.only("result").unwrap()["data"];
    assert!(data["text/html"].as_str().unwrap().contains("<table"));
    assert_eq!(data["application/json"]["data"], json!([[1], [2]]));
}

/// Stands in for pandas: the same protocol, without the package.
#[test]
fn frames_are_told_as_html_and_json_and_text() {
    let sandbox = Sandbox::start();
    let id = sandbox.python();
    let code = "import json\nclass DataFrame:\n    def __init__(self, n): self.n = n\n    def __len__(self): return self.n\n    def head(self, most): return DataFrame(min(self.n, most))\n    def to_json(self, orient, **o): return json.dumps({'columns': ['a'], 'index': list(range(self.n)), 'data': [[i] for i in range(self.n)]})\n    def _repr_html_(self): return '<table>'\n    def __repr__(self): return 'frame'\nDataFrame.__module__ = 'pandas.core.frame'\nDataFrame(2)";
    let ran = sandbox.cell(&id, code);
    let expected = json!({
        "text/plain": "frame",
        "text/html": "<table>",
        "application/json": { "columns": ["a"], "index": [0, 1], "data": [[0], [1]], "rows": 2, "truncated": false },
    });
    assert_eq!(ran.only("result").unwrap()["data"], expected);
    let ran = sandbox.cell(&id, "DataFrame.__module__ = 'pandas'\nDataFrame(5000)");
    let data = &ran.only("result").unwrap()["data"]["application/json"];
    assert_eq!((data["data"].as_array().unwrap().len(), &data["rows"]), (1000, &json!(5000)));
}
