//! Values as people write them on a command line or in `cubicle.toml`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use cubicle_model::CredentialBinding;
use cubicle_model::egress::{HostName, NotAHost};

/// A span of time: `5` (seconds), `1.5s`, `500ms`, `10m`, `2h`, `1d`. Never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotASpan {
    #[error("'{0}' is not a time: write a number with an optional unit, as in 5, 1.5s, 500ms, 10m, 2h or 1d")]
    Unreadable(String),
    #[error("a time of zero would end everything at once: leave it out for no limit")]
    Zero,
}

impl FromStr for Span {
    type Err = NotASpan;

    fn from_str(given: &str) -> Result<Self, NotASpan> {
        let unreadable = || NotASpan::Unreadable(given.into());
        let (number, unit) = split_number(given).ok_or_else(unreadable)?;
        let factor = match unit {
            "" | "s" => 1.0,
            "ms" => 0.001,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            _ => return Err(unreadable()),
        };
        let span = Duration::try_from_secs_f64(number * factor).map_err(|_| unreadable())?;
        if span.is_zero() { Err(NotASpan::Zero) } else { Ok(Self(span)) }
    }
}

/// Where a secret goes: `api.example`, `api.example:8443`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) host: HostName,
    pub(crate) port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotADestination {
    #[error(transparent)]
    Host(#[from] NotAHost),
    #[error("'{0}' is not a port: expected 1 to 65535")]
    Port(String),
}

impl FromStr for Destination {
    type Err = NotADestination;

    fn from_str(given: &str) -> Result<Self, NotADestination> {
        let (host, port) = match given.split_once(':') {
            Some((host, text)) => {
                let port = text.parse().ok().filter(|port| *port > 0);
                (host, port.ok_or_else(|| NotADestination::Port(text.into()))?)
            }
            None => (given, CredentialBinding::PORT),
        };
        Ok(Self { host: host.parse()?, port })
    }
}

/// A number of cores, in thousandths: `2`, `0.5`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cores {
    pub(crate) millicpus: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a number of cores: write a positive number, as in 0.5 or 2")]
pub(crate) struct NotCores(String);

impl FromStr for Cores {
    type Err = NotCores;

    fn from_str(given: &str) -> Result<Self, NotCores> {
        const MOST: f64 = 1_000_000.0;
        match split_number(given) {
            Some((number, "")) if number > 0.0 && number <= MOST => {
                Ok(Self { millicpus: (number * 1000.0).round() as u64 })
            }
            _ => Err(NotCores(given.into())),
        }
    }
}

/// `NAME=VALUE`, or `NAME` alone for the value it has in the caller's own environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) value: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' does not set a variable: write NAME=VALUE, or NAME to hand on your own value")]
pub(crate) struct NotAVariable(String);

impl FromStr for Variable {
    type Err = NotAVariable;

    fn from_str(given: &str) -> Result<Self, NotAVariable> {
        let (name, value) = match given.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (given, None),
        };
        if name.is_empty() || given.contains('\0') {
            return Err(NotAVariable(given.into()));
        }
        Ok(Self { name: name.into(), value })
    }
}

/// `SRC:DST`: a file of the host, and where it goes in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileCopy {
    pub(crate) source: PathBuf,
    pub(crate) target: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotAFileCopy {
    #[error("'{0}' does not name a file and its place: write SRC:DST, as in main.py:/workspace/main.py")]
    Unreadable(String),
    #[error("'{0}' has '..' in it: write the place in the sandbox without it")]
    Climbs(String),
}

impl FromStr for FileCopy {
    type Err = NotAFileCopy;

    /// The last colon separates, so that a source may have colons in it.
    fn from_str(given: &str) -> Result<Self, NotAFileCopy> {
        let unreadable = || NotAFileCopy::Unreadable(given.into());
        let (source, target) = given.rsplit_once(':').ok_or_else(unreadable)?;
        if source.is_empty() || target.is_empty() || target.ends_with('/') {
            return Err(unreadable());
        }
        if target.split('/').any(|part| part == "..") {
            return Err(NotAFileCopy::Climbs(target.into()));
        }
        let target = if target.starts_with('/') { target.into() } else { format!("/workspace/{target}") };
        Ok(Self { source: source.into(), target })
    }
}

