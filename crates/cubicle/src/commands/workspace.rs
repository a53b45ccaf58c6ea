//! `cubicle workspace`: files that outlive sandboxes, on a server.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cubicle_api as api;
use cubicle_api::client::{Client, Download, Replace};
use cubicle_model::{Fault, Kind, Timestamp};
use tokio::fs::File;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::args::{Workspace, WorkspaceGet, WorkspacePut};
use crate::context::Context;
use crate::control_plane;
use crate::failure::{Ending, invalid, note};
use crate::table::{Table, ago, or_dash};

/// Of files in a directory that is put; a mistake rather than a wish.
const MOST_FILES: usize = 10_000;

pub(crate) async fn workspace(verb: &Workspace, context: &Context) -> Result<Ending, Fault> {
    let client = control_plane::client(context)?;
    match verb {
        Workspace::Put(args) => put(&client, args).await?,
        Workspace::Get(args) => get(&client, args).await?,
        Workspace::Ls(args) => {
            let listed = match &args.glob {
                Some(pattern) => client.glob_workspace(pattern).await?,
                None => client.list_workspace(&args.path, args.recursive).await?,
            };
            match args.shape.json {
                true => super::print_json(&listed)?,
                false => {
                    super::print(&table(&listed.entries, Timestamp::now()))?;
                    if listed.truncated {
                        note("there is more than is listed; name a directory below");
                    }
                }
            }
        }
        Workspace::Rm(args) => {
            for path in &args.paths {
                client.delete_workspace(path, args.recursive).await?;
            }
        }
        Workspace::Mv(args) => {
            let asked =
                api::MoveShared { from: args.from.clone(), to: args.to.clone(), overwrite: args.overwrite };
            client.move_workspace(&asked).await?;
        }
        Workspace::History(args) => {
            let found = client.workspace_versions(&args.path).await?;
            match args.shape.json {
                true => super::print_json(&found)?,
                false => super::print(&versions(&found.versions, Timestamp::now()))?,
            }
        }
    }
    Ok(super::DONE)
}

async fn put(client: &Client, args: &WorkspacePut) -> Result<(), Fault> {
    let replace = if args.must_be_new { Replace::Nothing } else { Replace::Any };
    let mut written = Vec::new();
    if args.from.as_os_str() == "-" {
        if args.to.ends_with('/') {
            return Err(invalid("standard input has no name").hint("name the file, not only its directory"));
        }
        written.push(client.write_workspace(&args.to, None, &replace, tokio::io::stdin()).await?);
    } else {
        let files = files_of(&args.from, &args.to)?;
        for (file, path) in files {
            let unreadable = |error| invalid(format!("cannot read {}", file.display())).because(error);
            let opened = File::open(&file).await.map_err(unreadable)?;
            let mode = opened.metadata().await.map_err(unreadable)?.permissions().mode();
            let executable = Some(mode & 0o100 != 0);
            written.push(client.write_workspace(&path, executable, &replace, opened).await?);
        }
    }
    match args.shape.json {
        true => super::print_json(&written),
        false => Ok(()),
    }
}

/// What is put where: one file, or everything in a directory.
fn files_of(from: &Path, to: &str) -> Result<Vec<(PathBuf, String)>, Fault> {
    let unreadable = |error| invalid(format!("cannot read {}", from.display())).because(error);
    let about = std::fs::metadata(from).map_err(unreadable)?;
    let target = match to.ends_with('/') {
        false => to.to_owned(),
        true => {
            let whole = from.canonicalize().map_err(unreadable)?;
            format!("{}/{}", to.trim_end_matches('/'), name_of(&whole)?)
        }
    };
    if !about.is_dir() {
        return Ok(vec![(from.to_owned(), target)]);
    }
    let mut files = Vec::new();
    let mut waiting = vec![(from.to_owned(), target)];
    while let Some((directory, path)) = waiting.pop() {
        let entries = std::fs::read_dir(&directory)
            .and_then(|entries| entries.collect::<Result<Vec<_>, _>>())
            .map_err(|error| invalid(format!("cannot read {}", directory.display())).because(error))?;
        for entry in entries {
            let below = format!("{}/{}", path.trim_end_matches('/'), name_of(&entry.path())?);
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => waiting.push((entry.path(), below)),
                Ok(kind) if kind.is_file() => files.push((entry.path(), below)),
                _ => note(&format!("{} is no file, and is left out", entry.path().display())),
            }
        }
        if files.len() > MOST_FILES {
            return Err(invalid(format!("{} has more than {MOST_FILES} files", from.display()))
                .hint("put directories in it one by one"));
        }
    }
    files.sort();
    Ok(files)
}

fn name_of(path: &Path) -> Result<&str, Fault> {
    path.file_name().and_then(|name| name.to_str()).ok_or_else(|| {
        invalid(format!("{} has no name that a shared file can have", path.display()))
            .hint("give it a name that is text")
    })
}

async fn get(client: &Client, args: &WorkspaceGet) -> Result<(), Fault> {
    let bytes = client.read_workspace(&args.path, args.version).await?;
    if args.to.as_os_str() == "-" {
        return receive(bytes, &mut tokio::io::stdout(), "standard output").await;
    }
    let is_directory = args.to.is_dir() || args.to.as_os_str().as_encoded_bytes().ends_with(b"/");
    let target = match (is_directory, args.path.rsplit('/').next()) {
        (true, Some(name)) => args.to.join(name),
        _ => args.to.clone(),
    };
    let shown = target.display().to_string();
    let unwritable = |error| Fault::new(Kind::Denied, format!("cannot write {shown}")).because(error);
    // Under a name of its own until it is complete.
    let mut draft = target.clone().into_os_string();
    draft.push(format!(".{}.part", std::process::id()));
    let mut file = File::create(&draft).await.map_err(unwritable)?;
    let kept = async {
        receive(bytes, &mut file, &shown).await?;
        tokio::fs::rename(&draft, &target).await.map_err(unwritable)
    };
    let kept = kept.await;
    if kept.is_err() {
        _ = tokio::fs::remove_file(&draft).await;
    }
    kept
}

async fn receive(mut bytes: Download, to: &mut (impl AsyncWrite + Unpin), name: &str) -> Result<(), Fault> {
    let unwritable = |error| Fault::new(Kind::Denied, format!("cannot write to {name}")).because(error);
    while let Some(piece) = bytes.next().await? {
        to.write_all(&piece).await.map_err(unwritable)?;
    }
    to.flush().await.map_err(unwritable)
}

fn table(files: &[api::SharedFile], now: Timestamp) -> String {
    let mut table = Table::new(["PATH", "SIZE", "TYPE", "CHANGED"]);
    for file in files {
        let (path, size, kind) = match file.kind {
            api::SharedFileKind::Directory => (format!("{}/", file.path), "-".into(), "directory".into()),
            api::SharedFileKind::File => {
                (file.path.clone(), file.size.to_string(), or_dash(file.mime.clone()))
            }
        };
        table.row([path, size, kind, ago(file.modified, now)]);
    }
    table.to_string()
}

fn versions(versions: &[api::SharedVersion], now: Timestamp) -> String {
    let mut table = Table::new(["VERSION", "SIZE", "WRITTEN"]);
    for version in versions {
        table.row([version.version.to_string(), version.size.to_string(), ago(version.modified, now)]);
    }
    table.to_string()
}
