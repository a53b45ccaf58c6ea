//! `cubicle ls`: what there is.

use cubicle_backend::{Seen, State};
use cubicle_model::{Fault, Lifetime};
use serde_json::{Value, json};

use crate::args::Ls;
use crate::context::Context;
use crate::failure::Ending;
use crate::table::one_line;

pub(crate) async fn ls(args: &Ls, context: &Context) -> Result<Ending, Fault> {
    let seen = context.backend().await?.list().await?;
    if args.shape.json {
        super::print_json(&seen.iter().map(as_json).collect::<Vec<_>>())?;
    } else if args.quiet {
        super::print(&seen.iter().map(|seen| format!("{}\n", seen.id)).collect::<String>())?;
    } else {
        super::print(&table(&seen))?;
    }
    Ok(super::DONE)
}

fn as_json(seen: &Seen) -> Value {
    json!({
        "id": seen.id,
        "state": state(seen),
        "lifetime": lifetime(seen),
        "isolation": seen.receipt.as_ref().map(|receipt| receipt.isolation),
        "labels": seen.labels,
    })
}

fn table(seen: &[Seen]) -> String {
    let mut text = format!("{:<30}  {:<6}  {:<8}  {:<10}  LABELS\n", "ID", "STATE", "LIFETIME", "ISOLATION");
    for seen in seen {
        let isolation = seen.receipt.as_ref().map_or("-", |receipt| receipt.isolation.name());
        let labels: Vec<String> =
            seen.labels.iter().map(|(name, value)| one_line(&format!("{name}={value}"))).collect();
        let row = format!(
            "{:<30}  {:<6}  {:<8}  {:<10}  {}",
            seen.id.to_string(),
            state(seen),
            lifetime(seen),
            isolation,
            labels.join(" ")
        );
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

fn state(seen: &Seen) -> &'static str {
    match seen.state {
        State::Ready => "ready",
        State::Ended => "ended",
    }
}

fn lifetime(seen: &Seen) -> &'static str {
    match seen.lifetime {
        Lifetime::Bound => "bound",
        Lifetime::Durable => "durable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cubicle_model::SandboxId;

    #[test]
    fn a_row_is_one_line_whatever_the_labels_hold() {
        let seen = Seen {
            id: SandboxId::from_random([3; 16]),
            lifetime: Lifetime::Durable,
            state: State::Ready,
            labels: [("command".to_owned(), format!("sh -c 'echo \u{1b}[2J\nx' {}", "y".repeat(90)))].into(),
            receipt: None,
        };
        let text = table(&[seen]);
        assert_eq!(text.lines().count(), 2);
        assert!(!text.contains('\u{1b}') && text.contains('…'), "{text}");
    }
}
