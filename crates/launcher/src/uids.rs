//! Users of the host that belong to one instance alone.
//!
//! Every instance claims a block of 65,536 numbers that no other program hands out, under a lock that the whole host
//! shares. The first is the user that the caller becomes; slot n has the next two after `2 n`.

use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use cubicle_model::{InstanceId, Kind};
use rustix::fs::{FlockOperation, flock};

use crate::error::{Failed, Step};

/// systemd's table of ids leaves the numbers from here to 2³¹ to nobody.
const FIRST: u32 = 0x7000_0000;
const BLOCK: u32 = 0x1_0000;
const BLOCKS: u32 = 4096;
/// How many sandboxes of one instance can exist at once.
pub const SLOTS: u32 = BLOCK / 2 - 1;

/// The users of one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Users {
    base: u32,
}

impl Users {
    pub fn service(self) -> u32 {
        self.base
    }

    /// pid 1 and the workload of a slot. Slots count from 1.
    pub fn of_slot(self, slot: u32) -> (u32, u32) {
        debug_assert!((1..=SLOTS).contains(&slot));
        (self.base + 2 * slot, self.base + 2 * slot + 1)
    }
}

/// Claims a block for an instance, or finds the one it has. A claim lives as long as its data directory does.
pub fn claim(registry: &Path, instance: InstanceId, data_directory: &Path) -> Result<Users, Failed> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(registry)
        .step(|| format!("make {}", registry.display()))?;
    let lock = File::open(registry).step(|| format!("open {}", registry.display()))?;
    // Others could have made it before; what they own cannot be trusted to keep blocks apart.
    let owner = lock.metadata().step(|| "look at the registry of users".into())?.uid();
    if owner != rustix::process::geteuid().as_raw() {
        return Err(Failed::new(Kind::Denied, format!("{} belongs to uid {owner}", registry.display()))
            .hint("remove it, or start as its owner"));
    }
    flock(&lock, FlockOperation::LockExclusive).step(|| "lock the registry of users".into())?;

    let claims = read_claims(registry)?;
    let number = match claims.iter().find(|claim| claim.instance == instance) {
        Some(own) => own.number,
        None => (0..BLOCKS)
            .find(|number| {
                !claims.iter().any(|claim| claim.number == *number && claim.is_alive()) && !is_in_use(*number)
            })
            .ok_or_else(|| {
                Failed::new(Kind::Full, "all blocks of user ids are taken")
                    .hint(format!("remove stale entries from {}", registry.display()))
            })?,
    };
    record(&registry.join(number.to_string()), &format!("{instance} {}\n", data_directory.display()))
        .step(|| "record the claim".into())?;
    Ok(Users { base: FIRST + number * BLOCK })
}

/// Whole or not at all, whenever this process is killed: an instance that lost its claim would get other users, and
/// could not read what it has.
fn record(path: &Path, text: &str) -> std::io::Result<()> {
    if fs::read_to_string(path).is_ok_and(|before| before == text) {
        return Ok(());
    }
    let draft = path.with_extension("draft");
    fs::write(&draft, text)?;
    fs::rename(draft, path)
}

struct Claim {
    number: u32,
    instance: InstanceId,
    data_directory: PathBuf,
}

impl Claim {
    /// Whether the data directory still is the instance that claimed.
    fn is_alive(&self) -> bool {
        fs::read_to_string(self.data_directory.join("instance"))
            .is_ok_and(|text| text.trim().parse() == Ok(self.instance))
    }
}

/// Whether any process still runs under users of this block: a data directory can be removed while its sandboxes live.
fn is_in_use(number: u32) -> bool {
    let users = FIRST + number * BLOCK..FIRST + (number + 1) * BLOCK;
    let Ok(processes) = fs::read_dir("/proc") else { return false };
    processes.flatten().filter(|entry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit()).any(
        |process| {
            let status = fs::read_to_string(process.path().join("status")).unwrap_or_default();
            let real = status
                .lines()
                .find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok());
            real.is_some_and(|user: u32| users.contains(&user))
        },
    )
}

fn read_claims(registry: &Path) -> Result<Vec<Claim>, Failed> {
    let entries = fs::read_dir(registry).step(|| format!("list {}", registry.display()))?;
    Ok(entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let number = path.file_name()?.to_str()?.parse().ok().filter(|number| *number < BLOCKS)?;
            let text = fs::read_to_string(path).ok()?;
            let (instance, directory) = text.trim_end().split_once(' ')?;
            Some(Claim { number, instance: instance.parse().ok()?, data_directory: directory.into() })
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Host(PathBuf);

    impl Host {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("cubicle-uids-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn instance(&self, seed: u8) -> (InstanceId, PathBuf) {
            let instance = InstanceId::from_random([seed; 16]);
            let directory = self.0.join(seed.to_string());
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("instance"), format!("{instance}\n")).unwrap();
            (instance, directory)
        }

        fn claim(&self, seed: u8) -> Users {
            let (instance, directory) = self.instance(seed);
            claim(&self.0.join("registry"), instance, &directory).unwrap()
        }
    }

    impl Drop for Host {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn two_instances_never_share_a_user() {
        let host = Host::new("apart");
        let (one, other) = (host.claim(1), host.claim(2));
        assert!(one.of_slot(SLOTS).1 < other.service());
    }

    #[test]
    fn an_instance_keeps_its_block() {
        let host = Host::new("same");
        let first = host.claim(1);
        host.claim(2);
        assert_eq!(host.claim(1), first);
    }

    #[test]
    fn the_block_of_a_removed_data_directory_is_free_again() {
        let host = Host::new("freed");
        let gone = host.claim(1);
        fs::remove_dir_all(host.0.join("1")).unwrap();
        assert_eq!(host.claim(2), gone);
    }

    #[test]
    fn users_of_a_slot_are_its_own() {
        let users = Users { base: FIRST };
        assert_ne!(users.of_slot(1).0, users.service());
        assert!(users.of_slot(1).1 < users.of_slot(2).0);
        assert!(users.of_slot(SLOTS).1 < FIRST + BLOCK);
    }
}
