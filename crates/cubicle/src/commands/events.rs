//! `cubicle events`: what happens on a server.

use std::time::Duration;

use cubicle_api::Event;
use cubicle_model::Fault;
use tokio::time::timeout;

use crate::args::Events;
use crate::context::Context;
use crate::control_plane;
use crate::failure::{Ending, printable};

/// The server sends what it kept at once; after this long without an event there is nothing more.
const QUIET: Duration = Duration::from_millis(500);

pub(crate) async fn events(args: &Events, context: &Context) -> Result<Ending, Fault> {
    let client = control_plane::client(context)?;
    let after = match args.follow {
        true => args.after,
        false => Some(args.after.unwrap_or(0)),
    };
    let mut events = client.events(after, args.subject.as_deref());
    if args.follow {
        loop {
            show(&events.next().await?, args.json)?;
        }
    }
    while let Ok(event) = timeout(QUIET, events.next()).await {
        show(&event?, args.json)?;
    }
    Ok(super::DONE)
}

fn show(event: &Event, json: bool) -> Result<(), Fault> {
    if json {
        let line = serde_json::to_string(event).unwrap_or_default();
        return super::print(&format!("{line}\n"));
    }
    let Event { seq, kind, subject, time, data, .. } = event;
    let data = match data {
        serde_json::Value::Null => String::new(),
        serde_json::Value::Object(fields) if fields.is_empty() => String::new(),
        data => format!("  {data}"),
    };
    super::print(&printable(&format!("{time:.3}  {seq:>6}  {kind:<18}  {subject}{data}\n")))
}
