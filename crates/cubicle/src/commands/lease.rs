//! `cubicle lease`: sandboxes of a server, and the right to them.

use std::os::unix::fs::PermissionsExt;

use cubicle_api as api;
use cubicle_api::client::{Client, LeaseQuery};
use cubicle_model::{Fault, LeaseStatus, LimitRequest, Timestamp};

use crate::args::{Lease, LeaseCreate, LeaseLs};
use crate::context::Context;
use crate::control_plane;
use crate::failure::{Ending, invalid};
use crate::table::{Table, ago, ahead, or_dash, record};
use crate::values::FileCopy;

pub(crate) async fn lease(verb: &Lease, context: &Context) -> Result<Ending, Fault> {
    let client = control_plane::client(context)?;
    match verb {
        Lease::Create(args) => create(args, &client, context).await?,
        Lease::Ls(args) => list(args, &client).await?,
        Lease::Get(args) => show(&client.lease(args.id).await?, args.shape.json)?,
        Lease::Heartbeat(args) => show(&client.heartbeat(args.id).await?, args.shape.json)?,
        Lease::Release(args) => {
            for id in &args.ids {
                client.release(*id).await?;
            }
        }
    }
    Ok(super::DONE)
}

async fn create(args: &LeaseCreate, client: &Client, context: &Context) -> Result<(), Fault> {
    let ttl = args.ttl.map(|ttl| ttl.0.as_secs_f64().ceil() as u32);
    let value = |name: &str| context.environment.text(name);
    let asked = api::CreateLease {
        template: args.template.clone(),
        user: args.user.clone(),
        workflow: args.workflow.clone().unwrap_or_default(),
        request: args.request.clone(),
        ttl_seconds: ttl,
        env: args
            .variables
            .iter()
            .filter_map(|set| Some((set.name.clone(), set.value.clone().or_else(|| value(&set.name))?)))
            .collect(),
        files: args.files.iter().map(read).collect::<Result<_, _>>()?,
        limits: LimitRequest {
            memory: args.memory.map(|size| size.0),
            millicpus: args.cpus.map(|cores| cores.millicpus),
            ..LimitRequest::default()
        },
        egress: api::LeaseEgress {
            policy: args.egress.as_deref().map(super::egress::policy).transpose()?,
            record: args.record,
        },
        secrets: api::GivenSecrets {
            files: args.secret_files.clone(),
            env: args
                .secret_variables
                .iter()
                .map(|set| (set.name.clone(), set.value.clone().unwrap_or_else(|| set.name.clone())))
                .collect(),
        },
        queue: args.queue,
        ..api::CreateLease::default()
    };
    let lease = client.create_lease(&asked).await?;
    match args.quiet {
        true => super::print(&format!("{}\n", lease.lease_id)),
        false => show(&lease, args.shape.json),
    }
}

fn read(copy: &FileCopy) -> Result<api::NewFile, Fault> {
    let unreadable = |error| {
        invalid(format!("cannot read {}", copy.source.display()))
            .because(error)
            .hint("'cubicle cp' copies directories and large files into the sandbox afterwards")
    };
    let mode = std::fs::metadata(&copy.source).map_err(unreadable)?.permissions().mode() & 0o777;
    let bytes = std::fs::read(&copy.source).map_err(unreadable)?;
    Ok(api::NewFile { path: copy.target.clone(), content: api::BytesText::of(bytes), mode })
}

async fn list(args: &LeaseLs, client: &Client) -> Result<(), Fault> {
    let mut leases = client.leases(&LeaseQuery::default(), usize::MAX).await?;
    leases.sort_by_key(|lease| lease.created_at);
    leases.retain(|lease| args.all || !lease.status.has_ended());
    if args.shape.json {
        return super::print_json(&leases);
    }
    if args.quiet {
        return super::print(&leases.iter().map(|lease| format!("{}\n", lease.lease_id)).collect::<String>());
    }
    let now = Timestamp::now();
    let mut table = Table::new(["LEASE", "STATUS", "SANDBOX", "TEMPLATE", "USER", "AGE", "EXPIRES"]);
    for lease in leases {
        table.row([
            lease.lease_id,
            lease.status.name().into(),
            or_dash(lease.sandbox_id),
            lease.template,
            lease.user,
            ago(lease.created_at, now),
            if lease.status.has_ended() { "-".into() } else { ahead(lease.expires_at, now) },
        ]);
    }
    super::print(&table.to_string())
}

fn show(lease: &api::Lease, json: bool) -> Result<(), Fault> {
    if json {
        return super::print_json(lease);
    }
    let admission = serde_json::to_value(lease.admission).ok();
    let admission = admission.as_ref().and_then(|name| name.as_str()).unwrap_or_default();
    let status = match (lease.status, lease.queue, lease.ended_because) {
        (LeaseStatus::Queued, Some(place), _) => format!("QUEUED, number {}", place.position),
        (status, _, Some(end)) => format!("{} ({})", status.name(), end.name()),
        (status, ..) => format!("{} ({admission})", status.name()),
    };
    super::print(&record([
        ("lease", lease.lease_id.clone()),
        ("sandbox", or_dash(lease.sandbox_id.as_ref())),
        ("status", status),
        ("template", lease.template.clone()),
        ("user", lease.user.clone()),
        ("expires", ahead(lease.expires_at, Timestamp::now())),
    ]))
}
