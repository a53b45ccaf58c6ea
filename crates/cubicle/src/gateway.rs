//! The egress gateway as a process of its own: how it is started, and what it is started with.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cubicle_egress::{Authority, AuthorityFiles};
use cubicle_model::{Fault, Kind, Timestamp};

use crate::environment::Environment;

const CERTIFICATE: &str = "certificate.pem";
const KEY: &str = "key.pem";
/// What the gateway needs of the environment: where certificates are and how names are resolved. Nothing else is handed on,
/// as keys of providers may stand there.
const HANDED_ON: [&str; 6] =
    ["SSL_CERT_FILE", "SSL_CERT_DIR", "RES_OPTIONS", "LOCALDOMAIN", "HOSTALIASES", "RUST_BACKTRACE"];

/// How a gateway is started. Everything else it is told over its control socket.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// Stands in the `Via` of plain requests; gateways that may be chained need different ones.
    pub(crate) name: Option<String>,
    /// Where the authority for inspected hosts is kept; without one nothing is inspected.
    pub(crate) authority: Option<PathBuf>,
    /// Certificates that are trusted beside the host's, as PEM.
    pub(crate) extra_roots: Option<PathBuf>,
    pub(crate) access_log: Option<PathBuf>,
    /// As in `server.log`.
    pub(crate) log: Option<String>,
}

/// Starts a gateway and hands over the control plane's end of its socket. When that is dropped the gateway ends; whoever
/// called this waits for the child.
pub(crate) fn spawn(options: &Options, environment: &Environment) -> io::Result<(Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    // The standard library uses posix_spawn here: nothing is asked of the child that needs a fork.
    #[expect(clippy::disallowed_methods, reason = "the gateway is this program in another process")]
    let mut command = Command::new("/proc/self/exe");
    command.arg("egress-gateway").env_clear().stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
    for name in HANDED_ON {
        if let Some(value) = environment.path(name) {
            command.env(name, value);
        }
    }
    if let Some(name) = &options.name {
        command.arg("--name").arg(name);
    }
    if let Some(log) = &options.log {
        command.arg("--log").arg(log);
    }
    let files = [
        ("--authority", &options.authority),
        ("--extra-roots", &options.extra_roots),
        ("--access-log", &options.access_log),
    ];
    for (flag, path) in files {
        if let Some(path) = path {
            command.arg(flag).arg(path);
        }
    }
    Ok((command.spawn()?, ours))
}

/// The authority that is kept in the directory, made when there is none yet. Its certificate is for sandboxes to trust.
#[cfg_attr(not(test), expect(dead_code, reason = "for a server that has a gateway"))]
pub(crate) fn ensure_authority(directory: &Path, now: Timestamp) -> Result<AuthorityFiles, Fault> {
    let unusable = |error: io::Error| {
        let what = format!("the egress authority cannot be kept in {}", directory.display());
        Fault::new(Kind::Denied, what).because(error)
    };
    match read_authority(directory) {
        Err(fault) if fault.kind() == Kind::NotFound => {}
        read => return read,
    }
    let files = Authority::generate(now)?;
    std::fs::DirBuilder::new().recursive(true).create(directory).map_err(unusable)?;
    // The certificate comes last and at once: whoever finds it finds the key too.
    write(&directory.join(KEY), &files.key_pem, 0o600).map_err(unusable)?;
    write(&directory.join(CERTIFICATE), &files.certificate_pem, 0o644).map_err(unusable)?;
    Ok(files)
}

/// The authority that is kept in the directory.
pub(crate) fn read_authority(directory: &Path) -> Result<AuthorityFiles, Fault> {
    let read = |name: &str| {
        let path = directory.join(name);
        std::fs::read_to_string(&path).map_err(|error| {
            let kind = if error.kind() == io::ErrorKind::NotFound { Kind::NotFound } else { Kind::Denied };
            let what = format!("the egress authority cannot be read from {}", path.display());
            Fault::new(kind, what).because(error).hint("remove both of its files, and a new one is made")
        })
    };
    let files = AuthorityFiles { certificate_pem: read(CERTIFICATE)?, key_pem: read(KEY)? };
    Authority::load(&files)?;
    Ok(files)
}

/// Replaces a file as a whole.
fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let new = path.with_extension("new");
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    io::Write::write_all(&mut file, text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_authority_is_made_once_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("authority");
        let now = Timestamp::from_second(1_750_000_000).unwrap();
        let made = ensure_authority(&place, now).unwrap();
        let kept = ensure_authority(&place, now).unwrap();
        assert_eq!(made.certificate_pem, kept.certificate_pem);
        let mode = std::fs::metadata(place.join(KEY)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // One that is damaged is not replaced behind the operator's back: sandboxes may trust it.
        std::fs::write(place.join(KEY), "x").unwrap();
        assert_eq!(ensure_authority(&place, now).unwrap_err().kind(), Kind::Invalid);
        std::fs::remove_file(place.join(CERTIFICATE)).unwrap();
        assert_ne!(ensure_authority(&place, now).unwrap().certificate_pem, made.certificate_pem);
    }
}
