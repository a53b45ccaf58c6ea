use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::super::{KeepAlive, serve_in};
use super::{World, request};

/// The lines of a watch, read as they come. A line that does not come within the bound fails the test.
struct Lines(BufReader<UnixStream>);

impl Lines {
    fn next(&mut self) -> serde_json::Value {
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            assert!(!line.is_empty(), "the watch ended");
            if line.starts_with('{') {
                return serde_json::from_str(&line).unwrap();
            }
        }
    }

    /// Reads until a line with this event and path.
    fn until(&mut self, event: &str, path: &str) {
        while self.next() != serde_json::json!({"event": event, "path": path}) {}
    }
}

fn watching(world: &World, target: &str, test: impl FnOnce(&mut Lines)) -> KeepAlive {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let request = request("GET", target, &[], None);
    std::thread::scope(|scope| {
        let served =
            scope.spawn(move || serve_in(&world.root, &request, &mut std::io::empty(), &mut ours).unwrap());
        let mut lines = Lines(BufReader::new(theirs));
        assert_eq!(lines.next()["event"], "watching");
        test(&mut lines);
        drop(lines);
        served.join().unwrap()
    })
}

#[test]
fn changes_are_told_as_they_happen_until_the_client_hangs_up() {
    let world = World::new();
    let ended = watching(&world, "/watch?path=/workspace", |lines| {
        std::fs::write(world.host("/workspace/a"), "1").unwrap();
        lines.until("created", "/workspace/a");
        lines.until("modified", "/workspace/a");
        std::fs::rename(world.host("/workspace/a"), world.host("/workspace/b")).unwrap();
        let moved = serde_json::json!({"event": "moved", "path": "/workspace/a", "to": "/workspace/b"});
        assert_eq!(lines.next(), moved);
        std::fs::rename(world.host("/workspace/b"), world.host("/tmp/b")).unwrap();
        lines.until("removed", "/workspace/b");
        std::fs::rename(world.host("/tmp/b"), world.host("/workspace/c")).unwrap();
        lines.until("created", "/workspace/c");
        std::fs::remove_file(world.host("/workspace/c")).unwrap();
        lines.until("removed", "/workspace/c");
    });
    assert_eq!(ended, KeepAlive::No);
}

#[test]
fn a_file_written_through_the_api_is_one_change_under_its_own_name() {
    let world = World::new();
    watching(&world, "/watch?path=/workspace", |lines| {
        world.put("/files/a", b"contents");
        assert_eq!(lines.next(), serde_json::json!({"event": "created", "path": "/workspace/a"}));
    });
}

#[test]
fn new_directories_are_watched_too_when_asked_to() {
    let world = World::new();
    std::fs::create_dir(world.host("/workspace/old")).unwrap();
    watching(&world, "/watch?path=/workspace&recursive=true", |lines| {
        std::fs::write(world.host("/workspace/old/a"), "").unwrap();
        lines.until("created", "/workspace/old/a");
        // Made in one go: what is in there before the watch is, is told as well.
        std::fs::create_dir_all(world.host("/workspace/new/deep")).unwrap();
        std::fs::write(world.host("/workspace/new/deep/b"), "").unwrap();
        lines.until("created", "/workspace/new/deep/b");
        std::fs::rename(world.host("/workspace/new"), world.host("/workspace/renamed")).unwrap();
        std::fs::write(world.host("/workspace/renamed/deep/c"), "").unwrap();
        lines.until("created", "/workspace/renamed/deep/c");
    });
}

#[test]
fn the_watch_ends_with_its_directory() {
    let world = World::new();
    std::fs::create_dir(world.host("/workspace/d")).unwrap();
    let ended = watching(&world, "/watch?path=d", |lines| {
        std::fs::remove_dir(world.host("/workspace/d")).unwrap();
        lines.until("removed", "/workspace/d");
        let mut rest = String::new();
        // The answer is complete, and the connection can be used again.
        lines.0.read_line(&mut rest).unwrap();
        lines.0.by_ref().take(5).read_to_string(&mut rest).unwrap();
        assert!(rest.ends_with("0\r\n\r\n"), "{rest:?}");
    });
    assert_eq!(ended, KeepAlive::Yes);
}

#[test]
fn what_cannot_be_watched_is_refused() {
    let world = World::new();
    world.put("/files/file", b"");
    assert_eq!(world.get("/watch?path=file").code(), "not_a_directory");
    assert_eq!(world.get("/watch?path=none").code(), "not_found");
    assert_eq!(world.get("/watch").code(), "invalid_query");
}
