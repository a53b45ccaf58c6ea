use std::io::Read;
use std::os::unix::fs::PermissionsExt;

use cubicle_model::Kind;
use cubicle_workspace::{Condition, EntryKind, SharedWorkspace};
use proptest::prelude::*;

use crate::{name, world};

fn paths(listing: &cubicle_workspace::Listing) -> Vec<&str> {
    listing.entries.iter().map(|entry| entry.path.as_str()).collect()
}

#[test]
fn the_first_use_makes_scripts_data_and_skills() {
    let world = world();
    assert_eq!(paths(&world.tree.list("", false).unwrap()), ["data", "scripts", "skills"]);
    assert!(world.tree.shared_path().join("scripts").is_dir());
}

#[test]
fn what_is_written_is_read_in_whole_and_in_part() {
    let world = world();
    let written = world.tree.write("data/deep/input.csv", b"a,b\n1,2\n").unwrap();
    assert!(written.created && written.size == 8);
    let whole = world.tree.read("/workspace/shared/data/deep/input.csv", 0, None).unwrap();
    assert_eq!(
        (whole.bytes.as_slice(), whole.kind.as_str(), whole.size),
        (&b"a,b\n1,2\n"[..], "text/csv", 8)
    );
    assert_eq!(whole.etag, written.etag);
    assert_eq!(world.tree.read("data/deep/input.csv", 4, Some(3)).unwrap().bytes, b"1,2");
    assert_eq!(world.tree.read("data/deep/input.csv", 99, None).unwrap().bytes, b"");
    assert_eq!(paths(&world.tree.list("data", true).unwrap()), ["data/deep", "data/deep/input.csv"]);
    assert_eq!(world.tree.list("data", false).unwrap().entries[0].kind, EntryKind::Directory);
    assert_eq!(paths(&world.tree.glob("**/*.{csv,md}").unwrap()), ["data/deep/input.csv"]);
    assert!(world.staging_is_empty());
}

#[test]
fn a_tenant_sees_nothing_of_another() {
    let world = world();
    world.tree.write("data/mine", b"x").unwrap();
    let workspace = SharedWorkspace::open(world.directory.path().join("shared")).unwrap();
    let other = workspace.of(&name("other"));
    assert_eq!(other.read("data/mine", 0, None).unwrap_err().kind(), Kind::NotFound);
    for path in ["../../default/shared/data/mine", "/workspace/shared/../../default/shared/data/mine"] {
        assert_eq!(other.read(path, 0, None).unwrap_err().kind(), Kind::Invalid);
        assert_eq!(other.write(path, b"y").unwrap_err().kind(), Kind::Invalid);
    }
}

#[test]
fn the_last_ten_versions_are_kept_and_workers_do_not_see_them() {
    let world = world();
    for number in 0..15 {
        world.tree.write("data/x", format!("{number}").as_bytes()).unwrap();
    }
    let versions = world.tree.versions("data/x").unwrap();
    assert_eq!(
        versions.iter().map(|version| version.version).collect::<Vec<_>>(),
        (5..=14).rev().collect::<Vec<_>>()
    );
    assert_eq!(world.tree.read_version("data/x", 14, 0, None).unwrap().bytes, b"13");
    assert_eq!(world.tree.read_version("data/x", 5, 0, None).unwrap().bytes, b"4");
    assert_eq!(world.tree.read_version("data/x", 4, 0, None).unwrap_err().kind(), Kind::NotFound);
    assert_eq!(paths(&world.tree.list("", true).unwrap()), ["data", "data/x", "scripts", "skills"]);
    assert_eq!(world.tree.versions("data/y").unwrap_err().kind(), Kind::NotFound);
}

#[test]
fn a_deleted_file_can_be_brought_back() {
    let world = world();
    world.tree.write("data/d/x", b"first").unwrap();
    world.tree.write("data/d/x", b"last").unwrap();
    world.tree.write("data/d/e/y", b"other").unwrap();
    world.tree.delete("data/d/x", false, &Condition::Always).unwrap();
    assert_eq!(world.tree.read("data/d/x", 0, None).unwrap_err().kind(), Kind::NotFound);
    let last = world.tree.versions("data/d/x").unwrap()[0].version;
    assert_eq!(world.tree.read_version("data/d/x", last, 0, None).unwrap().bytes, b"last");

    let fault = world.tree.delete("data/d", false, &Condition::Always).unwrap_err();
    assert!(fault.kind() == Kind::Conflict && fault.way_out().unwrap().contains("recursive"));
    assert_eq!(world.tree.delete("data/d", true, &Condition::Always).unwrap().files, 1);
    assert!(world.tree.list("data/d", false).is_err());
    assert_eq!(world.tree.read_version("data/d/e/y", 1, 0, None).unwrap().bytes, b"other");
    assert!(world.staging_is_empty());
    assert_eq!(world.tree.delete("", true, &Condition::Always).unwrap_err().kind(), Kind::Invalid);
}

