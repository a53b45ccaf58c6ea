//! `cubicle gc`: the sweep.

use cubicle_model::Fault;

use crate::args::Shape;
use crate::context::Context;
use crate::failure::Ending;

pub(crate) async fn gc(shape: &Shape, context: &Context) -> Result<Ending, Fault> {
    let swept = context.backend().await?.gc().await?;
    if shape.json {
        super::print_json(&swept)?;
    } else {
        super::print(&format!(
            "removed {}, {} and {}\n",
            count(swept.sandboxes, "sandbox", "sandboxes"),
            count(swept.cgroups, "cgroup", "cgroups"),
            count(swept.directories, "directory", "directories"),
        ))?;
    }
    Ok(super::DONE)
}

fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}
