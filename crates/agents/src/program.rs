//! Programs of the host that fetch things. They are given words, never a shell's text.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cubicle_model::{Fault, Kind};

/// The first of this name in `PATH`.
pub(crate) fn find(path: &str, name: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let is_program = |candidate: &PathBuf| {
        std::fs::metadata(candidate)
            .is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
    };
    path.split(':')
        .filter(|part| part.starts_with('/'))
        .map(|part| Path::new(part).join(name))
        .find(is_program)
}

/// What it printed.
pub(crate) fn output(program: &Path, arguments: &[&str]) -> Result<String, Fault> {
    #[expect(
        clippy::disallowed_methods,
        reason = "npm and curl know how this host reaches others; no server runs this"
    )]
    let mut command = Command::new(program);
    let ran = command.args(arguments).stdin(Stdio::null()).output();
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let ran = ran.map_err(|error| {
        Fault::new(Kind::Internal, format!("{} cannot be started", program.display())).because(error)
    })?;
    if ran.status.success() {
        return Ok(String::from_utf8_lossy(&ran.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&ran.stderr);
    let said: Vec<_> = said.lines().filter(|line| !line.contains("warn")).take(6).collect();
    Err(Fault::new(Kind::Unavailable, format!("{name} failed: {}", said.join("; "))))
}
