//! What a worker may leave in its directory.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use cubicle_model::Kind;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::{World, task, world};

fn with_task() -> (World, PathBuf) {
    let world = world();
    let directory = world.tree.create_task(task(1), "x", &[]).unwrap().directory;
    (world, directory)
}

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
}

#[test]
fn links_lead_nowhere() {
    let (world, directory) = with_task();
    let secret = world.directory.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    let output = directory.join("output");
    symlink("/etc/passwd", output.join("summary.md")).unwrap();
    symlink(&secret, directory.join("status.json")).unwrap();
    symlink("/etc", output.join("etc")).unwrap();
    symlink("../../..", output.join("up")).unwrap();
    symlink("/proc/self", output.join("proc")).unwrap();
    assert_eq!(world.tree.output_files(task(1)).unwrap(), []);
    for name in ["summary.md", "etc/passwd", "up/secret", "proc/environ"] {
        let kind = world.tree.open_output(task(1), name).unwrap_err().kind();
        assert!(matches!(kind, Kind::Denied | Kind::Invalid), "{name}: {kind:?}");
    }
    assert_eq!(world.tree.status(task(1)).unwrap_err().kind(), Kind::Denied);
    assert_eq!(world.tree.save_outputs(task(1)).unwrap(), Vec::<String>::new());

    // The whole directory, too.
    fs::remove_dir_all(&output).unwrap();
    symlink("/etc", &output).unwrap();
    assert_eq!(world.tree.output_files(task(1)).unwrap(), []);
    assert_eq!(world.tree.open_output(task(1), "passwd").unwrap_err().kind(), Kind::NotFound);

    world.tree.remove_task(task(1)).unwrap();
    assert!(secret.exists() && Path::new("/etc/passwd").exists() && !directory.exists());
}

#[test]
fn a_pipe_is_not_waited_for() {
    let (world, directory) = with_task();
    fifo(&directory.join("status.json"));
    fifo(&directory.join("events.jsonl"));
    fifo(&directory.join("output/summary.md"));
    assert_eq!(world.tree.status(task(1)).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(
        world.tree.read_task_file(task(1), "events.jsonl", 0, None).unwrap_err().kind(),
        Kind::Invalid
    );
    assert_eq!(world.tree.open_output(task(1), "summary.md").unwrap_err().kind(), Kind::Invalid);
    assert_eq!(world.tree.output_files(task(1)).unwrap(), []);
    assert_eq!(world.tree.save_outputs(task(1)).unwrap(), Vec::<String>::new());
    world.tree.remove_task(task(1)).unwrap();
}

#[test]
fn a_status_that_is_none_is_a_fault() {
    let (world, directory) = with_task();
    let status = directory.join("status.json");
    for text in ["", "null", "{}", "{\"status\": \"success\"}", "\u{feff}", &"[".repeat(100_000)] {
        fs::write(&status, text).unwrap();
        assert_eq!(world.tree.status(task(1)).unwrap_err().kind(), Kind::Invalid);
    }
    File::create(&status).unwrap().set_len(5 << 30).unwrap();
    let fault = world.tree.status(task(1)).unwrap_err();
    assert!(fault.kind() == Kind::Invalid && fault.message().contains("bytes"), "{fault}");
    fs::remove_file(&status).unwrap();
    fs::create_dir(&status).unwrap();
    assert_eq!(world.tree.status(task(1)).unwrap_err().kind(), Kind::Invalid);
}

#[test]
fn a_file_of_five_gigabytes_is_told_of_and_neither_read_nor_copied() {
    let (world, directory) = with_task();
    File::create(directory.join("output/huge")).unwrap().set_len(5 << 30).unwrap();
    let files = world.tree.output_files(task(1)).unwrap();
    assert_eq!((files[0].name.as_str(), files[0].size), ("huge", 5 << 30));
    let piece = world.tree.read_task_file(task(1), "output/huge", 0, None).unwrap();
    assert_eq!((piece.bytes.len(), piece.size), (16 << 20, 5 << 30));
    assert_eq!(world.tree.save_outputs(task(1)).unwrap_err().kind(), Kind::Invalid);
    assert!(world.staging_is_empty());
    assert_eq!(world.tree.list("tasks", true).unwrap_err().kind(), Kind::NotFound);
}

#[test]
fn a_hundred_thousand_files_are_capped_and_removed() {
    let (world, directory) = with_task();
    let output = directory.join("output");
    for number in 0..100_000 {
        File::create(output.join(format!("{number}"))).unwrap();
    }
    assert_eq!(world.tree.output_files(task(1)).unwrap().len(), 10_000);
    world.tree.remove_task(task(1)).unwrap();
    assert!(!directory.exists() && world.staging_is_empty());
}

#[test]
fn a_tree_deeper_than_any_path_is_removed() {
    let (world, directory) = with_task();
    let mut here =
        rustix::fs::open(directory.join("output"), rustix::fs::OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..3000 {
        rustix::fs::mkdirat(&here, "d", Mode::from_raw_mode(0o755)).unwrap();
        here = rustix::fs::openat(&here, "d", rustix::fs::OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    drop(here);
    assert_eq!(world.tree.output_files(task(1)).unwrap(), []);
    world.tree.remove_task(task(1)).unwrap();
    assert!(!directory.exists() && world.staging_is_empty());
}

#[test]
fn names_that_are_not_text_do_no_harm() {
    let (world, directory) = with_task();
    let output = directory.join("output");
    for name in [&b"\xff\xfe"[..], b"a\nb", b"-rf", b"...", b" ", b"\x1b[31m"] {
        fs::write(output.join(OsStr::from_bytes(name)), "x").unwrap();
    }
    fs::create_dir(output.join(OsStr::from_bytes(b"\xffd"))).unwrap();
    let names: Vec<_> = world.tree.output_files(task(1)).unwrap().into_iter().map(|file| file.name).collect();
    assert_eq!(names, ["\x1b[31m", " ", "-rf", "...", "a\nb"].map(String::from));
    world.tree.save_outputs(task(1)).unwrap();
    world.tree.remove_task(task(1)).unwrap();
    assert!(!directory.exists());
}

#[test]
fn what_was_closed_is_removed_all_the_same() {
    let (world, directory) = with_task();
    let closed = directory.join("output/closed/inner");
    fs::create_dir_all(&closed).unwrap();
    fs::write(closed.join("x"), "x").unwrap();
    for path in [closed.as_path(), closed.parent().unwrap(), &directory] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o000)).unwrap();
    }
    world.tree.remove_task(task(1)).unwrap();
    assert!(!directory.exists() && world.staging_is_empty());
}

#[test]
fn a_directory_that_is_swapped_for_a_link_meanwhile_gives_nothing_away() {
    let (world, directory) = with_task();
    let outside = world.directory.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("note"), "secret").unwrap();
    let (real, link) = (directory.join("output/d"), directory.join("output/l"));
    fs::create_dir(&real).unwrap();
    fs::write(real.join("note"), "public").unwrap();
    symlink(&outside, &link).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            use rustix::fs::{RenameFlags, renameat_with};
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                renameat_with(CWD, &real, CWD, &link, RenameFlags::EXCHANGE).unwrap();
            }
        });
        for _ in 0..300 {
            for name in ["d/note", "l/note"] {
                if let Ok(mut file) = world.tree.open_output(task(1), name) {
                    let mut text = String::new();
                    std::io::Read::read_to_string(&mut file, &mut text).unwrap();
                    assert_eq!(text, "public");
                }
            }
            let files = world.tree.output_files(task(1)).unwrap();
            assert!(files.len() <= 2 && files.iter().all(|file| file.size == 6), "{files:?}");
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
