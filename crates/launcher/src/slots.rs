//! Slots: what a sandbox has in the data directory, and how anyone can tell whose it is.
//!
//! `slots/<n>/` holds the journal and the control socket of one sandbox; `sandboxes/<id>` is a link to it. There is no
//! other state. While a sandbox is being made, its launcher holds a lock on the slot's directory; from then on pid 1
//! holds one on the journal. Locks go with their holders, so a slot that nobody holds is a leftover.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cubicle_model::{Placement, SandboxId};
use rustix::fs::{
    AtFlags, Dir, FlockOperation, Mode, OFlags, chownat, flock, mkdirat, openat, readlinkat, symlinkat,
    unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Pid, Uid};

use crate::error::{Failed, Step};
use crate::uids::SLOTS;

pub const JOURNAL: &str = "journal";
pub const CONTROL: &str = "control.sock";

/// The slots of one data directory.
#[derive(Debug)]
pub struct Slots {
    slots: OwnedFd,
    names: OwnedFd,
    owner: Option<u32>,
    next: u32,
}

/// A slot that this launcher prepares. Dropping it gives up the lock, not the directory.
#[derive(Debug)]
pub struct Slot {
    pub number: u32,
    pub directory: OwnedFd,
}

/// Who holds a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    Nobody,
    /// A launcher is making a sandbox there.
    Launcher,
    /// A sandbox lives there; this is its pid 1.
    Sandbox(Pid),
}

impl Slots {
    /// `owner` is the user that may read journals and connect, where that is not the launcher's own.
    pub fn open(data: BorrowedFd<'_>, owner: Option<u32>) -> Result<Self, Failed> {
        let enter = |name: &str| -> io::Result<OwnedFd> {
            match mkdirat(data, name, Mode::from_raw_mode(0o700)) {
                Ok(()) => own_at(data, name, owner)?,
                Err(Errno::EXIST) => own_at(data, name, owner)?,
                Err(error) => return Err(error.into()),
            }
            Ok(openat(data, name, OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?)
        };
        let enter = |name| enter(name).step(|| format!("make the directory '{name}' in the data directory"));
        let slots = Self { slots: enter("slots")?, names: enter("sandboxes")?, owner, next: 1 };
        slots.take_over().step(|| "take over what an earlier user had".into())?;
        Ok(slots)
    }

    /// Blocks of users are handed out anew after a restart of the host; what was kept must stay readable.
    fn take_over(&self) -> io::Result<()> {
        let Some(owner) = self.owner else { return Ok(()) };
        for number in self.numbers()? {
            let name = number.to_string();
            let seen = match rustix::fs::statat(&self.slots, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(seen) => seen,
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error.into()),
            };
            // The directory comes last, so that a take-over that was interrupted is begun again.
            if seen.st_uid != owner {
                let directory = self.directory(number)?;
                for file in [JOURNAL, CONTROL] {
                    match own_at(directory.as_fd(), file, Some(owner)) {
                        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                        _ => {}
                    }
                }
                own_at(self.slots.as_fd(), &name, Some(owner))?;
            }
        }
        Ok(())
    }

    /// Takes a free slot.
    pub fn claim(&mut self) -> Result<Slot, Failed> {
        let _sole = self.lock_out_sweeps()?;
        for _ in 0..SLOTS {
            let number = self.next;
            self.next = number % SLOTS + 1;
            match mkdirat(&self.slots, number.to_string(), Mode::from_raw_mode(0o700)) {
                Ok(()) => {}
                Err(Errno::EXIST) => continue,
                Err(error) => return Err(error).step(|| "make a slot".into()),
            }
            own_at(self.slots.as_fd(), &number.to_string(), self.owner).step(|| "own a slot".into())?;
            let directory = self.directory(number).step(|| "open a slot".into())?;
            flock(&directory, FlockOperation::NonBlockingLockExclusive).step(|| "lock a slot".into())?;
            return Ok(Slot { number, directory });
        }
        Err(Failed::new(cubicle_model::Kind::Full, format!("all {SLOTS} slots are taken"))
            .hint("destroy sandboxes that are not needed, or use a second data directory"))
    }

