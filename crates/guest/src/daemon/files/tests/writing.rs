use std::io::{self, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

use super::{KeepAlive, World};

fn mode(world: &World, path: &str) -> u32 {
    std::fs::metadata(world.host(path)).unwrap().permissions().mode() & 0o7777
}

fn names(world: &World, path: &str) -> Vec<String> {
    let entries = std::fs::read_dir(world.host(path)).unwrap();
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_is_made_replaced_and_keeps_its_mode() {
    let world = World::new();
    assert_eq!(world.put("/files/a.sh?mode=0750", b"one").status, 201);
    assert_eq!(mode(&world, "/workspace/a.sh"), 0o750);
    assert_eq!(world.put("/files/a.sh", b"two").status, 200);
    assert_eq!(mode(&world, "/workspace/a.sh"), 0o750);
    assert_eq!(world.put("/files/b", b"").status, 201);
    assert_eq!(mode(&world, "/workspace/b"), 0o644);
    assert_eq!(world.get("/files/a.sh").body, b"two");
    assert_eq!(names(&world, "/workspace"), ["a.sh", "b"]);
}

#[test]
fn missing_parents_are_made_only_when_asked_for() {
    let world = World::new();
    let refused = world.put("/files/x/y/z", b"1");
    assert_eq!(refused.code(), "not_found");
    assert!(refused.json()["error"]["hint"].as_str().unwrap().contains("parents=true"));
    assert_eq!(world.put("/files/x/y/z?parents=true", b"1").status, 201);
    assert_eq!(world.get("/files/x/y/z").body, b"1");
    assert_eq!(world.put("/files/x/y/z/under?parents=true", b"1").code(), "not_a_directory");
}

#[test]
fn a_link_is_replaced_and_never_written_through() {
    let world = World::new();
    world.put("/files/target", b"old");
    symlink("target", world.host("/workspace/link")).unwrap();
    assert_eq!(world.put("/files/link", b"new").status, 200);
    assert_eq!(world.get("/files/target").body, b"old");
    assert!(!world.host("/workspace/link").is_symlink());
}

#[test]
fn what_must_be_new_is_refused_when_it_is_there() {
    let world = World::new();
    let new = [("If-None-Match", "*")];
    assert_eq!(world.ask("PUT", "/files/a", &new, b"1").status, 201);
    let again = world.ask("PUT", "/files/a", &new, b"2");
    assert_eq!((again.status, again.code().as_str()), (412, "exists"));
    assert_eq!(again.keep_alive, Some(KeepAlive::Yes));
    assert_eq!(world.get("/files/a").body, b"1");
    assert_eq!(world.put("/files//workspace", b"1").code(), "not_a_file");
}

#[test]
fn a_body_that_breaks_off_leaves_the_old_file() {
    struct Breaks(usize);
    impl Read for Breaks {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0 == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.0 -= 1;
            buffer.fill(b'x');
            Ok(buffer.len())
        }
    }
    let world = World::new();
    world.put("/files/a", b"old");
    let broken = world.ask_with("PUT", "/files/a", &[], Some(10_000_000), &mut Breaks(3));
    assert_eq!(broken.keep_alive, None);
    // A body that ends before the promised length is as broken as one that fails.
    let short = world.ask_with("PUT", "/files/a", &[], Some(10), &mut &b"abc"[..]);
    assert_eq!(short.keep_alive, None);
    assert_eq!(world.get("/files/a").body, b"old");
    assert_eq!(names(&world, "/workspace"), ["a"]);
}

#[test]
fn whoever_reads_sees_the_old_contents_or_the_new_ones() {
    let world = World::new();
    let (old, new) = (vec![b'o'; 300_000], vec![b'n'; 200_000]);
    world.put("/files/a", &old);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let seen = std::fs::read(world.host("/workspace/a")).unwrap();
                assert!(seen == old || seen == new, "{} bytes", seen.len());
            }
        });
        for round in 0..200 {
            world.put("/files/a", if round % 2 == 0 { &new } else { &old });
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Runs only where a small file system can be mounted: on it, space really ends.
#[test]
fn a_full_disk_leaves_the_old_file_and_says_so() {
    let world = World::new();
    let workspace = world.host("/workspace");
    let options = c"size=1m";
    let mounted =
        rustix::mount::mount("none", &workspace, "tmpfs", rustix::mount::MountFlags::empty(), Some(options));
    if let Err(errno) = mounted {
        eprintln!("skipped: needs a tmpfs ({errno})");
        return;
    }
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        assert_eq!(world.put("/files/a", b"old").status, 201);
        let full = world.put("/files/a", &vec![b'x'; 3_000_000]);
        assert_eq!((full.status, full.code().as_str()), (507, "no_space"));
        assert_eq!(world.get("/files/a").body, b"old");
        assert_eq!(names(&world, "/workspace"), ["a"]);
        let moved = world.ask("POST", "/files?move=a&to=/tmp/b", &[], b"");
        assert_eq!(moved.status, 200, "a file moves across file systems");
        assert_eq!(world.get("/files//tmp/b").body, b"old");
        assert!(names(&world, "/workspace").is_empty());
        std::fs::create_dir(world.host("/workspace/d")).unwrap();
        assert_eq!(world.ask("POST", "/files?move=d&to=/tmp/d", &[], b"").code(), "other_file_system");
    }));
    rustix::mount::unmount(&workspace, rustix::mount::UnmountFlags::DETACH).unwrap();
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn a_long_body_that_is_refused_costs_the_connection() {
    let world = World::new();
    let refused = world.put("/files/none/a", &vec![0; 3_000_000]);
    assert_eq!(refused.status, 404);
    assert_eq!(refused.keep_alive, Some(KeepAlive::No));
    assert!(refused.head.contains("connection: close"), "{}", refused.head);
}

