//! Limits of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Every lease, reader and connection holds descriptors, and a usual soft limit is 1024. Says how many there may be.
pub(crate) fn allow_many_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    // With fewer it serves fewer.
    _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
