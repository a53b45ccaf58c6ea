//! The data directory: whose it is, what lives in it, and how to reach it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cubicle_backend::{Consumption, Seen, State};
use cubicle_guest::hello::Key;
use cubicle_guest::journal::{Kind as RecordKind, Reader};
use cubicle_launcher::counted::counted;
use cubicle_launcher::slots::{CONTROL, JOURNAL, living};
use cubicle_model::{Fault, InstanceId, Kind, Placement, Receipt, SandboxId};
use rustix::fs::{Mode, OFlags};

use crate::attempts;

/// A receipt is among the first records: it is written when a sandbox is made and amended when it is bound.
const RECORDS_LOOKED_AT: usize = 16;

/// One instance on this host.
#[derive(Debug)]
pub(crate) struct DataDirectory {
    path: PathBuf,
    pub(crate) directory: OwnedFd,
    pub(crate) instance: InstanceId,
    secret: [u8; 32],
}

impl DataDirectory {
    /// Opens a data directory, or makes one.
    pub(crate) fn open(path: &Path) -> Result<Self, Fault> {
        let unusable = |error: io::Error| {
            Fault::new(Kind::Denied, format!("the data directory {} cannot be used: {error}", path.display()))
                .hint("choose another one with --data-dir or CUBICLE_DATA_DIR")
                .because(error)
        };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(unusable)?;
        let path = fs::canonicalize(path).map_err(unusable)?;
        let directory = File::open(&path).map_err(unusable)?;
        let instance = keep(&path.join("instance"), || {
            Ok(format!("{}\n", InstanceId::from_random(random()?)).into_bytes())
        })
        .map_err(unusable)?;
        let instance = String::from_utf8_lossy(&instance).trim().parse().map_err(|error| {
            Fault::new(Kind::Invalid, format!("{} is damaged", path.join("instance").display()))
                .because(error)
        })?;
        let secret = keep(&path.join("secret"), || Ok(random::<32>()?.to_vec())).map_err(unusable)?;
        let secret = secret.try_into().map_err(|_| {
            Fault::new(Kind::Invalid, format!("{} is damaged", path.join("secret").display()))
        })?;
        Ok(Self { path, directory: directory.into(), instance, secret })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn key(&self, id: SandboxId) -> Key {
        Key::derive(&self.secret, id)
    }

    /// A sandbox as its slot tells. `None` when it is absent.
    pub(crate) fn look(&self, id: SandboxId) -> Result<Option<(Seen, Placement)>, Fault> {
        let Some(slot) = self.slot(id)? else { return Ok(None) };
        let damaged = |error: io::Error| {
            Fault::new(Kind::Internal, format!("the state of {id} cannot be read: {error}")).because(error)
        };
        let alive = living(&slot).map_err(damaged)?.is_some();
        let Some((place, receipt)) = first_records(&slot) else {
            // Everything that is published has its first record: this one is just being removed, or is damaged.
            return Ok(None);
        };
        let receipt = receipt.map(|mut receipt| {
            attempts::complete(&self.path, &mut receipt);
            receipt
        });
        let state = if alive { State::Ready } else { State::Ended };
        let seen = Seen { id, lifetime: place.lifetime, state, labels: place.labels.clone(), receipt };
        Ok(Some((seen, place)))
    }

    pub(crate) fn list(&self) -> Result<Vec<Seen>, Fault> {
        let entries = match fs::read_dir(self.path.join("sandboxes")) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => {
                return Err(Fault::new(Kind::Internal, format!("list the sandboxes: {error}")).because(error));
            }
        };
        let mut ids: Vec<SandboxId> =
            entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
        ids.sort_unstable();
        ids.into_iter()
            .filter_map(|id| self.look(id).map(|found| found.map(|(seen, _)| seen)).transpose())
            .collect()
    }

