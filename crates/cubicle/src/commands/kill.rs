//! `cubicle kill`: the end of execs and leases.

use cubicle_api::client::{Client, Signal};
use cubicle_model::{Fault, Kind, LeaseId};

use crate::args::Kill;
use crate::context::Context;
use crate::control_plane::{self, read_id};
use crate::failure::{Ending, invalid};
use crate::target::{Target, Victim};

pub(crate) async fn kill(args: &Kill, context: &Context) -> Result<Ending, Fault> {
    let signal = args.signal.as_deref().map(signal);
    if signal.is_some() && args.ids.iter().any(|id| !matches!(id, Victim::Exec(_))) {
        return Err(
            invalid("a signal can only be sent to an exec").hint("leave --signal out to release a lease")
        );
    }
    let client = control_plane::client(context)?;
    for victim in &args.ids {
        match (victim, &signal) {
            (Victim::Exec(id), Some(signal)) => client.signal(*id, signal).await?,
            (Victim::Exec(id), None) => client.end_exec(*id, args.grace.map(|grace| grace.0)).await?,
            (Victim::Target(target), _) => {
                client.release(lease_of(&client, *target).await?).await?;
            }
        }
    }
    Ok(super::DONE)
}

fn signal(given: &str) -> Signal {
    match given.parse() {
        Ok(number) => Signal::Number(number),
        Err(_) => Signal::Name(given.to_uppercase()),
    }
}

async fn lease_of(client: &Client, target: Target) -> Result<LeaseId, Fault> {
    match target {
        Target::Lease(id) => Ok(id),
        Target::Sandbox(id) => match client.sandbox(id).await?.lease_id {
            Some(lease) => read_id(&lease),
            None => Err(Fault::new(Kind::Conflict, format!("nobody has a lease of {id}"))),
        },
    }
}
