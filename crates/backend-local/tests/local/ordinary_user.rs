//! The same as somebody who is not root, on hosts where the tests are run by root: this program starts itself again as
//! another user.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use cubicle_backend_local::{LocalBackend, Options};
use cubicle_model::Kind;

use crate::harness::skipped;

/// `nobody`, who owns nothing and may do nothing.
const NOBODY: u32 = 65534;
const SWITCH: &str = "/proc/sys/user/max_user_namespaces";

/// This program where another user can run it, and a directory of theirs.
struct Copy {
    directory: tempfile::TempDir,
}

impl Copy {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let program = directory.path().join("tests");
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let home = directory.path().join("tmp");
        std::fs::create_dir(&home).unwrap();
        std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
        Self { directory }
    }

    /// Runs the tests that a filter names as `nobody`, below the given program.
    fn run(&self, below: &[&str], filter: &[&str]) -> Output {
        let program = self.directory.path().join("tests").display().to_string();
        let line: Vec<&str> = below
            .iter()
            .copied()
            .chain([program.as_str(), "--test-threads=2"])
            .chain(filter.iter().copied())
            .collect();
        #[expect(clippy::disallowed_methods, reason = "the test starts itself as another user")]
        let mut command = Command::new(line[0]);
        command
            .args(&line[1..])
            .env("TMPDIR", self.directory.path().join("tmp"))
            .env("RUST_BACKTRACE", "0")
            .current_dir(self.directory.path())
            .uid(NOBODY)
            .gid(NOBODY)
            .output()
            .expect("the program starts")
    }
}

fn said(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn every_promise_is_kept_for_an_ordinary_user_too() {
    if !rustix::process::geteuid().is_root() {
        return skipped("these tests are run by an ordinary user already");
    }
    let kept = ["conformance::", "endings::", "workspaces::", "late_binding::", "listeners::", "code::"];
    let output = Copy::new().run(&[], &kept);
    let said = said(&output);
    if said.contains("no sandbox can be made here") {
        return skipped("an ordinary user cannot make sandboxes here");
    }
    assert!(output.status.success(), "{said}");
}

#[test]
fn limits_that_an_ordinary_user_cannot_enforce_are_refused() {
    if rustix::process::geteuid().is_root() {
        let copy = Copy::new();
        let output = copy
            .run(&[], &["--exact", "ordinary_user::limits_that_an_ordinary_user_cannot_enforce_are_refused"]);
        assert!(output.status.success(), "{}", said(&output));
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        use cubicle_backend::Backend;
        let Some(host) = crate::harness::Host::with_sandboxes().await else { return };
        let backend = host.backend().await;
        if backend.facts().cgroups != cubicle_model::receipt::Cgroups::None {
            return skipped("this user has cgroups of its own");
        }
        let mut place = crate::harness::place(cubicle_model::Lifetime::Bound);
        let receipt = backend.ensure(&place).await.unwrap().receipt.unwrap();
        let memory = receipt.limits.iter().find(|limit| limit.name == "memory").unwrap();
        assert!(matches!(memory.enforced, cubicle_model::receipt::Enforcement::No { .. }), "{memory:?}");
        place.id = cubicle_model::SandboxId::from_random(crate::harness::random());
        place.limits.memory = cubicle_model::Limit::asked(64 << 20);
        let fault = backend.ensure(&place).await.unwrap_err();
        assert_eq!(fault.kind(), Kind::Denied, "{fault}");
        assert!(fault.way_out().unwrap().contains("Delegate=yes"), "{fault}");
    });
}

#[test]
fn a_host_without_user_namespaces_is_refused_with_the_setting_that_allows_them() {
    let switched_off = std::fs::read_to_string(SWITCH).is_ok_and(|most| most.trim() == "0");
    if switched_off && !rustix::process::geteuid().is_root() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let fault = runtime.block_on(LocalBackend::open(Options::new(directory.path()))).unwrap_err();
        assert!(fault.to_string().contains("user namespace"), "{fault}");
        assert!(fault.way_out().unwrap().contains("user.max_user_namespaces"), "{fault}");
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skipped("only root can start this test as another user");
    }
    // In a namespace of its own the switch can be turned without harm to the host.
    let script = format!("echo 0 > {SWITCH} && exec \"$@\"");
    let below = ["unshare", "--user", "--map-user=1000", "--keep-caps", "sh", "-c", &script, "sh"];
    let name = "ordinary_user::a_host_without_user_namespaces_is_refused_with_the_setting_that_allows_them";
    let output = Copy::new().run(&below, &["--exact", name]);
    let said = said(&output);
    if said.contains("unshare:") || said.contains(SWITCH) {
        return skipped("user namespaces cannot be switched off for a test here");
    }
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
}
