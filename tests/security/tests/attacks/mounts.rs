//! Leaving the file system that a sandbox is shown, or changing it.

use rustix::io::Errno;

use crate::arena::Arena;

const EPERM: i32 = Errno::PERM.raw_os_error();

#[test]
fn sandbox_cannot_mount_a_file_system() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["mount-tmpfs", "/workspace"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_bind_its_root_somewhere_else() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["bind", "/", "/workspace"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_make_its_root_writable() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["remount-writable", "/"]).refused(&[EPERM]);
    arena.attack(&["remount-writable", "/usr"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_mount_a_second_proc_without_covers() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["mount-type", "proc", "/workspace"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_mount_the_file_systems_of_the_kernel() {
    let Some(arena) = Arena::enter() else { return };
    for kind in
        ["sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "bpf", "binfmt_misc", "mqueue"]
    {
        arena.attack_from(arena.attacker, &["mount-type", kind, "/workspace"]).refused(&[EPERM]);
    }
    arena.unharmed();
}

#[test]
fn sandbox_cannot_mount_a_disk_or_an_overlay() {
    let Some(arena) = Arena::enter() else { return };
    for kind in ["ext4", "overlay", "fuse", "devtmpfs", "ramfs"] {
        arena.attack_from(arena.attacker, &["mount-type", kind, "/workspace"]).refused(&[EPERM]);
    }
    arena.unharmed();
}

#[test]
fn sandbox_cannot_take_the_covers_off_proc() {
    let Some(arena) = Arena::enter() else { return };
    for covered in ["/proc/kcore", "/proc/sys", "/proc/sysrq-trigger", "/proc/fs", "/proc", "/usr"] {
        arena.attack_from(arena.attacker, &["unmount", covered]).refused(&[EPERM]);
    }
    arena.unharmed();
}

#[test]
fn sandbox_cannot_move_mounts_or_share_them_with_the_host() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["move-mount", "/proc/sys", "/workspace"]).refused(&[EPERM]);
    arena.attack(&["propagate", "/"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_mount_through_the_new_mount_calls() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["new-mount-calls", "/workspace"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_pivot_to_another_root() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["pivot", "/workspace/pivot"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_escape_through_chroot() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["chroot", "/workspace/chroot"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_open_files_of_the_host_by_handle() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["file-handles"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_see_another_root_through_any_process() {
    let Some(arena) = Arena::enter() else { return };
    assert_eq!(arena.attack(&["roots-of-processes"]).saw(), "");
    arena.attack(&["list", "/proc/1/root/"]).refused(&[Errno::ACCESS.raw_os_error()]);
    arena.attack(&["list", "/proc/1/cwd/"]).refused(&[Errno::ACCESS.raw_os_error()]);
}

#[test]
fn sandbox_cannot_climb_above_its_root() {
    let Some(arena) = Arena::enter() else { return };
    let own = arena.attack(&["list", "/"]).saw().to_owned();
    for path in ["/../../..", "/proc/self/root/../..", "/proc/self/cwd/../../../.."] {
        assert_eq!(arena.attack_from(arena.attacker, &["list", path]).saw(), own, "{path}");
    }
}

#[test]
fn sandbox_cannot_see_directories_of_the_host() {
    let Some(arena) = Arena::enter() else { return };
    let marker = arena.shared().join("marker-of-the-host");
    std::fs::write(&marker, "").expect("the directory is ours");
    assert_eq!(arena.attack(&["find-name", "marker-of-the-host"]).saw(), "");
    let root = arena.attack(&["list", "/"]).saw().to_owned();
    let allowed = [
        ".cubicle",
        "bin",
        "dev",
        "etc",
        "gnu",
        "home",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "mnt",
        "nix",
        "proc",
        "run",
        "sbin",
        "sys",
        "task",
        "tmp",
        "usr",
        "var",
        "workspace",
    ];
    for name in root.split(' ') {
        assert!(allowed.contains(&name), "/{name} of the host shows in the sandbox");
    }
    assert_eq!(arena.attack(&["list", "/home"]).saw(), "agent");
    // Where what is small and writable is kept; it shows at its usual places, too.
    assert_eq!(arena.attack(&["list", "/run"]).saw(), "home mnt secrets shm tmp");
    for empty in ["/var/lib", "/var/log", "/var/cache"] {
        assert_eq!(arena.attack_from(arena.attacker, &["list", empty]).saw(), "", "{empty}");
    }
}

#[test]
fn sandbox_cannot_find_what_its_making_needed() {
    let Some(arena) = Arena::enter() else { return };
    for directory in ["/.cubicle/scratch", "/.cubicle/empty/directory", "/.cubicle/host-proc"] {
        arena.attack_from(arena.attacker, &["list", directory]).nothing();
    }
    let mounts = arena.attack(&["read", "/proc/self/mountinfo"]).saw().to_owned();
    let of_its_making = mounts.replace("/.cubicle/empty/", "");
    assert!(!of_its_making.contains("/.cubicle/"), "{mounts}");
}

#[test]
fn sandbox_cannot_write_to_its_root() {
    let Some(arena) = Arena::enter() else { return };
    let paths = [
        "/intruder",
        "/usr/intruder",
        "/usr/bin/intruder",
        "/usr/lib/intruder",
        "/etc/intruder",
        "/bin/intruder",
        "/.cubicle/intruder",
        "/.cubicle/empty/directory/intruder",
        "/dev/intruder",
        "/proc/intruder",
        "/sys/intruder",
        "/run/intruder",
        "/var/intruder",
        "/var/lib/intruder",
        "/home/intruder",
        "/etc/ssl/certs/intruder",
    ];
    let arguments: Vec<&str> = std::iter::once("create").chain(paths).collect();
    arena.attack(&arguments).refused(&[Errno::ROFS.raw_os_error()]);
    assert!(!std::path::Path::new("/usr/bin/intruder").exists());
}

#[test]
fn sandbox_can_write_only_where_it_should() {
    let Some(arena) = Arena::enter() else { return };
    let writable = arena.attack(&["find-writable"]).saw().to_owned();
    for place in writable.split(' ') {
        let allowed = ["/tmp", "/var/tmp", "/dev/shm", "/home/agent", "/workspace", "/mnt"];
        let the_same = ["/run/tmp", "/run/shm", "/run/home"];
        assert!(allowed.contains(&place) || the_same.contains(&place), "{place} is writable");
    }
}

#[test]
fn sandbox_cannot_change_programs_of_the_system() {
    let Some(arena) = Arena::enter() else { return };
    for path in ["/usr/bin/env", "/etc/passwd", "/etc/ld.so.cache", "/etc/resolv.conf"] {
        arena.attack_from(arena.attacker, &["tamper", path]).refused(&[Errno::ROFS.raw_os_error()]);
    }
    arena.unharmed();
}

#[test]
fn sandbox_cannot_hard_link_files_of_the_system() {
    let Some(arena) = Arena::enter() else { return };
    let refused = [Errno::XDEV.raw_os_error(), EPERM, Errno::ROFS.raw_os_error()];
    arena.attack(&["link", "/usr/bin/env", "/workspace/env"]).refused(&refused);
    arena.attack(&["link", "/etc/passwd", "/tmp/passwd"]).refused(&refused);
}

#[test]
fn sandbox_cannot_mount_with_the_programs_of_the_system() {
    let Some(arena) = Arena::enter() else { return };
    let outcome = arena.shell(
        arena.attacker,
        "mount -t tmpfs none /workspace && echo MOUNTED; umount -l /proc && echo UNMOUNTED; \
         unshare -Ur true && echo UNSHARED; chroot / true && echo CHROOTED; nsenter -t 1 -m true && echo ENTERED; true",
    );
    assert_eq!(String::from_utf8_lossy(&outcome.stdout), "");
    arena.unharmed();
}