    /// What a sandbox that lives uses.
    pub(crate) fn consumption(&self, id: SandboxId) -> Result<Option<Consumption>, Fault> {
        let unreadable =
            |error: io::Error| Fault::new(Kind::Internal, format!("what {id} uses cannot be read: {error}"));
        let Some(slot) = self.slot(id)? else { return Ok(None) };
        let Some(process) = living(&slot).map_err(unreadable)? else { return Ok(None) };
        let counted = counted(process, self.instance);
        let journal = open_journal(&slot).and_then(|journal| rustix::fs::fstat(&journal).ok());
        Ok(Some(Consumption {
            memory_bytes: counted.memory_bytes,
            processes: counted.processes,
            cpu_us: counted.cpu_us,
            journal_bytes: journal.and_then(|journal| u64::try_from(journal.st_size).ok()),
        }))
    }

    /// A connection to a sandbox's control socket.
    pub(crate) async fn connect(&self, id: SandboxId) -> Result<tokio::net::UnixStream, Fault> {
        let slot = self.slot(id)?.ok_or_else(|| absent(id))?;
        // The path of the data directory may be longer than a socket address can hold.
        let path = format!("/proc/self/fd/{}/{CONTROL}", slot.as_raw_fd());
        tokio::net::UnixStream::connect(path).await.map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                Fault::new(Kind::NotFound, format!("{id} has ended")).because(error)
            }
            _ => Fault::new(Kind::Unavailable, format!("{id} cannot be reached: {error}")).because(error),
        })
    }

    pub(crate) fn slot(&self, id: SandboxId) -> Result<Option<OwnedFd>, Fault> {
        let path = self.path.join("sandboxes").join(id.to_string());
        match rustix::fs::open(&path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(slot) => Ok(Some(slot)),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(Fault::new(Kind::Internal, format!("{id} cannot be looked at: {error}"))),
        }
    }
}

pub(crate) fn absent(id: SandboxId) -> Fault {
    Fault::new(Kind::NotFound, format!("there is no sandbox {id}")).hint("'cubicle ls' shows what is there")
}

/// What the sandbox was asked to be and its newest receipt.
fn first_records(slot: &OwnedFd) -> Option<(Placement, Option<Receipt>)> {
    let mut reader = Reader::new(open_journal(slot)?.into());
    let (mut place, mut receipt) = (None, None);
    for _ in 0..RECORDS_LOOKED_AT {
        let Ok(Some(entry)) = reader.next_entry() else { break };
        match entry.header.kind {
            RecordKind::Place => place = serde_json::from_slice(&entry.payload).ok(),
            RecordKind::Receipt => receipt = serde_json::from_slice::<Receipt>(&entry.payload).ok(),
            RecordKind::Amendment => {
                if let (Some(receipt), Ok(amendment)) = (&mut receipt, serde_json::from_slice(&entry.payload))
                {
                    receipt.amend(amendment);
                }
            }
            _ => {}
        }
    }
    Some((place?, receipt))
}

/// Absent where the sandbox is just being removed.
pub(crate) fn open_journal(slot: &OwnedFd) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(slot.as_fd(), JOURNAL, flags, Mode::empty()).ok()
}

/// Reads a file that is written once, by whoever comes first.
fn keep(path: &Path, make: impl FnOnce() -> io::Result<Vec<u8>>) -> io::Result<Vec<u8>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        found => return found,
    }
    let bytes = make()?;
    // Under a name of its own until it is complete; `hard_link` fails where somebody else was first.
    let draft = path.with_extension(format!("draft-{}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    let linked = fs::hard_link(&draft, path);
    fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => fs::read(path),
    }
}

pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_the_same_each_time() {
        let directory = tempfile::tempdir().unwrap();
        let first = DataDirectory::open(directory.path()).unwrap();
        let again = DataDirectory::open(directory.path()).unwrap();
        assert_eq!(first.instance, again.instance);
        assert_eq!(first.secret, again.secret);
    }

    #[test]
    fn an_unusable_data_directory_is_refused_with_a_way_out() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let fault = DataDirectory::open(&file.join("below")).unwrap_err();
        assert_eq!(fault.kind(), Kind::Denied);
        assert!(fault.way_out().unwrap().contains("--data-dir"));
    }

    #[test]
    fn a_damaged_instance_file_is_named() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("instance"), "nonsense").unwrap();
        let fault = DataDirectory::open(directory.path()).unwrap_err();
        assert!(fault.to_string().contains("instance is damaged"), "{fault}");
    }
}
