//! Masks what leaves towards people: output, results, events, the audit log, refusals, the server's own log.
//!
//! What is kept stays raw, and masks keep the length of what they hide, so that offsets and seqs mean the same in both. Known
//! secrets of a tenant are masked everywhere; what only looks like a credential is masked in logs and events alone, as output
//! belongs to whoever runs things and may look like anything.

pub(crate) mod frames;
pub(crate) mod kept;
mod log;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use cubicle_egress::redact::{Content, Redaction, Release, Shapes};
use cubicle_egress::secret::Secret;
use cubicle_model::{Fault, Kind, Name};
use serde_json::Value as Json;
use tokio::sync::OnceCell;
use tracing::warn;

pub use log::LogMasks;

use crate::app::App;

/// Tenants for which masks are kept at a time: those of many secrets take megabytes.
const MOST_TENANTS: usize = 128;

/// What is masked for one tenant.
#[derive(Debug)]
pub(crate) struct Masks {
    /// In output, and in answers.
    pub(crate) known: Mask,
    /// In logs and events.
    pub(crate) everything: Mask,
    /// How often the tenant's secrets had changed when this was made.
    changes: u64,
}

impl Masks {
    fn new(secrets: &[Secret], shapes: &Arc<Shapes>, changes: u64) -> Self {
        let known = Redaction::new(secrets, Shapes::none());
        let everything = known.with_shapes(Arc::clone(shapes));
        Self { known: Mask(known), everything: Mask(everything), changes }
    }

    #[cfg(test)]
    pub(crate) fn of(secrets: &[&str]) -> Arc<Self> {
        let secrets: Vec<_> = secrets.iter().map(|secret| Secret::new(*secret)).collect();
        Arc::new(Self::new(&secrets, &Arc::new(Shapes::usual()), 0))
    }
}

/// A set of secrets and shapes, and what it does to the values of the API.
#[derive(Debug, Clone)]
pub(crate) struct Mask(Redaction);

impl Mask {
    /// Whether everything stays as it is.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn redaction(&self) -> &Redaction {
        &self.0
    }

    /// Masks bytes of which nobody says what they are.
    pub(crate) fn bytes(&self, bytes: &mut Vec<u8>) {
        if !self.is_empty() {
            *bytes = self.0.whole(Content::Binary, bytes).0;
        }
    }

    /// Masks the beginning of a stream and cuts it to a limit; says how many places were masked. There may be more than that
    /// of it, so that a secret across the limit is known. Where it is cut short all the same, what could be the beginning of
    /// a secret is masked.
    pub(crate) fn beginning(&self, bytes: &mut Vec<u8>, limit: usize, is_cut: bool) -> u64 {
        let shown = limit.min(bytes.len());
        if self.is_empty() {
            bytes.truncate(limit);
            return 0;
        }
        let mut stream = self.0.stream(Content::Binary);
        let mut masked = Vec::with_capacity(bytes.len());
        stream.push(&bytes[..shown], &mut masked);
        let (given, count) = (masked.len(), stream.count());
        stream.push(&bytes[shown..], &mut masked);
        if is_cut {
            stream.release(Release::Masked, &mut masked);
        }
        stream.finish(&mut masked);
        masked.truncate(limit);
        let at_the_end = masked[given..] != bytes[given..shown];
        *bytes = masked;
        count + u64::from(at_the_end)
    }

    pub(crate) fn text(&self, text: &mut String) {
        if let (Cow::Owned(masked), _) = self.0.text(text) {
            *text = masked;
        }
    }

    /// Every text in JSON that has not been read yet. What is no JSON is shown to nobody.
    pub(crate) fn json_bytes(&self, bytes: &[u8]) -> Bytes {
        let mut value = serde_json::from_slice(bytes).unwrap_or_default();
        self.json(&mut value);
        value.to_string().into()
    }

    /// Every text in it, names of fields too.
    pub(crate) fn json(&self, value: &mut Json) {
        if self.is_empty() {
            return;
        }
        match value {
            Json::String(text) => self.text(text),
            Json::Array(items) => items.iter_mut().for_each(|item| self.json(item)),
            Json::Object(fields) => {
                let masked = std::mem::take(fields).into_iter().map(|(mut name, mut value)| {
                    self.text(&mut name);
                    self.json(&mut value);
                    (name, value)
                });
                *fields = masked.collect();
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => {}
        }
    }
}

/// The masks of tenants, made when they are first needed and again when secrets have changed.
#[derive(Debug, Default)]
pub(crate) struct Redactions {
    made: Mutex<Made>,
}

#[derive(Debug, Default)]
struct Made {
    masks: HashMap<Name, Entry>,
    uses: u64,
}

#[derive(Debug)]
struct Entry {
    changes: u64,
    last_use: u64,
    /// Made once, whoever asks meanwhile.
    masks: Arc<OnceCell<Arc<Masks>>>,
}

impl Redactions {
    fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the masks of a tenant are, or come, as of a change of its secrets; and whose had to go for them.
    fn place(&self, tenant: &Name, changes: u64) -> (Arc<OnceCell<Arc<Masks>>>, Option<Name>) {
        let mut made = self.made();
        made.uses += 1;
        let now = made.uses;
        if let Some(entry) = made.masks.get_mut(tenant)
            && entry.changes >= changes
        {
            entry.last_use = now;
            return (Arc::clone(&entry.masks), None);
        }
        let masks = Arc::<OnceCell<_>>::default();
        made.masks.insert(tenant.clone(), Entry { changes, last_use: now, masks: Arc::clone(&masks) });
        if made.masks.len() <= MOST_TENANTS {
            return (masks, None);
        }
        let oldest = made.masks.iter().min_by_key(|(_, entry)| entry.last_use).map(|(name, _)| name.clone());
        if let Some(oldest) = &oldest {
            made.masks.remove(oldest);
        }
        (masks, oldest)
    }
}

