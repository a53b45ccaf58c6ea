//! `cubicle audit`: who did what, and whether the log still says so.

use std::path::Path;

use cubicle_api as api;
use cubicle_api::client::{AuditQuery, Client};
use cubicle_model::audit::{Broken, Deed, Entry, Head, Verifier};
use cubicle_model::{Fault, Kind, NodeId};

use crate::args::{Audit, AuditLs, AuditVerify};
use crate::context::Context;
use crate::control_plane::{self, read_id};
use crate::failure::{Ending, invalid};
use crate::table::{Table, or_dash};

/// A log that was tampered with.
const BROKEN: Ending = Ending::Code(1);

pub(crate) async fn audit(verb: &Audit, context: &Context) -> Result<Ending, Fault> {
    let client = control_plane::client(context)?;
    match verb {
        Audit::Ls(args) => list(args, &client).await?,
        Audit::Export => export(&client).await?,
        Audit::Heads => super::print_json(&client.audit_heads().await?)?,
        Audit::Verify(args) => return verify(args, &client).await,
    }
    Ok(super::DONE)
}

async fn list(args: &AuditLs, client: &Client) -> Result<(), Fault> {
    let query = AuditQuery {
        actor: args.actor.clone(),
        action: args.action.clone(),
        subject: args.subject.clone(),
        since: args.since,
        until: args.until,
    };
    // The server lists from the oldest on.
    let mut entries = client.audit(&query, usize::MAX).await?;
    entries.drain(..entries.len().saturating_sub(args.limit));
    if args.shape.json {
        return super::print_json(&entries);
    }
    let mut table = Table::new(["TIME", "ACTOR", "ACTION", "SUBJECT", "OUTCOME", "FROM", "DETAIL"]);
    for entry in entries {
        let (from, detail) = (or_dash(entry.from), entry.detail.unwrap_or_default());
        table.row([
            entry.time.to_string(),
            entry.actor,
            entry.action,
            entry.subject,
            entry.outcome,
            from,
            detail,
        ]);
    }
    super::print(&table.to_string())
}

async fn export(client: &Client) -> Result<(), Fault> {
    for head in client.audit_heads().await? {
        let mut after = None;
        loop {
            let page = client.audit_chain(head.node, after.as_deref()).await?;
            let lines =
                page.items.iter().map(|entry| serde_json::to_string(entry).unwrap_or_default() + "\n");
            super::print(&lines.collect::<String>())?;
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    Ok(())
}

/// What came of one node's log.
#[derive(serde::Serialize)]
struct Verdict {
    node: NodeId,
    whole: bool,
    /// The last entry that is as it was written.
    seq: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    broken: Option<String>,
}

async fn verify(args: &AuditVerify, client: &Client) -> Result<Ending, Fault> {
    let noted = match &args.head {
        Some(file) => read_heads(file)?,
        None => Vec::new(),
    };
    let mut nodes: Vec<NodeId> = client.audit_heads().await?.iter().map(|head| head.node).collect();
    // A node of which nothing is left was removed as a whole.
    nodes.extend(noted.iter().map(|head| head.node));
    nodes.sort_by_key(NodeId::to_string);
    nodes.dedup();
    let mut verdicts = Vec::new();
    for node in nodes {
        let noted = noted.iter().find(|head| head.node == node).cloned();
        verdicts.push(match verify_node(client, node, noted).await? {
            Ok(head) => Verdict { node, whole: true, seq: head.seq, broken: None },
            Err((seq, broken)) => Verdict { node, whole: false, seq, broken: Some(broken.to_string()) },
        });
    }
    match args.shape.json {
        true => super::print_json(&verdicts)?,
        false => super::print(&verdicts.iter().map(line).collect::<String>())?,
    }
    Ok(if verdicts.iter().all(|verdict| verdict.whole) { super::DONE } else { BROKEN })
}

fn line(verdict: &Verdict) -> String {
    match &verdict.broken {
        None => format!("{}: whole, {} entries\n", verdict.node, verdict.seq),
        Some(broken) => format!("{}: BROKEN: {broken}\n", verdict.node),
    }
}

/// The head of a whole log; or where it is broken, after the last entry that is not.
async fn verify_node(
    client: &Client,
    node: NodeId,
    noted: Option<Head>,
) -> Result<Result<Head, (i64, Broken)>, Fault> {
    let mut verifier = Verifier::new(node, noted);
    let mut good = 0;
    let mut after = None;
    loop {
        let page = client.audit_chain(node, after.as_deref()).await?;
        for entry in page.items {
            let entry = read(entry)?;
            if let Err(broken) = verifier.take(&entry) {
                return Ok(Err((good, broken)));
            }
            good = entry.seq;
        }
        after = page.next;
        if after.is_none() {
            return Ok(verifier.finish().map_err(|broken| (good, broken)));
        }
    }
}

fn read(entry: api::AuditEntry) -> Result<Entry, Fault> {
    Ok(Entry {
        node: read_id(&entry.node)?,
        seq: entry.seq,
        deed: Deed {
            time: entry.time,
            tenant: entry.tenant,
            actor: entry.actor,
            key: entry.key,
            action: entry.action,
            subject: entry.subject,
            from: entry.from,
            request: entry.request,
            outcome: entry.outcome,
            detail: entry.detail,
        },
        detail_sha256: entry.detail_sha256,
        hash: entry.hash,
    })
}

fn read_heads(file: &Path) -> Result<Vec<Head>, Fault> {
    let unreadable = |why: &str| {
        invalid(format!("{} {why}", file.display())).hint("write it with 'cubicle audit heads > FILE'")
    };
    let text = std::fs::read_to_string(file).map_err(|error| {
        Fault::new(Kind::NotFound, format!("cannot read {}", file.display())).because(error)
    })?;
    let heads: Vec<Head> =
        serde_json::from_str(&text).map_err(|error| unreadable("holds no heads").because(error))?;
    match heads.is_empty() {
        true => Err(unreadable("holds no heads")),
        false => Ok(heads),
    }
}
