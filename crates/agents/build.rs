//! Builds `run-task` as a static binary and embeds it.
//!
//! It is another target (musl) and another profile than the rest, so it gets a build of its own, in a directory of its
//! own, where it does not wait for the lock of the build that runs this script.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

fn main() {
    let here = PathBuf::from(var("CARGO_MANIFEST_DIR"));
    let workspace = here.join("../..");
    for watched in
        ["Cargo.toml", "Cargo.lock", "crates/worker/src", "crates/worker/Cargo.toml", "crates/model"]
    {
        watch(&workspace.join(watched));
    }
    let target = format!("{}-unknown-linux-musl", var("CARGO_CFG_TARGET_ARCH"));
    let out = PathBuf::from(var("OUT_DIR"));
    // Beside the other build directories, so that a change elsewhere in the workspace does not start from nothing.
    let directory =
        out.ancestors().nth(4).expect("OUT_DIR lies four levels below the build directory").join("worker");
    #[expect(clippy::disallowed_methods, reason = "a build script builds")]
    let built = Command::new(var("CARGO"))
        .current_dir(&workspace)
        .args(["build", "--package", "cubicle-worker", "--bin", "run-task", "--profile", "worker"])
        .args(["--target", &target])
        .arg("--target-dir")
        .arg(&directory)
        // What the outer build was told about itself does not hold for this one.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTC_WRAPPER")
        .status();
    match built {
        Ok(status) if status.success() => {}
        _ => {
            println!(
                "cargo::error=run-task cannot be built for {target}: is the target there? 'rustup target add {target}'"
            );
            return;
        }
    }
    let binary = directory.join(target).join("worker/run-task");
    let bytes = std::fs::read(&binary).expect("cargo built run-task");
    let digest: String = Sha256::digest(bytes).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    println!("cargo::rustc-env=CUBICLE_RUN_TASK={}", binary.display());
    println!("cargo::rustc-env=CUBICLE_RUN_TASK_DIGEST={digest}");
    println!("cargo::rerun-if-changed={}", binary.display());
}

fn watch(path: &Path) {
    println!("cargo::rerun-if-changed={}", path.display());
}

fn var(name: &str) -> String {
    #[expect(clippy::disallowed_methods, reason = "a build script is told everything by its environment")]
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
