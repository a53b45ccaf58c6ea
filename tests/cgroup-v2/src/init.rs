//! Process 1 of the machine: makes a root that sandboxes can be made on, runs every suite, and switches off.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::mount::{MountFlags, mount, mount_move};
use rustix::process::{WaitOptions, WaitStatus, wait};
use rustix::system::{RebootCommand, reboot};

use crate::PROGRAM;
use crate::suites::SUITES;

/// The report has a line of its own, because the kernel writes to the first one whenever it likes.
const REPORT: &str = "/dev/ttyS1";

pub(crate) fn run() -> ExitCode {
    match make_root().and_then(|()| mount_all()).and_then(|()| write_to_report()) {
        Ok(()) => {
            for suite in SUITES {
                run_suite(suite.name);
            }
            println!("end");
        }
        Err(error) => eprintln!("the machine cannot be set up: {error}"),
    }
    rustix::fs::sync();
    match reboot(RebootCommand::PowerOff) {
        Ok(()) => ExitCode::SUCCESS,
        // The kernel panics when its init ends, and that ends the machine, too.
        Err(_) => ExitCode::FAILURE,
    }
}

/// Leaves the initial root: the kernel lets nobody pivot away from that one, and making a sandbox is pivoting.
fn make_root() -> io::Result<()> {
    let root = Path::new("/root-of-machine");
    fs::create_dir_all(root)?;
    mount("tmpfs", root, "tmpfs", MountFlags::empty(), Some(c"mode=0755"))?;
    for name in ["usr/bin", "proc", "sys", "dev", "run", "etc", "tmp", "data"] {
        fs::create_dir_all(root.join(name))?;
    }
    fs::copy(PROGRAM, root.join(PROGRAM.trim_start_matches('/')))?;
    rustix::process::chdir(root)?;
    mount_move(".", "/")?;
    rustix::process::chroot(".")?;
    rustix::process::chdir("/")?;
    Ok(())
}

fn mount_all() -> io::Result<()> {
    let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", safe, None)?;
    mount("sysfs", "/sys", "sysfs", safe, None)?;
    // As systemd mounts it.
    mount("cgroup2", "/sys/fs/cgroup", "cgroup2", safe, Some(c"nsdelegate,memory_recursiveprot"))?;
    mount("devtmpfs", "/dev", "devtmpfs", MountFlags::NOSUID, None)?;
    mount("tmpfs", "/tmp", "tmpfs", safe, Some(c"mode=1777"))?;
    Ok(())
}

fn write_to_report() -> io::Result<()> {
    let report = OpenOptions::new().write(true).open(REPORT)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    rustix::stdio::dup2_stdout(&report)?;
    Ok(())
}

/// Runs a suite in a process of its own, because suites change user, cgroup and namespaces for good.
fn run_suite(name: &str) {
    #[expect(clippy::disallowed_methods, reason = "an init starts programs")]
    let started = Command::new(PROGRAM).args(["suite", name]).spawn();
    let status = started.and_then(|child| Ok(reap_until(child.id())?));
    match status {
        Ok(status) if status.exit_status() == Some(0) => {}
        Ok(status) => println!("FAIL {name} suite: it ended with {status:?}"),
        Err(error) => println!("FAIL {name} suite: {error}"),
    }
}

/// Waits for one child. Orphans become children of process 1 and are reaped on the way.
fn reap_until(child: u32) -> rustix::io::Result<WaitStatus> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_pid().cast_unsigned() == child => return Ok(status),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}
