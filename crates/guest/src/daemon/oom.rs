//! How often the kernel killed something in the sandbox because it was out of memory.

use std::os::fd::OwnedFd;

/// A cgroup file with a line `oom_kill N`, read anew each time.
#[derive(Debug)]
pub(super) struct OomCounter(Option<OwnedFd>);

impl OomCounter {
    pub(super) fn new(file: Option<OwnedFd>) -> Self {
        Self(file)
    }

    /// Zero where the host does not count.
    pub(super) fn count(&self) -> u64 {
        let Some(file) = &self.0 else { return 0 };
        let mut bytes = [0; 512];
        let Ok(read) = rustix::io::pread(file, &mut bytes, 0) else { return 0 };
        parse(&bytes[..read]).unwrap_or(0)
    }
}

fn parse(bytes: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn both_versions_of_cgroups_are_read() {
        assert_eq!(parse(b"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), Some(3));
        assert_eq!(parse(b"low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n"), Some(1));
        assert_eq!(parse(b""), None);
    }
}
