//! Attacks through paths that the host uses on behalf of somebody: the file API and mounts.

use std::path::PathBuf;

use cubicle_backend::Backend;
use cubicle_guest::client::WriteFile;
use cubicle_model::{Binding, Kind, LimitRequest, Medium, Mount, Placement, SandboxId};

use crate::arena::{Arena, fresh_id, placement, token};

const PRIVATE: &[&str] = &[
    "/proc/self/environ",
    "/proc/1/environ",
    "/proc/self/maps",
    "/proc/self/mem",
    "/proc/1/root/etc/passwd",
    "/proc/self/root/etc/passwd",
    "/proc/self/fd/3",
    "/proc/self/fd/4",
    "/proc/self/fd/5",
    "/proc/thread-self/status",
    "/proc/sys/kernel/hostname",
    "/proc/self/cwd/.cache",
    "/dev/fd/3",
    "/dev/pts/ptmx",
];

#[test]
fn file_api_does_not_read_pid_1_through_links() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest::default());
    let guest = sandbox.guest();
    for target in PRIVATE {
        arena.shell(sandbox.id, &format!("ln -sfn {target} /workspace/link"));
        let by_link = arena.wait(guest.read_file("/workspace/link", None, 1 << 20));
        assert!(by_link.is_err(), "{target} can be read through a link: {by_link:?}");
        let directly = arena.wait(guest.read_file(target, None, 1 << 20));
        assert!(directly.is_err(), "{target} can be read: {directly:?}");
    }
    for directory in ["/proc", "/proc/self/fd", "/proc/1/root", "/proc/self/root", "/sys", "/dev"] {
        arena.shell(sandbox.id, &format!("ln -sfn {directory} /workspace/link"));
        assert!(arena.wait(guest.list("/workspace/link", false)).is_err(), "{directory}");
        let below = arena.wait(guest.read_file("/workspace/link/environ", None, 1 << 20));
        assert!(below.is_err(), "{directory}");
    }
    arena.answers(sandbox.id);
}

#[test]
fn file_api_stays_inside_whatever_the_path() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest::default());
    let guest = sandbox.guest();
    arena.shell(
        sandbox.id,
        "ln -s ../../../../../../etc/hostname /workspace/up; ln -s /etc/shadow /workspace/shadow",
    );
    for path in ["/../../../etc/hostname", "../../../../etc/hostname", "/workspace/up"] {
        match arena.wait(guest.read_file(path, None, 64)) {
            Ok(read) => assert_eq!(read, b"sandbox\n", "{path}"),
            Err(refused) => assert!(refused.code().is_some(), "{path}: {refused}"),
        }
    }
    let shadow = arena.wait(guest.read_file("/workspace/shadow", None, 64));
    assert_eq!(shadow.unwrap_err().code(), Some("not_found"));
    let marker = arena.shared().join(token());
    std::fs::write(&marker, "of the host").expect("the directory is ours");
    let outside = arena.wait(guest.read_file(marker.as_os_str(), None, 64));
    assert_eq!(outside.unwrap_err().code(), Some("not_found"));
    let written = arena.wait(guest.write_file(marker.as_os_str(), b"taken", WriteFile::default()));
    assert!(written.is_err());
    assert_eq!(std::fs::read(&marker).expect("it is there"), b"of the host");
}

#[test]
fn file_api_writes_nothing_to_proc_sys_or_dev() {
    let Some(arena) = Arena::enter() else { return };
    let guest = arena.guest(arena.attacker);
    for path in [
        "/proc/self/oom_score_adj",
        "/proc/sys/kernel/core_pattern",
        "/sys/x",
        "/dev/x",
        "/etc/passwd",
        "/usr/bin/env",
    ] {
        let written =
            arena.wait(guest.write_file(path, b"1", WriteFile { parents: true, ..WriteFile::default() }));
        assert!(written.is_err(), "{path}");
        assert!(arena.wait(guest.remove(path, false)).is_err(), "{path}");
        assert!(arena.wait(guest.rename(path, "/workspace/moved", true)).is_err(), "{path}");
    }
    arena.unharmed();
}

