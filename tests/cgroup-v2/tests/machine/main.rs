//! Boots a small virtual machine with cgroups of version 2 and reads what its suites report. Hosts with version 1 test
//! the other path for real this way, and hosts with version 2 get callers that they do not have.

mod initramfs;
mod vm;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use initramfs::Initramfs;
use vm::Vm;

const TARGET: &str = "x86_64-unknown-linux-musl";
const PROGRAM: &str = "usr/bin/cgroup2-machine";
/// Only a hang gets there.
const BOUND: Duration = Duration::from_secs(240);
/// A suite that is missing altogether must not look like success.
const SUITES: &[&str] = &[
    "root",
    "delegated_user",
    "root_of_a_container",
    "user_without_cpu_controller",
    "user_without_delegation",
];

#[test]
fn limits_hold_on_cgroup_v2_for_root_and_for_users_with_and_without_delegation() {
    let (qemu, kernel) = match needed() {
        Ok(found) => found,
        Err(reason) => return skip("cgroup_v2_in_a_virtual_machine", &reason),
    };
    let scratch = tempfile::tempdir().expect("a temporary directory can be made");
    let initrd = scratch.path().join("initramfs");
    let mut archive = Initramfs::default();
    for directory in ["dev", "usr", "usr/bin"] {
        archive.directory(directory);
    }
    // The kernel opens it for the first process before that can mount anything.
    archive.character_device("dev/console", 5, 1);
    archive.program(PROGRAM, &std::fs::read(build()).expect("cargo built the program"));
    std::fs::write(&initrd, archive.finish()).expect("the archive can be written");

    let mut vm = Vm::boot(&qemu, &kernel, &initrd, PROGRAM, &scratch.path().join("console"));
    let lines = vm.report(BOUND);
    let wrong = judge(&lines);
    assert!(wrong.is_empty(), "{}\nthe machine's console:\n{}", wrong.join("\n"), vm.console());
}

/// What is wrong with a report.
fn judge(lines: &[String]) -> Vec<String> {
    let mut wrong: Vec<String> = lines.iter().filter(|line| line.starts_with("FAIL ")).cloned().collect();
    for suite in SUITES {
        let reported = lines.iter().any(|line| line.split(' ').nth(1) == Some(suite));
        if !reported {
            wrong.push(format!("suite {suite} reported nothing"));
        }
    }
    if lines.last().is_none_or(|line| line != "end") {
        wrong.push("the machine did not come to its end".into());
    }
    wrong
}

/// The programs and files of the host that this needs, or which one is missing.
fn needed() -> Result<(PathBuf, PathBuf), String> {
    let qemu = PathBuf::from("qemu-system-x86_64");
    if program(&qemu).arg("--version").output().is_err() {
        return Err("qemu-system-x86_64 is not installed; scripts/setup-ci installs it".into());
    }
    #[expect(clippy::disallowed_methods, reason = "the Makefile says where the kernel is")]
    let kernel = std::env::var_os("CUBICLE_TEST_KERNEL").map(PathBuf::from).filter(|path| path.is_file());
    let kernel = kernel
        .ok_or("CUBICLE_TEST_KERNEL names no kernel; scripts/setup-ci unpacks one, 'make test' names it")?;
    Ok((qemu, kernel))
}

fn skip(test: &str, reason: &str) {
    // Not captured by the test runner, so that the skip is seen and counted.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}

/// Builds what runs in the machine: static, because there is no C library.
fn build() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("machine");
    let output = program(Path::new(env!("CARGO")))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["build", "--locked", "--package", env!("CARGO_PKG_NAME"), "--bin", "cgroup2-machine"])
        .args(["--target", TARGET, "--target-dir"])
        .arg(&directory)
        // It is loaded into the memory of an emulated machine and runs on its processor: small and optimized is fast.
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        .env("CARGO_PROFILE_DEV_STRIP", "true")
        // What the outer build was told about itself does not hold for this one.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTFLAGS")
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    directory.join(TARGET).join("debug/cgroup2-machine")
}

#[expect(clippy::disallowed_methods, reason = "this test builds and boots a machine")]
fn program(path: &Path) -> Command {
    Command::new(path)
}

#[test]
fn a_report_without_its_end_or_with_a_failure_is_wrong() {
    let report = |extra: &[&str]| -> Vec<String> {
        let all = SUITES.iter().map(|suite| format!("ok {suite} something"));
        all.chain(extra.iter().map(|line| (*line).to_owned())).collect()
    };
    assert_eq!(judge(&report(&["end"])), Vec::<String>::new());
    assert_eq!(judge(&report(&[])), ["the machine did not come to its end"]);
    assert_eq!(judge(&report(&["FAIL root it: why", "end"])), ["FAIL root it: why"]);
    assert_eq!(judge(&["end".to_owned()]).len(), SUITES.len());
}
