//! What a bench needs of one sandbox, over its guest.

use std::time::Duration;

use async_trait::async_trait;
use cubicle_guest::client::{ClientError, Event, ExecStream, Guest};
use cubicle_guest::wire::execute::{Execute, Produced};
use cubicle_model::{ExecId, ExecSpec};
use serde_json::Value;

use crate::bench::{Follow, Output, What};
use crate::error::ToolError;

/// A sandbox without anybody in between.
#[derive(Debug, Clone)]
pub struct OverGuest(pub Guest);

impl OverGuest {
    pub async fn near_files(&self, tool: &str, arguments: &Value) -> Result<Value, ToolError> {
        Ok(self.0.tool(tool, arguments).await?)
    }

    pub async fn start(&self, spec: &ExecSpec) -> Result<(), ToolError> {
        self.0.exec_in_background(spec).await?;
        Ok(())
    }

    pub async fn start_code(&self, code: &Execute) -> Result<(), ToolError> {
        // Whoever follows it attaches to it; it goes on without.
        self.0.execute(code).await?;
        Ok(())
    }

    pub async fn produced(&self, exec: ExecId) -> Result<Produced, ToolError> {
        Ok(self.0.produced(exec).await?)
    }

    pub async fn follow(&self, exec: ExecId, from_seq: u64) -> Result<Box<dyn Follow>, ToolError> {
        let stream = self.0.attach(exec, from_seq).await?;
        Ok(Box::new(Journal { guest: self.0.clone(), stream, came_back: false }))
    }

    pub async fn end(&self, exec: ExecId, grace: Option<Duration>) -> Result<(), ToolError> {
        Ok(self.0.end(exec, grace).await?)
    }
}

/// The journal of an exec, gone on with after a connection broke.
struct Journal {
    guest: Guest,
    stream: ExecStream,
    came_back: bool,
}

#[async_trait]
impl Follow for Journal {
    async fn next(&mut self) -> Result<Option<Output>, ToolError> {
        loop {
            let failed = match self.stream.next().await {
                Ok(None) => return Ok(None),
                Ok(Some(frame)) => {
                    self.came_back = false;
                    let what = match frame.event()? {
                        Event::Stdout(bytes) => What::Stdout(bytes.to_vec()),
                        Event::Stderr(bytes) => What::Stderr(bytes.to_vec()),
                        Event::Exit(exited) => {
                            What::Exited { exit: exited.exit, timed_out: exited.timed_out }
                        }
                        _ => What::Other,
                    };
                    return Ok(Some(Output { seq: frame.seq, what }));
                }
                Err(failed) => failed,
            };
            // A second time in a row there is nobody to come back to.
            if self.came_back || !matches!(failed, ClientError::Unavailable(_)) {
                return Err(failed.into());
            }
            self.came_back = true;
            let from = self.stream.resume_from().unwrap_or(0);
            self.stream = self.guest.attach(self.stream.exec_id(), from).await?;
        }
    }
}
