//! A look into a sandbox through its guest.

use std::sync::Arc;
use std::time::Duration;

use cubicle_guest::client::{ClientError, Guest, OutputLimits, Tunnel};
use cubicle_model::{Command, ExecId, ExecSpec, Exit, Fault, SandboxId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Harness, insist};
use crate::Backend;

/// A client of one sandbox's guest.
pub(super) struct Inside<'a> {
    harness: &'a dyn Harness,
    guest: Guest,
}

impl<'a> Inside<'a> {
    pub(super) async fn new(harness: &'a dyn Harness, backend: &Arc<dyn Backend>, id: SandboxId) -> Self {
        let seed = harness.random();
        let open = async || {
            // Nobody listens in on a test, so the same bytes do every time.
            let random = move |bytes: &mut [u8]| {
                for (byte, drawn) in bytes.iter_mut().zip(seed.iter().cycle()) {
                    *byte = *drawn;
                }
            };
            crate::reach::guest(backend.clone(), id, random).await
        };
        Self { harness, guest: insist(open).await.expect("the guest can be reached") }
    }

    /// What a command prints; it must succeed.
    pub(super) async fn output(&self, argv: &[&str]) -> String {
        let mut spec = ExecSpec::new(Command::Argv(argv.iter().map(|word| (*word).to_owned()).collect()));
        // The id makes it safe to ask again after a lost answer: nothing runs twice.
        spec.exec_id = Some(ExecId::from_random(self.harness.random()));
        let outcome = insist(async || known(self.guest.run(&spec, OutputLimits::default()).await))
            .await
            .expect("the guest runs commands");
        let stderr = String::from_utf8_lossy(&outcome.stderr);
        assert_eq!(outcome.exit, Exit::Code(0), "{argv:?}: {stderr}");
        String::from_utf8(outcome.stdout).expect("the command prints text")
    }

    pub(super) async fn set_deadline(&self, seconds: u64) {
        insist(async || known(self.guest.set_deadline(Duration::from_secs(seconds)).await))
            .await
            .expect("the owner sets deadlines");
    }

    /// Connects to a port inside, says something, and returns what it hears.
    pub(super) async fn talk(&self, port: u16, say: &[u8]) -> Vec<u8> {
        self.begin(port, say).await.hear().await
    }

    /// Connects to a port inside and says something.
    pub(super) async fn begin(&self, port: u16, say: &[u8]) -> Talk {
        let mut stream =
            insist(async || known(self.guest.port(port).await)).await.expect("the port can be reached");
        stream.write_all(say).await.expect("the connection works");
        stream.shutdown().await.expect("the connection can be half closed");
        Talk(stream)
    }
}

/// A connection to a port inside on which everything was said.
pub(super) struct Talk(Tunnel);

impl Talk {
    pub(super) async fn hear(mut self) -> Vec<u8> {
        let mut heard = Vec::new();
        self.0.read_to_end(&mut heard).await.expect("the connection ends");
        heard
    }
}

fn known<T>(result: Result<T, ClientError>) -> Result<T, Fault> {
    result.map_err(Fault::from)
}
