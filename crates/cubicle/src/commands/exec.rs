//! `cubicle exec`: one command in a sandbox that was kept.

use cubicle_backend::State;
use cubicle_model::{Fault, Kind};

use super::run::{attend_in, explain, finish, spec};
use crate::args::Exec;
use crate::context::{Context, existing, guest};
use crate::failure::{Ending, Failure};
use crate::signals::Signals;

pub(crate) async fn exec(args: &Exec, context: &Context) -> Result<Ending, Failure> {
    let mut signals = Signals::catch()?;
    let spec = spec(&args.how, args.argv.argv.clone(), &context.environment)?;
    let find = async {
        let backend = context.backend().await?;
        let seen = existing(&*backend, args.id).await?;
        Ok::<_, Fault>((backend, seen))
    };
    let (backend, seen) = tokio::select! {
        found = find => found?,
        // Looking changes nothing.
        signal = signals.next_ending() => return Ok(Ending::Signal(signal)),
    };
    if seen.state == State::Ended {
        let fault = Fault::new(Kind::NotFound, format!("{} ended and runs nothing any more", args.id));
        return Err(fault.hint(format!("'cubicle rm {}' removes what is left of it", args.id)).into());
    }
    let guest = guest(&backend, args.id).await?;
    let attended = attend_in(&seen, &guest, &spec, &args.how, &mut signals).await;
    let attended = explain(&*backend, args.id, attended).await?;
    let isolation = seen.receipt.as_ref().map_or("unknown", |receipt| receipt.isolation.name());
    finish(&args.how, args.id, isolation, attended, None)
}
