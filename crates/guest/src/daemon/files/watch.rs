//! Telling about changes below a directory as they happen.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{self, OFlags};
use rustix::io::Errno;
use serde::Serialize;

use super::failure::{Failure, Trouble};
use super::path::{Query, SandboxPath};
use super::reply::Chunked;
use super::root::{Root, is_directory};
use super::walk::{Step, Walk};
use super::{Connection, KeepAlive, list, write};

/// Directories watched by one request; the kernel has its own limit per user.
const MOST_DIRECTORIES: usize = 8192;
const BUFFER: usize = 64 * 1024;

const CHANGES: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::EXCL_UNLINK);

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Change {
    event: &'static str,
    path: String,
    /// Where something that was moved is now.
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
}

/// Sends one line for every change until the client hangs up or the directory is gone. The first line says that
/// from now on nothing is missed.
pub(super) fn watch(
    root: &Root,
    query: &Query,
    path: &SandboxPath,
    connection: &mut dyn Connection,
) -> Result<KeepAlive, Trouble> {
    let recursive = query.flag("recursive")?;
    let refuse = |errno| Failure::of(errno, path);
    let directory = root.open_directory(path)?;
    let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(refuse)?;
    let mut watched = Watched { inotify, base: path, recursive, directories: HashMap::new() };
    watched.add_tree(root, directory, Vec::new(), None).map_err(|errno| match errno {
        Errno::NOSPC => {
            Failure::new(503, "too_many_watches", format!("{path} has too many directories to watch"))
                .hint("watch a smaller directory, or without recursive=true")
        }
        _ => refuse(errno),
    })?;
    let mut lines = Chunked::begin(connection, "application/x-ndjson", BUFFER)?;
    say(&mut lines, &Change { event: "watching", path: list::shown(path.as_bytes()), to: None })?;
    lines.flush()?;
    loop {
        if wait(watched.inotify.as_fd(), lines.connection()).map_err(io::Error::from)? == Woken::HungUp {
            return Ok(KeepAlive::No);
        }
        let (changes, over) = watched.read(root).map_err(io::Error::from)?;
        for change in &changes {
            say(&mut lines, change)?;
        }
        lines.flush()?;
        if over {
            lines.finish(None)?;
            return Ok(KeepAlive::Yes);
        }
    }
}

fn say(lines: &mut Chunked<'_>, change: &Change) -> io::Result<()> {
    let mut line = serde_json::to_vec(change)?;
    line.push(b'\n');
    lines.write_all(&line)
}

#[derive(PartialEq, Eq)]
enum Woken {
    Changes,
    HungUp,
}

fn wait(inotify: BorrowedFd<'_>, connection: BorrowedFd<'_>) -> Result<Woken, Errno> {
    let gone = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(inotify, PollFlags::IN),
            PollFd::from_borrowed_fd(connection, PollFlags::RDHUP),
        ];
        match poll(&mut fds, None) {
            Ok(_) if fds[1].revents().intersects(gone) => return Ok(Woken::HungUp),
            Ok(_) if !fds[0].revents().is_empty() => return Ok(Woken::Changes),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

struct Watched<'a> {
    inotify: OwnedFd,
    base: &'a SandboxPath,
    recursive: bool,
    /// From the watch's number to the path below the base, with a slash behind it (empty for the base).
    directories: HashMap<i32, Vec<u8>>,
}

/// One event with its name, out of the buffer that it was read into.
struct Raw {
    watch: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Vec<u8>,
}