    pub fn directory(&self, number: u32) -> io::Result<OwnedFd> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(openat(&self.slots, number.to_string(), flags, Mode::empty())?)
    }

    pub fn publish(&self, id: SandboxId, number: u32) -> io::Result<()> {
        Ok(symlinkat(format!("../slots/{number}"), &self.names, id.to_string())?)
    }

    pub fn slot_of(&self, id: SandboxId) -> io::Result<Option<u32>> {
        match readlinkat(&self.names, id.to_string(), Vec::new()) {
            Ok(link) => Ok(link
                .to_str()
                .ok()
                .and_then(|link| link.strip_prefix("../slots/"))
                .and_then(|n| n.parse().ok())),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub fn unpublish(&self, id: SandboxId) -> io::Result<()> {
        absent_is_fine(unlinkat(&self.names, id.to_string(), AtFlags::empty()))
    }

    /// Removes a slot's files and then the slot, which frees its number.
    pub fn remove(&self, number: u32) -> io::Result<()> {
        match unlinkat(&self.slots, number.to_string(), AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            done => return absent_is_fine(done),
        }
        self.empty(number)?;
        absent_is_fine(unlinkat(&self.slots, number.to_string(), AtFlags::REMOVEDIR))
    }

    /// Removes a slot's files. Whoever has them open keeps them, but nobody finds them any more.
    pub fn empty(&self, number: u32) -> io::Result<()> {
        let directory = match self.directory(number) {
            Ok(directory) => directory,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for name in [JOURNAL, CONTROL] {
            absent_is_fine(unlinkat(&directory, name, AtFlags::empty()))?;
        }
        Ok(())
    }

    pub fn holder(&self, number: u32) -> io::Result<Holder> {
        let directory = match self.directory(number) {
            Ok(directory) => directory,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Holder::Nobody),
            Err(error) => return Err(error),
        };
        if let Some(pid) = living(&directory)? {
            return Ok(Holder::Sandbox(pid));
        }
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Holder::Nobody),
            Err(Errno::WOULDBLOCK) => Ok(Holder::Launcher),
            Err(error) => Err(error.into()),
        }
    }

    /// Every published sandbox with its slot.
    pub fn published(&self) -> io::Result<Vec<(SandboxId, Option<u32>)>> {
        let mut all = Vec::new();
        for entry in Dir::read_from(&self.names)? {
            let entry = entry?;
            if let Some(id) = entry.file_name().to_str().ok().and_then(|name| name.parse().ok()) {
                all.push((id, self.slot_of(id)?));
            }
        }
        Ok(all)
    }

    pub fn numbers(&self) -> io::Result<Vec<u32>> {
        let mut all = Vec::new();
        for entry in Dir::read_from(&self.slots)? {
            all.extend(entry?.file_name().to_str().ok().and_then(|name| name.parse::<u32>().ok()));
        }
        Ok(all)
    }

    /// While this is held no slot is claimed or swept. Creating goes on: it needs its slot only once it has it.
    pub fn lock_out_sweeps(&self) -> Result<SweepLock, Failed> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(&self.slots, ".", flags, Mode::empty()).step(|| "open the slots".into())?;
        flock(&directory, FlockOperation::LockExclusive).step(|| "lock the slots".into())?;
        Ok(SweepLock { _directory: directory })
    }
}

#[derive(Debug)]
pub struct SweepLock {
    _directory: OwnedFd,
}

/// pid 1 of the sandbox in a slot's directory, if it lives.
pub fn living(directory: &OwnedFd) -> io::Result<Option<Pid>> {
    match openat(directory, JOURNAL, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(journal) => Ok(cubicle_sys::lock::holder(journal.as_fd())?.and_then(Pid::from_raw)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What the first record of a slot's journal says that the sandbox was asked to be.
pub fn placement(directory: &OwnedFd) -> Option<Placement> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let journal = openat(directory, JOURNAL, flags, Mode::empty()).ok()?;
    let record = cubicle_guest::journal::Reader::new(journal.into()).next_entry().ok()??;
    serde_json::from_slice(&record.payload).ok()
}

/// Gives a file to the user that reads journals, where there is one.
pub(crate) fn own_at(directory: BorrowedFd<'_>, name: &str, owner: Option<u32>) -> io::Result<()> {
    if let Some(owner) = owner {
        let (uid, gid) = (Uid::from_raw(owner), Gid::from_raw(owner));
        chownat(directory, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

fn absent_is_fine(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
