//! `cubicle cp`: files and directories into a sandbox of a server, and out of it.

mod archive;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cubicle_api::client::{Client, Download};
use cubicle_api::{Entry, EntryKind};
use cubicle_model::{Fault, Kind, SandboxId};
use tokio::fs::File;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::args::Cp;
use crate::context::Context;
use crate::control_plane;
use crate::failure::{Ending, invalid, note};
use crate::progress::{Counted, Progress};
use crate::target::Place;

pub(crate) async fn cp(args: &Cp, context: &Context) -> Result<Ending, Fault> {
    let client = control_plane::client(context)?;
    match (&args.from, &args.to) {
        (Place::Inside { .. }, Place::Inside { .. }) => {
            return Err(invalid("one side is in a sandbox, the other on this machine")
                .hint("copy it here first: cubicle cp ID:PATH FILE"));
        }
        (from, Place::Inside { target, path }) => {
            let sandbox = control_plane::sandbox(&client, *target).await?;
            upload(&client, from, sandbox, path, args.quiet).await?;
        }
        (Place::Inside { target, path }, to) => {
            let sandbox = control_plane::sandbox(&client, *target).await?;
            download(&client, sandbox, path, to, args.quiet).await?;
        }
        _ => {
            return Err(
                invalid("neither side is in a sandbox").hint("write ID:PATH, as in sbx-…:/workspace/main.py")
            );
        }
    }
    Ok(super::DONE)
}

async fn upload(
    client: &Client,
    from: &Place,
    sandbox: SandboxId,
    path: &str,
    quiet: bool,
) -> Result<(), Fault> {
    let Place::Here(source) = from else {
        let reader = Counted { reader: tokio::io::stdin(), progress: Progress::new(quiet, None) };
        client.write_file(sandbox, path, None, reader).await?;
        return Ok(());
    };
    let unreadable = |error| invalid(format!("cannot read {}", source.display())).because(error);
    let about = tokio::fs::metadata(source).await.map_err(unreadable)?;
    let path = destination(client, sandbox, path, source).await?;
    if about.is_dir() {
        return archive::upload(client, source, sandbox, &path, quiet).await;
    }
    let file = File::open(source).await.map_err(unreadable)?;
    let total = about.is_file().then_some(about.len());
    let reader = Counted { reader: file, progress: Progress::new(quiet, total) };
    client.write_file(sandbox, &path, Some(about.permissions().mode() & 0o777), reader).await?;
    Ok(())
}

/// Into a directory that is there already, or that a slash at the end says is one; otherwise the path itself.
async fn destination(
    client: &Client,
    sandbox: SandboxId,
    path: &str,
    source: &Path,
) -> Result<String, Fault> {
    let is_directory = match path.ends_with('/') {
        true => true,
        false => match client.stat(sandbox, path).await {
            Ok(entry) => entry.kind == EntryKind::Directory,
            Err(error) if error.is_not_found() => false,
            Err(error) => return Err(error.into()),
        },
    };
    if !is_directory {
        return Ok(path.to_owned());
    }
    // `.` and `..` have a name only when they are resolved.
    let whole = source
        .canonicalize()
        .map_err(|error| invalid(format!("cannot read {}", source.display())).because(error))?;
    let name = whole.file_name().and_then(|name| name.to_str()).ok_or_else(|| {
        invalid(format!("{} has no name that a sandbox can have", source.display()))
            .hint("name the target too")
    })?;
    Ok(format!("{}/{name}", path.trim_end_matches('/')))
}

async fn download(
    client: &Client,
    sandbox: SandboxId,
    path: &str,
    to: &Place,
    quiet: bool,
) -> Result<(), Fault> {
    let entry = client.stat(sandbox, path).await?;
    let Place::Here(target) = to else {
        if entry.kind == EntryKind::Directory {
            return Err(
                invalid(format!("{path} is a directory")).hint("name a directory of this machine for it")
            );
        }
        let bytes = client.read_file(sandbox, path).await?;
        return receive(bytes, &mut tokio::io::stdout(), quiet).await;
    };
    let name = path.trim_end_matches('/').rsplit('/').next().filter(|name| !name.is_empty());
    let is_directory = target.is_dir() || target.as_os_str().as_encoded_bytes().ends_with(b"/");
    let target = match (is_directory, name) {
        (true, Some(name)) => target.join(name),
        _ => target.clone(),
    };
    if entry.kind == EntryKind::Directory {
        let left_out = archive::download(client, sandbox, path, &target, quiet).await?;
        if left_out > 0 {
            note(&format!("{left_out} entries are no files, directories or links, and were left out"));
        }
        return Ok(());
    }
    keep(client.read_file(sandbox, path).await?, &target, &entry, quiet).await
}

/// Under a name of its own until it is complete; what is no file, as a device, is written to as it is.
async fn keep(bytes: Download, target: &Path, entry: &Entry, quiet: bool) -> Result<(), Fault> {
    let unwritable =
        |error| Fault::new(Kind::Denied, format!("cannot write {}", target.display())).because(error);
    if target.metadata().is_ok_and(|about| !about.is_file()) {
        let mut file = File::options().write(true).open(target).await.map_err(unwritable)?;
        return receive(bytes, &mut file, quiet).await;
    }
    let draft = draft_of(target);
    let mut file = File::create(&draft).await.map_err(unwritable)?;
    let kept = async {
        receive(bytes, &mut file, quiet).await?;
        if let Ok(mode) = u32::from_str_radix(&entry.mode, 8) {
            let mode = std::fs::Permissions::from_mode(mode & 0o777);
            file.set_permissions(mode).await.map_err(unwritable)?;
        }
        tokio::fs::rename(&draft, target).await.map_err(unwritable)
    };
    let kept = kept.await;
    if kept.is_err() {
        // Half a file would be taken for a whole one.
        _ = tokio::fs::remove_file(&draft).await;
    }
    kept
}

fn draft_of(target: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(".cubicle-part");
    target.with_file_name(name)
}

async fn receive(mut bytes: Download, to: &mut (impl AsyncWrite + Unpin), quiet: bool) -> Result<(), Fault> {
    let mut progress = Progress::new(quiet, bytes.size);
    let unwritable = |error| Fault::new(Kind::Internal, "cannot write what was received").because(error);
    while let Some(piece) = bytes.next().await? {
        to.write_all(&piece).await.map_err(unwritable)?;
        progress.add(piece.len());
    }
    to.flush().await.map_err(unwritable)
}
