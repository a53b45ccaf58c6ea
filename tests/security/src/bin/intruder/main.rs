//! A hostile program: it is put into a sandbox, is told which attack to make, makes it for real, and says in one line
//! of JSON what came of it. It never decides whether that is good or bad; the tests do.
//!
//! Attacks are system calls with arguments that no library would pass, so this program talks to the kernel directly.
//! Its `unsafe` is in `kernel` and nowhere else.

mod exhaustion;
mod identity;
mod kernel;
mod mounts;
mod network;
mod paths;
mod processes;
mod walk;

use serde_json::json;

/// What an attack came to: what was gained, or the error number that refused it.
type Outcome = Result<String, i32>;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, arguments)) = arguments.split_first() else {
        eprintln!("intruder ATTACK [ARGUMENT]...");
        std::process::exit(2);
    };
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let parts = [
        mounts::attack,
        kernel::attack,
        identity::attack,
        processes::attack,
        network::attack,
        paths::attack,
        exhaustion::attack,
        walk::attack,
    ];
    let Some(outcome) = parts.iter().find_map(|part| part(name, &arguments)) else {
        eprintln!("there is no attack called {name}");
        std::process::exit(2);
    };
    let line = match outcome {
        Ok(got) => json!({ "gained": true, "got": got }),
        Err(errno) => json!({ "gained": false, "errno": errno }),
    };
    println!("{line}");
}
