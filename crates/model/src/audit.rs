//! Who did what, when, from where, and what came of it: entries that are chained, so that none can be taken out.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{NodeId, Timestamp};

/// What one entry says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deed {
    pub time: Timestamp,
    /// Absent for what the server does by itself.
    pub tenant: Option<String>,
    /// A user, or `system`.
    pub actor: String,
    pub key: Option<String>,
    /// As in `exec.create`.
    pub action: String,
    /// The id of what it was done to.
    pub subject: String,
    /// The address it came from.
    pub from: Option<String>,
    pub request: Option<String>,
    /// `ok`, or the code of the refusal.
    pub outcome: String,
    pub detail: Option<String>,
}

/// One entry of a node's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub node: NodeId,
    /// Counts from 1 without gaps.
    pub seq: i64,
    #[serde(flatten)]
    pub deed: Deed,
    /// The digest of the detail, where the detail is not shown as it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail_sha256: Option<String>,
    /// Of this entry and, through it, of all before.
    pub hash: String,
}

/// The last entry of a node: whoever keeps a copy of it elsewhere notices a cut tail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub node: NodeId,
    pub seq: i64,
    pub hash: String,
}

impl Head {
    /// Of a log without entries.
    pub fn empty(node: NodeId) -> Self {
        Self { node, seq: 0, hash: "0".repeat(64) }
    }
}

/// The entry that comes after `head`.
pub fn chain(head: &Head, deed: Deed) -> Entry {
    let seq = head.seq + 1;
    let hash = hash(&head.hash, head.node, seq, &deed, None);
    Entry { node: head.node, seq, deed, detail_sha256: None, hash }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("entry {0} is missing")]
    Missing(i64),
    #[error("entry {0} was changed, or the one before it was")]
    Changed(i64),
    #[error("the log ends at entry {found}, but entry {expected} existed")]
    Cut { found: i64, expected: i64 },
    #[error("entry {0} is not the one that was exported")]
    Rewritten(i64),
}

/// Follows a log entry by entry, and at its end compares it with what somebody noted before.
#[derive(Debug)]
pub struct Verifier {
    head: Head,
    noted: Option<Head>,
}

impl Verifier {
    pub fn new(node: NodeId, noted: Option<Head>) -> Self {
        Self { head: Head::empty(node), noted }
    }

    pub fn take(&mut self, entry: &Entry) -> Result<(), Broken> {
        let expected = self.head.seq + 1;
        if entry.seq != expected {
            return Err(Broken::Missing(expected));
        }
        let digest = entry.detail_sha256.as_deref();
        if entry.hash != hash(&self.head.hash, entry.node, entry.seq, &entry.deed, digest) {
            return Err(Broken::Changed(entry.seq));
        }
        if let Some(noted) = &self.noted
            && noted.seq == entry.seq
            && noted.hash != entry.hash
        {
            return Err(Broken::Rewritten(entry.seq));
        }
        self.head = Head { node: entry.node, seq: entry.seq, hash: entry.hash.clone() };
        Ok(())
    }

    /// The head of the log, if nothing is missing at its end.
    pub fn finish(self) -> Result<Head, Broken> {
        match &self.noted {
            Some(noted) if noted.seq > self.head.seq => {
                Err(Broken::Cut { found: self.head.seq, expected: noted.seq })
            }
            _ => Ok(self.head),
        }
    }
}

/// What stands for a detail in the hash of its entry.
pub fn detail_digest(detail: &str) -> String {
    crate::hexadecimal(&Sha256::digest(detail))
}

