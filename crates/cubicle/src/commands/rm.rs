//! `cubicle rm`: the end of sandboxes.

use cubicle_model::Fault;

use crate::args::Rm;
use crate::context::{Context, existing};
use crate::failure::Ending;

pub(crate) async fn rm(args: &Rm, context: &Context) -> Result<Ending, Fault> {
    let backend = context.backend().await?;
    if args.all {
        for seen in backend.list().await? {
            backend.destroy(seen.id).await?;
            super::print(&format!("{}\n", seen.id))?;
        }
    } else {
        // All ids are looked up first, so that a mistyped one removes nothing.
        for id in &args.ids {
            existing(&*backend, *id).await?;
        }
        for id in &args.ids {
            backend.destroy(*id).await?;
            super::print(&format!("{id}\n"))?;
        }
    }
    Ok(super::DONE)
}
