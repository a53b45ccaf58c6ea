//! The server is killed at named steps and at random, under load, and started again. Then everything is counted.

#[path = "../host/mod.rs"]
#[allow(dead_code, reason = "other suites use more of it")]
mod host;

#[path = "../api/client.rs"]
#[allow(dead_code, reason = "other suites use more of it")]
mod client;

#[path = "../api/afterwards.rs"]
mod afterwards;
mod load;
mod reckoning;

use std::time::Duration;

use client::Server;

/// Where a server can be between two facts, and how often it has been there when it is killed.
const STEPS: [(&str, u32); 14] = [
    ("lease_acquired", 1),
    ("lease_acquired", 5),
    ("sandbox_noted", 3),
    ("sandbox_made", 1),
    ("sandbox_made", 4),
    ("sandbox_bound", 1),
    ("exec_noted", 2),
    ("exec_started", 3),
    ("exec_ended", 2),
    ("exec_end_noted", 2),
    ("lease_ended", 2),
    ("journal_kept", 2),
    ("journal_noted", 2),
    ("sandbox_destroyed", 2),
];

#[test]
fn a_server_crash_at_any_named_step_loses_and_leaves_nothing() {
    let Some(mut server) = Server::start_with(&["--pool-size", "3"]) else { return };
    let load = load::Load::start(&server);
    for (step, times) in STEPS {
        server.kill();
        server.start_again_with(&[("CUBICLE_KILL_AT", &format!("{step}:{times}"))]);
        server.wait_for_death(step);
        server.start_again();
    }
    reckoning::settle(&mut server, load);
}

#[test]
fn a_server_crash_at_any_moment_loses_and_leaves_nothing() {
    let Some(mut server) = Server::start_with(&["--pool-size", "3"]) else { return };
    #[expect(clippy::disallowed_methods, reason = "a test reads how often it is to kill")]
    let kills =
        std::env::var("CUBICLE_CHAOS_POINTS").ok().and_then(|points| points.parse().ok()).unwrap_or(200);
    let load = load::Load::start(&server);
    let mut pause = 0x9e37_79b9_u32;
    for _ in 0..kills {
        // A different moment each time, and the same ones in every run.
        pause = pause.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        std::thread::sleep(Duration::from_millis(u64::from(pause >> 24)));
        server.kill();
        server.start_again();
    }
    reckoning::settle(&mut server, load);
}
