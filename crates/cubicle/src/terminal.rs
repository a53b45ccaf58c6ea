//! The caller's terminal: its size, and handing every key to the command.

use cubicle_model::{Fault, Kind, TtySize};
use rustix::termios::{LocalModes, OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};

/// The size of the terminal that the caller looks at, if there is one.
pub(crate) fn size() -> Option<TtySize> {
    let stdout = tcgetwinsize(rustix::stdio::stdout());
    let size = stdout.or_else(|_| tcgetwinsize(rustix::stdio::stdin())).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some(TtySize { rows: size.ws_row, columns: size.ws_col })
}

/// The terminal hands on every key unchanged for as long as this lives. Dropping it gives the terminal back as it
/// was, also when the program panics; only a kill -9 leaves it raw (`stty sane` helps).
#[derive(Debug)]
pub(crate) struct RawMode {
    before: Termios,
}

impl RawMode {
    /// `None` where stdin is no terminal: then there is nothing to change.
    pub(crate) fn enter() -> Result<Option<Self>, Fault> {
        let stdin = rustix::stdio::stdin();
        if !isatty(stdin) {
            return Ok(None);
        }
        let refused = |errno| {
            Fault::new(Kind::Internal, "cannot change the terminal's mode")
                .because(std::io::Error::from(errno))
        };
        let before = tcgetattr(stdin).map_err(refused)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin, OptionalActions::Drain, &raw).map_err(refused)?;
        Ok(Some(Self { before }))
    }
}

/// The terminal does not show what is typed for as long as this lives.
#[derive(Debug)]
pub(crate) struct Silence {
    before: Termios,
}

impl Silence {
    pub(crate) fn keep() -> Result<Self, Fault> {
        let stdin = rustix::stdio::stdin();
        let refused = |errno| {
            Fault::new(Kind::Internal, "the terminal would show what is typed")
                .because(std::io::Error::from(errno))
        };
        let before = tcgetattr(stdin).map_err(refused)?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(stdin, OptionalActions::Flush, &silent).map_err(refused)?;
        Ok(Self { before })
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        // A terminal that is gone needs no mode.
        _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Drain, &self.before);
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // A terminal that is gone needs no mode.
        _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Drain, &self.before);
    }
}
