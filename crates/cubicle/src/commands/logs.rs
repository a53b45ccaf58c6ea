//! `cubicle logs`: what an exec printed.

use std::io;
use std::time::Duration;

use cubicle_api::client::{Client, OutputStream};
use cubicle_api::{Exec, ExecState, OutputFrame};
use cubicle_model::{Fault, Kind};
use tokio::time::timeout;

use crate::args::Logs;
use crate::attend::server::printed;
use crate::context::Context;
use crate::control_plane::{self, read_id};
use crate::failure::Ending;
use crate::output::{Output, Stream};

/// An exec that runs and says nothing for this long has said what it had to say so far.
const QUIET: Duration = Duration::from_millis(300);

pub(crate) async fn logs(args: &Logs, context: &Context) -> Result<Ending, Fault> {
    let client = control_plane::client(context)?;
    let exec = client.exec(args.id).await?;
    let mut until = match args.follow || exec.state == ExecState::Ended {
        true => Until::End,
        false => Until::Now { newest: newest(&client, &exec).await? },
    };
    let mut output = client.output(args.id, args.from);
    while let Some(frame) = until.next(&mut output).await? {
        match show(&frame, args.json).await {
            Ok(()) => {}
            // A reader that left has seen what it wanted.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            Err(error) => return Err(Fault::new(Kind::Internal, "cannot write the output").because(error)),
        }
    }
    Ok(super::DONE)
}

/// How far the output is read.
enum Until {
    End,
    /// What comes after this seq was printed after the question.
    Now {
        newest: u64,
    },
}

impl Until {
    async fn next(&mut self, output: &mut OutputStream) -> Result<Option<OutputFrame>, Fault> {
        let newest = match self {
            Self::End => return Ok(output.next().await?),
            Self::Now { newest } => *newest,
        };
        match timeout(QUIET, output.next()).await {
            Ok(frame) => Ok(frame?.filter(|frame| frame.seq <= newest)),
            Err(_) => Ok(None),
        }
    }
}

/// The newest seq of the journal that the exec writes to, together with others of its sandbox.
async fn newest(client: &Client, exec: &Exec) -> Result<u64, Fault> {
    let metrics = client.sandbox_metrics(read_id(&exec.sandbox_id)?).await;
    // A sandbox that cannot say it has just ended, and the exec with it.
    Ok(metrics.map_or(u64::MAX, |metrics| metrics.journal_next_seq.saturating_sub(1)))
}

async fn show(frame: &OutputFrame, json: bool) -> io::Result<()> {
    let mut output = Output::PassOn;
    if json {
        let line = serde_json::to_string(frame)? + "\n";
        return output.take(Stream::Stdout, line.as_bytes()).await;
    }
    match printed(frame).map_err(io::Error::other)? {
        Some((stream, bytes)) => output.take(stream, &bytes).await,
        None => Ok(()),
    }
}
