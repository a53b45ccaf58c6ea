//! Contexts of languages that are not Python.

use std::io::Write;

use serde_json::json;

use crate::support::Sandbox;

#[test]
fn a_shell_keeps_its_state_from_cell_to_cell() {
    let sandbox = Sandbox::start();
    let id = sandbox.context(json!({ "language": "bash" }));
    let table = [
        ("x=5; greet() { echo \"hi $1\"; }; cd /usr", "", None),
        ("echo $x; greet you; pwd", "5\nhi you\n/usr\n", None),
        ("false", "", Some("1")),
        ("(exit 7)", "", Some("7")),
        ("echo 'é' \"$#\"", "é 0\n", None),
        ("cat; read line; echo none", "none\n", None),
        ("", "", None),
        ("for i in 1 2; do\n  echo $i\ndone", "1\n2\n", None),
        ("ls /proc/self/fd | wc -l", "4\n", None),
    ];
    for (code, stdout, status) in table {
        let ran = sandbox.cell(&id, code);
        assert_eq!(ran.stdout, stdout, "{code}");
        assert_eq!(ran.error(), status.map(|status| ("ExitStatus", status)), "{code}");
        assert_eq!(ran.status(), if status.is_some() { "error" } else { "success" }, "{code}");
        assert_eq!(ran.text(), None);
    }
}

#[test]
fn a_shell_survives_an_interrupt_and_not_its_exit() {
    let sandbox = Sandbox::start();
    let id = sandbox.context(json!({ "language": "bash" }));
    for code in ["x=5; echo on; sleep 999; echo no", "echo on; while true; do :; done; echo no"] {
        let begun = sandbox.begin_cell(&id, code, "on");
        sandbox.request("POST", &format!("/contexts/{id}/interrupt"), b"");
        let ran = begun.ended();
        assert_eq!((ran.status(), ran.stdout.as_str()), ("interrupted", "on\n"), "{code}");
    }
    assert_eq!(sandbox.cell(&id, "echo $x").stdout, "5\n");
    assert_eq!(sandbox.cell(&id, "echo bye; exit 3").status(), "died");
    assert_eq!(sandbox.try_cell(&id, &json!({ "code": "echo" })).code(), "context_dead");
}

#[test]
fn javascript_keeps_its_state_from_cell_to_cell() {
    let sandbox = Sandbox::start();
    let reply = sandbox.try_context(json!({ "language": "javascript" }));
    if reply.code() == "command_not_found" {
        let _ = writeln!(
            std::io::stderr(),
            "skipped: javascript_keeps_its_state_from_cell_to_cell: there is no node here"
        );
        return;
    }
    let id = reply.value()["context_id"].as_str().unwrap().to_owned();
    let table = [
        ("1 + 1", "", Some("2"), None),
        ("let x = 5; const y = 6; function add(a, b) { return a + b }", "", None, None),
        ("add(x, y)", "", Some("11"), None),
        ("console.log('hi', {a: 1})", "hi { a: 1 }\n", None, None),
        ("const z = await Promise.resolve(4)\nz * 2", "", Some("8"), None),
        ("z", "", Some("4"), None),
        ("{a: 1}", "", Some("{ a: 1 }"), None),
        ("_.a", "", Some("1"), None),
        ("require('path').basename('/a/b')", "", Some("'b'"), None),
        ("throw new TypeError('no')", "", None, Some(("TypeError", "no"))),
        ("await Promise.reject(new RangeError('far'))", "", None, Some(("RangeError", "far"))),
        ("x = = 1", "", None, Some(("SyntaxError", "Unexpected token '='"))),
        (
            "require('child_process').execSync('cat; echo child', {stdio: 'inherit'}); x",
            "child\n",
            Some("5"),
            None,
        ),
        (
            "for (let n = 0; n < 3; n++) { display(n); console.log('after', n) }",
            "after 0\nafter 1\nafter 2\n",
            None,
            None,
        ),
    ];
    for (code, stdout, result, error) in table {
        let ran = sandbox.cell(&id, code);
        assert_eq!((ran.stdout.as_str(), ran.text(), ran.error()), (stdout, result, error), "{code}");
    }
    for code in [
        "console.log('on'); while (true) {}",
        "await null; console.log('on'); await new Promise(() => setTimeout(() => {}, 1e6))",
    ] {
        let begun = sandbox.begin_cell(&id, code, "on");
        sandbox.request("POST", &format!("/contexts/{id}/interrupt"), b"");
        assert_eq!(begun.ended().status(), "interrupted", "{code}");
    }
    assert_eq!(sandbox.cell(&id, "x").text(), Some("5"));
    assert_eq!(sandbox.cell(&id, "process.exit(2)").status(), "died");
}
