//! What a sandbox says is hostile, too.

use cubicle_guest::client::OutputLimits;
use cubicle_model::{Command, ExecSpec, Exit, LimitRequest};

use crate::arena::{Arena, intruder};

#[test]
fn terminal_escapes_in_output_pass_unchanged_and_are_safe_as_json() {
    let Some(arena) = Arena::enter() else { return };
    let hostile = b"\x1b]0;owned\x07\x1b[2J\x9b31m\x00\xff\xfe\r\n\"}{";
    let octal: String = hostile.iter().map(|byte| format!("\\{byte:03o}")).collect();
    let outcome = arena.shell(arena.attacker, &format!("printf '{octal}'; printf '{octal}' >&2"));
    assert_eq!(outcome.stdout, hostile);
    assert_eq!(outcome.stderr, hostile);
    let json = serde_json::to_string(&String::from_utf8_lossy(&outcome.stdout)).expect("any text is JSON");
    assert!(!json.bytes().any(|byte| byte.is_ascii_control()), "{json}");
}

#[test]
fn refusal_never_carries_terminal_escapes() {
    let Some(arena) = Arena::enter() else { return };
    let program = "/workspace/\u{1b}]0;owned\u{7}\u{1b}[2J";
    let spec = ExecSpec::new(Command::Argv(vec![program.into()]));
    let refusal = arena
        .wait(arena.guest(arena.attacker).run(&spec, OutputLimits::default()))
        .expect_err("it is not there");
    assert!(!refusal.to_string().chars().any(char::is_control), "{refusal:?}");
    let refusal =
        arena.wait(arena.guest(arena.attacker).read_file(program, None, 16)).expect_err("it is not there");
    assert!(!refusal.to_string().chars().any(char::is_control), "{refusal:?}");
}

#[test]
fn names_of_files_with_terminal_escapes_are_listed_as_they_are() {
    let Some(arena) = Arena::enter() else { return };
    let sandbox = arena.fresh(LimitRequest::default());
    arena.shell(sandbox.id, r#"mkdir /workspace/names; touch "$(printf '/workspace/names/\033[2J\n"}')""#);
    let listing = arena.wait(sandbox.guest().list("/workspace/names", false)).expect("it can be listed");
    assert_eq!(listing.entries.len(), 1);
    assert_eq!(listing.entries[0].name, "\u{1b}[2J\n\"}");
}

#[test]
fn output_over_the_cap_of_its_reader_is_cut_and_said_so() {
    let Some(arena) = Arena::enter() else { return };
    let limits = OutputLimits { stdout: 1000, stderr: 10 };
    let outcome = arena.wait(arena.guest(arena.attacker).run(&intruder(&["shout", "5000000"]), limits));
    let outcome = outcome.expect("the exec runs");
    assert_eq!((outcome.stdout.len(), outcome.stdout_truncated), (1000, true));
    assert_eq!(outcome.written.stdout, 5_000_000);
    assert_eq!(outcome.exit, Exit::Code(0));
}

#[test]
fn file_that_claims_to_be_huge_does_not_use_up_the_memory_of_its_reader() {
    let Some(arena) = Arena::enter() else { return };
    arena.shell(arena.attacker, "truncate -s 500M /workspace/huge");
    let guest = arena.guest(arena.attacker);
    let refused = arena.wait(guest.read_file("/workspace/huge", None, 1024 * 1024));
    assert!(matches!(refused, Err(cubicle_guest::client::ClientError::TooLong { .. })), "{refused:?}");
    let part = arena.wait(guest.read_file("/workspace/huge", Some(0..16), 16)).expect("a part can be read");
    assert_eq!(part, [0; 16]);
    arena.shell(arena.attacker, "rm /workspace/huge");
}
