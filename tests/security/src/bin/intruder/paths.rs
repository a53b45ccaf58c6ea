//! Attacks through paths, devices and terminals.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use crate::Outcome;
use crate::kernel::{address, call, done, text};

pub(crate) fn number(error: std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

pub(crate) fn attack(name: &str, arguments: &[&str]) -> Option<Outcome> {
    Some(match (name, arguments) {
        ("read", [path]) => read(path),
        ("list", [path]) => fs::read_dir(path).map_err(number).map(|entries| {
            let mut names: Vec<String> = entries
                .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
                .collect();
            names.sort();
            names.join(" ")
        }),
        ("follow", [path]) => fs::read_link(path).map(|target| target.display().to_string()).map_err(number),
        ("write", [path, content]) => OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .and_then(|mut file| file.write_all(content.as_bytes()))
            .map(|()| "written".into())
            .map_err(number),
        ("create", paths) => {
            let made: Vec<&str> = paths
                .iter()
                .copied()
                .filter(|path| {
                    let made = File::create(path).is_ok();
                    made || fs::create_dir(path).is_ok()
                })
                .collect();
            if made.is_empty() { Err(libc::EROFS) } else { Ok(made.join(" ")) }
        }
        ("tamper", [path]) => tamper(path),
        ("link", [from, to]) => fs::hard_link(from, to).map(|()| "linked".into()).map_err(number),
        ("devices", [place]) => {
            // The first disk, the memory of the kernel, and the null device.
            let nodes =
                [("block", 0o060_666, 0xfe00usize), ("mem", 0o020_666, 0x0101), ("null", 0o020_666, 0x0103)];
            let made: Vec<&str> = nodes
                .iter()
                .filter(|(name, mode, device)| {
                    let path = text(&format!("{place}/{name}"));
                    call(libc::SYS_mknod, &[path.as_ptr() as usize, *mode, *device]) != Err(libc::EPERM)
                })
                .map(|(name, ..)| *name)
                .collect();
            if made.is_empty() { Err(libc::EPERM) } else { Ok(made.join(" ")) }
        }
        ("type-into-terminal", []) => {
            let key = *b"x";
            let terminal = File::open("/dev/tty").map_err(number);
            terminal.and_then(|terminal| {
                let fd = terminal.as_raw_fd() as usize;
                let high = 0xffff_ffff_0000_0000;
                call(libc::SYS_ioctl, &[fd, libc::TIOCSTI as usize, address(&key)])
                    .or_else(|_| call(libc::SYS_ioctl, &[fd, high | libc::TIOCSTI as usize, address(&key)]))
                    .or_else(|_| call(libc::SYS_ioctl, &[fd, libc::TIOCLINUX as usize, address(&key)]))
                    .map(|_| "typed".into())
            })
        }
        ("line-discipline", []) => {
            // Serial protocols that nobody needs in a sandbox, some of them with a past.
            let terminal = File::open("/dev/tty").map_err(number);
            terminal.and_then(|terminal| {
                let fd = terminal.as_raw_fd() as usize;
                let taken: Vec<String> = [1i32, 2, 3, 5, 13, 15, 16, 17, 21, 25, 26]
                    .iter()
                    .filter_map(|discipline| {
                        match call(libc::SYS_ioctl, &[fd, libc::TIOCSETD as usize, address(discipline)]) {
                            Err(libc::EPERM) => None,
                            other => Some(format!("{discipline}: {other:?}")),
                        }
                    })
                    .collect();
                if taken.is_empty() { Err(libc::EPERM) } else { Ok(taken.join(", ")) }
            })
        }
        ("entropy", []) => {
            let request = [64i32, 8, 0, 0];
            const ADD: usize = 0x4008_5203;
            let device = File::open("/dev/urandom").map_err(number);
            device.and_then(|device| {
                done(call(libc::SYS_ioctl, &[device.as_raw_fd() as usize, ADD, address(&request)]))
            })
        }
        ("pressure-trigger", [path]) => OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .and_then(|mut file| file.write_all(b"some 150000 2000000\0"))
            .map(|()| "set".into())
            .map_err(number),
        ("flip", [path, decoy, target]) => flip(path, decoy, target),
        ("flip-file", [path, target]) => flip_file(path, target),
        _ => return None,
    })
}

fn read(path: &str) -> Outcome {
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(number)?;
    let mut bytes = vec![0; 4096];
    let count = file.read(&mut bytes).map_err(number)?;
    Ok(String::from_utf8_lossy(&bytes[..count]).into_owned())
}

/// Tries to change a file of the system in every way there is.
fn tamper(path: &str) -> Outcome {
    let aside = format!("{path}.intruder");
    let name = text(path);
    let ways: [(&str, bool); 7] = [
        ("write", OpenOptions::new().write(true).open(path).is_ok()),
        ("append", OpenOptions::new().append(true).open(path).is_ok()),
        ("rename", fs::rename(path, &aside).is_ok()),
        ("remove", fs::remove_file(path).is_ok()),
        ("mode", call(libc::SYS_chmod, &[name.as_ptr() as usize, 0o777]).is_ok()),
        ("owner", call(libc::SYS_chown, &[name.as_ptr() as usize, 1000, 1000]).is_ok()),
        ("truncate", call(libc::SYS_truncate, &[name.as_ptr() as usize, 0]).is_ok()),
    ];
    let worked: Vec<&str> = ways.iter().filter(|(_, worked)| *worked).map(|(name, _)| *name).collect();
    if worked.is_empty() { Err(libc::EROFS) } else { Ok(worked.join(" ")) }
}

/// Keeps exchanging a directory for a symbolic link, until it is killed.
fn flip(path: &str, decoy: &str, target: &str) -> Outcome {
    let _ = fs::create_dir_all(path);
    let _ = fs::remove_file(decoy);
    std::os::unix::fs::symlink(target, decoy).map_err(number)?;
    let (path, decoy) = (text(path), text(decoy));
    exchange(&path, &decoy)
}

/// The same with a file.
fn flip_file(path: &str, target: &str) -> Outcome {
    fs::write(path, "harmless").map_err(number)?;
    let decoy = format!("{path}.decoy");
    let _ = fs::remove_file(&decoy);
    std::os::unix::fs::symlink(target, &decoy).map_err(number)?;
    exchange(&text(path), &text(&decoy))
}

fn exchange(one: &std::ffi::CStr, other: &std::ffi::CStr) -> Outcome {
    let _ = std::io::stdout().write_all(b"begun\n");
    let _ = std::io::stdout().flush();
    let here = libc::AT_FDCWD as usize;
    const EXCHANGE: usize = 2;
    loop {
        let _ = call(
            libc::SYS_renameat2,
            &[here, one.as_ptr() as usize, here, other.as_ptr() as usize, EXCHANGE],
        );
    }
}
