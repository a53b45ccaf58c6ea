//! Running code in a sandbox, and what it needs.

use std::time::Duration;

use cubicle_model::ExecId;

use super::error::ClientError;
use super::exec::{ACCEPT_RECORDS, to_json};
use super::{Beside, ExecStream, Guest, LONGEST_ANSWER, PATIENCE, Repeat, json, request};
use crate::wire::execute::{
    CreateEnvironment, Environment, EnvironmentList, Execute, Executed, Produced, WarmRequest, Warmed,
};

/// For an environment that the sandbox builds by itself.
const BUILD_PATIENCE: Duration = Duration::from_secs(1800);

impl Guest {
    /// Starts code and follows it as an exec. A request without an id gets one, so that it can be repeated.
    pub async fn execute(&self, what: &Execute) -> Result<ExecStream, ClientError> {
        let (exec_id, body) = self.execute_body(what)?;
        self.stream(exec_id, &request("POST /execute", &ACCEPT_RECORDS, &body)).await
    }

    /// The same for whoever waits for its end, as `exec_to_its_end`, and then asks what it made: the question goes along,
    /// so that its answer comes right behind the last record.
    pub async fn execute_to_its_end(&self, what: &Execute) -> Result<ExecStream, ClientError> {
        let (exec_id, body) = self.execute_body(what)?;
        let mut both = request("POST /execute?hold_ms=50", &ACCEPT_RECORDS, &body);
        both.extend_from_slice(&request(&produced_by(exec_id), &[], b""));
        self.stream_beside(exec_id, &both, Beside::Produced(exec_id)).await
    }

    /// Runs code to its end and takes the answer that the sandbox gives.
    pub async fn execute_whole(&self, what: &Execute) -> Result<Executed, ClientError> {
        let (_, body) = self.execute_body(what)?;
        // Takes as long as the code runs.
        let answer = self.request(&request("POST /execute", &[], &body), Repeat::Safe).await?;
        json(&answer.body.collect(LONGEST_EXECUTED).await?)
    }

    /// What is new or changed since an execute began.
    pub async fn produced(&self, exec_id: ExecId) -> Result<Produced, ClientError> {
        let promised = async {
            let answer = self.promised_answer(exec_id).await?;
            answer.body.collect(LONGEST_ANSWER).await.ok()
        };
        match tokio::time::timeout(PATIENCE, promised).await {
            Ok(Some(answer)) => json(&answer),
            // The connection broke, or the records were read on another one.
            _ => self.call_json(&produced_by(exec_id), b"", Repeat::Safe).await,
        }
    }

    pub async fn envs(&self) -> Result<Vec<Environment>, ClientError> {
        self.call_json::<EnvironmentList>("GET /envs", b"", Repeat::Safe).await.map(|list| list.environments)
    }

    /// Says that an environment is there now, under its name.
    pub async fn attach_env(&self, environment: &Environment) -> Result<(), ClientError> {
        let line = format!("PUT /envs/{}", plain(&environment.name)?);
        self.call(&line, &to_json(environment)?, Repeat::Safe).await.map(drop)
    }

    /// Has the sandbox forget an environment; one that it built itself is removed.
    pub async fn detach_env(&self, name: &str) -> Result<(), ClientError> {
        self.call(&format!("DELETE /envs/{}", plain(name)?), b"", Repeat::Never).await.map(drop)
    }

    /// Has the sandbox build an environment by itself.
    pub async fn create_env(&self, what: &CreateEnvironment) -> Result<Environment, ClientError> {
        let request = request("POST /envs", &[], &to_json(what)?);
        let exchange =
            async { self.request(&request, Repeat::Never).await?.body.collect(LONGEST_ANSWER).await };
        let built = tokio::time::timeout(BUILD_PATIENCE, exchange).await;
        json(&built.unwrap_or_else(|_| Err(ClientError::too_late()))?)
    }

    /// Has an interpreter made ready.
    pub async fn warm(&self, what: &WarmRequest) -> Result<Warmed, ClientError> {
        self.call_json("POST /warm", &to_json(what)?, Repeat::Safe).await
    }

    fn execute_body(&self, what: &Execute) -> Result<(ExecId, Vec<u8>), ClientError> {
        if what.timeout_seconds.is_some_and(|seconds| !seconds.is_finite()) {
            return Err(ClientError::Invalid("the timeout is not a number of seconds"));
        }
        let exec_id = what.exec_id.unwrap_or_else(|| self.random_exec_id());
        Ok((exec_id, with_id(to_json(what)?, what.exec_id, exec_id)))
    }
}

fn produced_by(exec_id: ExecId) -> String {
    format!("GET /exec/{exec_id}/produced")
}

/// Output of both streams twice, quoted, and the files that are in the answer itself.
const LONGEST_EXECUTED: usize = 256 * 1024 * 1024;

/// The object is never empty, so that one more member fits before its end.
fn with_id(mut body: Vec<u8>, given: Option<ExecId>, exec_id: ExecId) -> Vec<u8> {
    if given.is_none() {
        body.pop();
        body.extend_from_slice(format!(r#","exec_id":"{exec_id}"}}"#).as_bytes());
    }
    body
}

/// A name that can stand in a path as it is.
fn plain(name: &str) -> Result<&str, ClientError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match !name.is_empty() && name.bytes().all(is_plain) {
        true => Ok(name),
        false => Err(ClientError::Invalid("this is not the name of an environment")),
    }
}
