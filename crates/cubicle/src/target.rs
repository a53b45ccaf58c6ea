//! What a command is about: ids of different kinds, and places of files.

use std::path::PathBuf;
use std::str::FromStr;

use cubicle_model::{ExecId, LeaseId, SandboxId};

/// A sandbox, by itself or by the lease that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Sandbox(SandboxId),
    Lease(LeaseId),
}

/// What can be ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Victim {
    Exec(ExecId),
    Target(Target),
}

/// Whose bill it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    Lease(LeaseId),
    Exec(ExecId),
}

/// Where a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Here(PathBuf),
    /// Standard input or output.
    Stream,
    Inside {
        target: Target,
        path: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{given}' is not {expected}")]
pub(crate) struct NotAnId {
    given: String,
    expected: &'static str,
}

impl FromStr for Target {
    type Err = NotAnId;

    fn from_str(given: &str) -> Result<Self, NotAnId> {
        let sandbox = given.parse().map(Self::Sandbox).ok();
        sandbox.or_else(|| given.parse().map(Self::Lease).ok()).ok_or_else(|| NotAnId {
            given: given.into(),
            expected: "the id of a sandbox (sbx-…) or of a lease (lease-…); a command comes after '--'",
        })
    }
}

impl FromStr for Victim {
    type Err = NotAnId;

    fn from_str(given: &str) -> Result<Self, NotAnId> {
        let exec = given.parse().map(Self::Exec).ok();
        exec.or_else(|| given.parse().map(Self::Target).ok()).ok_or_else(|| NotAnId {
            given: given.into(),
            expected: "the id of an exec (exec-…), a lease (lease-…) or a sandbox (sbx-…)",
        })
    }
}

impl FromStr for Subject {
    type Err = NotAnId;

    fn from_str(given: &str) -> Result<Self, NotAnId> {
        let lease = given.parse().map(Self::Lease).ok();
        lease.or_else(|| given.parse().map(Self::Exec).ok()).ok_or_else(|| NotAnId {
            given: given.into(),
            expected: "the id of a lease (lease-…) or of an exec (exec-…)",
        })
    }
}

impl FromStr for Place {
    type Err = NotAnId;

    /// A file of this machine whose name looks like an id is written with a path, as in ./sbx-…:name.
    fn from_str(given: &str) -> Result<Self, NotAnId> {
        if given == "-" {
            return Ok(Self::Stream);
        }
        if let Some((before, path)) = given.split_once(':')
            && (before.starts_with("sbx-") || before.starts_with("lease-"))
        {
            let target = before.parse()?;
            return Ok(Self::Inside { target, path: inside(path) });
        }
        match given {
            "" => Err(NotAnId { given: String::new(), expected: "a path" }),
            _ => Ok(Self::Here(given.into())),
        }
    }
}

/// Absolute; what is relative is in the workspace. A slash at the end stays, because it means a directory.
fn inside(path: &str) -> String {
    match path {
        "" => "/workspace/".into(),
        path if path.starts_with('/') => path.into(),
        path => format!("/workspace/{path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_told_apart() {
        let (sandbox, lease, exec) =
            (SandboxId::from_random([1; 16]), LeaseId::from_random([2; 16]), ExecId::from_random([3; 16]));
        assert_eq!(sandbox.to_string().parse(), Ok(Target::Sandbox(sandbox)));
        assert_eq!(lease.to_string().parse(), Ok(Target::Lease(lease)));
        assert!(exec.to_string().parse::<Target>().is_err());
        assert_eq!(exec.to_string().parse(), Ok(Victim::Exec(exec)));
        assert_eq!(lease.to_string().parse(), Ok(Victim::Target(Target::Lease(lease))));
        assert!("ls".parse::<Victim>().is_err());
    }

    #[test]
    fn a_place_is_here_or_inside() {
        let id = SandboxId::from_random([1; 16]);
        let at = |path: &str| Place::Inside { target: Target::Sandbox(id), path: path.into() };
        let table = [
            ("-".to_owned(), Place::Stream),
            ("a:b".to_owned(), Place::Here("a:b".into())),
            (format!("{id}:/tmp/x"), at("/tmp/x")),
            (format!("{id}:x/y"), at("/workspace/x/y")),
            (format!("{id}:"), at("/workspace/")),
            (format!("./{id}:x"), Place::Here(format!("./{id}:x").into())),
        ];
        for (given, place) in table {
            assert_eq!(given.parse(), Ok(place), "{given}");
        }
        assert!("sbx-1:/x".parse::<Place>().is_err());
    }
}