/// Every field goes in with its length, so that no two entries have the same bytes. The detail goes in by its digest: an
/// entry whose detail is masked for whoever reads it can be verified all the same.
fn hash(before: &str, node: NodeId, seq: i64, deed: &Deed, detail_sha256: Option<&str>) -> String {
    let of_detail = deed.detail.as_deref().map(detail_digest);
    let mut hasher = Sha256::new();
    let mut add = |field: Option<&str>| match field {
        Some(text) => {
            hasher.update((text.len() as u64).to_be_bytes());
            hasher.update(text);
        }
        None => hasher.update(u64::MAX.to_be_bytes()),
    };
    add(Some(before));
    add(Some(&node.to_string()));
    add(Some(&seq.to_string()));
    add(Some(&deed.time.as_millisecond().to_string()));
    add(deed.tenant.as_deref());
    add(Some(&deed.actor));
    add(deed.key.as_deref());
    add(Some(&deed.action));
    add(Some(&deed.subject));
    add(deed.from.as_deref());
    add(deed.request.as_deref());
    add(Some(&deed.outcome));
    add(detail_sha256.or(of_detail.as_deref()));
    crate::hexadecimal(&hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deed(number: i64) -> Deed {
        Deed {
            time: Timestamp::from_second(number).unwrap(),
            tenant: Some("acme".into()),
            actor: "ada".into(),
            key: None,
            action: "exec.create".into(),
            subject: format!("exec-{number}"),
            from: Some("127.0.0.1".into()),
            request: None,
            outcome: "ok".into(),
            detail: None,
        }
    }

    fn log(entries: i64) -> Vec<Entry> {
        let mut head = Head::empty(NodeId::from_random([1; 16]));
        (1..=entries)
            .map(|number| {
                let entry = chain(&head, deed(number));
                head = Head { node: entry.node, seq: entry.seq, hash: entry.hash.clone() };
                entry
            })
            .collect()
    }

    fn verify(log: &[Entry], noted: Option<Head>) -> Result<Head, Broken> {
        let mut verifier = Verifier::new(NodeId::from_random([1; 16]), noted);
        log.iter().try_for_each(|entry| verifier.take(entry))?;
        verifier.finish()
    }

    fn head(entry: &Entry) -> Head {
        Head { node: entry.node, seq: entry.seq, hash: entry.hash.clone() }
    }

    #[test]
    fn a_whole_log_is_verified_up_to_its_head() {
        let log = log(5);
        assert_eq!(verify(&log, None), Ok(head(&log[4])));
        assert_eq!(verify(&log, Some(head(&log[2]))), Ok(head(&log[4])));
        assert_eq!(verify(&[], None).unwrap().seq, 0);
    }

    #[test]
    fn a_line_that_was_taken_out_changed_or_added_is_noticed() {
        let log = log(5);
        let mut missing = log.clone();
        missing.remove(2);
        assert_eq!(verify(&missing, None), Err(Broken::Missing(3)));
        let mut changed = log.clone();
        changed[2].deed.actor = "eve".into();
        assert_eq!(verify(&changed, None), Err(Broken::Changed(3)));
        let mut twice = log.clone();
        twice.insert(2, log[2].clone());
        assert!(verify(&twice, None).is_err());
    }

    #[test]
    fn a_cut_tail_and_a_log_written_anew_are_noticed_by_a_noted_head() {
        let log = log(5);
        let noted = Some(head(&log[4]));
        assert_eq!(verify(&log[..3], noted.clone()), Err(Broken::Cut { found: 3, expected: 5 }));
        let mut forged = Vec::new();
        let mut before = Head::empty(log[0].node);
        for number in 1..=5 {
            let entry = chain(&before, Deed { actor: "eve".into(), ..deed(number) });
            before = head(&entry);
            forged.push(entry);
        }
        assert_eq!(verify(&forged, None), Ok(before));
        assert_eq!(verify(&forged, noted), Err(Broken::Rewritten(5)));
    }

    #[test]
    fn an_entry_with_a_masked_detail_is_verified_by_the_digest_of_what_was_written() {
        let node = NodeId::from_random([7; 16]);
        let written = Deed { detail: Some("echo hunter2".into()), ..deed(1) };
        let entry = chain(&Head::empty(node), written);
        let masked = Deed { detail: Some("echo *******".into()), ..deed(1) };
        let shown = Entry { deed: masked, detail_sha256: Some(detail_digest("echo hunter2")), ..entry };
        Verifier::new(node, None).take(&shown).unwrap();
        let other = Entry { detail_sha256: Some(detail_digest("rm -rf /")), ..shown.clone() };
        assert_eq!(Verifier::new(node, None).take(&other), Err(Broken::Changed(1)));
        let without = Entry { detail_sha256: None, ..shown };
        assert_eq!(Verifier::new(node, None).take(&without), Err(Broken::Changed(1)));
    }
}
