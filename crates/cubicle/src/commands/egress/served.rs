//! What leases of a server may reach, and what they have reached.

use std::fmt::Write;

use cubicle_api as api;
use cubicle_api::client::Client;
use cubicle_model::egress::SaidBy;
use cubicle_model::{ExecSpec, Fault, Kind};

use crate::args::{EgressBill, EgressRecord, EgressSet, EgressShow, Exec};
use crate::context::Context;
use crate::control_plane::{self, OwnLease};
use crate::failure::{Ending, Failure, printable};
use crate::signals::Signals;
use crate::table::Table;
use crate::target::Subject;

pub(super) async fn show(args: &EgressShow, context: &Context) -> Result<(), Fault> {
    let egress = control_plane::client(context)?.lease_egress(args.lease).await?;
    print(&egress, args.shape.json)
}

pub(super) async fn set(args: &EgressSet, context: &Context) -> Result<(), Fault> {
    let policy = args.policy.as_deref().map(super::policy).transpose()?;
    let asked = api::LeaseEgress { policy, record: args.record };
    let egress = control_plane::client(context)?.change_lease_egress(args.lease, &asked).await?;
    print(&egress, args.shape.json)
}

fn print(egress: &api::Egress, as_json: bool) -> Result<(), Fault> {
    if as_json {
        return super::super::print_json(egress);
    }
    let said_by = match egress.said_by {
        SaidBy::Template => "of its template",
        SaidBy::Lease => "of the lease",
        SaidBy::Exec => "of an exec, while it runs",
    };
    let record = if egress.record { ", recorded: what no rule denies is allowed" } else { "" };
    let mut text = format!("# {said_by}{record}\n{}", printable(&egress.policy.to_string()));
    if let Some(minimal) = &egress.minimal_policy {
        // Writing to a string does not fail.
        _ = write!(text, "\n# what it would have needed so far\n{}", printable(&minimal.to_string()));
    }
    super::super::print(&text)
}

pub(super) async fn bill(args: &EgressBill, context: &Context) -> Result<(), Fault> {
    let client = control_plane::client(context)?;
    let bill = match args.subject {
        Subject::Lease(id) => client.lease_egress(id).await?.bill,
        Subject::Exec(id) => client.exec_egress(id).await?,
    };
    match () {
        () if args.shape.json => super::super::print_json(&bill),
        () if args.csv => super::super::print(&as_csv(&bill)),
        () => super::super::print(&as_tables(&bill)),
    }
}

fn as_tables(bill: &api::Bill) -> String {
    let mut reached =
        Table::new(["HOST", "PORT", "METHOD", "REQUESTS", "FAILED", "SENT", "RECEIVED", "TIME"]);
    for line in &bill.lines {
        reached.row([
            line.host.clone(),
            line.port.to_string(),
            line.method.clone().unwrap_or_else(|| "-".into()),
            line.requests.to_string(),
            line.failures.to_string(),
            line.bytes_sent.to_string(),
            line.bytes_received.to_string(),
            format!("{}ms", line.duration_ms),
        ]);
    }
    let mut text = reached.to_string();
    if !bill.denials.is_empty() {
        let mut denied = Table::new(["DENIED", "BECAUSE", "TIMES"]);
        for denial in &bill.denials {
            denied.row([denial.target.clone(), denial.rule.clone(), denial.count.to_string()]);
        }
        _ = write!(text, "\n{denied}");
    }
    if bill.unlisted > 0 {
        _ = writeln!(text, "\n{} more attempts found no line left", bill.unlisted);
    }
    text
}

/// One line for every host and every denial; cells that hold a comma or a quote are quoted.
fn as_csv(bill: &api::Bill) -> String {
    let cell = |text: &str| match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        // A spreadsheet takes such a cell for a formula.
        false if text.starts_with(['=', '+', '-', '@']) => format!("'{text}"),
        false => text.to_owned(),
    };
    let mut text =
        String::from("kind,target,port,method,count,failures,bytes_sent,bytes_received,duration_ms,rule\n");
    for line in &bill.lines {
        _ = writeln!(
            text,
            "reached,{},{},{},{},{},{},{},{},",
            cell(&line.host),
            line.port,
            cell(line.method.as_deref().unwrap_or_default()),
            line.requests,
            line.failures,
            line.bytes_sent,
            line.bytes_received,
            line.duration_ms
        );
    }
    for denial in &bill.denials {
        _ = writeln!(text, "denied,{},,,{},,,,,{}", cell(&denial.target), denial.count, cell(&denial.rule));
    }
    text
}

/// Runs a command with everything allowed that no rule denies, and says what it needed.
pub(super) async fn record(args: &EgressRecord, context: &Context) -> Result<Ending, Failure> {
    let mut signals = Signals::catch()?;
    let exec: &Exec = &args.exec;
    if exec.target.is_some() || exec.detach {
        let fault = Fault::new(Kind::Invalid, "a recording is made in a sandbox of its own, to its end");
        return Err(fault.hint("for a lease that is there, 'cubicle egress set LEASE --record'").into());
    }
    let spec: ExecSpec = super::super::run::spec(&exec.how, exec.argv.clone(), &context.environment)?;
    let client = control_plane::client(context)?;
    let policy = exec.egress.as_deref().map(super::policy).transpose()?;
    let egress = api::LeaseEgress { policy, record: true };
    let lease = tokio::select! {
        lease = OwnLease::acquire(&client, exec.template.as_deref(), egress) => lease?,
        // A lease that was made all the same ends by itself soon.
        signal = signals.next_ending() => return Ok(Ending::Signal(signal)),
    };
    let ending = super::super::exec::inside(exec, &spec, &client, lease.sandbox, &mut signals).await;
    let told = tell(args, &client, &lease).await;
    lease.release(&client).await;
    let ending = ending?;
    told?;
    Ok(ending)
}

async fn tell(args: &EgressRecord, client: &Client, lease: &OwnLease) -> Result<(), Fault> {
    let minimal = client.lease_egress(lease.id).await?.minimal_policy;
    let text = match minimal {
        Some(policy) => policy.to_string(),
        None => "none\n".to_owned(),
    };
    match &args.output {
        Some(path) => std::fs::write(path, &text).map_err(|error| {
            Fault::new(Kind::Denied, format!("cannot write {}", path.display())).because(error)
        }),
        None => {
            use std::io::Write;
            // What the command printed is on standard output.
            _ = write!(anstream::stderr(), "# the smallest policy for this run\n{}", printable(&text));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bill_is_a_table_for_spreadsheets() {
        let bill = api::Bill {
            lines: vec![api::BillLine {
                host: "a.example".into(),
                port: 443,
                method: None,
                requests: 2,
                failures: 1,
                bytes_sent: 10,
                bytes_received: 20,
                duration_ms: 5,
            }],
            denials: vec![api::Denial { target: "=b, \"c\"".into(), rule: "not allowed".into(), count: 3 }],
            unlisted: 0,
        };
        assert_eq!(
            as_csv(&bill),
            "kind,target,port,method,count,failures,bytes_sent,bytes_received,duration_ms,rule\n\
             reached,a.example,443,,2,1,10,20,5,\n\
             denied,\"=b, \"\"c\"\"\",,,3,,,,,not allowed\n"
        );
        assert!(as_tables(&bill).contains("not allowed"));
    }
}
