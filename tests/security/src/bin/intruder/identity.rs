//! Attempts to be somebody else.

use std::os::unix::process::CommandExt;

use crate::Outcome;
use crate::kernel::{address, call, done, text};

pub(crate) fn attack(name: &str, arguments: &[&str]) -> Option<Outcome> {
    Some(match (name, arguments) {
        ("become-user", [user]) => {
            let user: usize = user.parse().ok()?;
            let outcomes = [
                ("setuid", call(libc::SYS_setuid, &[user])),
                ("setresuid", call(libc::SYS_setresuid, &[user, user, user])),
                ("setreuid", call(libc::SYS_setreuid, &[user, user])),
                ("setgid", call(libc::SYS_setgid, &[user])),
                ("setresgid", call(libc::SYS_setresgid, &[user, user, user])),
                ("setregid", call(libc::SYS_setregid, &[user, user])),
            ];
            match outcomes.iter().find(|(_, outcome)| outcome.is_ok()) {
                Some((name, _)) => Ok((*name).into()),
                None => Err(outcomes[0].1.err().unwrap_or(0)),
            }
        }
        ("file-user", []) => {
            let _ = call(libc::SYS_setfsuid, &[0]);
            match call(libc::SYS_setfsuid, &[usize::MAX]) {
                Ok(0) => Ok("files are accessed as user 0".into()),
                _ => Err(libc::EPERM),
            }
        }
        ("groups", []) => {
            let groups = [0u32, 4, 27];
            done(call(libc::SYS_setgroups, &[groups.len(), address(&groups)]))
        }
        ("capabilities", []) => {
            let header: [u32; 2] = [0x2008_0522, 0];
            let sets = [u32::MAX; 6];
            if call(libc::SYS_capset, &[address(&header), address(&sets)]).is_ok() {
                return Some(Ok("capset".into()));
            }
            const RAISE: usize = 2;
            let ambient = (0..41).find(|capability| {
                call(libc::SYS_prctl, &[libc::PR_CAP_AMBIENT as usize, RAISE, *capability, 0, 0]).is_ok()
            });
            match ambient {
                Some(capability) => Ok(format!("ambient {capability}")),
                None => Err(libc::EPERM),
            }
        }
        ("capability-sets", []) => Ok(status(&["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"])),
        ("status", names) => Ok(status(names)),
        ("namespaces-by-clone", []) => by_flag(|flag| {
            // As `fork` would, with one flag more. A child that comes to life ends at once.
            match call(libc::SYS_clone, &[flag as usize | libc::SIGCHLD as usize, 0, 0, 0, 0]) {
                Ok(0) => {
                    let _ = call(libc::SYS_exit_group, &[0]);
                    Ok(0)
                }
                other => other,
            }
        }),
        ("namespaces-by-unshare", []) => by_flag(|flag| call(libc::SYS_unshare, &[flag as usize])),
        ("clone3", []) => {
            let arguments: [u64; 8] = [libc::CLONE_NEWUSER as u64, 0, 0, 0, libc::SIGCHLD as u64, 0, 0, 0];
            done(call(libc::SYS_clone3, &[address(&arguments), 64]))
        }
        ("enter-namespace", [path]) => {
            let opened = call(libc::SYS_open, &[text(path).as_ptr() as usize, libc::O_RDONLY as usize]);
            // A namespace that cannot be opened is refused; so is one that can be, but not entered.
            opened.and_then(|fd| call(libc::SYS_setns, &[fd as usize, 0])).map(|_| "entered".into())
        }
        ("set-id-copy", [place]) => set_id_copy(place),
        ("who", []) => Ok(status(&["Uid", "Gid", "CapEff", "NoNewPrivs"])),
        ("file-capability", [place]) => {
            let own = std::env::current_exe().ok()?;
            let copied = std::fs::copy(own, place).map_err(|error| error.raw_os_error().unwrap_or(0));
            if let Err(errno) = copied {
                return Some(Err(errno));
            }
            // Version 2, effective, every capability.
            let value: [u32; 5] = [0x0200_0001, u32::MAX, 0, u32::MAX, 0];
            let (path, name) = (text(place), text("security.capability"));
            done(call(
                libc::SYS_setxattr,
                &[path.as_ptr() as usize, name.as_ptr() as usize, address(&value), 20, 0],
            ))
        }
        ("give-away", [place]) => {
            let _ = std::fs::write(place, "");
            let path = text(place);
            done(call(libc::SYS_chown, &[path.as_ptr() as usize, 0, 0]))
        }
        _ => return None,
    })
}

fn by_flag(act: impl Fn(i32) -> Result<i64, i32>) -> Outcome {
    let flags = [
        ("user", libc::CLONE_NEWUSER),
        ("mount", libc::CLONE_NEWNS),
        ("pid", libc::CLONE_NEWPID),
        ("net", libc::CLONE_NEWNET),
        ("ipc", libc::CLONE_NEWIPC),
        ("uts", libc::CLONE_NEWUTS),
        ("cgroup", libc::CLONE_NEWCGROUP),
        ("user and mount", libc::CLONE_NEWUSER | libc::CLONE_NEWNS),
    ];
    let gained: Vec<String> = flags
        .iter()
        .filter_map(|(name, flag)| match act(*flag) {
            Err(libc::EPERM) => None,
            other => Some(format!("{name}: {other:?}")),
        })
        .collect();
    if gained.is_empty() { Err(libc::EPERM) } else { Ok(gained.join(", ")) }
}

/// Copies this program, marks the copy as set-user-id and set-group-id, and asks the copy who it is.
fn set_id_copy(place: &str) -> Outcome {
    let number = |error: std::io::Error| error.raw_os_error().unwrap_or(0);
    let own = std::env::current_exe().map_err(number)?;
    std::fs::copy(own, place).map_err(number)?;
    let path = text(place);
    let marked = call(libc::SYS_chmod, &[path.as_ptr() as usize, 0o6755]);
    #[expect(clippy::disallowed_methods, reason = "an intruder starts what it likes")]
    let error = std::process::Command::new(place).arg("who").exec();
    Ok(format!("marked {marked:?}, not run: {error}"))
}

fn status(names: &[&str]) -> String {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let wanted = |line: &&str| names.iter().any(|name| line.split(':').next() == Some(name));
    text.lines().filter(wanted).map(|line| line.replace('\t', " ")).collect::<Vec<_>>().join("; ")
}
