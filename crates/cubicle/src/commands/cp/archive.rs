//! Directories, as archives on their way. The archive itself is made and read by a thread, because `tar` blocks; a pipe
//! joins it to the connection.

use std::io::{PipeWriter, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use cubicle_api::client::Client;
use cubicle_model::{Fault, Kind, SandboxId};
use tar::{Archive, Builder, EntryType};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::task::spawn_blocking;

use crate::failure::invalid;
use crate::progress::{Counted, Progress};

pub(super) async fn upload(
    client: &Client,
    source: &Path,
    sandbox: SandboxId,
    path: &str,
    quiet: bool,
) -> Result<(), Fault> {
    let (reader, writer) = std::io::pipe().map_err(no_pipe)?;
    let reader = pipe::Receiver::from_owned_fd(OwnedFd::from(reader)).map_err(no_pipe)?;
    let packing = spawn_blocking({
        let source = source.to_owned();
        move || pack(&source, writer)
    });
    let reader = Counted { reader, progress: Progress::new(quiet, None) };
    let sent = client.write_archive(sandbox, path, reader).await;
    // A broken archive is refused, but why it broke is known here. Where nobody reads it any more, the refusal counts.
    match (packing.await.map_err(panicked)?, sent) {
        (Err(error), _) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(invalid(format!("cannot read {}", source.display())).because(error))
        }
        (_, sent) => Ok(sent.map(drop)?),
    }
}

/// Unpacks into a directory, and says how many entries were left out.
pub(super) async fn download(
    client: &Client,
    sandbox: SandboxId,
    path: &str,
    target: &Path,
    quiet: bool,
) -> Result<u64, Fault> {
    let mut bytes = client.read_archive(sandbox, path).await?;
    let unwritable =
        |error| Fault::new(Kind::Denied, format!("cannot write to {}", target.display())).because(error);
    std::fs::create_dir_all(target).map_err(unwritable)?;
    let (reader, writer) = std::io::pipe().map_err(no_pipe)?;
    let mut writer = pipe::Sender::from_owned_fd(OwnedFd::from(writer)).map_err(no_pipe)?;
    let unpacking = spawn_blocking({
        let target = target.to_owned();
        move || unpack(reader, &target)
    });
    let mut progress = Progress::new(quiet, None);
    let received = async {
        while let Some(piece) = bytes.next().await? {
            // The thread stopped reading, and says why.
            if writer.write_all(&piece).await.is_err() {
                break;
            }
            progress.add(piece.len());
        }
        Ok::<_, Fault>(())
    };
    let received = received.await;
    drop(writer);
    let unpacked = unpacking.await.map_err(panicked)?;
    received?;
    unpacked.map_err(unwritable)
}

fn pack(source: &Path, to: PipeWriter) -> std::io::Result<()> {
    let mut archive = Builder::new(to);
    archive.follow_symlinks(false);
    archive.append_dir_all("", source)?;
    archive.finish()
}

/// The archive comes out of a sandbox and is not trusted: nothing is written outside of the directory, no owner, device
/// or special permission is taken over.
fn unpack(from: impl Read, target: &Path) -> std::io::Result<u64> {
    let mut archive = Archive::new(from);
    archive.set_preserve_permissions(false);
    archive.set_overwrite(true);
    let mut left_out = 0;
    for entry in archive.entries()? {
        let mut entry = entry?;
        let known = [EntryType::Regular, EntryType::Directory, EntryType::Symlink, EntryType::Link];
        if !known.contains(&entry.header().entry_type()) {
            left_out += 1;
            continue;
        }
        if !entry.unpack_in(target)? {
            let name: PathBuf = entry.path()?.into_owned();
            return Err(std::io::Error::other(format!("'{}' is not below the directory", name.display())));
        }
    }
    // What is behind the end of the archive is padding, and whoever sends it is not left hanging.
    std::io::copy(&mut archive.into_inner(), &mut std::io::sink())?;
    Ok(left_out)
}

fn no_pipe(error: std::io::Error) -> Fault {
    Fault::new(Kind::Internal, "cannot make a pipe").because(error)
}

fn panicked(error: tokio::task::JoinError) -> Fault {
    Fault::new(Kind::Internal, "an archive could not be handled").because(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tar::Header;

    /// An archive of entries as nobody who means well writes them: a type, a name, and a target or content.
    fn archive(entries: &[(EntryType, &str, &str)]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (kind, name, content) in entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_mode(0o6777);
            let body = if *kind == EntryType::Regular { content.as_bytes() } else { b"" };
            header.set_size(body.len() as u64);
            if *kind != EntryType::Regular {
                header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
            }
            header.set_cksum();
            builder.append(&header, body).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn an_archive_out_of_a_sandbox_writes_nowhere_else() {
        let place = tempfile::tempdir().unwrap();
        let outside = place.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        let outside = outside.to_str().unwrap();
        let table: [&[(EntryType, &str, &str)]; 4] = [
            &[(EntryType::Symlink, "way", outside), (EntryType::Regular, "way/in", "x")],
            &[(EntryType::Symlink, "way", "../outside"), (EntryType::Regular, "way/in", "x")],
            &[(EntryType::Regular, "../outside/in", "x")],
            &[(EntryType::Link, "link", "../outside"), (EntryType::Regular, "link/in", "x")],
        ];
        for (number, entries) in table.into_iter().enumerate() {
            let target = place.path().join(number.to_string());
            std::fs::create_dir(&target).unwrap();
            assert!(unpack(&archive(entries)[..], &target).is_err(), "{entries:?}");
            assert_eq!(std::fs::read_dir(outside).unwrap().count(), 0, "{entries:?}");
        }
    }

    #[test]
    fn special_permissions_and_devices_are_left_out() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        let entries =
            [(EntryType::Regular, "tool", "x"), (EntryType::Char, "null", ""), (EntryType::Fifo, "pipe", "")];
        assert_eq!(unpack(&archive(&entries)[..], place.path()).unwrap(), 2);
        let mode = std::fs::metadata(place.path().join("tool")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7000, 0, "{mode:o}");
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    }
}
