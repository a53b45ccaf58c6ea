//! Work that is done to its end, whoever waits for it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio_util::task::TaskTracker;
use tracing::{Instrument, Span};

/// Runs where it is awaited, without a task of its own. If whoever awaits it goes away, it goes on as a task.
pub(crate) struct ToItsEnd<Work: Future<Output: Send> + Send + 'static> {
    work: Option<Pin<Box<Work>>>,
    tasks: TaskTracker,
    /// What it is a part of, also when it goes on without whoever waited.
    span: Span,
}

impl<Work: Future<Output: Send> + Send + 'static> ToItsEnd<Work> {
    pub(crate) fn new(work: Work, tasks: &TaskTracker) -> Self {
        Self { work: Some(Box::pin(work)), tasks: tasks.clone(), span: Span::current() }
    }
}

impl<Work: Future<Output: Send> + Send + 'static> Future for ToItsEnd<Work> {
    type Output = Work::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Work::Output> {
        let work = self.work.as_mut().expect("it is not polled again after its end");
        let polled = work.as_mut().poll(context);
        if polled.is_ready() {
            self.work = None;
        }
        polled
    }
}

impl<Work: Future<Output: Send> + Send + 'static> Drop for ToItsEnd<Work> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.tasks.spawn(async move { drop(work.await) }.instrument(self.span.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_goes_on_when_nobody_waits_any_more() {
        let tasks = TaskTracker::new();
        let done = Arc::new(AtomicBool::new(false));
        let work = {
            let done = Arc::clone(&done);
            async move {
                tokio::time::sleep(Duration::from_secs(5)).await;
                done.store(true, Ordering::SeqCst);
            }
        };
        let impatient = tokio::time::timeout(Duration::from_secs(1), ToItsEnd::new(work, &tasks)).await;
        assert!(impatient.is_err() && !done.load(Ordering::SeqCst));
        tasks.close();
        tasks.wait().await;
        assert!(done.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn work_that_is_waited_for_needs_no_task() {
        let tasks = TaskTracker::new();
        assert_eq!(ToItsEnd::new(async { 7 }, &tasks).await, 7);
        assert!(tasks.is_empty());
    }
}