#[test]
fn a_state_that_was_kept_but_not_replaced_is_no_version() {
    let world = world();
    world.tree.write("data/x", b"old").unwrap();
    world.tree.write("data/x", b"new").unwrap();
    // As if a process was killed after it had kept the file and before it replaced it.
    let history = world.directory.path().join("shared/default/history");
    let versions = std::fs::read_dir(history).unwrap().next().unwrap().unwrap().path();
    std::fs::hard_link(world.tree.shared_path().join("data/x"), versions.join(format!("{:020}", 2))).unwrap();
    assert_eq!(world.tree.versions("data/x").unwrap().len(), 1);
    world.tree.write("data/x", b"newest").unwrap();
    let texts: Vec<_> =
        (1..=2).map(|n| world.tree.read_version("data/x", n, 0, None).unwrap().bytes).collect();
    assert_eq!(texts, [b"old".to_vec(), b"new".to_vec()]);
    assert_eq!(world.tree.versions("data/x").unwrap().len(), 2);
}

#[test]
fn a_file_is_written_only_where_the_condition_holds() {
    let world = world();
    let first = world.tree.write("data/x", b"1").unwrap();
    let write = |condition: Condition| world.tree.write_from("data/x", &mut &b"2"[..], &condition, None);
    assert_eq!(write(Condition::MustBeNew).unwrap_err().kind(), Kind::Conflict);
    let second = write(Condition::Unchanged(first.etag.clone())).unwrap();
    assert_ne!(second.etag, first.etag);
    assert_eq!(write(Condition::Unchanged(first.etag.clone())).unwrap_err().kind(), Kind::Conflict);
    let stale = Condition::Unchanged(first.etag);
    assert_eq!(world.tree.delete("data/x", false, &stale).unwrap_err().kind(), Kind::Conflict);
    world.tree.delete("data/x", false, &Condition::Unchanged(second.etag)).unwrap();
    assert!(world.staging_is_empty());
}

#[test]
fn of_many_writers_that_have_read_the_same_state_one_wins() {
    let world = world();
    let seen = world.tree.write("data/x", b"0").unwrap().etag;
    let winners: usize = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8)
            .map(|number: u8| {
                let (tree, seen) = (world.tree.clone(), seen.clone());
                scope.spawn(move || {
                    tree.write_from("data/x", &mut &[number][..], &Condition::Unchanged(seen), None).is_ok()
                })
            })
            .collect();
        writers.into_iter().map(|writer| usize::from(writer.join().unwrap())).sum()
    });
    assert_eq!(winners, 1);
}

#[test]
fn a_file_is_moved_and_what_it_replaces_is_kept() {
    let world = world();
    world.tree.write("data/a", b"a").unwrap();
    world.tree.write("scripts/b", b"b").unwrap();
    let fault = world.tree.rename("data/a", "scripts/b", false).unwrap_err();
    assert_eq!(fault.kind(), Kind::Conflict);
    world.tree.rename("data/a", "scripts/b", true).unwrap();
    assert_eq!(world.tree.read("scripts/b", 0, None).unwrap().bytes, b"a");
    assert_eq!(world.tree.read_version("scripts/b", 1, 0, None).unwrap().bytes, b"b");
    assert_eq!(world.tree.rename("data/a", "x", false).unwrap_err().kind(), Kind::NotFound);
    world.tree.rename("scripts", "data/new/scripts", false).unwrap();
    assert_eq!(world.tree.read("data/new/scripts/b", 0, None).unwrap().bytes, b"a");
    assert_eq!(world.tree.rename("data", "data/new/data", false).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(world.tree.rename("data", "", false).unwrap_err().kind(), Kind::Invalid);
}

#[test]
fn a_directory_is_not_a_file_and_a_file_is_not_a_directory() {
    let world = world();
    world.tree.write("data/x", b"x").unwrap();
    for path in ["data", "", "data/x/y"] {
        assert_eq!(world.tree.write(path, b"y").unwrap_err().kind(), Kind::Invalid, "{path}");
        assert_eq!(world.tree.read(path, 0, None).unwrap_err().kind(), Kind::Invalid, "{path}");
    }
    assert_eq!(world.tree.list("data/x", false).unwrap_err().kind(), Kind::Invalid);
}

#[test]
fn a_stream_that_breaks_off_leaves_nothing() {
    struct Broken(usize);
    impl Read for Broken {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.0 += 1;
            if self.0 > 3 { Err(std::io::ErrorKind::ConnectionReset.into()) } else { Ok(buffer.len()) }
        }
    }
    let world = world();
    world.tree.write("data/x", b"old").unwrap();
    assert!(world.tree.write_from("data/x", &mut Broken(0), &Condition::Always, None).is_err());
    assert_eq!(world.tree.read("data/x", 0, None).unwrap().bytes, b"old");
    assert!(world.staging_is_empty() && world.tree.versions("data/x").unwrap().is_empty());
}

