//! The output of an exec, from wherever its journal is: its sandbox while that lives, the object store afterwards.

pub(crate) mod fanout;

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use cubicle_guest::client::{ClientError, ExecStream, Frame, Gathering, Outcome, OutputLimits};
use cubicle_guest::journal::record::{self, FILE_HEADER_LEN, Kind as RecordKind};
use cubicle_guest::wire::Start;
use cubicle_model::{ArtifactId, ExecId, Fault, Kind, Name, Sandbox, SandboxId, UserName};
use cubicle_store::{Artifact, ArtifactKind, Exec};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tokio::sync::broadcast::error::RecvError;

use crate::app::App;
use fanout::{Joined, SharedFrame};

/// Between the end of a sandbox and its journal in the object store.
const ARCHIVING: Duration = Duration::from_secs(20);
const MEDIA_TYPE: &str = "application/x-cubicle-journal";

/// Frames of one exec from a seq on.
pub(crate) struct Output {
    app: Arc<App>,
    exec: Exec,
    next_seq: u64,
    source: Source,
    /// Others read the same; joined as soon as what they have seen already was read.
    shared: Option<Joined>,
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Output").field("exec", &self.exec.id).field("next_seq", &self.next_seq).finish()
    }
}

enum Source {
    Live(Box<ExecStream>),
    Kept(Kept),
    /// What one reads for all.
    Shared(Joined),
    Nothing,
}

/// A frame that owns its bytes.
#[derive(Debug, Clone)]
pub(crate) struct OwnedFrame {
    pub(crate) seq: u64,
    pub(crate) time_us: u64,
    pub(crate) kind: RecordKind,
    pub(crate) stream_offset: u64,
    pub(crate) bytes: Bytes,
}

impl OwnedFrame {
    fn of(frame: &Frame<'_>) -> Self {
        Self {
            seq: frame.seq,
            time_us: frame.time_us,
            kind: frame.kind,
            stream_offset: frame.stream_offset,
            bytes: Bytes::copy_from_slice(frame.bytes),
        }
    }
}

impl App {
    /// The output of an exec from a seq on, to its end.
    pub(crate) async fn output(self: &Arc<Self>, exec: Exec, from_seq: u64) -> Result<Output, Fault> {
        let mut output =
            Output { app: Arc::clone(self), exec, next_seq: from_seq, source: Source::Nothing, shared: None };
        output.open().await?;
        Ok(output)
    }

    /// Reads an exec for all who have joined.
    fn read_for_all(self: &Arc<Self>, exec: Exec, from_seq: u64, hub: Arc<fanout::Hub>) {
        let app = Arc::clone(self);
        // Ends with the exec's output, with the last reader, or with the sandbox; the readers see which.
        tokio::spawn(async move {
            let mut complete = false;
            if let Ok(source) = app.source(&exec, from_seq).await {
                let mut alone = Output {
                    app: Arc::clone(&app),
                    exec: exec.clone(),
                    next_seq: from_seq,
                    source,
                    shared: None,
                };
                loop {
                    match alone.next_alone().await {
                        Ok(Some(frame)) => {
                            if !hub.send(frame).await {
                                break;
                            }
                        }
                        Ok(None) => {
                            complete = true;
                            break;
                        }
                        Err(_) => break,
                    }
                }
            }
            app.fanout.close(exec.id, &hub, complete);
        });
    }

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