impl App {
    /// What is masked for people of a tenant. Without it nothing is shown: a failure is the reader's.
    pub(crate) async fn masks(&self, tenant: &Name) -> Result<Arc<Masks>, Fault> {
        loop {
            let changes = self.secrets.changes_of(tenant);
            let (place, gone) = self.redactions.place(tenant, changes);
            if let Some(gone) = gone {
                self.settings.log_masks.forget(&gone);
            }
            let masks = Arc::clone(place.get_or_try_init(|| self.make_masks(tenant, changes)).await?);
            if self.has_newest(&masks, tenant) {
                return Ok(masks);
            }
        }
    }

    /// Whether masks are of the tenant's secrets as they are now.
    pub(crate) fn has_newest(&self, masks: &Masks, tenant: &Name) -> bool {
        masks.changes >= self.secrets.changes_of(tenant)
    }

    async fn make_masks(&self, tenant: &Name, changes: u64) -> Result<Arc<Masks>, Fault> {
        let values: Vec<Secret> =
            self.secret_values(tenant).await?.into_iter().map(|(_, value)| value).collect();
        let shapes = self.settings.log_masks.shapes();
        let masks = if values.is_empty() {
            Masks::new(&[], &shapes, changes)
        } else {
            // Takes milliseconds, or more where there are many.
            let make = tokio::task::spawn_blocking(move || Masks::new(&values, &shapes, changes));
            make.await.map_err(|error| Fault::new(Kind::Internal, "making masks panicked").because(error))?
        };
        self.settings.log_masks.know(tenant, masks.known.redaction());
        Ok(Arc::new(masks))
    }

    /// Keeps what the log masks up with the secrets that are set, until the server stops. Of tenants that do nothing nothing
    /// is logged.
    pub(crate) fn follow_secrets(self: &Arc<Self>) {
        let app = Arc::clone(self);
        tokio::spawn(async move {
            let mut changes = app.secrets.changes();
            let mut seen = changes.borrow_and_update().clone();
            while let Some(Ok(())) = app.stopping.run_until_cancelled(changes.changed()).await {
                let now = changes.borrow_and_update().clone();
                for tenant in
                    now.iter().filter(|(tenant, count)| seen.get(tenant) != Some(count)).map(|(name, _)| name)
                {
                    if let Err(fault) = app.masks(tenant).await {
                        // Whoever needs them next tries again.
                        warn!(%tenant, error = %fault, "masks for a tenant's secrets cannot be made now");
                    }
                }
                seen = now;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn known_secrets_are_masked_in_all_texts_of_a_value_and_shapes_only_where_they_should_be() {
        let masks = Masks::of(&["hunter2-secret"]);
        let key = "sk-abcdefghijklmnopqrstuvwx";
        let value =
            json!({ "hunter2-secret": ["a hunter2-secret", 1, key], "b": { "c": "aHVudGVyMi1zZWNyZXQ" } });
        let (mut known, mut everything) = (value.clone(), value);
        masks.known.json(&mut known);
        masks.everything.json(&mut everything);
        // The last letter is decided by less than the secret.
        let base64 = format!("{}Q", "*".repeat(18));
        let expected = json!({ "**************": ["a **************", 1, key], "b": { "c": base64 } });
        assert_eq!(known, expected);
        let stars = "*".repeat(key.len());
        assert_eq!(
            everything,
            json!({ "**************": ["a **************", 1, stars], "b": { "c": base64 } })
        );
    }

    #[test]
    fn json_that_was_not_read_is_masked_in_its_texts() {
        let masks = Masks::of(&["hunter2-secret"]);
        let start = masks.known.json_bytes(br#"{"command":["echo","hunter2\u002dsecret"],"pid":7}"#);
        assert_eq!(start, r#"{"command":["echo","**************"],"pid":7}"#);
    }

    #[test]
    fn the_beginning_of_a_stream_shows_no_part_of_a_secret_across_its_end() {
        let masks = Masks::of(&["hunter2-secret"]);
        let whole = b"hunter2-secret and hunter2-secret.";
        let masked = b"************** and **************.";
        for limit in 0..=whole.len() {
            let reach = masks.known.redaction().reach();
            let mut bytes = whole[..whole.len().min(limit + reach)].to_vec();
            let is_cut = bytes.len() < whole.len();
            let count = masks.known.beginning(&mut bytes, limit, is_cut);
            assert_eq!(bytes, masked[..limit], "{limit}");
            assert_eq!(count, u64::from(limit > 0) + u64::from(limit > 19), "{limit}");
        }
        // As where a journal is full.
        let mut bytes = b"hunter2".to_vec();
        assert_eq!((masks.known.beginning(&mut bytes, 100, true), bytes), (1, b"*******".to_vec()));
        let mut bytes = b"hunter2".to_vec();
        assert_eq!((masks.known.beginning(&mut bytes, 100, false), bytes), (0, b"hunter2".to_vec()));
    }

    #[test]
    fn the_tenant_that_was_not_asked_for_longest_makes_room() {
        let redactions = Redactions::default();
        let name = |number: usize| format!("t{number}").parse::<Name>().unwrap();
        for number in 0..MOST_TENANTS {
            assert_eq!(redactions.place(&name(number), 0).1, None);
        }
        redactions.place(&name(0), 0);
        assert_eq!(redactions.place(&name(MOST_TENANTS), 0).1, Some(name(1)));
        assert_eq!(redactions.place(&name(0), 1).1, None, "a change takes the place of what was");
    }
}
