//! Packages through the gateway: from an index of the operator, and from the host's own.

use std::process::Command;

use serde_json::json;

use crate::client::Server;
use crate::clients::{WORD, all_of, run};
use crate::host::Host;
use crate::world::{Setting, World, in_a_world, in_a_world_with, installed, skip};

const OWN_INDEXES: Setting = Setting {
    listen: None,
    flags: &[],
    environment: &[
        ("CUBICLE_PYTHON_INDEX", "https://index.test/python/simple/"),
        ("CUBICLE_NPM_REGISTRY", "https://index.test/npm/"),
    ],
};

/// Serves small indexes of packages at `https://index.test/`.
fn serve_packages(world: &World) {
    let (scratch, packages) = (world.server.host.scratch(), world.server.host.scratch().join("packages"));
    let script = scratch.join("packages.py");
    std::fs::write(&script, include_str!("packages.py")).expect("the directory is ours");
    let paths = [&script, &packages].map(|path| path.to_str().expect("UTF-8"));
    run("/usr/bin/python3", &paths, scratch);
    for kind in ["python", "npm", "go"] {
        world.outside.tree(&format!("/{kind}/"), &packages.join(kind));
    }
}

/// The default policy names the operator's index and nothing else.
#[test]
fn pip_installs_from_the_index_of_the_operator_under_the_default_policy() {
    if !installed("/usr/bin/pip") {
        return;
    }
    in_a_world_with(OWN_INDEXES, |world| {
        serve_packages(world);
        let inside = world.trusting(None);
        assert_eq!(inside.egress()["said_by"], "template");
        let said = all_of(&inside, "pip install -q --no-input --disable-pip-version-check sample-package");
        let word = all_of(&inside, "python3 -c 'import sample_package; print(sample_package.WORD)'");
        assert_eq!(word.trim(), WORD, "{said}");
        let refused =
            inside.prints("get('http://origin.test/ATTACK'); through(tunnel('origin.test:443'), 'ATTACK')");
        assert_eq!(refused.matches("403 Forbidden").count(), 2, "{refused}");
        let absent = all_of(
            &inside,
            "pip install --no-input --retries 0 --ignore-installed --index-url https://evil.test/simple/ sample-package",
        );
        let bill = inside.bill();
        assert!(bill["denials"].to_string().contains("evil.test:443"), "{absent}{bill}");
        assert!(bill["lines"].to_string().contains("index.test"), "{bill}");
    });
}

#[test]
fn npm_installs_from_the_registry_of_the_operator() {
    if !installed("/usr/bin/npm") {
        return;
    }
    in_a_world_with(OWN_INDEXES, |world| {
        serve_packages(world);
        let inside = world.trusting(Some("allow @node"));
        let said = all_of(&inside, "npm install --no-audit --no-fund --no-update-notifier sample-package");
        let word = all_of(&inside, "node -e \"console.log(require('sample-package'))\"");
        assert_eq!(word.trim(), WORD, "{said}");
    });
}

#[test]
fn uv_installs_from_the_index_of_the_operator() {
    if !installed("/usr/bin/uv") {
        return;
    }
    in_a_world_with(OWN_INDEXES, |world| {
        serve_packages(world);
        let inside = world.trusting(None);
        let said = all_of(
            &inside,
            "uv pip install -q --python /usr/bin/python3 --target /workspace/uv sample-package",
        );
        let word = all_of(
            &inside,
            "PYTHONPATH=/workspace/uv python3 -c 'import sample_package; print(sample_package.WORD)'",
        );
        assert_eq!(word.trim(), WORD, "{said}");
    });
}

#[test]
fn go_downloads_modules() {
    if !installed("/usr/local/go/bin/go") {
        return;
    }
    in_a_world(|world| {
        serve_packages(world);
        let inside = world.trusting(Some("allow https://index.test"));
        let go = "GOPATH=/workspace/go GOFLAGS=-modcacherw GOTOOLCHAIN=local GONOSUMDB='*' GOPROXY=https://index.test/go /usr/local/go/bin/go";
        let said = all_of(
            &inside,
            &format!(
                "{go} mod download index.test/sample@v1.0.0 && cat go/pkg/mod/index.test/sample@v1.0.0/sample.go"
            ),
        );
        assert!(said.contains(WORD), "{said}");
    });
}

/// Without a world: through the host's own network, where it has one and an index can be reached.
#[test]
fn a_small_package_comes_from_the_hosts_own_index_under_the_default_policy() {
    let Some(host) = Host::new() else { return };
    if !installed("/usr/bin/pip") {
        return;
    }
    #[expect(clippy::disallowed_methods, reason = "a test looks whether an index can be reached")]
    let mut download = Command::new("/usr/bin/pip");
    let flags = ["download", "-q", "--no-deps", "--no-input", "--timeout", "5", "--retries", "0", "-d"];
    download.args(flags).arg(host.scratch().join("download")).arg("six").env("HOME", host.scratch());
    match download.output() {
        Ok(done) if done.status.success() => {}
        _ => return skip("needs a package index that the host can reach"),
    }
    let server = Server::start_on(host, &["--pool-size", "1"], &[]);
    let install = "pip install -q --no-deps --no-input --disable-pip-version-check --ignore-installed six";
    let command = format!("{install} 2>&1 && ls ~/.local/lib/python3*/site-packages");
    let exec = server.post("/api/v1/execs", &json!({ "command": command })).ok();
    let out = exec["result"]["stdout"]["content"].as_str().unwrap_or_default();
    assert!(out.contains("six.py") && exec["result"]["exit_code"] == 0, "{exec}");
    assert_eq!(exec["result"]["egress"]["denials"], json!([]), "{exec}");
    assert_ne!(exec["result"]["egress"]["lines"], json!([]), "{exec}");
}
