//! What an attacker inside would try first, each tried for real, from a process that went through what every command
//! goes through.

use std::fs::{File, OpenOptions};
use std::io;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use cubicle_model::receipt::Attempt;
use cubicle_sys::clone::{Namespaces, unshare};
use cubicle_sys::forbidden;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::net::{AddressFamily, SocketType, ipproto, socket};
use rustix::process::{Pid, Signal, Uid, kill_process};

/// Tells what it gained, or how it was refused.
type Try = fn() -> io::Result<String>;

/// Makes every attempt. Meant to be run as a command in a sandbox that is thrown away afterwards.
pub fn make_all() -> Vec<Attempt> {
    let calls = forbidden::ALL.iter().map(|call| {
        attempt(format!("reach the system call {}", call.name), || {
            match call.attempt() {
                // Any other error means that the kernel looked at the arguments.
                Err(error) if !refused(&error) => Ok(format!("reached, {error}")),
                outcome => outcome.map(|()| "reached".into()),
            }
        })
    });
    let others: [(&str, Try); 22] = [
        ("make a user namespace", || gained(unshare(Namespaces::USER))),
        ("become root", || gained(rustix::thread::set_thread_uid(Uid::ROOT))),
        ("regain a capability", regain_capability),
        ("change the host name", || gained(rustix::system::sethostname(b"taken"))),
        ("change the root", || gained(rustix::process::chroot("/tmp"))),
        ("end pid 1", end_init),
        ("see files of pid 1 through its root", || list("/proc/1/root")),
        ("read the environment of pid 1", || read("/proc/1/environ")),
        ("open the memory of pid 1", || read("/proc/1/mem")),
        ("list the descriptors of pid 1", || list("/proc/1/fd")),
        ("read the kernel's memory", || read("/proc/kcore")),
        ("press magic keys", || write("/proc/sysrq-trigger")),
        ("choose the program that takes core dumps", || write("/proc/sys/kernel/core_pattern")),
        ("read the kernel's log", || read("/dev/kmsg")),
        ("make a device node", || {
            gained(mknodat(CWD, "/tmp/disk", FileType::BlockDevice, Mode::RUSR, 0xfe00))
        }),
        ("write a program of the system", || write("/usr/bin/env")),
        ("write the list of users", || write("/etc/passwd")),
        ("read the passwords of the system", || read("/etc/shadow")),
        ("make a file in the root directory", || gained(File::create("/taken"))),
        ("open a raw socket", || gained(socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)))),
        ("open a packet socket", || gained(socket(AddressFamily::PACKET, SocketType::RAW, None))),
        ("reach another machine", reach_out),
    ];
    calls.chain(others.into_iter().map(|(name, run)| attempt(name.into(), run))).collect()
}

fn attempt(name: String, run: impl FnOnce() -> io::Result<String>) -> Attempt {
    match run() {
        Ok(got) => Attempt { name, failed: false, outcome: got },
        Err(error) => Attempt { name, failed: true, outcome: error.to_string() },
    }
}

fn refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS))
}

fn gained<T, E: Into<io::Error>>(outcome: Result<T, E>) -> io::Result<String> {
    outcome.map(|_| "succeeded".into()).map_err(Into::into)
}

fn read(path: &str) -> io::Result<String> {
    let mut first = [0; 16];
    match io::Read::read(&mut File::open(path)?, &mut first)? {
        // What is covered can be opened, but there is nothing in it.
        0 => Err(io::Error::other("nothing there")),
        count => Ok(format!("read {count} bytes")),
    }
}

fn write(path: &str) -> io::Result<String> {
    // Opening is enough: writing would have the effect.
    OpenOptions::new().write(true).open(path).map(|_| "opened for writing".into())
}

fn list(path: &str) -> io::Result<String> {
    let count = std::fs::read_dir(path)?.count();
    Ok(format!("listed {count} entries"))
}

fn regain_capability() -> io::Result<String> {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    let wanted = CapabilitySet::SYS_ADMIN;
    gained(set_capabilities(
        None,
        CapabilitySets { effective: wanted, permitted: wanted, inheritable: wanted },
    ))
}

/// The kernel accepts the signal where the users are the same and then ignores it, because it protects pid 1 from its
/// own namespace. What counts is that pid 1 still answers.
fn end_init() -> io::Result<String> {
    kill_process(Pid::INIT, Signal::KILL)?;
    Err(io::Error::other("pid 1 is still there"))
}

fn reach_out() -> io::Result<String> {
    // An address that documentation may use and nobody has.
    let address = SocketAddr::from(([192, 0, 2, 1], 9));
    UdpSocket::bind("0.0.0.0:0")?.send_to(b"x", address)?;
    TcpStream::connect_timeout(&address, Duration::from_millis(200)).map(|_| "connected".into())
}
