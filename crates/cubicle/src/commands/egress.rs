//! `cubicle egress`: what sandboxes may reach.

mod explain;
mod served;

use std::fmt::Write;
use std::io::Read;
use std::path::Path;

use anstyle::Style;
use cubicle_model::egress::{Bundles, OwnAddresses, Policy, Statement, SyntaxError};
use cubicle_model::{Fault, Kind};
use serde_json::json;

use crate::args::{Egress, EgressCheck};
use crate::bundles::{self, Found};
use crate::context::Context;
use crate::failure::{Ending, Failure, invalid, printable};

/// A policy that cannot be used.
const UNUSABLE: i32 = 1;
/// A policy is much shorter.
const LONGEST_POLICY: u64 = 1 << 20;

pub(crate) async fn egress(verb: &Egress, context: &Context) -> Result<Ending, Failure> {
    match verb {
        Egress::Bundles(shape) => show_bundles(shape.json, context)?,
        Egress::Explain(args) => return Ok(explain::explain(args, context)?),
        Egress::Check(args) => check(args, context)?,
        Egress::Show(args) => served::show(args, context).await?,
        Egress::Set(args) => served::set(args, context).await?,
        Egress::Bill(args) => served::bill(args, context).await?,
        Egress::Record(args) => return served::record(args, context).await,
    }
    Ok(super::DONE)
}

fn show_bundles(as_json: bool, context: &Context) -> Result<(), Fault> {
    let found = bundles::found(&context.settings.egress, &context.environment);
    let parsed = found.parsed()?;
    let rules = |name| parsed.get(name).unwrap_or_default().iter().map(ToString::to_string);
    if as_json {
        let list: Vec<_> = found
            .iter()
            .map(|(name, bundle)| {
                json!({ "name": name, "rules": rules(name).collect::<Vec<_>>(), "from": bundle.from })
            })
            .collect();
        return super::print_json(&list);
    }
    let bold = Style::new().bold();
    let mut text = String::new();
    for (name, bundle) in found.iter() {
        let empty = if bundle.rules.is_empty() { "empty, and an error to use: " } else { "" };
        // Writing to a string does not fail.
        _ = writeln!(text, "{bold}@{name}{bold:#}  {empty}{}", printable(&bundle.from));
        for rule in rules(name) {
            _ = writeln!(text, "  {rule}");
        }
    }
    super::print(&text)
}

fn check(args: &EgressCheck, context: &Context) -> Result<(), Failure> {
    let text = read(&args.file)?;
    let unusable = |fault| Failure { fault, code: UNUSABLE };
    let policy = parse(&text, shown(&args.file)).map_err(unusable)?;
    let bundles = bundles_of(&policy, context)?;
    resolved(&policy, &bundles).map_err(unusable)?;
    if args.shape.json {
        let statements: Vec<String> = policy.rules.iter().map(ToString::to_string).collect();
        return Ok(super::print_json(&json!({ "mode": policy.mode.name(), "rules": statements }))?);
    }
    let count = match policy.rules.len() {
        1 => "1 rule".to_owned(),
        count => format!("{count} rules"),
    };
    Ok(super::print(&format!("{}: {}, {count}\n", printable(shown(&args.file)), policy.mode.name()))?)
}

/// What stands behind the names in a policy. A policy without any needs no program to be asked.
fn bundles_of(policy: &Policy, context: &Context) -> Result<Bundles, Fault> {
    let refers = policy.rules.iter().any(|statement| matches!(statement, Statement::Bundle(_)));
    let found = match refers {
        true => bundles::found(&context.settings.egress, &context.environment),
        false => Found::default(),
    };
    found.parsed()
}

fn resolved(policy: &Policy, bundles: &Bundles) -> Result<cubicle_model::egress::Ruleset, Fault> {
    policy.resolve(bundles, &OwnAddresses::default()).map_err(|unresolved| {
        invalid(unresolved.to_string()).hint("'cubicle egress bundles' shows all of them, and what to set")
    })
}

/// The policy in a file, on standard input, or as it stands there.
pub(crate) fn policy(given: &str) -> Result<Policy, Fault> {
    if given == "-" || Path::new(given).is_file() {
        return parse(&read(given)?, shown(given));
    }
    let is_word = !given.contains(|c: char| c.is_whitespace() || c == ';') && !given.starts_with('@');
    match parse(given, "the policy") {
        Err(_) if is_word => Err(invalid(format!("'{given}' is neither a file nor a policy")).hint(
            "a policy is written as in 'allow @git; allow *.example.org', or is in a file, or comes from -",
        )),
        parsed => parsed,
    }
}

fn parse(text: &str, named: &str) -> Result<Policy, Fault> {
    text.parse().map_err(|error: SyntaxError| {
        invalid(format!("{named}: {error}")).hint("docs/guide/egress.md has the syntax of policies")
    })
}

fn shown(file: &str) -> &str {
    if file == "-" { "standard input" } else { file }
}

/// The text of a file, or of standard input.
fn read(file: &str) -> Result<String, Fault> {
    let unreadable = |error: std::io::Error| {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => Kind::NotFound,
            _ => Kind::Invalid,
        };
        Fault::new(kind, format!("cannot read {}", shown(file))).because(error)
    };
    let mut bytes = Vec::new();
    let reading = match file {
        "-" => std::io::stdin().lock().take(LONGEST_POLICY).read_to_end(&mut bytes),
        _ => std::fs::File::open(Path::new(file))
            .and_then(|file| file.take(LONGEST_POLICY).read_to_end(&mut bytes)),
    };
    reading.map_err(unreadable)?;
    String::from_utf8(bytes).map_err(|_| invalid(format!("{} is not text in UTF-8", shown(file))))
}
