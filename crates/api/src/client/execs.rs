//! Execs: what runs in sandboxes.

use std::time::Duration;

use bytes::Bytes;
use cubicle_model::{ExecId, SandboxId, TtySize};
use hyper::Method;
use hyper::header::CONTENT_TYPE;
use serde::Serialize;

use super::query::Query;
use super::{ANSWERING, BYTES, Call, Client, ClientError, body};
use crate::{CreateExec, CreateOneShot, Exec, Execute, Executed, Resize};

/// A signal by its name, with or without `SIG`, or by its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Signal {
    Number(i32),
    Name(String),
}

impl Client {
    /// Runs something in a sandbox; with `background` the answer comes when it has started.
    pub async fn create_exec(&self, sandbox: SandboxId, asked: &CreateExec) -> Result<Exec, ClientError> {
        let path = format!("/api/v1/sandboxes/{sandbox}/execs");
        let deadline = asked.background.then_some(ANSWERING);
        self.answer(Call { deadline, ..Call::json(Method::POST, path, asked) }).await
    }

    /// Runs something in a sandbox of its own.
    pub async fn create_one_shot(&self, asked: &CreateOneShot) -> Result<Exec, ClientError> {
        let deadline = asked.background.then_some(ANSWERING);
        self.answer(Call { deadline, ..Call::json(Method::POST, "/api/v1/execs", asked) }).await
    }

    /// Runs code in a sandbox, to its end.
    pub async fn execute_in(&self, sandbox: SandboxId, asked: &Execute) -> Result<Executed, ClientError> {
        let path = format!("/api/v1/sandboxes/{sandbox}/execute");
        self.answer(Call { deadline: None, ..Call::json(Method::POST, path, asked) }).await
    }

    pub async fn exec(&self, id: ExecId) -> Result<Exec, ClientError> {
        self.get(format!("/api/v1/execs/{id}")).await
    }

    /// Of one sandbox, or of all; those that run, those that have ended, or both.
    pub async fn execs(
        &self,
        sandbox: Option<SandboxId>,
        running: Option<bool>,
        most: usize,
    ) -> Result<Vec<Exec>, ClientError> {
        let path = match sandbox {
            Some(sandbox) => format!("/api/v1/sandboxes/{sandbox}/execs"),
            None => "/api/v1/execs".into(),
        };
        self.pages(&path, Query::default().maybe("running", running), most).await
    }

    /// Writes to standard input, and closes it where nothing comes after.
    pub async fn stdin(&self, id: ExecId, bytes: Bytes, close: bool) -> Result<(), ClientError> {
        let path = Query::default().with("close", close).on(&format!("/api/v1/execs/{id}/stdin"));
        // A program that does not read holds up whoever writes.
        let call = Call { body: body(bytes), deadline: None, ..Call::new(Method::POST, path) };
        self.done(call.with(CONTENT_TYPE, BYTES)).await
    }

    pub async fn signal(&self, id: ExecId, signal: &Signal) -> Result<(), ClientError> {
        let asked = serde_json::json!({ "signal": signal });
        self.done(Call::json(Method::POST, format!("/api/v1/execs/{id}/signal"), &asked)).await
    }

    pub async fn resize(&self, id: ExecId, size: TtySize) -> Result<(), ClientError> {
        let asked = Resize { rows: size.rows, columns: size.columns };
        self.done(Call::json(Method::POST, format!("/api/v1/execs/{id}/resize"), &asked)).await
    }

    /// Ends the whole tree: TERM, a grace, KILL. One that has ended stays as it is.
    pub async fn end_exec(&self, id: ExecId, grace: Option<Duration>) -> Result<(), ClientError> {
        let query = Query::default().maybe("grace_seconds", grace.map(|grace| grace.as_secs_f64()));
        let deadline = grace.unwrap_or_default() + ANSWERING;
        let call = Call::new(Method::DELETE, query.on(&format!("/api/v1/execs/{id}")));
        self.done(Call { deadline: Some(deadline), ..call }).await
    }
}
