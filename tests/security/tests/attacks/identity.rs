//! Becoming somebody else.

use cubicle_guest::client::WriteFile;
use rustix::io::Errno;

use crate::arena::{Arena, report};

const EPERM: i32 = Errno::PERM.raw_os_error();
const EINVAL: i32 = Errno::INVAL.raw_os_error();
const EACCES: i32 = Errno::ACCESS.raw_os_error();

#[test]
fn sandbox_cannot_become_root() {
    let Some(arena) = Arena::enter() else { return };
    // Where there is no user 0 inside, the kernel calls it an invalid one.
    arena.attack(&["become-user", "0"]).refused(&[EPERM, EINVAL]);
}

#[test]
fn sandbox_cannot_become_a_user_of_the_host() {
    let Some(arena) = Arena::enter() else { return };
    for user in ["1", "33", "1001", "65534", "1879048192"] {
        arena.attack_from(arena.attacker, &["become-user", user]).refused(&[EPERM, EINVAL]);
    }
    arena.unharmed();
}

#[test]
fn sandbox_cannot_access_files_as_root() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["file-user"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_join_groups() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["groups"]).refused(&[EPERM]);
    let groups = arena.attack(&["status", "Groups"]).saw().trim().to_owned();
    // An ordinary user cannot leave its groups, and all of them are nobody's inside.
    let nobodys = groups.trim_start_matches("Groups:").split_whitespace().all(|group| group == "65534");
    assert!(nobodys, "{groups}");
}

#[test]
fn sandbox_cannot_regain_capabilities() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["capabilities"]).refused(&[EPERM]);
    let sets = arena.attack(&["capability-sets"]).saw().to_owned();
    assert_eq!(sets.matches("0000000000000000").count(), 5, "{sets}");
}

#[test]
fn sandbox_cannot_make_namespaces_by_unshare() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["namespaces-by-unshare"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_make_namespaces_by_clone() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["namespaces-by-clone"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_hide_flags_in_clone3() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["clone3"]).refused(&[Errno::NOSYS.raw_os_error()]);
}

#[test]
fn sandbox_cannot_enter_namespaces() {
    let Some(arena) = Arena::enter() else { return };
    for name in ["user", "mnt", "pid", "net", "cgroup"] {
        arena
            .attack_from(arena.attacker, &["enter-namespace", &format!("/proc/self/ns/{name}")])
            .refused(&[EPERM]);
        let of_init = format!("/proc/1/ns/{name}");
        arena.attack_from(arena.attacker, &["enter-namespace", &of_init]).refused(&[EACCES, EPERM]);
    }
    arena.unharmed();
}

#[test]
fn sandbox_cannot_map_users_into_its_namespace() {
    let Some(arena) = Arena::enter() else { return };
    for (name, text) in [("uid_map", "0 0 1\n"), ("gid_map", "0 0 1\n"), ("setgroups", "allow")] {
        let path = format!("/proc/self/{name}");
        arena.attack_from(arena.attacker, &["write", &path, text]).refused(&[EPERM, EACCES]);
    }
    arena.unharmed();
}

#[test]
fn sandbox_cannot_gain_anything_from_a_set_id_program_of_its_own() {
    let Some(arena) = Arena::enter() else { return };
    for place in ["/workspace/set-id", "/tmp/set-id", "/dev/shm/set-id", "/home/agent/set-id"] {
        let who = arena.attack_from(arena.attacker, &["set-id-copy", place]).saw().to_owned();
        assert_eq!(
            who,
            "Uid: 1000 1000 1000 1000; Gid: 1000 1000 1000 1000; CapEff: 0000000000000000; NoNewPrivs: 1"
        );
    }
    arena.unharmed();
}

#[test]
fn sandbox_cannot_gain_anything_from_set_id_programs_of_the_system() {
    let Some(arena) = Arena::enter() else { return };
    let programs = arena.attack(&["find-set-id"]).saw().to_owned();
    let script = format!(
        "for program in {programs}; do echo x | $program -c 'id -u' root 2>/dev/null; done; su -c 'id -u' 2>/dev/null; true"
    );
    let outcome = arena.shell(arena.attacker, &script);
    let shown = String::from_utf8_lossy(&outcome.stdout);
    assert!(!shown.lines().any(|line| line.trim() == "0"), "somebody became root: {shown}");
    // Every mount on which one of them lies ignores the mark.
    let mounts = arena.shell(arena.attacker, "grep -v nosuid /proc/self/mountinfo; true");
    assert_eq!(String::from_utf8_lossy(&mounts.stdout), "");
    arena.unharmed();
}

#[test]
fn sandbox_cannot_give_a_file_capabilities() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["file-capability", "/workspace/capable"]).refused(&[EPERM]);
}

#[test]
fn sandbox_cannot_give_files_to_root() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["give-away", "/workspace/gift"]).refused(&[EPERM, EINVAL]);
}

#[test]
fn file_api_makes_no_set_id_programs() {
    let Some(arena) = Arena::enter() else { return };
    let guest = arena.guest(arena.attacker);
    let how = WriteFile { mode: Some(0o4755), ..WriteFile::default() };
    let refused = arena.wait(guest.write_file("/workspace/set-id-by-api", b"#!/bin/sh\n", how));
    assert_eq!(refused.unwrap_err().code(), Some("invalid_query"));
}

#[test]
fn file_api_acts_as_the_workload_and_not_as_pid_1() {
    let Some(arena) = Arena::enter() else { return };
    let guest = arena.guest(arena.attacker);
    arena
        .wait(guest.write_file("/workspace/by-api", b"x", WriteFile::default()))
        .expect("a file can be written");
    let owner = arena.shell(arena.attacker, "stat -c %u:%g /workspace/by-api; chmod 000 /workspace/by-api");
    assert_eq!(String::from_utf8_lossy(&owner.stdout), "1000:1000\n");
    let read = arena.wait(guest.read_file("/workspace/by-api", None, 16));
    assert_eq!(read.unwrap_err().code(), Some("permission_denied"));
}

#[test]
fn sandbox_is_the_same_user_in_every_exec() {
    let Some(arena) = Arena::enter() else { return };
    let outcome = arena.run(arena.attacker, &crate::arena::intruder(&["who"]));
    assert_eq!(
        report(&outcome).saw(),
        "Uid: 1000 1000 1000 1000; Gid: 1000 1000 1000 1000; CapEff: 0000000000000000; NoNewPrivs: 1"
    );
}