#[test]
fn race_of_links_does_not_lead_a_write_out_of_the_workspace() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest::default());
    let guest = sandbox.guest();
    for target in ["/proc/self/fd", "/etc", "/proc/1/cwd", "/dev"] {
        let (attack, _) = arena.begin(sandbox.id, &["flip", "/workspace/target", "/workspace/decoy", target]);
        let name = token();
        for _ in 0..100 {
            // It lands in the directory or is refused; there is no third way.
            let _ =
                arena.wait(guest.write_file(format!("/workspace/target/{name}"), b"x", WriteFile::default()));
        }
        arena.end(sandbox.id, &attack);
        for place in ["/etc", "/dev", "/proc/self/fd", "/", "/usr"] {
            let found = arena.shell(sandbox.id, &format!("ls -a {place} | grep -c {name}; true"));
            assert_eq!(found.stdout, b"0\n", "{place}");
        }
        assert!(!std::path::Path::new("/etc").join(&name).exists(), "written on the host");
        arena.shell(sandbox.id, "rm -rf /workspace/target /workspace/decoy");
    }
    arena.unharmed();
}

#[test]
fn race_of_links_does_not_lead_a_read_into_pid_1() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest::default());
    let guest = sandbox.guest();
    for target in ["/proc/self/status", "/proc/1/maps", "/proc/self/fd/3"] {
        let (attack, _) = arena.begin(sandbox.id, &["flip-file", "/workspace/target", target]);
        for _ in 0..100 {
            if let Ok(read) = arena.wait(guest.read_file("/workspace/target", None, 1 << 20)) {
                assert_eq!(String::from_utf8_lossy(&read), "harmless");
            }
        }
        arena.end(sandbox.id, &attack);
        arena.shell(sandbox.id, "rm -f /workspace/target*");
    }
    arena.unharmed();
}

#[test]
fn hard_link_is_not_written_through() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest::default());
    arena.shell(sandbox.id, "echo precious > /workspace/precious; ln /workspace/precious /workspace/bait; ln -s precious /workspace/soft");
    for path in ["/workspace/bait", "/workspace/soft"] {
        arena
            .wait(sandbox.guest().write_file(path, b"new", WriteFile::default()))
            .expect("a file can be replaced");
    }
    assert_eq!(arena.shell(sandbox.id, "cat /workspace/precious").stdout, b"precious\n");
}

#[test]
fn archive_of_a_workspace_holds_links_and_not_what_they_lead_to() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest::default());
    arena.shell(
        sandbox.id,
        "mkdir /workspace/out; cd /workspace/out; ln -s /etc/passwd users; ln -s /proc/self/environ env; ln -s / root; \
         mkfifo pipe; echo plain > plain",
    );
    let archive = arena.wait(async {
        let body = sandbox.guest().get_archive("/workspace/out").await.expect("an archive");
        body.collect(1 << 24).await.expect("a short archive")
    });
    let mut archive = tar::Archive::new(archive.as_slice());
    let mut files = Vec::new();
    for entry in archive.entries().expect("an archive") {
        let entry = entry.expect("an entry");
        let path = entry.path().expect("a path").into_owned();
        assert!(
            path.is_relative() && !path.components().any(|part| part.as_os_str() == ".."),
            "{}",
            path.display()
        );
        let kind = entry.header().entry_type();
        assert!(!kind.is_block_special() && !kind.is_character_special(), "{}", path.display());
        if kind.is_file() {
            files.push(path.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    assert_eq!(files, [Some("plain".to_owned())]);
}

#[test]
fn hostile_archive_is_unpacked_nowhere_else() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest::default());
    let name = token();
    let link = |target: &str| {
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        archive.append_link(&mut header, "way", target).expect("memory takes everything");
        let mut header = tar::Header::new_gnu();
        header.set_size(1);
        header.set_mode(0o6755);
        archive.append_data(&mut header, format!("way/{name}"), &b"x"[..]).expect("memory takes everything");
        archive.into_inner().expect("memory takes everything")
    };
    let climbing = |path: &str| {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_size(1);
        header.set_mode(0o6755);
        header.set_cksum();
        let mut archive = tar::Builder::new(Vec::new());
        archive.append(&header, &b"x"[..]).expect("memory takes everything");
        archive.into_inner().expect("memory takes everything")
    };
    let archives = [
        link("/tmp"),
        link("/proc/self/cwd"),
        climbing(&format!("../{name}")),
        climbing(&format!("/tmp/{name}")),
    ];
    arena.shell(sandbox.id, "mkdir /workspace/into");
    for archive in archives {
        let _ = arena.wait(sandbox.guest().put_archive("/workspace/into", &mut archive.as_slice()));
    }
    let found = sandbox.attack(&["find-name", &name]).saw().to_owned();
    for path in found.split(' ').filter(|path| !path.is_empty()) {
        assert!(path.starts_with("/workspace/into/"), "{path}");
    }
    let marked = sandbox.attack(&["find-set-id"]).saw().to_owned();
    assert!(!marked.contains("/workspace"), "{marked}");
}

