//! Environments that a sandbox builds by itself. A stand-in for `uv` makes real environments without the network.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::execute::Workspace;
use crate::support::*;

/// Installs a package as a module that has its name, and fails for the package `broken`.
const STAND_IN: &str = r#"#!/bin/sh
echo "$*" >> "$UV_LOG"
case $1-$2 in
venv-*) shift; for last; do :; done; exec python3 -m venv --without-pip "$last";;
pip-install)
    python=; while [ "$1" != -- ]; do [ "$1" = --python ] && python=$2; shift; done; shift
    place=$("$python" -c 'import site; print(site.getsitepackages()[0])')
    for package; do
        [ "$package" = broken ] && { echo "error: no version of broken" >&2; exit 1; }
        [ "$package" = slow ] && while ! [ -e "$UV_LOG.gate" ]; do sleep 0.01; done
        echo "name = '$package'" > "$place/$package.py"
    done;;
pip-freeze) while [ "$1" != --python ]; do shift; done
    "$2" -c 'import os, site; print("\n".join(n[:-3] + "==1" for n in sorted(os.listdir(site.getsitepackages()[0])) if n.endswith(".py")))';;
esac
"#;

fn workspace() -> (Workspace, Tools) {
    let tools = tempfile::tempdir().unwrap();
    let at = |name: &str| tools.path().join(name).display().to_string();
    std::fs::write(at("uv"), STAND_IN).unwrap();
    std::fs::set_permissions(at("uv"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("PATH={}:/usr/bin:/bin", tools.path().display());
    let (home, log) = (format!("HOME={}", at("home")), format!("UV_LOG={}", at("log")));
    (Workspace::start_with(&["--env", &path, "--env", &home, "--env", &log]), Tools(tools))
}

/// Where the stand-in is, and what it makes.
struct Tools(tempfile::TempDir);

impl Tools {
    fn builds(&self) -> usize {
        std::fs::read_to_string(self.0.path().join("log")).map_or(0, |log| log.matches("venv").count())
    }
}

fn environments(workspace: &Workspace) -> Value {
    workspace.sandbox.request("GET", "/envs", b"").value()["environments"].clone()
}

#[test]
fn requirements_are_installed_once_and_then_there() {
    let (workspace, tools) = workspace();
    let request = json!({ "code": "import wanted; print(wanted.name)", "requirements": ["wanted"], "env_name": "mine" });
    let first = workspace.execute(request.clone());
    assert_eq!(first["stdout"], "wanted\n", "{first}");
    assert_eq!((&first["env"]["name"], &first["env"]["cache"]), (&json!("mine"), &json!("miss")));
    assert!(first["env"]["build_ms"].as_f64().unwrap() > 0.0);
    let second = workspace.execute(request);
    assert_eq!(second["env"], json!({ "name": "mine", "cache": "hit", "build_ms": 0.0 }));
    assert_eq!(tools.builds(), 1);
    assert_eq!(environments(&workspace)[0]["packages"], json!(["wanted==1"]));
    let unnamed = json!({ "code": "import a, b", "requirements": ["b", "a"] });
    let name = workspace.execute(unnamed)["env"]["name"].clone();
    let again = workspace.execute(json!({ "code": "import a, b", "requirements": ["a", "b"] }));
    assert_eq!((&again["env"]["name"], &again["env"]["cache"]), (&name, &json!("hit")));
    let other =
        workspace.execute(json!({ "code": "import other", "requirements": ["other"], "env_name": "mine" }));
    assert_eq!((&other["status"], &other["env"]["cache"]), (&json!("success"), &json!("miss")));
}

#[test]
fn what_cannot_be_installed_is_a_clear_refusal_and_leaves_nothing() {
    let (workspace, tools) = workspace();
    let request =
        json!({ "code": "print(1)", "requirements": ["broken"], "env_name": "bad", "cwd": workspace.cwd() });
    let refused = workspace.sandbox.json("POST", "/execute", &request);
    assert_eq!((refused.status, refused.code().as_str()), (422, "env_build_failed"), "{}", refused.text());
    assert!(refused.text().contains("no version of broken"), "{}", refused.text());
    assert_eq!(environments(&workspace), json!([]));
    wait_until("its directory is gone", || !tools.0.path().join("home/.envs/bad").exists());
}

#[test]
fn an_environment_is_created_ahead_and_removed_with_its_directory() {
    let (workspace, tools) = workspace();
    let request = json!({ "name": "ahead", "requirements": ["wanted"] });
    let made = workspace.sandbox.json("POST", "/envs", &request);
    assert_eq!((made.status, &made.value()["name"]), (201, &json!("ahead")), "{}", made.text());
    assert_eq!(workspace.sandbox.json("POST", "/envs", &request).status, 200);
    let directory = tools.0.path().join("home/.envs/ahead");
    assert!(directory.join("bin/python").exists());
    assert_eq!(workspace.sandbox.request("DELETE", "/envs/ahead", b"").status, 200);
    wait_until("its directory is gone", || !directory.exists());
    for bad in [json!({ "name": "../x" }), json!({ "name": "x", "requirements": ["-r /etc/passwd"] })] {
        assert_eq!(workspace.sandbox.json("POST", "/envs", &bad).status, 400, "{bad}");
    }
}

#[test]
fn one_environment_is_built_at_a_time_and_once_for_all_who_want_it() {
    let (workspace, tools) = workspace();
    let request = json!({ "code": "print(1)", "requirements": ["slow"], "cwd": workspace.cwd() }).to_string();
    let mut clients: Vec<Client> = (0..5).map(|_| workspace.sandbox.connect()).collect();
    for client in &mut clients {
        client.send("POST", "/execute", "", request.as_bytes());
    }
    wait_until("it is being built", || {
        workspace.sandbox.request("GET", "/health", b"").value()["state"] == json!("warming")
    });
    let other = workspace.sandbox.json("POST", "/envs", &json!({ "name": "other" }));
    assert_eq!((other.status, other.code().as_str()), (429, "env_building"));
    std::fs::write(tools.0.path().join("log.gate"), "").unwrap();
    for client in &mut clients {
        assert_eq!(client.reply().value()["stdout"], "1\n");
    }
    assert_eq!(tools.builds(), 1);
}
