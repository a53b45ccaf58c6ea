//! The body of an answer, as it comes.

use std::os::fd::OwnedFd;

use cubicle_model::ExecId;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::Guest;
use super::connection::Connection;
use super::error::ClientError;

/// A body on its connection. When it was read to its end, the connection serves other requests; when it is dropped
/// before, the connection is closed.
pub struct Body {
    guest: Guest,
    /// Taken when the body has ended.
    connection: Option<Connection>,
    close: bool,
    /// The execute of which one more answer comes behind this one.
    promised: Option<ExecId>,
    skipped: Option<u64>,
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body").field("sandbox", &self.guest.sandbox()).finish_non_exhaustive()
    }
}

impl Body {
    pub(super) fn new(guest: Guest, connection: Connection, close: bool, promised: Option<ExecId>) -> Self {
        Self { guest, connection: Some(connection), close, promised, skipped: None }
    }

    /// The next bytes; none when the body has ended.
    pub async fn next(&mut self) -> Result<Option<&[u8]>, ClientError> {
        let used = self.data().len();
        self.consume(used);
        if !self.fill(1).await? {
            return Ok(None);
        }
        Ok(Some(self.data()))
    }

    /// Sends the rest of the body somewhere else and says how long it was.
    pub async fn copy_to(&mut self, to: &mut (impl AsyncWrite + Unpin)) -> Result<u64, ClientError> {
        let mut copied = 0;
        while let Some(bytes) = self.next().await? {
            to.write_all(bytes).await.map_err(ClientError::Output)?;
            copied += bytes.len() as u64;
        }
        to.flush().await.map_err(ClientError::Output)?;
        Ok(copied)
    }

    /// The whole body, when it is not longer than this.
    pub async fn collect(mut self, limit: usize) -> Result<Vec<u8>, ClientError> {
        let mut collected = Vec::new();
        if let Some(length) = self.remaining() {
            if length > limit as u64 {
                return Err(ClientError::TooLong { limit });
            }
            collected.reserve_exact(length as usize);
        }
        while let Some(bytes) = self.next().await? {
            if collected.len() + bytes.len() > limit {
                return Err(ClientError::TooLong { limit });
            }
            collected.extend_from_slice(bytes);
        }
        Ok(collected)
    }

    /// How many entries of an archive the sandbox's user could not read; known when the body has ended.
    pub fn skipped(&self) -> Option<u64> {
        self.skipped
    }

    /// What came beside the head, where it was wanted; nothing later is taken.
    pub(super) fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        self.connection.as_mut().and_then(|connection| connection.descriptors.take()).unwrap_or_default()
    }

    /// The length of the rest, where it was announced. Nothing of it may have been read.
    pub(super) fn remaining(&self) -> Option<u64> {
        self.connection.as_ref()?.incoming.remaining()
    }

    /// What was decoded and not consumed.
    pub(super) fn data(&self) -> &[u8] {
        self.connection.as_ref().map_or(&[], |connection| connection.incoming.data())
    }

    pub(super) fn consume(&mut self, count: usize) {
        if let Some(connection) = &mut self.connection {
            connection.incoming.consume(count);
        }
    }

    /// Decodes until there are at least `wanted` bytes. `false` when the body ended before.
    pub(super) async fn fill(&mut self, wanted: usize) -> Result<bool, ClientError> {
        loop {
            let Some(connection) = &mut self.connection else { return Ok(false) };
            let have = connection.incoming.data().len();
            if have >= wanted {
                return Ok(true);
            }
            let more = connection.incoming.step()?;
            if more || connection.incoming.data().len() > have {
                continue;
            }
            if connection.incoming.is_finished() {
                if have == 0 {
                    self.finish();
                }
                return Ok(false);
            }
            connection.receive(wanted - have).await?;
        }
    }

    fn finish(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        self.skipped = connection.incoming.skipped();
        match (self.close, self.promised) {
            (true, _) => {}
            (false, Some(exec)) => self.guest.keep_promise(exec, connection),
            (false, None) => self.guest.keep(connection),
        }
    }
}
