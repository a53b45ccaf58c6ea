//! `cubicle bench`: measurements against starting a process directly, and against the peers that are installed.

mod table;

use cubicle_model::{Fault, Kind};

use crate::args::Bench;
use crate::context::Context;
use crate::failure::{Ending, invalid};
use table::Row;

/// The measurements by id, in the order in which they are shown.
const IDS: [&str; 8] = [
    "exec.warm",
    "claim.warm",
    "create.cold",
    "destroy",
    "memory.idle",
    "cycles",
    "exec.warm.1000",
    "journal.64mb",
];

pub(crate) async fn bench(args: &Bench, context: &Context) -> Result<Ending, Fault> {
    let ids = wanted(&args.only)?;
    let rows = measure(&ids, args.quick, context).await?;
    if args.shape.json {
        crate::commands::print_json(&rows)?;
    } else {
        crate::commands::print(&table::render(&rows))?;
    }
    let all_met = rows.iter().all(|row| row.met != Some(false));
    Ok(Ending::Code(if all_met { 0 } else { 1 }))
}

fn wanted(only: &[String]) -> Result<Vec<&'static str>, Fault> {
    if only.is_empty() {
        return Ok(IDS.into());
    }
    let find = |given: &String| {
        IDS.into_iter().find(|id| id == given).ok_or_else(|| {
            invalid(format!("there is no measurement '{given}'")).hint(format!("known: {}", IDS.join(", ")))
        })
    };
    only.iter().map(find).collect()
}

async fn measure(ids: &[&'static str], _quick: bool, context: &Context) -> Result<Vec<Row>, Fault> {
    let _backend = context.backend().await?;
    Err(Fault::new(Kind::Invalid, format!("this build cannot measure {}", ids.join(", ")))
        .hint("use a build with measurements"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_measurement_is_refused_with_the_known_ones() {
        assert_eq!(wanted(&["destroy".into()]).unwrap(), ["destroy"]);
        assert_eq!(wanted(&[]).unwrap().len(), IDS.len());
        assert!(wanted(&["speed".into()]).unwrap_err().way_out().unwrap().contains("exec.warm"));
    }
}
