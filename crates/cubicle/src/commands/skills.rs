//! `cubicle skills`: instructions that workers look up.

use std::io::Read;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cubicle_api as api;
use cubicle_model::Fault;

use crate::args::{SkillCreate, Skills};
use crate::context::Context;
use crate::control_plane;
use crate::failure::{Ending, invalid, note};
use crate::table::Table;

/// More than the server takes, so that it is the server that says so.
const MOST: u64 = 16 * 1024 * 1024;

pub(crate) async fn skills(verb: &Skills, context: &Context) -> Result<Ending, Fault> {
    let client = control_plane::client(context)?;
    match verb {
        Skills::List(shape) => {
            let all = client.skills().await?;
            match shape.json {
                true => super::print_json(&all)?,
                false => {
                    super::print(&table(&all))?;
                    for refused in &all.refused {
                        note(&format!("{}: {}", refused.path, refused.why));
                    }
                }
            }
        }
        Skills::Show(args) => {
            let skill = client.skill(&args.name).await?;
            match args.shape.json {
                true => super::print_json(&skill)?,
                false => {
                    super::print(&skill.content)?;
                    for file in &skill.files {
                        note(&format!("it has {} ({} bytes)", file.path, file.size));
                    }
                    skill.warnings.iter().for_each(|warning| note(warning));
                }
            }
        }
        Skills::Create(args) => {
            let made = client.create_skill(&asked(args)?).await?;
            match args.shape.json {
                true => super::print_json(&made)?,
                false => note(&format!("made {}", made.path)),
            }
        }
    }
    Ok(super::DONE)
}

fn asked(args: &SkillCreate) -> Result<api::CreateSkill, Fault> {
    let content = match &args.content {
        Some(path) => read(path)?,
        None => {
            let mut bytes = Vec::new();
            let read = std::io::stdin().take(MOST).read_to_end(&mut bytes);
            read.map_err(|error| invalid("cannot read standard input").because(error))?;
            bytes
        }
    };
    let content = String::from_utf8(content).map_err(|_| invalid("the instructions are no text in UTF-8"))?;
    let files = args.files.iter().map(|(file, path)| {
        let content = STANDARD.encode(read(file)?);
        Ok(api::NewSkillFile { path: path.clone(), content, encoding: Some(api::Encoding::Base64) })
    });
    Ok(api::CreateSkill {
        name: args.name.clone(),
        description: args.description.clone(),
        content,
        files: files.collect::<Result<_, Fault>>()?,
    })
}

fn read(path: &Path) -> Result<Vec<u8>, Fault> {
    let unreadable = |error| invalid(format!("cannot read {}", path.display())).because(error);
    let mut bytes = Vec::new();
    std::fs::File::open(path).and_then(|file| file.take(MOST).read_to_end(&mut bytes)).map_err(unreadable)?;
    Ok(bytes)
}

fn table(all: &api::Skills) -> String {
    let mut table = Table::new(["NAME", "DESCRIPTION", "PATH", "WARNINGS"]);
    for skill in &all.skills {
        table.row([
            skill.name.clone(),
            skill.description.clone(),
            skill.path.clone(),
            match skill.warnings.is_empty() {
                true => "-".into(),
                false => skill.warnings.join("; "),
            },
        ]);
    }
    table.to_string()
}