fn bind(
    arena: &Arena,
    sandbox: SandboxId,
    source: PathBuf,
    target: &str,
    read_only: bool,
) -> Result<(), Kind> {
    let mounts = vec![Mount { source, target: target.into(), read_only }];
    let bound = arena.wait(arena.backend.bind(sandbox, &Binding { mounts, ..Binding::default() }));
    bound.map(drop).map_err(|fault| fault.kind())
}

/// A directory of the host that a sandbox may write.
fn shared_directory(arena: &Arena) -> PathBuf {
    let path = arena.shared().join(token());
    std::fs::create_dir(&path).expect("the directory is ours");
    if arena.backend.facts().privileged {
        std::os::unix::fs::chown(&path, Some(1000), Some(1000)).expect("root can give away");
    }
    path
}

#[test]
fn link_in_the_way_does_not_lead_a_mount_elsewhere() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest::default());
    let source = shared_directory(&arena);
    for target in ["/etc", "/usr/bin", "/proc/self", "/", "/dev/shm"] {
        arena.shell(sandbox.id, &format!("ln -sfn {target} /workspace/way"));
        assert!(bind(&arena, sandbox.id, source.clone(), "/workspace/way", false).is_err(), "{target}");
        assert!(bind(&arena, sandbox.id, source.clone(), "/workspace/way/below", false).is_err(), "{target}");
    }
    let mounts = arena.shell(sandbox.id, "cat /proc/self/mountinfo").stdout;
    assert!(
        !String::from_utf8_lossy(&mounts)
            .contains(&source.file_name().unwrap().to_string_lossy().into_owned())
    );
    arena.unharmed();
}

#[test]
fn race_of_links_does_not_lead_a_mount_elsewhere() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest::default());
    let source = shared_directory(&arena);
    let (attack, _) = arena.begin(sandbox.id, &["flip", "/workspace/way", "/workspace/decoy", "/etc"]);
    for _ in 0..40 {
        let _ = bind(&arena, sandbox.id, source.clone(), "/workspace/way/below", true);
    }
    arena.end(sandbox.id, &attack);
    let mounts =
        String::from_utf8_lossy(&arena.shell(sandbox.id, "cat /proc/self/mountinfo").stdout).into_owned();
    for line in mounts.lines() {
        let point = line.split(' ').nth(4).unwrap_or_default();
        assert!(!point.starts_with("/etc/below"), "{line}");
    }
    assert!(!std::path::Path::new("/etc/below").exists(), "made on the host");
    arena.unharmed();
}

#[test]
fn mount_from_outside_of_what_is_mountable_is_refused() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest::default());
    let link = arena.shared().join(token());
    std::os::unix::fs::symlink("/etc", &link).expect("the directory is ours");
    let sources = [
        "/etc".into(),
        "/".into(),
        "/root".into(),
        arena.data_directory(),
        arena.shared().join("../data"),
        link,
    ];
    for source in sources {
        let shown = source.display().to_string();
        assert!(bind(&arena, sandbox.id, source, "/mnt/taken", true).is_err(), "{shown}");
    }
    assert_eq!(arena.shell(sandbox.id, "ls /mnt/taken 2>/dev/null | wc -l").stdout, b"0\n");
    arena.unharmed();
}

