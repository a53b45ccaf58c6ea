//! A line on the terminal that says how far the measuring is.

use std::io::IsTerminal;

use crate::failure::tell;

/// Shown only where somebody looks: a terminal on stderr.
#[derive(Debug)]
pub(crate) struct Progress {
    shown: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { shown: std::io::stderr().is_terminal() }
    }

    /// Replaces the line.
    pub(crate) fn say(&self, text: &str) {
        if self.shown {
            tell(&format!("\r\x1b[K{text}"));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.say("");
    }
}
