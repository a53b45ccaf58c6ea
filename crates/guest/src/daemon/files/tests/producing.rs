use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;

use super::World;
use crate::daemon::execute::check::Given;
use crate::daemon::files::produced::{Found, Scope, produced_in};
use crate::daemon::files::stage::{Fingerprint, Moment, Staged, Staging, stage_in};

fn scope(before: Staged) -> Scope {
    Scope { cwd: "/workspace".into(), output: "/workspace/output".into(), before, ..Scope::default() }
}

/// Everything that was changed from the first file's change on, as when nothing ticked in between.
fn from_the_beginning(world: &World, names: &[&str]) -> Staged {
    let prints = names.iter().map(|name| {
        let path = world.host(&format!("workspace/{name}"));
        Fingerprint::of(&rustix::fs::stat(&path).unwrap())
    });
    Staged { given: prints.collect(), moment: Moment::default() }
}

fn names(found: &Found) -> BTreeSet<&str> {
    found.produced.files_produced.keys().map(String::as_str).collect()
}

#[test]
fn what_was_given_within_the_same_tick_is_not_produced_until_it_is_changed() {
    let world = World::new();
    for name in ["given", "rewritten"] {
        std::fs::write(world.host(&format!("workspace/{name}")), "x").unwrap();
    }
    let before = from_the_beginning(&world, &["given", "rewritten"]);
    std::fs::write(world.host("workspace/rewritten"), "longer").unwrap();
    std::fs::write(world.host("workspace/made"), "").unwrap();
    let found = produced_in(&world.root, &scope(before));
    assert_eq!(names(&found), BTreeSet::from(["made", "rewritten"]));
}

#[test]
fn what_was_told_within_the_same_tick_is_not_told_again() {
    let world = World::new();
    std::fs::write(world.host("workspace/a"), "x").unwrap();
    let first = produced_in(&world.root, &scope(Staged::default()));
    assert_eq!(names(&first), BTreeSet::from(["a"]));
    let next = Scope { told: first.told, ..scope(Staged::default()) };
    assert_eq!(names(&produced_in(&world.root, &next)), BTreeSet::new());
}

#[test]
fn nothing_outside_is_looked_at() {
    let world = World::new();
    std::os::unix::fs::symlink(world.outside.path().join("secrets"), world.host("workspace/up")).unwrap();
    std::os::unix::fs::symlink("../../secrets", world.host("workspace/beside")).unwrap();
    std::os::unix::fs::symlink("/proc/self/environ", world.host("workspace/environ")).unwrap();
    let found = produced_in(&world.root, &Scope { all_files: true, ..scope(Staged::default()) });
    assert_eq!(names(&found), BTreeSet::new());
    let beside = Scope { cwd: "/proc/self".into(), ..scope(Staged::default()) };
    assert_eq!(names(&produced_in(&world.root, &beside)), BTreeSet::new());
}

#[test]
fn a_name_that_is_not_text_is_referred_to() {
    let world = World::new();
    let name = std::ffi::OsStr::from_bytes(b"a\xff");
    std::fs::write(world.host("workspace").join(name), "x").unwrap();
    let found = produced_in(&world.root, &scope(Staged::default())).produced;
    assert_eq!((found.files_produced.len(), found.files_referenced.len()), (0, 1));
    assert_eq!(found.files_referenced[0].path, "/workspace/a\u{fffd}");
}

#[test]
fn an_output_directory_elsewhere_is_looked_at_under_its_own_name() {
    let world = World::new();
    std::fs::create_dir_all(world.host("tmp/results")).unwrap();
    std::fs::write(world.host("tmp/results/r"), "x").unwrap();
    let elsewhere = Scope { output: "/tmp/results".into(), ..scope(Staged::default()) };
    assert_eq!(names(&produced_in(&world.root, &elsewhere)), BTreeSet::from(["results/r"]));
}

#[test]
fn staged_files_stay_below_the_root_whatever_links_say() {
    let world = World::new();
    std::os::unix::fs::symlink("../../secrets", world.host("workspace/out")).unwrap();
    let staging = |name: &str| Staging {
        cwd: "/workspace".into(),
        files: vec![Given { name: name.into(), bytes: b"x".to_vec() }],
        output: "/workspace/output".into(),
        private: "/tmp/.private".into(),
        code_name: "main.py",
        code: "print(1)".into(),
    };
    assert!(stage_in(&world.root, &staging("out/planted")).is_err());
    assert!(!world.outside.path().join("secrets/planted").exists());
    stage_in(&world.root, &staging("in/planted")).unwrap();
    assert_eq!(std::fs::read(world.host("workspace/in/planted")).unwrap(), b"x");
    assert_eq!(std::fs::read(world.host("tmp/.private/main.py")).unwrap(), b"print(1)");
    assert!(world.host("workspace/output").is_dir());
}
