//! A disk that is full while execs print, and then is not.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::{Value, json};

use crate::client::{Server, With, eventually};
use crate::host::Host;

const DISK: usize = 48 << 20;
/// More than the disk has room for when it is nearly full, and less than the journal of a sandbox takes.
const PRINTED: u64 = 12_000_000;

/// A file system of its own below the data directory.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Option<Self> {
        std::fs::create_dir_all(at).expect("the directory is ours");
        let options = std::ffi::CString::new(format!("size={DISK},mode=0755")).expect("no zero byte");
        mount("tmpfs", at, "tmpfs", MountFlags::empty(), Some(options.as_c_str())).ok()?;
        Some(Self(at.to_owned()))
    }

    /// Leaves so many bytes free.
    fn fill(&self, but_for: u64) -> PathBuf {
        let path = self.0.join("filler");
        let mut filler = std::fs::File::create(&path).expect("the disk has room");
        let piece = vec![0; 64 * 1024];
        while self.free() > but_for && filler.write_all(&piece).is_ok() {}
        path
    }

    fn free(&self) -> u64 {
        let seen = rustix::fs::statvfs(&self.0).expect("it is mounted");
        seen.f_bavail * seen.f_frsize
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// How many bytes of standard output a stream of frames holds, and how many it says are lost.
fn kept_and_lost(frames: impl BufRead) -> (u64, u64) {
    let (mut kept, mut lost) = (0, 0);
    for line in frames.lines() {
        let frame: Value = serde_json::from_str(&line.expect("the stream goes on")).expect("a frame is JSON");
        match frame["kind"].as_str() {
            Some("stdout") => kept += frame["content"].as_str().expect("zeros are text").len() as u64,
            Some("lost") => lost += frame["data"]["stdout"].as_u64().expect("a number"),
            _ => {}
        }
    }
    (kept, lost)
}

fn skipped(reason: &str) {
    let test = std::thread::current().name().unwrap_or("a test").replace("::", "/");
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}

#[test]
fn a_full_disk_is_told_loses_nothing_acknowledged_and_is_got_over() {
    let Some(host) = Host::new() else { return };
    if !rustix::process::geteuid().is_root() {
        return skipped("only root can mount a file system that is soon full");
    }
    let Some(disk) = SmallDisk::mount(&host.data_dir()) else {
        return skipped("no tmpfs can be mounted here");
    };
    let server = Server::start_on(host, &["--pool-size", "1"], &[]);
    let before = server.post("/api/v1/execs", &json!({ "command": "echo before" })).ok();
    let (lease, sandbox) = server.lease(&json!({}));
    let execs = format!("/api/v1/sandboxes/{sandbox}/execs");
    let asked = json!({
        "command": format!("until [ -e go ]; do sleep 0.05; done; head -c {PRINTED} /dev/zero; echo written >&2; exit 4"),
        "background": true,
    });
    let flood = server.post(&execs, &asked).ok()["exec_id"].as_str().expect("an id").to_owned();

    let filler = disk.fill(1 << 20);
    // The workspace is not on this disk; that it was written may not be noted.
    let go = format!("/api/v1/sandboxes/{sandbox}/files?path=go");
    let answer = server.request("PUT", &go, b"", &With::default());
    assert!([200, 503].contains(&answer.status), "{answer:?}");
    let output = format!("/api/v1/execs/{flood}/output");
    let (kept, lost) = kept_and_lost(server.stream(&output, &[("accept", "application/x-ndjson")]));
    assert!(lost > 0, "the disk was not full");
    assert_eq!(kept + lost, PRINTED, "what is neither kept nor named is missing");
    // Whoever asks for something that has to be written down is told, or it is done; never a fault of the server.
    let refused = eventually("a full disk", || {
        let answer = server.post("/api/v1/leases", &json!({ "ttl_seconds": 60 }));
        assert!([200, 201, 503, 429].contains(&answer.status), "{answer:?}");
        (answer.status == 503).then_some(answer)
    });
    assert_eq!(refused.refused(503), "unavailable");
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.get(&format!("/api/v1/leases/{lease}")).ok()["status"], "ACTIVE");

    std::fs::remove_file(filler).expect("the disk is ours");
    let ended = eventually("the end of a flood", || {
        let exec = server.get(&format!("/api/v1/execs/{flood}")).ok();
        (exec["state"] == "ended").then_some(exec)
    });
    let result = &ended["result"];
    assert_eq!(
        (&result["exit"], &result["stdout_bytes"]),
        (&json!({ "code": 4 }), &json!(PRINTED)),
        "{ended}"
    );
    let again = kept_and_lost(server.stream(&output, &[("accept", "application/x-ndjson")]));
    assert_eq!(again, (kept, lost));

    eventually("a server that works again", || {
        (server.post("/api/v1/execs", &json!({ "command": "echo after" })).status == 200).then_some(())
    });
    assert_eq!(server.prints(&sandbox, "echo usable"), "usable\n");
    let before = format!("/api/v1/execs/{}/output", before["exec_id"].as_str().expect("an id"));
    assert_eq!(server.get(&before).text, "before\n");
    server.delete(&format!("/api/v1/leases/{lease}")).ok();
    eventually("a destroyed sandbox", || {
        (server.get(&format!("/api/v1/sandboxes/{sandbox}")).ok()["state"] == "gone").then_some(())
    });
    let after = server.get(&format!("{output}?stream=stderr"));
    assert_eq!(after.text, "written\n", "the journal was not kept whole");
    drop(server);
    drop(disk);
}
