//! `cubicle template`: the recipes of sandboxes.

use std::io::Read;
use std::path::Path;

use cubicle_api as api;
use cubicle_model::{Fault, Timestamp};

use crate::args::{Template, TemplatePut};
use crate::context::Context;
use crate::control_plane;
use crate::failure::{Ending, invalid};
use crate::table::{Table, ago, or_dash};

pub(crate) async fn template(verb: &Template, context: &Context) -> Result<Ending, Fault> {
    let client = control_plane::client(context)?;
    match verb {
        Template::Ls(shape) => {
            let templates = client.templates().await?;
            match shape.json {
                true => super::print_json(&templates)?,
                false => super::print(&table(&templates, Timestamp::now()))?,
            }
        }
        Template::Get(args) => super::print_json(&client.template(&args.name).await?)?,
        Template::Put(args) => {
            let recipe = recipe(args)?;
            super::print_json(&client.put_template(&args.name, args.shared, &recipe, None).await?)?;
        }
        Template::Rm(args) => client.delete_template(&args.name, args.shared).await?,
    }
    Ok(super::DONE)
}

fn recipe(args: &TemplatePut) -> Result<api::PutTemplate, Fault> {
    let shown = args.file.display();
    let text = match args.file == Path::new("-") {
        true => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        }
        false => std::fs::read_to_string(&args.file),
    };
    let text = text.map_err(|error| invalid(format!("cannot read {shown}")).because(error))?;
    let bad = |error: String| invalid(format!("{shown} is not a recipe: {error}"));
    match args.file.extension().is_some_and(|extension| extension == "toml") {
        true => toml::from_str(&text).map_err(|error| bad(error.message().to_owned())),
        false => serde_json::from_str(&text).map_err(|error| bad(error.to_string())),
    }
}

fn table(templates: &[api::Template], now: Timestamp) -> String {
    let mut table = Table::new(["NAME", "SHARED", "TRUST", "ISOLATION", "POOL", "VERSION", "CHANGED"]);
    for template in templates {
        let recipe = &template.recipe;
        table.row([
            template.name.clone(),
            if template.shared { "yes" } else { "no" }.into(),
            recipe.trust.to_string(),
            or_dash(recipe.isolation),
            recipe.pool.size.to_string(),
            template.version.to_string(),
            ago(template.updated_at, now),
        ]);
    }
    table.to_string()
}
