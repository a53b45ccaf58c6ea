//! What the suites run inside sandboxes; the machine has no other programs.

use std::process::{Child, Command, ExitCode, Stdio};

use crate::PROGRAM;

const MIB: usize = 1024 * 1024;

pub(crate) fn run(command: &[&str]) -> ExitCode {
    match command {
        ["say", word] => println!("{word}"),
        ["show", path] => match std::fs::read_to_string(path) {
            Ok(text) => print!("{text}"),
            Err(error) => println!("{error}"),
        },
        ["eat", mebibytes] => eat(mebibytes.parse().unwrap_or(0)),
        ["fork", most] => println!("{}", fork_until_refused(most.parse().unwrap_or(0))),
        ["spin"] => loop {
            std::hint::spin_loop();
        },
        ["wait"] => loop {
            std::thread::park();
        },
        other => {
            eprintln!("there is no command {other:?}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Uses so much memory, page by page.
fn eat(mebibytes: usize) {
    let mut eaten = Vec::new();
    for _ in 0..mebibytes {
        eaten.push(vec![1_u8; MIB]);
    }
    println!("{}", std::hint::black_box(eaten).len());
}

/// Starts processes that stay, and says how many it got.
fn fork_until_refused(most: usize) -> usize {
    let mut children: Vec<Child> = Vec::new();
    while children.len() < most {
        #[expect(clippy::disallowed_methods, reason = "this is the fork bomb of a test")]
        let started = Command::new(PROGRAM).args(["inside", "wait"]).stdin(Stdio::null()).spawn();
        match started {
            Ok(child) => children.push(child),
            Err(_) => break,
        }
    }
    let started = children.len();
    for child in &mut children {
        let _ = child.kill();
        let _ = child.wait();
    }
    started
}
