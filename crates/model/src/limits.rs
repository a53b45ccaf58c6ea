//! What a sandbox may use.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const GIB: u64 = 1024 * MIB;

/// Below this the guest itself does not fit beside the first process of a workload.
pub const LEAST_MEMORY: u64 = 8 * MIB;
/// pid 1, a shell and one program of its.
pub const LEAST_PIDS: u64 = 4;
/// A thousandth of a core; the kernel's own floor is 1 ms in 100 ms.
pub const LEAST_MILLICPUS: u64 = 10;
pub const LEAST_OPEN_FILES: u64 = 16;
pub const LEAST_JOURNAL: u64 = 64 * KIB;

/// One limit, and whether somebody asked for it: what was asked for is enforced or refused, a default that the
/// host cannot enforce is marked in the receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    pub value: u64,
    pub asked: bool,
}

impl Limit {
    pub const fn asked(value: u64) -> Self {
        Self { value, asked: true }
    }

    pub const fn default(value: u64) -> Self {
        Self { value, asked: false }
    }
}

/// The limits of one sandbox, complete and within their bounds. Sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    pub memory: Limit,
    /// Thousandths of a core.
    pub millicpus: Limit,
    pub pids: Limit,
    pub workspace: Limit,
    /// `/tmp`, `/dev/shm` and `/home/agent` together.
    pub tmp: Limit,
    pub open_files: Limit,
    /// Seconds a sandbox may live before it ends itself, unless its owner extends it.
    pub wall_seconds: Limit,
    pub journal: Limit,
}

/// What a user asks for; `None` takes the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitRequest {
    pub memory: Option<u64>,
    pub millicpus: Option<u64>,
    pub pids: Option<u64>,
    pub workspace: Option<u64>,
    pub tmp: Option<u64>,
    pub open_files: Option<u64>,
    pub wall_seconds: Option<u64>,
    pub journal: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} of {given} is below the least possible, {least}")]
pub struct LimitTooSmall {
    what: &'static str,
    given: u64,
    least: u64,
}

impl Limits {
    /// Completes a request with the defaults and checks what the guest needs for itself.
    pub fn parse(request: &LimitRequest) -> Result<Self, LimitTooSmall> {
        DEFAULT.changed_by(request)
    }

    /// These limits with some changed, as when a ready sandbox is bound to its user.
    pub fn changed_by(self, request: &LimitRequest) -> Result<Self, LimitTooSmall> {
        let pick = |what, given: Option<u64>, current: Limit, least: u64| match given {
            None => Ok(current),
            Some(value) if value >= least => Ok(Limit::asked(value)),
            Some(given) => Err(LimitTooSmall { what, given, least }),
        };
        Ok(Self {
            memory: pick("a memory limit", request.memory, self.memory, LEAST_MEMORY)?,
            millicpus: pick(
                "a CPU limit (thousandths of a core)",
                request.millicpus,
                self.millicpus,
                LEAST_MILLICPUS,
            )?,
            pids: pick("a process limit", request.pids, self.pids, LEAST_PIDS)?,
            workspace: pick("a workspace size", request.workspace, self.workspace, 64 * KIB)?,
            tmp: pick("a tmp size", request.tmp, self.tmp, 64 * KIB)?,
            open_files: pick("an open file limit", request.open_files, self.open_files, LEAST_OPEN_FILES)?,
            wall_seconds: pick("a wall time (seconds)", request.wall_seconds, self.wall_seconds, 1)?,
            journal: pick("a journal size", request.journal, self.journal, LEAST_JOURNAL)?,
        })
    }
}

const DEFAULT: Limits = Limits {
    memory: Limit::default(2 * GIB),
    millicpus: Limit::default(2000),
    pids: Limit::default(512),
    workspace: Limit::default(GIB),
    tmp: Limit::default(512 * MIB),
    open_files: Limit::default(4096),
    wall_seconds: Limit::default(24 * 3600),
    journal: Limit::default(GIB),
};

impl Default for Limits {
    fn default() -> Self {
        DEFAULT
    }
}

/// A size as people write it: `512`, `512k`, `512M`, `2G`, `2GiB`. Units are powers of 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteSize(pub u64);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a size: write a number with an optional unit, as in 512M or 2G")]
pub struct NotASize(String);

impl FromStr for ByteSize {
    type Err = NotASize;

    fn from_str(given: &str) -> Result<Self, NotASize> {
        let refuse = || NotASize(given.into());
        let digits = given.len() - given.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = given.split_at(digits);
        let number: u64 = number.parse().map_err(|_| refuse())?;
        let factor = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" | "ki" | "kib" => KIB,
            "m" | "mb" | "mi" | "mib" => MIB,
            "g" | "gb" | "gi" | "gib" => GIB,
            "t" | "tb" | "ti" | "tib" => 1024 * GIB,
            _ => return Err(refuse()),
        };
        number.checked_mul(factor).map(ByteSize).ok_or_else(refuse)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")];
        match units.into_iter().find(|(size, _)| self.0 >= *size && self.0.is_multiple_of(*size)) {
            Some((size, unit)) => write!(f, "{} {unit}", self.0 / size),
            None => write!(f, "{} B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (given, bytes) in
            [("0", 0), ("512", 512), ("4k", 4096), ("512M", 512 * MIB), ("2GiB", 2 * GIB), ("5Gi", 5 * GIB)]
        {
            assert_eq!(given.parse::<ByteSize>().unwrap().0, bytes, "{given}");
        }
        for given in ["", "M", "-1", "1.5G", "12 parsecs", "99999999999999999999", "99999999999999T"] {
            assert!(given.parse::<ByteSize>().is_err(), "{given}");
        }
    }

    #[test]
    fn a_limit_below_what_the_guest_needs_is_refused_by_name() {
        let request = LimitRequest { memory: Some(4096), ..Default::default() };
        let refusal = Limits::parse(&request).unwrap_err().to_string();
        assert_eq!(refusal, "a memory limit of 4096 is below the least possible, 8388608");
    }

    #[test]
    fn what_was_asked_for_is_marked_as_asked() {
        let limits = Limits::parse(&LimitRequest { pids: Some(64), ..Default::default() }).unwrap();
        assert_eq!(limits.pids, Limit::asked(64));
        assert!(!limits.memory.asked);
    }
}
