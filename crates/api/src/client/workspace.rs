//! Files that outlive sandboxes, and skills.

use hyper::Method;
use hyper::header::{HeaderName, IF_MATCH, IF_NONE_MATCH};
use tokio::io::AsyncRead;

use super::files::{from_reader, upload};
use super::query::{Query, encoded};
use super::{BYTES, Call, Client, ClientError, Download};
use crate::{
    CreateSkill, MoveShared, SharedDeleted, SharedFiles, SharedVersions, SharedWritten, Skill, Skills,
};

const FILES: &str = "/api/v1/workspace/files";

/// Which state of a file may be replaced.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Replace {
    #[default]
    Any,
    /// The one with this ETag.
    Only(String),
    Nothing,
}

impl Client {
    pub async fn list_workspace(&self, path: &str, recursive: bool) -> Result<SharedFiles, ClientError> {
        self.get(Query::default().with("list", path).with("recursive", recursive).on(FILES)).await
    }

    pub async fn glob_workspace(&self, pattern: &str) -> Result<SharedFiles, ClientError> {
        self.get(Query::default().with("glob", pattern).on(FILES)).await
    }

    /// As it is now, or as it was in an earlier version.
    pub async fn read_workspace(&self, path: &str, version: Option<u64>) -> Result<Download, ClientError> {
        self.download(Query::default().maybe("version", version).on(&at(path))).await
    }

    /// Replaces what is there in one step, or not at all.
    pub async fn write_workspace(
        &self,
        path: &str,
        executable: Option<bool>,
        replace: &Replace,
        content: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<SharedWritten, ClientError> {
        let path = Query::default().maybe("executable", executable).on(&at(path));
        let call = upload(path, BYTES, content);
        let call = match condition(replace) {
            Some((name, value)) => call.with(name, value),
            None => call,
        };
        self.answer(call).await.map_err(from_reader)
    }

    pub async fn delete_workspace(&self, path: &str, recursive: bool) -> Result<SharedDeleted, ClientError> {
        let path = Query::default().with("recursive", recursive).on(&at(path));
        self.answer(Call::new(Method::DELETE, path)).await
    }

    pub async fn move_workspace(&self, asked: &MoveShared) -> Result<(), ClientError> {
        self.done(Call::json(Method::POST, "/api/v1/workspace/move", asked)).await
    }

    pub async fn workspace_versions(&self, path: &str) -> Result<SharedVersions, ClientError> {
        self.get(Query::default().with("path", path).on("/api/v1/workspace/versions")).await
    }

    pub async fn skills(&self) -> Result<Skills, ClientError> {
        self.get("/api/v1/skills").await
    }

    pub async fn skill(&self, name: &str) -> Result<Skill, ClientError> {
        self.get(format!("/api/v1/skills/{}", encoded(name))).await
    }

    pub async fn create_skill(&self, asked: &CreateSkill) -> Result<Skill, ClientError> {
        self.answer(Call::json(Method::POST, "/api/v1/skills", asked)).await
    }
}

fn at(path: &str) -> String {
    // A `..` that is not encoded would be taken out of the address on the way; the server is to see and refuse it.
    format!("{FILES}/{}", encoded(path).replace("..", "%2E%2E"))
}

fn condition(replace: &Replace) -> Option<(HeaderName, String)> {
    match replace {
        Replace::Any => None,
        Replace::Only(etag) => Some((IF_MATCH, etag.clone())),
        Replace::Nothing => Some((IF_NONE_MATCH, "*".into())),
    }
}