/// Digits with at most one point, and what follows them. Signs, exponents and words for infinity are not numbers
/// that people write here.
fn split_number(given: &str) -> Option<(f64, &str)> {
    let end = given.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(given.len());
    let (number, unit) = given.split_at(end);
    number.parse().ok().map(|number| (number, unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let table = [
            ("5", 5000),
            ("1.5s", 1500),
            ("500ms", 500),
            (".5", 500),
            ("10m", 600_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("365d", 31_536_000_000),
        ];
        for (given, milliseconds) in table {
            assert_eq!(given.parse(), Ok(Span(Duration::from_millis(milliseconds))), "{given}");
        }
    }

    #[test]
    fn what_is_not_a_time_is_refused() {
        for given in
            ["", "s", "-1", "1e9", "inf", "nan", "5 s", "1h30", "5x", "1.2.3", "9".repeat(40).as_str()]
        {
            assert_eq!(given.parse::<Span>(), Err(NotASpan::Unreadable(given.into())), "{given}");
        }
        for given in ["0", "0s", "0.0", "0ms"] {
            assert_eq!(given.parse::<Span>(), Err(NotASpan::Zero), "{given}");
        }
    }

    #[test]
    fn a_secret_goes_to_a_host_and_a_port() {
        for (given, host, port) in [("a.example", "a.example", 443), ("A.example:80", "a.example", 80)] {
            let expected = Destination { host: host.parse().unwrap(), port };
            assert_eq!(given.parse(), Ok(expected), "{given}");
        }
        for given in ["", ":443", "a.example:", "a.example:0", "a.example:65536", "https://a.example", "*.a"]
        {
            assert!(given.parse::<Destination>().is_err(), "{given}");
        }
    }

    #[test]
    fn cores_are_positive_numbers() {
        for (given, millicpus) in [("1", 1000), ("0.5", 500), ("2.25", 2250), ("64", 64_000)] {
            assert_eq!(given.parse(), Ok(Cores { millicpus }), "{given}");
        }
        for given in ["", "0", "-1", "two", "1c", "inf", "9999999999"] {
            assert!(given.parse::<Cores>().is_err(), "{given}");
        }
    }

    #[test]
    fn a_variable_has_a_name_and_perhaps_a_value() {
        let set =
            |name: &str, value: Option<&str>| Variable { name: name.into(), value: value.map(Into::into) };
        assert_eq!("A=1".parse(), Ok(set("A", Some("1"))));
        assert_eq!("A=".parse(), Ok(set("A", Some(""))));
        assert_eq!("A=b=c".parse(), Ok(set("A", Some("b=c"))));
        assert_eq!("A".parse(), Ok(set("A", None)));
        for given in ["", "=1", "A=\0"] {
            assert!(given.parse::<Variable>().is_err(), "{given:?}");
        }
    }

    #[test]
    fn a_file_goes_from_the_host_to_a_place_in_the_sandbox() {
        let table = [
            ("a.py:/workspace/a.py", "a.py", "/workspace/a.py"),
            ("a.py:b.py", "a.py", "/workspace/b.py"),
            ("/tmp/a:b:/tmp/c", "/tmp/a:b", "/tmp/c"),
        ];
        for (given, source, target) in table {
            let expected = FileCopy { source: source.into(), target: target.into() };
            assert_eq!(given.parse(), Ok(expected), "{given}");
        }
        for given in ["", "a.py", ":/x", "a.py:", "a.py:/workspace/"] {
            assert_eq!(given.parse::<FileCopy>(), Err(NotAFileCopy::Unreadable(given.into())), "{given}");
        }
        assert!(matches!("a:/workspace/../etc/b".parse::<FileCopy>(), Err(NotAFileCopy::Climbs(_))));
    }
}
