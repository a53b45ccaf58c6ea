//! One exec, many readers: its frames are read from the sandbox once and rendered once, whoever reads them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cubicle_model::ExecId;
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::OwnedFrame;

/// Frames that are kept for readers that are a little behind.
const KEPT: usize = 256;
/// Beyond so many the slowest reader is waited for.
const COMFORTABLE: usize = 64;
/// A reader that is slower than this reads for itself from then on, and others need not wait for it.
const PATIENCE: Duration = Duration::from_secs(2);

/// A frame that all readers of an exec share.
#[derive(Debug)]
pub(crate) struct SharedFrame {
    pub(crate) frame: OwnedFrame,
    rendered: [OnceLock<Bytes>; 2],
}

/// Which of the renderings of a frame.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rendering {
    Sse,
    Lines,
}

impl SharedFrame {
    pub(crate) fn new(frame: OwnedFrame) -> Arc<Self> {
        Arc::new(Self { frame, rendered: [OnceLock::new(), OnceLock::new()] })
    }

    /// As the first reader rendered it.
    pub(crate) fn rendered(&self, form: Rendering, render: impl FnOnce(&OwnedFrame) -> Bytes) -> Bytes {
        self.rendered[form as usize].get_or_init(|| render(&self.frame)).clone()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Fanout {
    hubs: Mutex<HashMap<ExecId, Arc<Hub>>>,
}

/// The readers of one exec.
#[derive(Debug)]
pub(crate) struct Hub {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Gone when nothing more will come.
    sender: Option<broadcast::Sender<Arc<SharedFrame>>>,
    /// Of the newest frame that was sent.
    last_seq: u64,
    complete: bool,
}

/// A reader that has joined.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) frames: broadcast::Receiver<Arc<SharedFrame>>,
    /// What came before this frame, and itself, was sent before the reader joined.
    pub(crate) last_seq: u64,
    pub(crate) hub: Arc<Hub>,
}

impl Fanout {
    fn hubs(&self) -> MutexGuard<'_, HashMap<ExecId, Arc<Hub>>> {
        self.hubs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the readers of an exec. The first one is told to read for all: `true`.
    pub(crate) fn join(&self, exec: ExecId, from_seq: u64) -> (Joined, bool) {
        let mut hubs = self.hubs();
        if let Some(hub) = hubs.get(&exec)
            && let Some(joined) = hub.join()
        {
            return (joined, false);
        }
        let (sender, frames) = broadcast::channel(KEPT);
        let last_seq = from_seq.saturating_sub(1);
        let state = State { sender: Some(sender), last_seq, complete: false };
        let hub = Arc::new(Hub { state: Mutex::new(state) });
        hubs.insert(exec, Arc::clone(&hub));
        (Joined { frames, last_seq, hub }, true)
    }

    /// Nothing more comes from this hub; `complete` when everything has come.
    pub(crate) fn close(&self, exec: ExecId, hub: &Arc<Hub>, complete: bool) {
        let mut hubs = self.hubs();
        let mut state = hub.state();
        state.sender = None;
        state.complete = complete;
        drop(state);
        if hubs.get(&exec).is_some_and(|current| Arc::ptr_eq(current, hub)) {
            hubs.remove(&exec);
        }
    }
}

impl Hub {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(self: &Arc<Self>) -> Option<Joined> {
        let state = self.state();
        let frames = state.sender.as_ref()?.subscribe();
        Some(Joined { frames, last_seq: state.last_seq, hub: Arc::clone(self) })
    }

    /// Whether the end of the frames was the end of the output.
    pub(crate) fn is_complete(&self) -> bool {
        self.state().complete
    }

    /// Sends a frame to everybody, when even the slowest is not far behind. Says whether anybody is there.
    pub(crate) async fn send(&self, frame: Arc<SharedFrame>) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while self.waiting() >= COMFORTABLE && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut state = self.state();
        state.last_seq = frame.frame.seq;
        state.sender.as_ref().is_some_and(|sender| sender.send(frame).is_ok())
    }

    fn waiting(&self) -> usize {
        self.state().sender.as_ref().map_or(0, broadcast::Sender::len)
    }
}