#[test]
fn removing_takes_trees_only_when_asked_to_and_never_follows_links() {
    let world = World::new();
    world.put("/files/tree/a/b/c?parents=true", b"1");
    world.put("/files/kept", b"1");
    symlink("/workspace/kept", world.host("/workspace/tree/link")).unwrap();
    symlink(world.outside.path().join("secrets"), world.host("/workspace/tree/a/out")).unwrap();
    let refused = world.ask("DELETE", "/files/tree", &[], b"");
    assert_eq!(refused.code(), "not_empty");
    assert_eq!(world.ask("DELETE", "/files/tree?recursive=true", &[], b"").status, 204);
    assert_eq!(names(&world, "/workspace"), ["kept"]);
    assert!(world.outside.path().join("secrets/key").exists());
    assert_eq!(world.ask("DELETE", "/files/tree", &[], b"").code(), "not_found");
    symlink("kept", world.host("/workspace/link")).unwrap();
    assert_eq!(world.ask("DELETE", "/files/link?recursive=true", &[], b"").status, 204);
    assert_eq!(names(&world, "/workspace"), ["kept"]);
    for path in ["/", "/workspace/.", "/workspace/.."] {
        assert_eq!(world.ask("DELETE", &format!("/files/{path}"), &[], b"").code(), "invalid_path", "{path}");
    }
}

#[test]
fn a_tree_deeper_than_any_path_is_removed_or_refused_but_never_hangs() {
    let world = World::new();
    let mut dir = rustix::fs::open(
        world.host("/workspace"),
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY,
        rustix::fs::Mode::empty(),
    )
    .unwrap();
    for _ in 0..1500 {
        rustix::fs::mkdirat(&dir, "d", rustix::fs::Mode::RWXU).unwrap();
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY;
        dir = rustix::fs::openat(&dir, "d", flags, rustix::fs::Mode::empty()).unwrap();
    }
    drop(dir);
    assert_eq!(world.ask("DELETE", "/files/d?recursive=true", &[], b"").status, 204);
    assert!(names(&world, "/workspace").is_empty());
}

#[test]
fn directories_are_made_with_all_above_them() {
    let world = World::new();
    assert_eq!(world.ask("POST", "/files?mkdir=a/b/c&mode=0700", &[], b"").status, 201);
    assert_eq!(mode(&world, "/workspace/a/b/c"), 0o700);
    assert_eq!(world.ask("POST", "/files?mkdir=a/b/c", &[], b"").status, 200);
    world.put("/files/file", b"");
    assert_eq!(world.ask("POST", "/files?mkdir=file", &[], b"").code(), "exists");
    assert_eq!(world.ask("POST", "/files?mkdir=file/below", &[], b"").code(), "not_a_directory");
    symlink("nowhere", world.host("/workspace/dangling")).unwrap();
    assert_eq!(world.ask("POST", "/files?mkdir=dangling/below", &[], b"").code(), "not_found");
    assert!(!world.host("/workspace/nowhere").exists());
}

#[test]
fn moving_takes_the_name_itself() {
    let world = World::new();
    world.put("/files/a", b"1");
    world.put("/files/b", b"2");
    assert_eq!(world.ask("POST", "/files?move=a&to=b&replace=false", &[], b"").code(), "exists");
    assert_eq!(world.ask("POST", "/files?move=a&to=b", &[], b"").status, 200);
    assert_eq!(world.get("/files/b").body, b"1");
    assert_eq!(world.ask("POST", "/files?move=a&to=c", &[], b"").code(), "not_found");
    symlink("b", world.host("/workspace/link")).unwrap();
    assert_eq!(world.ask("POST", "/files?move=link&to=moved", &[], b"").status, 200);
    assert!(world.host("/workspace/moved").is_symlink());
    assert_eq!(world.ask("POST", "/files?move=b&to=x/y&parents=true", &[], b"").status, 200);
    assert_eq!(world.ask("POST", "/files?move=x&to=x/y/z", &[], b"").status, 409);
}