#[test]
fn a_script_stays_one_that_can_be_run() {
    let world = world();
    let mode = || {
        std::fs::metadata(world.tree.shared_path().join("scripts/run")).unwrap().permissions().mode() & 0o777
    };
    world.tree.write_from("scripts/run", &mut &b"#!"[..], &Condition::Always, Some(true)).unwrap();
    assert_eq!(mode(), 0o755);
    world.tree.write("scripts/run", b"#!x").unwrap();
    assert_eq!(mode(), 0o755);
    world.tree.write_from("scripts/run", &mut &b"#!"[..], &Condition::Always, Some(false)).unwrap();
    assert_eq!(mode(), 0o644);
}

#[test]
fn what_a_killed_process_was_writing_is_removed_after_a_day() {
    let world = world();
    world.tree.list("", false).unwrap();
    let staging = world.directory.path().join("shared/default/staging");
    let old = std::fs::File::create(staging.join("1-0")).unwrap();
    let written = std::fs::metadata(staging.join("1-0")).unwrap().modified().unwrap();
    old.set_modified(written - std::time::Duration::from_secs(25 * 60 * 60)).unwrap();
    std::fs::File::create(staging.join("1-1")).unwrap();
    SharedWorkspace::open(world.directory.path().join("shared")).unwrap();
    let left: Vec<_> = std::fs::read_dir(staging).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["1-1"]);
}

#[test]
fn a_directory_that_cannot_be_used_is_named_with_a_way_out() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let fault = SharedWorkspace::open(file.path().join("shared")).unwrap_err();
    assert!(fault.message().contains(file.path().to_str().unwrap()) && fault.way_out().is_some());
}

#[derive(Debug, Clone)]
enum Step {
    Write(u8, Vec<u8>),
    Delete(u8),
    Move(u8, u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..4_u8, prop::collection::vec(any::<u8>(), 0..20)).prop_map(|(file, bytes)| Step::Write(file, bytes)),
        1 => (0..4_u8).prop_map(Step::Delete),
        1 => (0..4_u8, 0..4_u8).prop_map(|(from, to)| Step::Move(from, to)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// A map of paths to contents, and a list of versions per path, is all there is to it.
    #[test]
    fn it_behaves_as_a_map_with_a_history(steps in prop::collection::vec(step(), 0..40)) {
        let world = world();
        let mut files = std::collections::BTreeMap::<String, Vec<u8>>::new();
        let mut history = std::collections::BTreeMap::<String, Vec<Vec<u8>>>::new();
        let path = |file: u8| format!("d{}/f{file}", file % 2);
        let mut keep = |path: &str, was: Option<Vec<u8>>| {
            history.entry(path.into()).or_default().extend(was);
        };
        for step in steps {
            match step {
                Step::Write(file, bytes) => {
                    world.tree.write(&path(file), &bytes).unwrap();
                    keep(&path(file), files.insert(path(file), bytes));
                }
                Step::Delete(file) => {
                    let deleted = world.tree.delete(&path(file), false, &Condition::Always).is_ok();
                    let was = files.remove(&path(file));
                    prop_assert_eq!(deleted, was.is_some());
                    keep(&path(file), was);
                }
                Step::Move(from, to) => {
                    let moved = world.tree.rename(&path(from), &path(to), true).is_ok();
                    prop_assert_eq!(moved, files.contains_key(&path(from)));
                    if moved && from != to {
                        let bytes = files.remove(&path(from)).unwrap();
                        keep(&path(to), files.insert(path(to), bytes));
                    }
                }
            }
        }
        for (path, bytes) in &files {
            prop_assert_eq!(&world.tree.read(path, 0, None).unwrap().bytes, bytes);
        }
        let listed = world.tree.glob("d?/*").unwrap();
        prop_assert_eq!(paths(&listed), files.keys().map(String::as_str).collect::<Vec<_>>());
        for (path, versions) in &history {
            let expected: Vec<_> = versions.iter().rev().take(10).cloned().collect();
            let found: Vec<_> = world.tree.versions(path).unwrap_or_default().iter()
                .map(|version| world.tree.read_version(path, version.version, 0, None).unwrap().bytes).collect();
            prop_assert_eq!(found, expected, "{}", path);
        }
        prop_assert!(world.staging_is_empty());
    }
}
