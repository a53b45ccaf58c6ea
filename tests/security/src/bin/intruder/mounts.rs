//! Attacks on what a sandbox sees of the file system.

use std::os::fd::AsRawFd;

use crate::Outcome;
use crate::kernel::{address, call, done, text};

fn mount(source: &str, target: &str, kind: &str, flags: libc::c_ulong) -> Outcome {
    let (source, target, kind) = (text(source), text(target), text(kind));
    done(call(
        libc::SYS_mount,
        &[source.as_ptr() as usize, target.as_ptr() as usize, kind.as_ptr() as usize, flags as usize, 0],
    ))
}

pub(crate) fn attack(name: &str, arguments: &[&str]) -> Option<Outcome> {
    let at_cwd = libc::AT_FDCWD as usize;
    Some(match (name, arguments) {
        ("mount-tmpfs", [target]) => mount("tmpfs", target, "tmpfs", 0),
        ("mount-type", [kind, target]) => mount(kind, target, kind, 0),
        ("bind", [source, target]) => mount(source, target, "none", libc::MS_BIND | libc::MS_REC),
        ("remount-writable", [target]) => mount("none", target, "none", libc::MS_REMOUNT | libc::MS_BIND),
        ("propagate", [target]) => mount("none", target, "none", libc::MS_SHARED | libc::MS_REC),
        ("move-mount", [source, target]) => mount(source, target, "none", libc::MS_MOVE),
        ("unmount", [target]) => {
            let target = text(target);
            done(call(libc::SYS_umount2, &[target.as_ptr() as usize, libc::MNT_DETACH as usize]))
        }
        ("pivot", [place]) => {
            let _ = std::fs::create_dir_all(format!("{place}/old"));
            let (new, old) = (text(place), text(&format!("{place}/old")));
            done(call(libc::SYS_pivot_root, &[new.as_ptr() as usize, old.as_ptr() as usize]))
        }
        // The old way out of a chroot: go into another one with a directory of the outside still open.
        ("chroot", [place]) => {
            let _ = std::fs::create_dir_all(place);
            let place = text(place);
            call(libc::SYS_chroot, &[place.as_ptr() as usize])
                .map(|_| (0..64).filter(|_| std::env::set_current_dir("..").is_ok()).count().to_string())
        }
        ("new-mount-calls", [target]) => {
            let (kind, target, root) = (text("tmpfs"), text(target), text("/"));
            let (kind, target, root) =
                (kind.as_ptr() as usize, target.as_ptr() as usize, root.as_ptr() as usize);
            let attributes = [0u64; 4];
            let calls: [(&str, libc::c_long, [usize; 5]); 8] = [
                ("fsopen", libc::SYS_fsopen, [kind, 0, 0, 0, 0]),
                ("fspick", libc::SYS_fspick, [at_cwd, root, 0, 0, 0]),
                ("fsconfig", libc::SYS_fsconfig, [0, 6, 0, 0, 0]),
                ("fsmount", libc::SYS_fsmount, [0, 0, 0, 0, 0]),
                ("open_tree", libc::SYS_open_tree, [at_cwd, root, 1, 0, 0]),
                ("move_mount", libc::SYS_move_mount, [at_cwd, root, at_cwd, target, 0]),
                ("mount_setattr", libc::SYS_mount_setattr, [at_cwd, root, 0, address(&attributes), 32]),
                ("open_tree_attr", 467, [at_cwd, root, 1, address(&attributes), 32]),
            ];
            let reached: Vec<String> = calls
                .iter()
                .filter_map(|(name, number, arguments)| match call(*number, arguments) {
                    Err(libc::EPERM) => None,
                    other => Some(format!("{name}: {other:?}")),
                })
                .collect();
            if reached.is_empty() { Err(libc::EPERM) } else { Ok(reached.join(", ")) }
        }
        ("file-handles", []) => {
            let (path, handle, mut mount) = (text("/usr"), [128u32, 0, 0, 0, 0, 0, 0, 0], 0u32);
            let pointer = path.as_ptr() as usize;
            let named = call(
                libc::SYS_name_to_handle_at,
                &[at_cwd, pointer, address(&handle), (&raw mut mount) as usize, 0],
            );
            // The handle of an ext4 root directory: inode 2. This is how containers were left once.
            let root = [8u32, 1, 2, 0];
            let here = std::fs::File::open("/usr").map_or(0, |file| {
                let opened =
                    call(libc::SYS_open_by_handle_at, &[file.as_raw_fd() as usize, address(&root), 0]);
                opened.err().unwrap_or(0)
            });
            match (named, here) {
                (Err(libc::EPERM), libc::EPERM) => Err(libc::EPERM),
                other => Ok(format!("{other:?}")),
            }
        }
        _ => return None,
    })
}