    /// Follows an exec to its end and keeps its output up to the limits.
    pub(crate) async fn gather(
        self: &Arc<Self>,
        exec: &Exec,
        limits: OutputLimits,
    ) -> Result<Outcome, Fault> {
        let source = self.source(exec, 0).await?;
        let mut output =
            Output { app: Arc::clone(self), exec: exec.clone(), next_seq: 0, source, shared: None };
        let mut gathering = Gathering::new(limits);
        while let Some(shared) = output.next_alone().await? {
            let frame = &shared.frame;
            let frame = Frame {
                exec: 0,
                seq: frame.seq,
                time_us: frame.time_us,
                kind: frame.kind,
                stream_offset: frame.stream_offset,
                bytes: &frame.bytes,
            };
            gathering.take(&frame)?;
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
        matches!(kept.next().await, Ok(None)) && !kept.damaged
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

impl Output {
    /// Finds the frames from where this reader is: with others, where the exec still runs.
    async fn open(&mut self) -> Result<(), Fault> {
        self.shared = None;
        if self.exec.ended.is_some() || self.app.live.get(self.exec.sandbox).is_none() {
            self.source = self.app.source(&self.exec, self.next_seq).await?;
            return Ok(());
        }
        let (joined, first) = self.app.fanout.join(self.exec.id, self.next_seq);
        if first {
            self.app.read_for_all(self.exec.clone(), self.next_seq, Arc::clone(&joined.hub));
        }
        if joined.last_seq < self.next_seq {
            self.source = Source::Shared(joined);
        } else {
            self.source = self.app.source(&self.exec, self.next_seq).await?;
            self.shared = Some(joined);
        }
        Ok(())
    }

    /// The next frame; none when the exec has ended and its output is complete.
    pub(crate) async fn next(&mut self) -> Result<Option<Arc<SharedFrame>>, Fault> {
        loop {
            if let Some(joined) = self.shared.take_if(|joined| joined.last_seq < self.next_seq) {
                self.source = Source::Shared(joined);
            }
            let Source::Shared(joined) = &mut self.source else { return self.next_alone().await };
            match joined.frames.recv().await {
                // Sent before this reader joined, or below where it began.
                Ok(frame) if frame.frame.seq < self.next_seq => {}
                Ok(frame) => {
                    self.next_seq = frame.frame.seq + 1;
                    return Ok(Some(frame));
                }
                // Too slow for the others: it reads for itself until it has caught up.
                Err(RecvError::Lagged(_)) => {
                    self.source = self.app.source(&self.exec, self.next_seq).await?;
                }
                Err(RecvError::Closed) if joined.hub.is_complete() => return Ok(None),
                Err(RecvError::Closed) => self.source = self.app.source(&self.exec, self.next_seq).await?,
            }
        }
    }

    async fn next_alone(&mut self) -> Result<Option<Arc<SharedFrame>>, Fault> {
        loop {
            let next = match &mut self.source {
                Source::Live(stream) => match stream.next().await {
                    Ok(frame) => Ok(frame.map(|frame| OwnedFrame::of(&frame))),
                    // The sandbox ended, or was destroyed: the rest is in what was kept of it.
                    Err(ClientError::Unavailable(_)) => Err(()),
                    Err(error) => return Err(error.into()),
                },
                Source::Kept(kept) => Ok(kept.next().await?),
                Source::Shared(_) | Source::Nothing => Ok(None),
            };
            match next {
                Ok(frame) => {
                    if let Some(frame) = &frame {
                        self.next_seq = frame.seq + 1;
                    }
                    return Ok(frame.map(SharedFrame::new));
                }
                Err(()) => self.source = self.app.source(&self.exec, self.next_seq).await?,
            }
        }
    }
}

/// A journal as it comes from the object store.
struct Kept {
    pieces: BoxStream<'static, Result<Bytes, Fault>>,
    buffer: BytesMut,
    header_skipped: bool,
    exec_id: ExecId,
    /// Its number in the journal, once its start was seen.
    number: Option<u32>,
    from_seq: u64,
    /// Something in it is no record.
    damaged: bool,
}

impl Kept {
    fn new(pieces: BoxStream<'static, Result<Bytes, Fault>>, exec_id: ExecId, from_seq: u64) -> Self {
        Self {
            pieces,
            buffer: BytesMut::new(),
            header_skipped: false,
            exec_id,
            number: None,
            from_seq,
            damaged: false,
        }
    }

    async fn next(&mut self) -> Result<Option<OwnedFrame>, Fault> {
        loop {
            while let Some((frame, number)) = self.decode()? {
                if frame.kind == RecordKind::Start && self.number.is_none() {
                    let start: Option<Start> = serde_json::from_slice(&frame.bytes).ok();
                    if start.is_some_and(|start| start.exec_id == self.exec_id) {
                        self.number = Some(number);
                    }
                }
                if self.number == Some(number) && frame.seq >= self.from_seq {
                    return Ok(Some(frame));
                }
            }
            match self.pieces.next().await {
                Some(piece) => self.buffer.extend_from_slice(&piece?),
                // A torn tail is the end.
                None => return Ok(None),
            }
        }
    }

    /// The next whole record that has been received.
    fn decode(&mut self) -> Result<Option<(OwnedFrame, u32)>, Fault> {
        if !self.header_skipped {
            if self.buffer.len() < FILE_HEADER_LEN as usize {
                return Ok(None);
            }
            self.buffer.advance(FILE_HEADER_LEN as usize);
            self.header_skipped = true;
        }
        let Ok(decoded) = record::decode(&self.buffer) else {
            // A sandbox that was killed may leave half a record behind; what came before it stands.
            self.buffer.clear();
            self.damaged = true;
            return Ok(None);
        };
        let Some((record, length)) = decoded else { return Ok(None) };
        let header = record.header;
        let mut whole = self.buffer.split_to(length);
        whole.advance(record::HEADER_LEN);
        let frame = OwnedFrame {
            seq: header.seq,
            time_us: header.time_us,
            kind: header.kind,
            stream_offset: header.stream_offset,
            bytes: whole.freeze(),
        };
        Ok(Some((frame, header.exec)))
    }
}
