//! Devices and terminals.

use cubicle_model::{ExecSpec, Exit, LimitRequest, TtySize};
use rustix::io::Errno;

use crate::arena::{Arena, intruder, report};

const EPERM: i32 = Errno::PERM.raw_os_error();

#[test]
fn sandbox_cannot_make_device_nodes() {
    let Some(arena) = Arena::enter() else { return };
    for place in ["/workspace", "/tmp", "/dev/shm", "/home/agent"] {
        arena.attack_from(arena.attacker, &["devices", place]).refused(&[EPERM]);
    }
    arena.unharmed();
}

#[test]
fn sandbox_cannot_find_devices_but_the_harmless_ones() {
    let Some(arena) = Arena::enter() else { return };
    let found = arena.attack(&["find-devices"]).saw().to_owned();
    let harmless =
        ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts/ptmx"];
    for path in found.split(' ') {
        let is_own_terminal = path.strip_prefix("/dev/pts/").is_some_and(|name| name.parse::<u32>().is_ok());
        assert!(harmless.contains(&path) || is_own_terminal, "{path} is there");
    }
}

#[test]
fn sandbox_cannot_see_the_devices_of_the_machine() {
    let Some(arena) = Arena::enter() else { return };
    assert_eq!(arena.attack(&["list", "/sys"]).saw(), "");
    let names = arena.attack(&["list", "/dev"]).saw().to_owned();
    assert_eq!(names, "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero");
}

#[test]
fn sandbox_cannot_feed_the_random_numbers_of_the_host() {
    let Some(arena) = Arena::enter() else { return };
    arena.attack(&["entropy"]).refused(&[EPERM]);
}

fn on_a_terminal(attack: &str) -> ExecSpec {
    ExecSpec { tty: Some(TtySize::default()), ..intruder(&[attack]) }
}

#[test]
fn sandbox_cannot_type_into_a_terminal() {
    let Some(arena) = Arena::enter() else { return };
    report(&arena.run(arena.attacker, &on_a_terminal("type-into-terminal"))).refused(&[EPERM]);
    arena.unharmed();
}

#[test]
fn sandbox_cannot_load_line_disciplines() {
    let Some(arena) = Arena::enter() else { return };
    report(&arena.run(arena.attacker, &on_a_terminal("line-discipline"))).refused(&[EPERM]);
    arena.unharmed();
}

#[test]
fn sandbox_cannot_take_the_terminals_of_others() {
    let Some(arena) = Arena::enter() else { return };
    let greedy = arena.fresh(LimitRequest::default());
    let (one, count) = arena.begin(greedy.id, &["terminals"]);
    let (other, more) = arena.begin(greedy.id, &["terminals"]);
    let spec = ExecSpec { tty: Some(TtySize::default()), ..intruder(&["processes"]) };
    let neighbour = arena.wait(arena.guest(arena.neighbour).run(&spec, Default::default()));
    let host = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY);
    arena.end(greedy.id, &one);
    arena.end(greedy.id, &other);
    let neighbour = neighbour.map(|outcome| outcome.exit);
    assert!(
        matches!(neighbour, Ok(Exit::Code(0))),
        "after one sandbox took {count} and {more} terminals another gets none: {neighbour:?}"
    );
    assert!(host.is_ok(), "the host gets no terminal: {host:?}");
    arena.unharmed();
}
