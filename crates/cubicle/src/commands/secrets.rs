//! `cubicle secrets`: values that the server keeps, and where they go. A value is never an argument: others on this machine
//! can see those.

use std::io::{IsTerminal, Read};

use cubicle_api as api;
use cubicle_model::{Fault, Kind, SecretName, Timestamp};

use crate::args::{SecretSet, Secrets};
use crate::context::Context;
use crate::control_plane;
use crate::failure::{Ending, invalid, note, tell};
use crate::signals::Signals;
use crate::table::{Table, ago, or_dash};
use crate::terminal::Silence;

/// More than the server takes, so that it is the server that says so.
const MOST: u64 = 1024 * 1024;

pub(crate) async fn secrets(verb: &Secrets, context: &Context) -> Result<Ending, Fault> {
    let client = control_plane::client(context)?;
    match verb {
        Secrets::Set(args) => {
            let mut asked = api::PutSecret {
                from_file: args.from_file.clone(),
                from_environment: args.from_env.clone(),
                bindings: bindings(args),
                value: None,
            };
            if asked.from_file.is_none() && asked.from_environment.is_none() {
                match value(&args.name).await? {
                    Typed::Value(value) => asked.value = Some(api::SecretText::new(value)),
                    Typed::Signal(number) => return Ok(Ending::Signal(number)),
                }
            }
            let set = client.put_secret(&args.name, &asked, None).await?;
            match args.shape.json {
                true => super::print_json(&set)?,
                false => report(&set),
            }
        }
        Secrets::List(shape) => {
            let all = client.secrets().await?;
            match shape.json {
                true => super::print_json(&all)?,
                false => super::print(&table(&all, Timestamp::now()))?,
            }
        }
        Secrets::Rm(args) => {
            for name in &args.names {
                client.delete_secret(name).await?;
            }
        }
    }
    Ok(super::DONE)
}

fn bindings(args: &SecretSet) -> Option<Vec<api::Binding>> {
    let (Some(to), Some(form)) = (&args.to, &args.form) else {
        return args.unbound.then(Vec::new);
    };
    let templates: Vec<_> = args.templates.iter().map(ToString::to_string).collect();
    Some(vec![api::Binding {
        host: to.host.to_string(),
        port: to.port,
        form: form.to_string(),
        base: args.base.as_ref().map(ToString::to_string),
        even_plain: args.even_plain,
        templates: Some(templates).filter(|templates| !templates.is_empty()),
    }])
}

/// What a person did when asked.
enum Typed {
    Value(String),
    Signal(i32),
}

async fn value(name: &SecretName) -> Result<Typed, Fault> {
    let typed = match std::io::stdin().is_terminal() {
        true => ask(name).await?,
        false => {
            let mut text = String::new();
            let read = std::io::stdin().take(MOST).read_to_string(&mut text);
            read.map_err(|error| invalid("standard input holds no text").because(error))?;
            Typed::Value(text)
        }
    };
    Ok(match typed {
        Typed::Value(mut text) => {
            if text.ends_with('\n') {
                text.pop();
                if text.ends_with('\r') {
                    text.pop();
                }
            }
            if text.is_empty() {
                return Err(invalid("there is no value on standard input")
                    .hint(format!("try 'cubicle secrets set {name} < FILE', or type it when asked")));
            }
            Typed::Value(text)
        }
        signal @ Typed::Signal(_) => signal,
    })
}

/// Asks for one line, which the terminal does not show.
async fn ask(name: &SecretName) -> Result<Typed, Fault> {
    // Caught, so that the terminal is given back as it was.
    let mut signals = Signals::catch()?;
    let silence = Silence::keep()?;
    tell(&format!("Value of {name}, which is not shown: "));
    let reading = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|_| line)
    });
    let typed = tokio::select! {
        // The thread goes on reading until the program ends, which is now.
        number = signals.next_ending() => Typed::Signal(number),
        line = reading => {
            let cannot = |error: std::io::Error| invalid("cannot read from the terminal").because(error);
            let line = line.map_err(|error| Fault::new(Kind::Internal, "reading broke off").because(error))?;
            Typed::Value(line.map_err(cannot)?)
        }
    };
    drop(silence);
    tell("\n");
    Ok(typed)
}

fn report(set: &api::Secret) {
    let to = match set.bindings.is_empty() {
        true => "is bound to nothing".to_owned(),
        false => format!("goes to {}", destinations(set)),
    };
    note(&format!("{} has version {} and {to}", set.name, set.version));
    for remark in [&set.because, &set.warning].into_iter().flatten() {
        note(&format!("{}: {remark}", set.name));
    }
}

fn destinations(secret: &api::Secret) -> String {
    let one = |binding: &api::Binding| match binding.port {
        443 => binding.host.clone(),
        port => format!("{}:{port}", binding.host),
    };
    secret.bindings.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn table(secrets: &[api::Secret], now: Timestamp) -> String {
    let mut table =
        Table::new(["NAME", "VERSION", "SOURCE", "GOES TO", "AS", "BASE", "TEMPLATES", "STATE", "CHANGED"]);
    for secret in secrets {
        let source = match &secret.from {
            Some(from) => format!("{} {from}", secret.source),
            None => secret.source.clone(),
        };
        let each = |of: fn(&api::Binding) -> Option<String>| {
            let all: Vec<_> = secret.bindings.iter().filter_map(of).collect();
            or_dash(Some(all.join(", ")).filter(|text| !text.is_empty()))
        };
        table.row([
            secret.name.clone(),
            secret.version.to_string(),
            source,
            or_dash(Some(destinations(secret)).filter(|text| !text.is_empty())),
            each(|binding| Some(binding.form.clone())),
            each(|binding| binding.base.clone()),
            each(|binding| Some(binding.templates.as_ref().map_or("all".into(), |names| names.join(" ")))),
            secret.because.clone().unwrap_or_else(|| "ok".into()),
            or_dash(secret.updated_at.map(|then| ago(then, now))),
        ]);
    }
    table.to_string()
}
