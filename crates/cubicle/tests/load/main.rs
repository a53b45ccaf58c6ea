//! Two hundred clients at once for some time, and then a look at what the server has left and what it has grown to.

#[path = "../host/mod.rs"]
#[allow(dead_code, reason = "other suites use more of it")]
mod host;

#[path = "../api/client.rs"]
#[allow(dead_code, reason = "other suites use more of it")]
mod client;

#[path = "../api/afterwards.rs"]
mod afterwards;
mod crowd;

use std::io::Write;
use std::time::{Duration, Instant};

use client::{Server, eventually};
use crowd::Crowd;

/// Fewer than there are clients, so that some are told that there is no room.
const CAPACITY: &str = "48";

#[test]
fn two_hundred_clients_meet_no_error_and_leave_no_trace() {
    let flags = ["--capacity", CAPACITY, "--pool-size", "8"];
    let Some(server) = Server::start_with(&flags) else { return };
    #[expect(clippy::disallowed_methods, reason = "a test reads how long it is to last")]
    let seconds = std::env::var("CUBICLE_LOAD_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let lasts = Duration::from_secs(seconds);
    eventually("a full pool", || (idle(&server) >= 8).then_some(()));
    let descriptors = descriptors(&server);

    let began = Instant::now();
    let crowd = Crowd::gather(&server);
    crowd.goes_on_until(began + lasts / 4);
    let warm = resident_kb(&server);
    crowd.goes_on_until(began + lasts);
    let last = resident_kb(&server);
    let done = crowd.disperse();
    // Straight to standard error, where it is seen beside the name of the test.
    let _ = writeln!(std::io::stderr(), "load: {done}; resident {warm} kB, later {last} kB");
    assert!(
        done.wrong.is_empty(),
        "{} went wrong: {:#?}",
        done.wrong.len(),
        &done.wrong[..done.wrong.len().min(10)]
    );
    done.everybody_did_something();
    assert!(last < warm + warm / 2 + 20 * 1024, "the server grew from {warm} kB to {last} kB");

    afterwards::nothing_is_left(&server);
    let left = eventually("connections that nobody uses", || {
        let now = self::descriptors(&server);
        (now <= descriptors + 64).then_some(now)
    });
    assert!(left <= descriptors + 64);
}

fn idle(server: &Server) -> usize {
    server.get("/api/v1/sandboxes?state=idle").ok()["items"].as_array().map_or(0, Vec::len)
}

fn resident_kb(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("the server lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

fn descriptors(server: &Server) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("the server is ours").count()
}
