//! Two sandboxes that must know nothing of each other.

use cubicle_backend::Backend;
use cubicle_backend_local::{LocalBackend, Options};
use cubicle_model::Lifetime;

use crate::arena::{Arena, fresh_id, host_processes, intruder, placement, skip, token};

#[test]
fn sandbox_cannot_find_files_of_another_sandbox() {
    let Some(arena) = Arena::enter() else { return };
    let token = token();
    for place in ["/workspace", "/tmp", "/dev/shm", "/home/agent", "/var/tmp"] {
        arena.shell(arena.neighbour, &format!("touch {place}/{token}"));
    }
    assert_eq!(arena.attack(&["find-name", &token]).saw(), "");
}

#[test]
fn sandbox_cannot_use_shared_memory_of_another_sandbox() {
    let Some(arena) = Arena::enter() else { return };
    let made = arena.shell(arena.neighbour, "ipcmk -M 4096 -p 666 && ipcmk -Q -p 666 && ipcmk -S 1 -p 666");
    if made.exit != cubicle_model::Exit::Code(0) {
        return skip("the host has no ipcmk");
    }
    let seen = arena.shell(arena.attacker, "ipcs -m -q -s | grep -c 0x; true");
    assert_eq!(String::from_utf8_lossy(&seen.stdout), "0\n");
    arena.unharmed();
}

/// The user that a program of this sandbox has on the host.
fn user_on_the_host(arena: &Arena, backend: &LocalBackend, sandbox: cubicle_model::SandboxId) -> u32 {
    let token = token();
    let guest = backend.guest(sandbox);
    let spec = cubicle_model::ExecSpec::new(cubicle_model::Command::Argv(
        ["/bin/sh", "-c", "sleep 30; true", &token].map(str::to_owned).into(),
    ));
    let started = arena.wait(guest.exec_in_background(&spec)).expect("a program starts");
    let user = host_processes(&token).first().map(|(_, user)| *user);
    arena.wait(guest.end(started.exec_id, Some(std::time::Duration::ZERO))).expect("it can be ended");
    user.expect("the program is seen on the host")
}

#[test]
fn two_sandboxes_have_no_user_in_common() {
    let Some(arena) = Arena::enter_as_root() else { return };
    let one = user_on_the_host(&arena, &arena.backend, arena.attacker);
    let other = user_on_the_host(&arena, &arena.backend, arena.neighbour);
    assert_ne!(one, other);
    // Far from every user that a host has or a directory service hands out.
    assert!(one >= 0x7000_0000 && other >= 0x7000_0000, "{one} {other}");
}

#[test]
fn two_instances_have_no_user_in_common() {
    let Some(arena) = Arena::enter_as_root() else { return };
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let (other, place) = arena.wait(async {
        let other =
            LocalBackend::open(Options::new(directory.path().join("data"))).await.expect("a second instance");
        let place = placement(fresh_id());
        other.ensure(&place).await.expect("a sandbox can be made");
        (other, place)
    });
    let here = user_on_the_host(&arena, &arena.backend, arena.attacker);
    let there = user_on_the_host(&arena, &other, place.id);
    assert!(here.abs_diff(there) >= 2 && here >> 16 != there >> 16, "{here} and {there} are of one block");
    arena.wait(other.destroy(place.id)).expect("a sandbox can be destroyed");
}

#[test]
fn instance_cannot_touch_sandboxes_of_another_instance() {
    let Some(arena) = Arena::enter() else { return };
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let other = arena
        .wait(LocalBackend::open(Options::new(directory.path().join("data"))))
        .expect("a second instance");
    arena.wait(other.destroy(arena.attacker)).expect("what is absent is destroyed");
    arena.wait(other.gc()).expect("a sweep");
    assert!(arena.wait(other.observe(arena.attacker)).expect("it can be looked for").is_none());
    assert!(arena.wait(other.guest(arena.attacker).health()).is_err());
    arena.unharmed();
}

#[test]
fn sandbox_cannot_read_what_the_one_before_it_left() {
    let Some(arena) = Arena::enter() else { return };
    let token = token();
    let before = arena.fresh(Default::default());
    arena.shell(
        before.id,
        &format!("for d in /workspace /tmp /dev/shm /home/agent; do echo {token} > $d/{token}; done"),
    );
    drop(before);
    let after = arena.fresh(Default::default());
    assert_eq!(after.attack(&["find-name", &token]).saw(), "");
}

#[test]
fn sandbox_cannot_be_reached_with_the_key_of_another() {
    let Some(arena) = Arena::enter() else { return };
    let key = arena.wait(arena.backend.connect(arena.neighbour)).expect("a stream").key;
    let attacker = arena.attacker;
    let stream = arena.wait(arena.backend.connect(attacker)).expect("a stream").stream;
    let stream = std::sync::Mutex::new(Some(stream));
    let connect = move || {
        let stream = stream.lock().expect("nobody panics with the lock").take();
        async move { stream.ok_or_else(|| std::io::Error::other("only once")) }
    };
    let guest = cubicle_guest::client::Guest::new(connect, key, attacker, |buffer| buffer.fill(7));
    let refused = arena.wait(guest.health()).expect_err("a wrong key is refused");
    assert!(
        matches!(
            refused,
            cubicle_guest::client::ClientError::Hello(_) | cubicle_guest::client::ClientError::Unavailable(_)
        ),
        "{refused:?}"
    );
    arena.unharmed();
}

#[test]
fn durable_sandbox_is_as_closed_as_a_bound_one() {
    let Some(arena) = Arena::enter() else { return };
    let place = cubicle_model::Placement { lifetime: Lifetime::Durable, ..placement(fresh_id()) };
    let sandbox = arena.place(place);
    assert_eq!(sandbox.attack(&["pid-1-files"]).saw(), "");
    assert_eq!(sandbox.attack(&["find-sockets"]).saw(), "");
    let outcome = arena.run(sandbox.id, &intruder(&["capability-sets"]));
    assert_eq!(String::from_utf8_lossy(&outcome.stdout).matches("0000000000000000").count(), 5);
}
