//! What workers say of their tasks.

use cubicle_model::webhook::EventType;
use cubicle_model::{EventId, Fault, Kind, TaskId};
use cubicle_worker::Completion;

use super::{App, webhooks};

impl App {
    /// A worker says that its task has ended; who it is was checked before. The first word counts: the same one again gets
    /// the same answer, and another one is refused.
    pub(crate) async fn worker_said(&self, task: TaskId, said: Completion) -> Result<EventId, Fault> {
        let status = said.status.name();
        let (event_type, body) = (EventType::WorkerCompleted, webhooks::body(&said)?);
        let heard =
            self.store.worker_completed(self.own_context(), task, event_type, status.into(), body).await?;
        if heard.is_new {
            self.tell();
            self.webhooks.wake();
        } else if heard.status != status {
            let text = format!("{task} has ended as '{}' before; '{status}' changes nothing", heard.status);
            return Err(Fault::new(Kind::Conflict, text));
        }
        Ok(heard.event)
    }
}
