//! Files that outlive sandboxes: those of the caller's tenant, and no others. Every change is in the audit log.

use std::io::{self, Read};
use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Bytes;
use cubicle_model::{Fault, Kind, Scope};
use cubicle_tools::{ToolError, Workspace, workspace};
use cubicle_workspace::{Condition, Content, Deleted, Tree, Version, Written};
use futures_util::Stream;
use serde_json::Value;
use tokio_util::io::{StreamReader, SyncIoBridge};

use super::tools::CallersBench;
use super::{App, Caller};

/// What an audit entry is about; its detail is the path.
const SUBJECT: &str = "workspace";
/// A client that is still sending does not hear a refusal, so that so much is read away.
const MOST_DISCARDED: u64 = 256 * 1024 * 1024;

/// How a file is written.
#[derive(Debug, Clone, Default)]
pub(crate) struct HowWritten {
    pub(crate) condition: Condition,
    /// Whether it can be run; absent keeps what it is.
    pub(crate) executable: Option<bool>,
}

impl App {
    /// Work on the tree of the caller's tenant, on a thread that may wait for a disk.
    async fn in_tree<T: Send + 'static>(
        &self,
        caller: &Caller,
        work: impl FnOnce(&Tree) -> T + Send + 'static,
    ) -> Result<T, Fault> {
        let tree = self.shared.of(caller.tenant());
        tokio::task::spawn_blocking(move || work(&tree)).await.map_err(|error| {
            Fault::new(Kind::Internal, "work on the shared workspace broke off").because(error)
        })
    }

    /// A file as it is now, or as it was in an earlier version.
    pub(crate) async fn open_shared(
        &self,
        caller: &Caller,
        path: String,
        version: Option<u64>,
    ) -> Result<Content, Fault> {
        caller.must(Scope::Read)?;
        let open = move |tree: &Tree| match version {
            None => tree.open(&path),
            Some(version) => tree.open_version(&path, version),
        };
        self.in_tree(caller, open).await?
    }

    pub(crate) async fn shared_versions(&self, caller: &Caller, path: String) -> Result<Vec<Version>, Fault> {
        caller.must(Scope::Read)?;
        self.in_tree(caller, move |tree| tree.versions(&path)).await?
    }

    /// Writes a file from a stream. One that breaks off changes nothing.
    pub(crate) async fn write_shared(
        self: &Arc<Self>,
        caller: &Caller,
        path: String,
        how: HowWritten,
        body: impl Stream<Item = io::Result<Bytes>> + Send + Unpin + 'static,
    ) -> Result<Written, Fault> {
        caller.must(Scope::Run)?;
        let (app, caller) = (Arc::clone(self), caller.clone());
        let work = async move {
            let mut sent = Sent { reader: SyncIoBridge::new(StreamReader::new(body)), failed: None };
            let name = path.clone();
            let write = move |tree: &Tree| {
                let written = tree.write_from(&name, &mut sent, &how.condition, how.executable);
                written.map_err(|fault| sent.blame(fault))
            };
            let outcome = app.in_tree(&caller, write).await.and_then(|outcome| outcome);
            app.note_shared(&caller, "workspace.write", &path, outcome).await
        };
        self.to_its_end(work).await
    }

    pub(crate) async fn delete_shared(
        self: &Arc<Self>,
        caller: &Caller,
        path: String,
        recursive: bool,
        condition: Condition,
    ) -> Result<Deleted, Fault> {
        caller.must(Scope::Run)?;
        let (app, caller) = (Arc::clone(self), caller.clone());
        let work = async move {
            let name = path.clone();
            let delete = move |tree: &Tree| tree.delete(&name, recursive, &condition);
            let outcome = app.in_tree(&caller, delete).await.and_then(|outcome| outcome);
            app.note_shared(&caller, "workspace.delete", &path, outcome).await
        };
        self.to_its_end(work).await
    }

    async fn note_shared<T>(
        &self,
        caller: &Caller,
        action: &str,
        path: &str,
        outcome: Result<T, Fault>,
    ) -> Result<T, Fault> {
        let word = outcome.as_ref().err().map_or("ok", |fault| fault.kind().code());
        self.record_shared(caller, action, path, word).await?;
        outcome
    }

    async fn record_shared(
        &self,
        caller: &Caller,
        action: &str,
        path: &str,
        word: &str,
    ) -> Result<(), Fault> {
        let detail = path.chars().take(1024).collect();
        let context = caller.context(self);
        self.store.record(context, action.into(), SUBJECT.into(), word.into(), Some(detail)).await
    }
}

#[async_trait]
impl Workspace for CallersBench {
    async fn work(&self, tool: &str, arguments: Value) -> Result<Value, ToolError> {
        let deed = workspace::deed(tool);
        self.caller.must(if deed.is_some() { Scope::Run } else { Scope::Read })?;
        let (bench, tool) = (self.clone(), tool.to_owned());
        let work = async move {
            let noted = deed.map(|(action, key)| (action, arguments[key].as_str().unwrap_or("").to_owned()));
            let call = move |tree: &Tree| workspace::work(tree, &tool, arguments);
            let outcome = match bench.app.in_tree(&bench.caller, call).await {
                Ok(outcome) => outcome,
                Err(fault) => Err(fault.into()),
            };
            if let Some((action, path)) = noted {
                let word = outcome.as_ref().err().map_or("ok", |error| error.kind.code());
                bench.app.record_shared(&bench.caller, action, &path, word).await?;
            }
            outcome
        };
        let outcome = self.app.to_its_end(work).await;
        self.masked(outcome).await
    }
}

/// A body, and why it broke off.
struct Sent<R> {
    reader: R,
    failed: Option<io::ErrorKind>,
}

impl<R: Read> Sent<R> {
    /// What cannot be read is not the disk's fault.
    fn blame(&mut self, fault: Fault) -> Fault {
        if self.failed.is_none() {
            _ = io::copy(&mut self.by_ref().take(MOST_DISCARDED), &mut io::sink());
            return fault;
        }
        Fault::new(Kind::Invalid, "the body broke off").because(fault)
    }
}

impl<R: Read> Read for Sent<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buffer).inspect_err(|error| self.failed = Some(error.kind()))
    }
}
