//! What a server keeps in its data directory, and the lock that makes it the only one there.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cubicle_model::{Fault, Kind, NodeId};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::context::{fill_with_random, random_bits};
use crate::control_plane;

/// How long a removed directory goes unnoticed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Home {
    data_dir: PathBuf,
    path: PathBuf,
    pub(crate) node: NodeId,
    /// Held as long as the server lives.
    lock: File,
}

impl Home {
    pub(crate) fn open(data_dir: &Path) -> Result<Self, Fault> {
        let path = data_dir.join("server");
        let unusable = |error: std::io::Error| {
            Fault::new(Kind::Denied, format!("cannot keep the server's state in {}: {error}", path.display()))
                .hint("name a directory that you can write to with --data-dir DIR")
        };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(unusable)?;
        let lock = private().read(true).write(true).create(true).truncate(false).open(path.join("lock"));
        let lock = lock.map_err(unusable)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            Fault::new(Kind::Conflict, format!("another server has {}", data_dir.display()))
                .hint("stop it first, or name another directory with --data-dir DIR")
        })?;
        let node =
            once(&path.join("node"), || NodeId::from_random(random_bits()).to_string()).map_err(unusable)?;
        let node = node.trim().parse().map_err(|error| {
            Fault::new(Kind::Internal, format!("{} is damaged: {error}", path.join("node").display()))
        })?;
        Ok(Self { data_dir: data_dir.to_owned(), path, node, lock })
    }

    /// Waits until the directory was removed, or is another one: then this server has no place any more.
    pub(crate) async fn gone(&self) {
        let own = rustix::fs::fstat(&self.lock).map(|own| (own.st_dev, own.st_ino));
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            match (rustix::fs::stat(self.path.join("lock")), &own) {
                (Ok(seen), Ok(own)) if (seen.st_dev, seen.st_ino) != *own => return,
                (Err(Errno::NOENT | Errno::NOTDIR), _) => return,
                // Whatever else keeps it from being seen may pass.
                _ => {}
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.path.join("cubicle.db")
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.path.join("blobs")
    }

    pub(crate) fn key_file(&self) -> PathBuf {
        control_plane::first_key_file(&self.data_dir)
    }

    pub(crate) fn sealing_key_file(&self) -> PathBuf {
        self.path.join("secrets.key")
    }

    /// For commands on this machine, which need not be told where the server is.
    pub(crate) fn note_address(&self, listen: SocketAddr) -> Result<(), Fault> {
        let file = control_plane::address_file(&self.data_dir);
        write(&file, &format!("http://{}\n", reachable(listen)))
            .map_err(|error| Fault::new(Kind::Denied, format!("cannot write {}: {error}", file.display())))
    }

    /// Whoever finds no address looks where servers usually are.
    pub(crate) fn forget_address(&self) {
        _ = std::fs::remove_file(control_plane::address_file(&self.data_dir));
    }

    pub(crate) fn link_secret(&self) -> Result<[u8; 32], Fault> {
        let make = || {
            let mut bits = [0; 32];
            fill_with_random(&mut bits);
            cubicle_model::hexadecimal(&bits)
        };
        let damaged = || Fault::new(Kind::Internal, "the secret for links is damaged");
        let text = once(&self.path.join("link.secret"), make).map_err(|error| damaged().because(error))?;
        let mut bits = [0; 32];
        for (index, byte) in bits.iter_mut().enumerate() {
            let pair = text.get(2 * index..2 * index + 2).ok_or_else(damaged)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| damaged())?;
        }
        Ok(bits)
    }

    /// The secret of the first key, if it was made.
    pub(crate) fn first_key(&self) -> Result<Option<String>, Fault> {
        read_key(&self.key_file())
    }

    pub(crate) fn write_first_key(&self, secret: &str) -> Result<(), Fault> {
        write(&self.key_file(), &format!("{secret}\n")).map_err(|error| {
            Fault::new(Kind::Denied, format!("cannot write {}: {error}", self.key_file().display()))
        })
    }
}

/// Where a server that listens on every address is reached from here.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let here: IpAddr = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(here, listen.port())
}

/// The secret that a key file holds.
fn read_key(path: &Path) -> Result<Option<String>, Fault> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Fault::new(Kind::Denied, format!("cannot read {}: {error}", path.display()))),
    }
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Under a name of its own until it is complete.
pub(super) fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let draft = path.with_extension("draft");
    let mut file = private().write(true).create(true).truncate(true).open(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&draft, path)
}

/// What was written once, by the first start.
fn once(path: &Path, make: impl FnOnce() -> String) -> std::io::Result<String> {
    let mut text = String::new();
    match File::open(path) {
        Ok(mut file) => file.read_to_string(&mut text).map(|_| text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let text = make();
            write(path, &text)?;
            Ok(text)
        }
        Err(error) => Err(error),
    }
}
