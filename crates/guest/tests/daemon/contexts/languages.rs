//! Contexts of languages that are not Python.

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
