//! An exec behind a server.

use std::convert::Infallible;
use std::time::Duration;

use cubicle_api::client::{Client, ClientError, OutputStream, Signal, exit_of};
use cubicle_api::{ExecState, OutputFrame};
use cubicle_model::{ExecId, Exit, Fault, Kind, SandboxId, TtySize};
use tokio::time::{Instant, sleep};

use super::{Attended, Exec, Frame, Frames, Passing};
use crate::control_plane;
use crate::failure::{Failure, NOT_EXECUTABLE, NOT_FOUND};
use crate::output::Stream;
use crate::signals::Signals;

/// How often a command that was ended by a signal is asked whether it has ended.
const ASK: Duration = Duration::from_millis(200);
/// How often input is offered to a server that is being started again.
const OFFERS: u32 = 40;

/// Attends an exec that was just started.
pub(crate) async fn attend(
    client: &Client,
    sandbox: SandboxId,
    exec: ExecId,
    passing: Passing,
    started: Instant,
    signals: &mut Signals,
) -> Result<Attended, Fault> {
    let frames = Output(client.output(exec, 0));
    super::attend(&Running { client, sandbox, exec }, frames, passing, started, signals).await
}

struct Running<'a> {
    client: &'a Client,
    sandbox: SandboxId,
    exec: ExecId,
}

impl Exec for Running<'_> {
    async fn stdin(&self, bytes: Vec<u8>, close: bool) -> Result<(), Fault> {
        let bytes = bytes::Bytes::from(bytes);
        let mut offers = 0;
        loop {
            match self.client.stdin(self.exec, bytes.clone(), close).await {
                // Nothing was sent, so nothing comes twice.
                Err(ClientError::Unreachable { .. }) if offers < OFFERS => offers += 1,
                known => return Ok(known?),
            }
            sleep(Duration::from_millis(500)).await;
        }
    }

    async fn signal(&self, number: i32) -> Result<(), Fault> {
        Ok(self.client.signal(self.exec, &Signal::Number(number)).await?)
    }

    async fn resize(&self, size: TtySize) -> Result<(), Fault> {
        Ok(self.client.resize(self.exec, size).await?)
    }

    async fn end(&self) -> Result<(), Fault> {
        Ok(self.client.end_exec(self.exec, None).await?)
    }

    async fn wait(&self) -> Result<Option<Exit>, Fault> {
        loop {
            let exec = self.client.exec(self.exec).await?;
            if exec.state == ExecState::Ended {
                return Ok(exec.result.map(|result| result.exit));
            }
            sleep(ASK).await;
        }
    }

    async fn keep_alive(&self) -> Infallible {
        control_plane::keep_alive(self.client, self.sandbox).await
    }
}

struct Output(OutputStream);

impl Frames for Output {
    async fn next(&mut self) -> Result<Option<Frame>, Fault> {
        while let Some(frame) = self.0.next().await? {
            if let Some(exit) = exit_of(&frame) {
                return Ok(Some(Frame::Ended(exit)));
            }
            if matches!(frame.kind.as_str(), "truncated" | "lost") {
                return Ok(Some(Frame::Incomplete));
            }
            if let Some((stream, bytes)) = printed(&frame)? {
                return Ok(Some(Frame::Output(stream, bytes)));
            }
        }
        Ok(None)
    }
}

/// What a frame adds to a stream, if it is one of output.
pub(crate) fn printed(frame: &OutputFrame) -> Result<Option<(Stream, Vec<u8>)>, Fault> {
    let stream = match frame.kind.as_str() {
        "stdout" => Stream::Stdout,
        "stderr" => Stream::Stderr,
        _ => return Ok(None),
    };
    let bytes = frame.bytes.as_ref().map_or_else(|| Ok(Vec::new()), cubicle_api::BytesText::bytes);
    let unreadable =
        |error| Fault::new(Kind::Internal, "the server sent output that is not readable").because(error);
    Ok(Some((stream, bytes.map_err(unreadable)?)))
}

/// A command that could not be started, with the exit code that a shell would give it.
pub(crate) fn refused(error: ClientError) -> Failure {
    let code = match (error.code(), error.to_string()) {
        (Some("command_not_found"), _) => NOT_FOUND,
        (Some("not_executable"), _) => NOT_EXECUTABLE,
        // A server that has no codes of their own for these says it in words.
        (Some(_), text) if text.starts_with("there is no program ") => NOT_FOUND,
        (Some(_), text) if text.contains(" cannot be run: ") => NOT_EXECUTABLE,
        _ => return Fault::from(error).into(),
    };
    Failure { fault: error.into(), code }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::OWN_FAILURE;

    #[test]
    fn what_cannot_be_started_has_the_code_of_a_shell() {
        let refused = |code: &str, message: &str| {
            let error = cubicle_api::Error {
                code: code.into(),
                message: message.into(),
                hint: None,
                request_id: "req-1".into(),
            };
            super::refused(ClientError::Refused { status: 400, error }).code
        };
        assert_eq!(refused("command_not_found", "no"), NOT_FOUND);
        assert_eq!(refused("invalid", "there is no program \"x\" in the sandbox"), NOT_FOUND);
        assert_eq!(refused("invalid", "\"/usr\" cannot be run: permission denied"), NOT_EXECUTABLE);
        assert_eq!(refused("invalid", "the command is empty"), OWN_FAILURE);
    }
}