impl Watched<'_> {
    /// Watches a directory and, when asked to, all below it. What is found there is reported when it may have come
    /// before the watch did.
    fn add_tree(
        &mut self,
        root: &Root,
        directory: OwnedFd,
        prefix: Vec<u8>,
        mut found: Option<&mut Vec<Change>>,
    ) -> Result<(), Errno> {
        self.add(directory.as_fd(), prefix.clone())?;
        if !self.recursive {
            return Ok(());
        }
        let mut walk = Walk::new(root, directory)?;
        while let Some(step) = walk.next()? {
            let Step::Entry { name, stat } = step else { continue };
            let below = [&prefix[..], &walk.path_of(&name)].concat();
            if let Some(found) = &mut found
                && !write::is_unfinished(&name)
            {
                found.push(self.change("created", &below));
            }
            if is_directory(&stat) {
                match walk.enter(&name) {
                    Ok(true) => self.add(walk.directory(), [&below[..], b"/"].concat())?,
                    Ok(false) | Err(Errno::ACCESS) => {}
                    Err(errno) => return Err(errno),
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, directory: BorrowedFd<'_>, prefix: Vec<u8>) -> Result<(), Errno> {
        if self.directories.len() >= MOST_DIRECTORIES {
            return Err(Errno::NOSPC);
        }
        // By descriptor: a name could have become another directory's since it was checked.
        let by_descriptor = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let watch = inotify::add_watch(&self.inotify, by_descriptor, CHANGES | WatchFlags::ONLYDIR)?;
        self.directories.insert(watch, prefix);
        Ok(())
    }

    /// Reads what happened. The second value says that the base is gone.
    fn read(&mut self, root: &Root) -> Result<(Vec<Change>, bool), Errno> {
        let mut raw = Vec::new();
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER];
        let mut reader = Reader::new(self.inotify.as_fd(), &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| name.to_bytes().to_vec()).unwrap_or_default();
                    raw.push(Raw { watch: event.wd(), flags: event.events(), cookie: event.cookie(), name });
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            // More than this at once is left for the next round, so that memory stays bounded.
            if reader.is_buffer_empty() && raw.len() >= 4096 {
                break;
            }
        }
        Ok(self.translate(root, raw))
    }

    fn translate(&mut self, root: &Root, raw: Vec<Raw>) -> (Vec<Change>, bool) {
        let mut changes: Vec<Change> = Vec::new();
        let mut over = false;
        let mut events = raw.into_iter().peekable();
        while let Some(event) = events.next() {
            if event.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                changes.push(self.change("overflow", b""));
                continue;
            }
            let Some(prefix) = self.directories.get(&event.watch).cloned() else { continue };
            if event.flags.contains(ReadFlags::IGNORED) {
                self.directories.remove(&event.watch);
                continue;
            }
            if event.flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) {
                if prefix.is_empty() {
                    changes.push(self.change("removed", b""));
                    over = true;
                }
                continue;
            }
            let path = [&prefix[..], &event.name].concat();
            let hidden = write::is_unfinished(OsStr::from_bytes(&event.name));
            let is_new_directory = event.flags.contains(ReadFlags::ISDIR)
                && event.flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
            if event.flags.contains(ReadFlags::MOVED_FROM) {
                let same_move =
                    |next: &Raw| next.cookie == event.cookie && next.flags.contains(ReadFlags::MOVED_TO);
                match events.next_if(|next| same_move(next)) {
                    Some(next) => {
                        let Some(to) = self.directories.get(&next.watch).cloned() else { continue };
                        let to = [&to[..], &next.name].concat();
                        // The watches of a directory stay on it, whatever it is called: none is missing a change.
                        self.relabel(&path, &to);
                        if hidden {
                            changes.push(self.change("created", &to));
                        } else {
                            let mut change = self.change("moved", &path);
                            change.to = Some(list::shown(&self.base.join(&to)));
                            changes.push(change);
                        }
                    }
                    None if hidden => {}
                    None => {
                        self.forget_below(&path);
                        changes.push(self.change("removed", &path));
                    }
                }
                continue;
            }
            if hidden {
                continue;
            }
            let kind = if event.flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
                "created"
            } else if event.flags.contains(ReadFlags::DELETE) {
                "removed"
            } else if event.flags.contains(ReadFlags::MODIFY) {
                "modified"
            } else {
                continue;
            };
            let change = self.change(kind, &path);
            // A file that is written in many steps is one change.
            if changes.last() != Some(&change) {
                changes.push(change);
            }
            if is_new_directory {
                self.follow_new(root, &path, &mut changes);
            }
        }
        (changes, over)
    }

    /// A directory that appeared is watched too. It may be gone again, or too much to watch, which is said.
    fn follow_new(&mut self, root: &Root, path: &[u8], changes: &mut Vec<Change>) {
        if !self.recursive {
            return;
        }
        let Ok(full) = SandboxPath::from_bytes(&self.base.join(path)) else { return };
        let Ok(place) = root.place(&full) else { return };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(directory) = fs::openat(&place.dir, &place.name, flags, fs::Mode::empty()) else { return };
        let mut found = Vec::new();
        let added = self.add_tree(root, directory, [path, b"/"].concat(), Some(&mut found));
        changes.append(&mut found);
        if added == Err(Errno::NOSPC) {
            changes.push(self.change("overflow", path));
        }
    }

    fn relabel(&mut self, from: &[u8], to: &[u8]) {
        let old = [from, b"/"].concat();
        for directory in self.directories.values_mut() {
            if let Some(below) = directory.strip_prefix(&old[..]) {
                *directory = [to, b"/", below].concat();
            }
        }
    }

    /// A directory that left the tree is reported no more.
    fn forget_below(&mut self, path: &[u8]) {
        let prefix = [path, b"/"].concat();
        let inotify = &self.inotify;
        self.directories.retain(|watch, directory| {
            let gone = directory.starts_with(&prefix);
            if gone {
                // It may have been removed meanwhile, and its watch with it.
                let _ = inotify::remove_watch(inotify, *watch);
            }
            !gone
        });
    }

    fn change(&self, event: &'static str, below: &[u8]) -> Change {
        let path = if below.is_empty() { self.base.as_bytes().to_vec() } else { self.base.join(below) };
        Change { event, path: list::shown(&path), to: None }
    }
}