#[test]
fn mount_over_the_system_is_refused() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest::default());
    let source = shared_directory(&arena);
    for target in [
        "/",
        "/etc",
        "/usr/bin",
        "/proc",
        "/dev",
        "/tmp",
        "/home/agent",
        "/mnt",
        "/workspace/../etc",
        "/mnt/../etc",
    ] {
        assert_eq!(bind(&arena, sandbox.id, source.clone(), target, true), Err(Kind::Invalid), "{target}");
    }
    arena.unharmed();
}

#[test]
fn sandbox_cannot_write_to_a_mount_that_is_read_only() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest::default());
    let source = shared_directory(&arena);
    std::fs::write(source.join("given"), "by the host").expect("the directory is ours");
    bind(&arena, sandbox.id, source.clone(), "/mnt/given", true).expect("it can be mounted");
    assert_eq!(arena.shell(sandbox.id, "cat /mnt/given/given").stdout, b"by the host");
    sandbox.attack(&["tamper", "/mnt/given/given"]).refused(&[rustix::io::Errno::ROFS.raw_os_error()]);
    sandbox.attack(&["remount-writable", "/mnt/given"]).refused(&[rustix::io::Errno::PERM.raw_os_error()]);
    sandbox.attack(&["create", "/mnt/given/new"]).refused(&[rustix::io::Errno::ROFS.raw_os_error()]);
    assert_eq!(std::fs::read_dir(&source).expect("it is there").count(), 1);
    arena.unharmed();
}

#[test]
fn sandbox_cannot_write_files_of_root_through_a_mount() {
    let Some(arena) = Arena::enter_as_root() else { return };
    let sandbox = arena.fresh(LimitRequest::default());
    let source = arena.shared().join(token());
    std::fs::create_dir(&source).expect("the directory is ours");
    assert_eq!(bind(&arena, sandbox.id, source, "/mnt/of-root", false), Err(Kind::Denied));
    // A file of root in a directory of the workload stays root's.
    let mixed = shared_directory(&arena);
    std::fs::write(mixed.join("of-root"), "precious").expect("the directory is ours");
    bind(&arena, sandbox.id, mixed.clone(), "/mnt/mixed", false).expect("it can be mounted");
    let outcome =
        arena.shell(sandbox.id, "echo taken > /mnt/mixed/of-root; chmod 777 /mnt/mixed/of-root; true");
    assert_eq!(std::fs::read(mixed.join("of-root")).expect("it is there"), b"precious", "{outcome:?}");
}

#[test]
fn set_id_program_left_in_a_workspace_is_out_of_reach_on_the_host() {
    let Some(arena) = Arena::enter_as_root() else { return };
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let workspace = arena.data_directory().join("workspaces").join(token());
    std::fs::create_dir_all(&workspace).expect("root can write everywhere");
    std::os::unix::fs::chown(&workspace, Some(1000), Some(1000)).expect("root can give away");
    let place = Placement { workspace: Medium::Directory(workspace.clone()), ..placement(fresh_id()) };
    let sandbox = arena.place(place);
    let who = sandbox.attack(&["set-id-copy", "/workspace/set-id"]).saw().to_owned();
    assert!(who.starts_with("Uid: 1000 1000 1000 1000;"), "{who}");
    let planted = std::fs::metadata(workspace.join("set-id")).expect("it is on the disk of the host");
    assert_eq!(planted.uid(), 1000, "files have one canonical user on disk");
    let marked = planted.permissions().mode() & 0o6000 != 0;
    let reachable =
        std::fs::metadata(arena.data_directory()).expect("it is there").permissions().mode() & 0o011 != 0;
    assert!(!(marked && reachable), "any user of the host can run a program as user 1000");
}
