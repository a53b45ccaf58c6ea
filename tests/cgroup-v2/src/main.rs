//! Everything that runs in the virtual machine of the cgroup v2 tests, as one static program: the machine's init, the
//! suites it starts one after the other, and the commands that the suites run inside sandboxes.

mod check;
mod commands;
mod ground;
mod init;
mod limited;
mod suites;
mod unlimited;

use std::process::ExitCode;

/// Where the program lies in the machine, and so in its sandboxes too.
const PROGRAM: &str = "/usr/bin/cgroup2-machine";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["suite", name] => suites::run(name),
        ["inside", command @ ..] => commands::run(command),
        _ if std::process::id() == 1 => init::run(),
        _ => {
            eprintln!(
                "this is the init of a virtual machine; 'cargo test -p cubicle-tests-cgroup2' boots it"
            );
            ExitCode::FAILURE
        }
    }
}
