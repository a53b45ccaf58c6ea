//! What the user is told when something goes wrong, and how the program ends.

use std::error::Error;
use std::io::Write;

use anstyle::{AnsiColor, Style};
use cubicle_model::{Fault, Kind};

/// Cubicle itself failed, as with env(1) and timeout(1).
pub(crate) const OWN_FAILURE: i32 = 125;
pub(crate) const NOT_EXECUTABLE: i32 = 126;
pub(crate) const NOT_FOUND: i32 = 127;

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Code(i32),
    /// Dies by this signal, so that a shell sees what it would have seen without the sandbox.
    Signal(i32),
}

/// A failure and the exit code it means.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) fault: Fault,
    pub(crate) code: i32,
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self { fault, code: OWN_FAILURE }
    }
}

/// `error: …`, its causes, and a hint, on stderr; coloured only on a terminal.
pub(crate) fn print(fault: &Fault) {
    let mut stderr = anstream::stderr().lock();
    // Nothing can be told to a user whose stderr is gone.
    _ = write(&mut stderr, fault);
}

fn write(to: &mut impl Write, fault: &Fault) -> std::io::Result<()> {
    let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    let cyan = Style::new().fg_color(Some(AnsiColor::Cyan.into()));
    writeln!(to, "{red}error:{red:#} {}", printable(fault.message()))?;
    let mut cause = fault.source();
    while let Some(error) = cause {
        writeln!(to, "  because: {}", printable(&error.to_string()))?;
        cause = error.source();
    }
    if let Some(hint) = fault.way_out() {
        writeln!(to, "  {cyan}hint:{cyan:#} {}", printable(hint))?;
    }
    Ok(())
}

/// A remark beside the command's own output, on stderr.
pub(crate) fn note(text: &str) {
    tell(&format!("cubicle: {}\n", printable(text)));
}

/// Text on stderr, as it is.
pub(crate) fn tell(text: &str) {
    // Nothing can be told to a user whose stderr is gone.
    _ = anstream::stderr().lock().write_all(text.as_bytes());
}

/// The failure as the only thing on stdout, for programs that asked for JSON.
pub(crate) fn print_json(fault: &Fault) {
    let mut error = serde_json::json!({ "code": fault.kind().code(), "message": fault.message() });
    if let Some(hint) = fault.way_out() {
        error["hint"] = hint.into();
    }
    let text = serde_json::json!({ "error": error }).to_string();
    _ = writeln!(std::io::stdout(), "{text}");
}

/// Text without control characters: parts of messages come out of sandboxes, and a terminal must not obey them.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c.is_control() && c != '\n' && c != '\t' {
                c.escape_default().to_string()
            } else {
                c.to_string()
            }
        })
        .collect()
}

pub(crate) fn invalid(message: impl Into<String>) -> Fault {
    Fault::new(Kind::Invalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(fault: &Fault) -> String {
        let mut stream = anstream::StripStream::new(Vec::new());
        write(&mut stream, fault).unwrap();
        String::from_utf8(stream.into_inner()).unwrap()
    }

    #[test]
    fn an_error_names_its_causes_and_a_way_out() {
        let cause = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let fault = Fault::new(Kind::Denied, "cannot open the box").because(cause).hint("use a key");
        assert_eq!(
            plain(&fault),
            "error: cannot open the box\n  because: permission denied\n  hint: use a key\n"
        );
    }

    #[test]
    fn a_terminal_does_not_obey_what_a_sandbox_put_into_a_message() {
        let fault = Fault::new(Kind::Invalid, "no \u{1b}]0;owned\u{7} here");
        assert_eq!(plain(&fault), "error: no \\u{1b}]0;owned\\u{7} here\n");
    }
}
