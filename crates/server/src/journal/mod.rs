//! The output of an exec, from wherever its journal is: its sandbox while that lives, the object store afterwards.

pub(crate) mod fanout;
mod output;
mod reader;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cubicle_guest::client::{Gathering, Outcome, OutputLimits};
use cubicle_model::{ArtifactId, Fault, Kind, Name, Sandbox, SandboxId, UserName};
use cubicle_store::{Artifact, ArtifactKind, Exec};
use futures_util::stream::BoxStream;

use crate::app::App;
pub(crate) use output::Output;
use reader::{Kept, Reader, Source};
pub(crate) use reader::{KeptRecords, OwnedFrame};

/// Between the end of a sandbox and its journal in the object store.
const ARCHIVING: Duration = Duration::from_secs(20);
const MEDIA_TYPE: &str = "application/x-cubicle-journal";

impl App {
    async fn source(self: &Arc<Self>, exec: &Exec, from_seq: u64) -> Result<Source, Fault> {
        if let Some(leased) = self.live.get(exec.sandbox) {
            let attached = match leased.guest().await {
                Ok(guest) => guest.attach(exec.id, from_seq).await.map_err(Fault::from),
                Err(fault) => Err(fault),
            };
            match attached {
                Ok(stream) => return Ok(Source::Live(Box::new(stream))),
                // Its lease ended just now, and the sandbox with it.
                Err(fault) if matches!(fault.kind(), Kind::Unavailable | Kind::Conflict) => {}
                Err(fault) => return Err(fault),
            }
        }
        let pieces = self.kept_journal(exec).await?;
        Ok(Source::Kept(Kept::new(pieces, exec.id, from_seq)))
    }

    /// The journal of a sandbox that is gone, as soon as it has been kept.
    async fn kept_journal(&self, exec: &Exec) -> Result<BoxStream<'static, Result<Bytes, Fault>>, Fault> {
        let subject = exec.sandbox.to_string();
        let deadline = tokio::time::Instant::now() + ARCHIVING;
        loop {
            if let Some(artifact) = self.store.artifact_of(subject.clone(), ArtifactKind::Journal).await? {
                return self.blobs.read(&artifact.location, None).await;
            }
            let over = self.store.sandbox(exec.sandbox).await?.is_none_or(|sandbox| {
                sandbox.state == cubicle_model::SandboxState::Gone || sandbox.node != self.node
            });
            if over || tokio::time::Instant::now() > deadline {
                return Err(Fault::new(
                    Kind::NotFound,
                    format!("the output of {} is not kept any more", exec.id),
                ));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Follows an exec to its end and keeps its output up to the limits, raw.
    pub(crate) async fn gather(
        self: &Arc<Self>,
        exec: &Exec,
        limits: OutputLimits,
    ) -> Result<Outcome, Fault> {
        let mut reader = Reader::open(self, exec, 0).await?;
        let mut gathering = Gathering::new(limits);
        while let Some(frame) = reader.next().await? {
            gathering.take(&frame.as_frame())?;
        }
        gathering.outcome(exec.id).map_err(|_| {
            Fault::new(Kind::NotFound, format!("how {} ended is not known", exec.id))
                .hint("its sandbox ended before it did")
        })
    }

    /// Whether the journal of its sandbox, which has every exec before its process begins, does not have this one.
    pub(crate) async fn was_never_started(&self, exec: &Exec) -> bool {
        if let Some(leased) = self.live.get(exec.sandbox)
            && let Ok(guest) = leased.guest().await
        {
            let status = guest.exec_status(exec.id).await.map_err(Fault::from);
            return status.is_err_and(|fault| fault.kind() == Kind::NotFound);
        }
        let Ok(pieces) = self.kept_journal(exec).await else { return false };
        let mut kept = Kept::new(pieces, exec.id, 0);
        matches!(kept.next().await, Ok(None)) && !kept.is_damaged()
    }

    /// Keeps the journal of a sandbox before it is destroyed, if anything ran in it.
    pub(crate) async fn archive(&self, sandbox: &Sandbox) -> Result<(), Fault> {
        let (Some(tenant), Some(user), Some(_)) = (&sandbox.tenant, &sandbox.user, sandbox.lease) else {
            return Ok(());
        };
        if !self.store.ran_anything(sandbox.id).await? {
            return Ok(());
        }
        self.changing("archive", sandbox.id, self.keep_journal(sandbox.id, tenant, user)).await
    }

    async fn keep_journal(&self, sandbox: SandboxId, tenant: &Name, user: &UserName) -> Result<(), Fault> {
        let subject = sandbox.to_string();
        let Some(bytes) = self.backend.journal(sandbox).await? else { return Ok(()) };
        let location = format!("journals/{subject}");
        let written = self.blobs.keep(&location, bytes).await?;
        self.step("journal_kept");
        self.metrics.journal_archived(written.size);
        let context = self.own_context();
        let retention = jiff::SignedDuration::try_from(self.settings.journal_retention).unwrap_or_default();
        let artifact = Artifact {
            // The same for a journal that is kept twice, because the first time was cut short.
            id: ArtifactId::from_random(self.surroundings.bits()),
            tenant: tenant.clone(),
            user: user.clone(),
            kind: ArtifactKind::Journal,
            name: format!("{subject}.journal"),
            subject,
            media_type: MEDIA_TYPE.into(),
            size: written.size,
            sha256: written.sha256,
            location,
            created_at: context.now,
            expires_at: context.now.saturating_add(retention).ok(),
        };
        self.store.create_artifact(context, artifact).await
    }
}
