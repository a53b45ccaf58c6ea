//! Signals by name.

use crate::wire::SignalName;

const NAMES: [(&str, i32); 31] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("PWR", 30),
    ("SYS", 31),
];

/// The number of a signal, by its name with or without `SIG`, or as it is.
pub(super) fn number(signal: &SignalName) -> Option<i32> {
    match signal {
        SignalName::Number(number) => (1..=64).contains(number).then_some(*number),
        SignalName::Name(name) => {
            let name = name.to_ascii_uppercase();
            let name = name.strip_prefix("SIG").unwrap_or(&name);
            NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_has_a_number_and_two_names() {
        for name in ["TERM", "SIGTERM", "sigterm"] {
            assert_eq!(number(&SignalName::Name(name.into())), Some(15));
        }
        assert_eq!(number(&SignalName::Number(15)), Some(15));
        for wrong in [SignalName::Number(0), SignalName::Number(-9), SignalName::Number(65)] {
            assert_eq!(number(&wrong), None);
        }
        assert_eq!(number(&SignalName::Name("SIGNOTHING".into())), None);
    }
}
