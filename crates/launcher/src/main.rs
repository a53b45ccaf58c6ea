//! `cubicle-launcher serve` with its caller on standard input, or `cubicle-launcher attempts` inside a sandbox.

use std::os::fd::OwnedFd;
use std::process::ExitCode;

use cubicle_launcher::{attempts, serve, wire::Channel};

/// The one of musl asks the kernel for memory and gives it back for almost every request; this one keeps it.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("serve") => match take_caller().and_then(|caller| serve(Channel::new(caller))) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        Some("attempts") => match serde_json::to_writer(std::io::stdout(), &attempts::make_all()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        _ => {
            eprintln!("cubicle-launcher is started by cubicle: try 'cubicle --help'");
            ExitCode::FAILURE
        }
    }
}

/// Standard input becomes `/dev/null`, so that nothing that is forked later reads from the caller by mistake.
fn take_caller() -> std::io::Result<OwnedFd> {
    let caller = cubicle_sys::descriptors::inherited(0)?;
    let moved = rustix::io::fcntl_dupfd_cloexec(&caller, 3)?;
    let null = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    // The number now belongs to standard input again.
    std::mem::forget(caller);
    Ok(moved)
}
