//! What a task made, for whoever asked for it. It is there after the sandbox is gone.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use cubicle_model::egress::Bill;
use cubicle_model::{Fault, Kind, TaskId};
use cubicle_store::Task;
use cubicle_worker::OutputFile;

use crate::app::{App, Caller};

/// Of one file in an answer; the whole is a download.
const LARGEST_CONTENT: u64 = 1024 * 1024;
const MOST_CONTENTS: usize = 50;
/// Where a worker leaves what it changed in a repository.
const PATCH: &str = "changes.patch";

#[derive(Debug)]
pub(crate) struct TaskResult {
    pub(crate) task: Task,
    pub(crate) files: Vec<OutputFile>,
    pub(crate) egress: Option<Bill>,
    pub(crate) patch: Option<String>,
    pub(crate) contents: BTreeMap<String, FileContent>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileContent {
    pub(crate) bytes: Vec<u8>,
    pub(crate) size: u64,
    pub(crate) kind: String,
}

impl App {
    /// What came of a task, with the contents of some files.
    pub(crate) async fn task_result(
        self: &Arc<Self>,
        caller: &Caller,
        id: TaskId,
        include: Vec<String>,
    ) -> Result<TaskResult, Fault> {
        if include.len() > MOST_CONTENTS {
            let text = format!("an answer has the contents of at most {MOST_CONTENTS} files");
            return Err(Fault::new(Kind::Invalid, text).hint("read the others one by one"));
        }
        let task = self.own_task(caller, id).await?;
        let files = self.files_of(&task).await?;
        let is_patched = files.iter().any(|file| file.name == PATCH);
        let mut wanted = include.clone();
        wanted.extend(is_patched.then(|| PATCH.to_owned()));
        let mut contents = self
            .in_tree_of(&task.tenant, move |tree| {
                let mut contents = BTreeMap::new();
                for name in wanted {
                    let path = format!("output/{name}");
                    let piece = tree.read_task_file(id, &path, 0, Some(LARGEST_CONTENT))?;
                    let content = FileContent { bytes: piece.bytes, size: piece.size, kind: piece.kind };
                    contents.insert(name, content);
                }
                Ok(contents)
            })
            .await?;
        let patch = contents.get(PATCH).map(|patch| String::from_utf8_lossy(&patch.bytes).into_owned());
        contents.retain(|name, _| include.contains(name));
        let egress = self.bill_of_task(&task).await?;
        Ok(TaskResult { task, files, egress, patch, contents })
    }

    pub(crate) async fn task_files(&self, caller: &Caller, id: TaskId) -> Result<Vec<OutputFile>, Fault> {
        let task = self.own_task(caller, id).await?;
        self.files_of(&task).await
    }

    /// As they are now; a task that runs may have some already.
    async fn files_of(&self, task: &Task) -> Result<Vec<OutputFile>, Fault> {
        let id = task.id;
        self.in_tree_of(&task.tenant, move |tree| tree.output_files(id)).await
    }

    /// An open file that a task made, with its size and type.
    pub(crate) async fn task_file(
        &self,
        caller: &Caller,
        id: TaskId,
        name: String,
    ) -> Result<(File, u64, String), Fault> {
        let task = self.own_task(caller, id).await?;
        self.file_of(&task, name).await
    }

    /// For whoever has a link to it.
    pub(crate) async fn linked_task_file(
        &self,
        id: TaskId,
        name: String,
    ) -> Result<(File, u64, String), Fault> {
        let task = self.store.task(id).await?;
        let task = task.ok_or_else(|| Fault::new(Kind::NotFound, format!("there is no task {id}")))?;
        self.file_of(&task, name).await
    }

    async fn file_of(&self, task: &Task, name: String) -> Result<(File, u64, String), Fault> {
        let id = task.id;
        self.in_tree_of(&task.tenant, move |tree| {
            let file = tree.open_output(id, &name)?;
            let size = file.metadata().map_err(|error| {
                Fault::new(Kind::Unavailable, format!("'{}' cannot be read", name.escape_default()))
                    .because(error)
            })?;
            let kind = cubicle_workspace::kind_of_name(&name);
            Ok((file, size.len(), kind.unwrap_or("application/octet-stream").to_owned()))
        })
        .await
    }

    /// What the worker's agent did, one line of JSON each.
    pub(crate) async fn task_events(
        &self,
        caller: &Caller,
        id: TaskId,
        offset: u64,
        limit: u64,
    ) -> Result<Option<cubicle_workspace::Piece>, Fault> {
        let task = self.own_task(caller, id).await?;
        let read = self
            .in_tree_of(&task.tenant, move |tree| {
                tree.read_task_file(id, "events.jsonl", offset, Some(limit))
            })
            .await;
        match read {
            Ok(piece) => Ok(Some(piece)),
            // Nothing has been done yet.
            Err(fault) if fault.kind() == Kind::NotFound => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    async fn bill_of_task(&self, task: &Task) -> Result<Option<Bill>, Fault> {
        if let Some(exec) = task.exec
            && let Some(bill) = self.kept_bill(exec).await?
        {
            return Ok(Some(bill));
        }
        match task.lease {
            Some(lease) => Ok(self.store.bill(lease.to_string()).await?.map(|kept| kept.bill)),
            None => Ok(None),
        }
    }
}
