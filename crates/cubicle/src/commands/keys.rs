//! `cubicle keys`: who may ask a server, and for what.

use cubicle_api as api;
use cubicle_api::client::Client;
use cubicle_model::{Fault, Scope, Timestamp};

use crate::args::{KeyCreate, Keys};
use crate::context::Context;
use crate::control_plane;
use crate::failure::{Ending, invalid, note};
use crate::table::{Table, ago, ahead};

pub(crate) async fn keys(verb: &Keys, context: &Context) -> Result<Ending, Fault> {
    let client = control_plane::client(context)?;
    match verb {
        Keys::Create(args) => create(args, &client).await?,
        Keys::Ls(shape) => {
            let mut keys = client.keys().await?;
            keys.sort_by_key(|key| key.created_at);
            match shape.json {
                true => super::print_json(&keys)?,
                false => super::print(&table(&keys, Timestamp::now()))?,
            }
        }
        Keys::Revoke(args) => {
            for id in &args.ids {
                client.revoke_key(*id).await?;
            }
        }
    }
    Ok(super::DONE)
}

async fn create(args: &KeyCreate, client: &Client) -> Result<(), Fault> {
    let expires_at = args
        .expires_in
        .map(|span| Timestamp::now().checked_add(span.0).map_err(|_| invalid("no key lives that long")));
    let asked = api::CreateKey {
        label: args.label.clone(),
        tenant: args.tenant.clone(),
        user: args.user.clone(),
        scopes: args.scopes.iter().copied().collect(),
        requests_per_second: args.requests_per_second,
        expires_at: expires_at.transpose()?,
    };
    let made = client.create_key(&asked).await?;
    if args.shape.json {
        return super::print_json(&made);
    }
    note(&format!(
        "made {} for {} of {}; its secret is not shown again",
        made.key.key_id, made.key.user, made.key.tenant
    ));
    super::print(&format!("{}\n", made.secret))
}

fn table(keys: &[api::Key], now: Timestamp) -> String {
    let mut table = Table::new(["KEY", "LABEL", "TENANT", "USER", "SCOPES", "AGE", "ENDS"]);
    for key in keys {
        let ends = match (key.revoked_at, key.expires_at) {
            (Some(_), _) => "revoked".into(),
            (None, Some(end)) => ahead(end, now),
            (None, None) => "never".into(),
        };
        table.row([
            key.key_id.clone(),
            key.label.clone(),
            key.tenant.clone(),
            key.user.clone(),
            key.scopes.iter().map(|scope| Scope::name(*scope)).collect::<Vec<_>>().join(","),
            ago(key.created_at, now),
            ends,
        ]);
    }
    table.to_string()
}
