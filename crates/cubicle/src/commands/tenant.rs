//! `cubicle tenant`: those who share a server.

use cubicle_api as api;
use cubicle_model::limits::ByteSize;
use cubicle_model::{Fault, Quota};

use crate::args::{Tenant, TenantSet};
use crate::context::Context;
use crate::control_plane;
use crate::failure::Ending;
use crate::table::{Table, or_dash};

pub(crate) async fn tenant(verb: &Tenant, context: &Context) -> Result<Ending, Fault> {
    let client = control_plane::client(context)?;
    match verb {
        Tenant::Create(args) => {
            let quota = quota(args, Quota::default());
            let asked =
                api::CreateTenant { name: args.name.clone(), quota, weight: args.weight.unwrap_or(1) };
            super::print_json(&client.create_tenant(&asked).await?)?;
        }
        Tenant::Ls(shape) => {
            let tenants = client.tenants().await?;
            match shape.json {
                true => super::print_json(&tenants)?,
                false => super::print(&table(&tenants))?,
            }
        }
        Tenant::Set(args) => {
            let seen = client.tenant(&args.name).await?;
            let quota = quota(args, seen.quota);
            let asked = api::ReplaceTenant { quota, weight: args.weight.unwrap_or(seen.weight) };
            super::print_json(&client.replace_tenant(&args.name, &asked, seen.version).await?)?;
        }
    }
    Ok(super::DONE)
}

fn quota(args: &TenantSet, before: Quota) -> Quota {
    Quota {
        leases: args.leases.or(before.leases),
        millicpus: args.cpus.map(|cores| cores.millicpus).or(before.millicpus),
        memory: args.memory.map(|size| size.0).or(before.memory),
        execs: args.execs.or(before.execs),
    }
}

fn table(tenants: &[api::Tenant]) -> String {
    let mut table = Table::new(["TENANT", "WEIGHT", "LEASES", "CPUS", "MEMORY", "EXECS"]);
    for tenant in tenants {
        let quota = &tenant.quota;
        table.row([
            tenant.name.clone(),
            tenant.weight.to_string(),
            or_dash(quota.leases),
            or_dash(quota.millicpus.map(|millicpus| millicpus as f64 / 1000.0)),
            or_dash(quota.memory.map(ByteSize)),
            or_dash(quota.execs),
        ]);
    }
    table.to_string()
}
