//! The suites: who runs them, in which cgroup, and what they check.

use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cubicle_sys::clone::{Namespaces, unshare};
use cubicle_sys::credentials::become_user;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};

use crate::ground::Ground;
use crate::{limited, unlimited};

const TOP: &str = "/sys/fs/cgroup";
const USER: u32 = 1000;

/// A way to be started on a host with cgroups of version 2.
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    /// Puts the calling process where the suite wants it, and returns the cgroup that sandboxes should appear in.
    enter: fn() -> io::Result<PathBuf>,
    expects: Expects,
}

enum Expects {
    Limits(limited::Caller),
    /// No limits, for a reason that has these words in it.
    NoLimits(&'static str),
}

pub(crate) const SUITES: &[Suite] = &[
    Suite { name: "root", enter: as_root, expects: Expects::Limits(limited::Caller::Root) },
    Suite {
        name: "delegated_user",
        enter: as_user_of_a_delegated_scope,
        expects: Expects::Limits(limited::Caller::User),
    },
    Suite {
        name: "root_of_a_container",
        enter: as_root_of_a_container,
        expects: Expects::Limits(limited::Caller::RootOfContainer),
    },
    Suite {
        name: "user_without_cpu_controller",
        enter: as_user_without_cpu_controller,
        expects: Expects::NoLimits("does not offer the cpu controller"),
    },
    Suite {
        name: "user_without_delegation",
        enter: as_user_without_delegation,
        expects: Expects::NoLimits("Permission denied"),
    },
];

pub(crate) fn run(name: &str) -> ExitCode {
    let Some(suite) = SUITES.iter().find(|suite| suite.name == name) else {
        println!("FAIL {name} suite: there is no such suite");
        return ExitCode::FAILURE;
    };
    match prepare(suite).and_then(|ground| Ok((ground, runtime()?))) {
        Ok((ground, runtime)) => {
            runtime.block_on(async {
                match &suite.expects {
                    Expects::Limits(caller) => limited::check(&ground, *caller).await,
                    Expects::NoLimits(because) => unlimited::check(&ground, because).await,
                }
            });
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("FAIL {name} suite: {error}");
            ExitCode::FAILURE
        }
    }
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

fn prepare(suite: &Suite) -> io::Result<Ground> {
    let home = Path::new("/data").join(suite.name);
    fs::create_dir_all(&home)?;
    if !suite.name.starts_with("root") {
        chown(&home, Some(USER), Some(USER))?;
    }
    let base = (suite.enter)()?;
    Ok(Ground { suite: suite.name, base, data: home.join("data") })
}

fn as_root() -> io::Result<PathBuf> {
    Ok(TOP.into())
}

/// As `systemd-run --user --scope -p Delegate=yes` does it.
fn as_user_of_a_delegated_scope() -> io::Result<PathBuf> {
    let slice = make_cgroup(Path::new(TOP), "delegated.slice", "+memory +pids +cpu")?;
    let scope = delegate(&slice)?;
    enter(&scope)?;
    become_user(USER, USER)?;
    Ok(scope)
}

fn as_user_without_cpu_controller() -> io::Result<PathBuf> {
    let slice = make_cgroup(Path::new(TOP), "without-cpu.slice", "+memory +pids")?;
    let scope = delegate(&slice)?;
    enter(&scope)?;
    become_user(USER, USER)?;
    Ok(scope)
}

/// The scope of a login session belongs to root.
fn as_user_without_delegation() -> io::Result<PathBuf> {
    let slice = make_cgroup(Path::new(TOP), "session.slice", "+memory +pids +cpu")?;
    let scope = slice.join("session.scope");
    fs::create_dir(&scope)?;
    enter(&scope)?;
    become_user(USER, USER)?;
    Ok(scope)
}

/// Root of a container with a writable cgroup tree of its own: what looks like the top there is not the top, and the
/// container's processes are in it.
fn as_root_of_a_container() -> io::Result<PathBuf> {
    let slice = make_cgroup(Path::new(TOP), "container.slice", "+memory +pids +cpu")?;
    let container = slice.join("container");
    fs::create_dir(&container)?;
    enter(&container)?;
    unshare(Namespaces::MOUNT.and(Namespaces::CGROUP))?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    unmount(TOP, UnmountFlags::DETACH)?;
    mount("cgroup2", TOP, "cgroup2", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)?;
    Ok(TOP.into())
}

/// A cgroup with controllers for its children.
fn make_cgroup(parent: &Path, name: &str, controllers: &str) -> io::Result<PathBuf> {
    fs::write(parent.join("cgroup.subtree_control"), "+memory +pids +cpu")?;
    let path = parent.join(name);
    fs::create_dir(&path)?;
    fs::write(path.join("cgroup.subtree_control"), controllers)?;
    Ok(path)
}

/// A scope that belongs to the user, with the files that delegation names.
fn delegate(slice: &Path) -> io::Result<PathBuf> {
    let scope = slice.join("cubicle.scope");
    fs::create_dir(&scope)?;
    for path in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
        chown(scope.join(path), Some(USER), Some(USER))?;
    }
    Ok(scope)
}

fn enter(cgroup: &Path) -> io::Result<()> {
    fs::write(cgroup.join("cgroup.procs"), "0")
}
