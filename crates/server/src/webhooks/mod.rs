//! Telling others that a task has ended, and being told of it.
//!
//! Who may tell us: whoever has the task's own address, and signs with a secret of the operator or with the task's own.
//! Who is told: receivers that tenants name, as far as they lie on the internet or the operator allows them.

mod heard;
mod sender;
mod settings;
mod signature;

use cubicle_egress::secret::Secret;
use cubicle_model::{TaskId, hexadecimal};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::sync::Notify;

pub(crate) use heard::{Call, Unheard};
pub(crate) use sender::{NotSent, Sender, Sent};
pub use settings::WebhookSettings;
pub(crate) use signature::{headers, new_secret};

use crate::auth::Allowances;

/// The state of webhooks in one server.
pub(crate) struct Webhooks {
    pub(crate) sender: Sender,
    /// Wakes whoever sends.
    due: Notify,
    /// How many refused calls go into the audit log.
    pub(crate) refused: Allowances,
}

impl Webhooks {
    pub(crate) fn new(settings: &WebhookSettings) -> Self {
        Self { sender: Sender::new(settings), due: Notify::new(), refused: Allowances::default() }
    }

    /// Deliveries were written: they are sent now, and not only when somebody looks by himself.
    pub(crate) fn wake(&self) {
        self.due.notify_one();
    }

    pub(crate) async fn woken(&self) {
        self.due.notified().await;
    }
}

fn authenticated(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length of key will do");
    parts.iter().for_each(|part| mac.update(part));
    mac
}

fn of_task(link_secret: &[u8; 32], task: TaskId) -> Hmac<Sha256> {
    authenticated(link_secret, &[b"worker-complete", task.to_string().as_bytes()])
}

/// What the address that a worker is given has in it: it is good for this task alone, and nobody keeps it.
pub(crate) fn token(link_secret: &[u8; 32], task: TaskId) -> String {
    hexadecimal(&of_task(link_secret, task).finalize().into_bytes())
}

/// Compared in a time that does not depend on what is given.
fn is_token(link_secret: &[u8; 32], task: TaskId, given: &str) -> bool {
    signature::unhexed(given).is_some_and(|given| of_task(link_secret, task).verify_slice(&given).is_ok())
}

/// The secret that a worker signs with, which is all that it gets of the operator's.
pub(crate) fn task_secret(secret: &Secret, task: TaskId) -> String {
    let mac = authenticated(secret.reveal(), &[task.to_string().as_bytes()]);
    hexadecimal(&mac.finalize().into_bytes())
}

/// Where a worker tells that its task has ended. `address` is that of the server as the worker reaches it.
pub(crate) fn url(address: &str, path: &str, link_secret: &[u8; 32], task: TaskId) -> String {
    format!("{}{path}?token={}", address.trim_end_matches('/'), token(link_secret, task))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(byte: u8) -> TaskId {
        TaskId::from_random([byte; 16])
    }

    #[test]
    fn a_token_is_good_for_its_task_and_its_server_alone() {
        let token = token(&[7; 32], task(1));
        assert!(is_token(&[7; 32], task(1), &token));
        assert!(is_token(&[7; 32], task(1), &token.to_uppercase()));
        assert!(!is_token(&[7; 32], task(2), &token));
        assert!(!is_token(&[8; 32], task(1), &token));
        for bad in ["", "0", &token[1..], &token[..62], &format!("{token}00"), "zz", &"é".repeat(32)] {
            assert!(!is_token(&[7; 32], task(1), bad), "{bad}");
        }
    }

    #[test]
    fn the_secret_of_a_task_is_not_that_of_another_and_not_the_operators() {
        let secret = Secret::new("shared");
        let one = task_secret(&secret, task(1));
        assert_eq!(one, task_secret(&secret, task(1)));
        assert_ne!(one, task_secret(&secret, task(2)));
        assert_ne!(one, task_secret(&Secret::new("other"), task(1)));
        assert_ne!(one, token(&[0; 32], task(1)));
    }

    #[test]
    fn an_address_is_the_servers_with_the_token() {
        let url = url("http://127.0.0.1:7878/", "/api/webhooks/worker-complete", &[7; 32], task(1));
        let token = token(&[7; 32], task(1));
        assert_eq!(url, format!("http://127.0.0.1:7878/api/webhooks/worker-complete?token={token}"));
    }
}
